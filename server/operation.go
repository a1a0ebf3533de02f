package server

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"sync"
	"sync/atomic"
)

// Operation is what a handler may know of, and say about, the keyed request
// that it runs. [OperationFrom] finds it. Its methods are safe for concurrent
// use.
type Operation struct {
	id       ID
	origin   Token // mixed into downstream keys of an operation without a key
	scope    string
	key      string
	attempt  int
	bodyHash bool

	effect atomic.Bool

	mu       sync.Mutex
	resource resource
	rejected bool // a resource URL was dropped, to be logged
}

// resource is a reference to what an operation made.
type resource struct{ ID, URL string }

// maxReference bounds the parts of a stored reference.
const maxReference = 2048

type operationKey struct{}

// OperationFrom returns the operation that ctx belongs to. ok is false where
// nothing is guarded: other methods, and requests that PassKeyless lets through.
func OperationFrom(ctx context.Context) (op *Operation, ok bool) {
	op, ok = ctx.Value(operationKey{}).(*Operation)
	return op, ok
}

// Key is the idempotency key, without quotes; "" for a request without one that
// BodyHashKeyless guards.
func (o *Operation) Key() string { return o.key }

// Scope is what [Config.Scope] returned.
func (o *Operation) Scope() string { return o.scope }

// Attempt is 1 plus the runs before this one whose owner was lost. A run that
// ended without a result and released its key does not count.
func (o *Operation) Attempt() int { return o.attempt }

// DownstreamKey returns a key for a call that this operation makes to another
// service: the same on every attempt of the operation, another one for every
// label, and of no use for guessing this operation's own key. It is a UUIDv8
// (RFC 9562 section 5.8).
func (o *Operation) DownstreamKey(label string) string {
	buf := make([]byte, 0, 128)
	buf = append(buf, "oncemore downstream key\x00"...)
	buf = append(buf, o.id[:]...)
	if o.bodyHash {
		// After the window the same request is another operation.
		buf = append(buf, o.origin[:]...)
	}
	buf = binary.BigEndian.AppendUint64(buf, uint64(len(label)))
	buf = append(buf, label...)
	sum := sha256.Sum256(buf)
	return uuidv8(sum[:16])
}

// uuidv8 writes sixteen bytes as a UUID of version 8.
func uuidv8(b []byte) string {
	b[6] = b[6]&0x0f | 0x80
	b[8] = b[8]&0x3f | 0x80
	var s [36]byte
	hex.Encode(s[:8], b[:4])
	hex.Encode(s[9:13], b[4:6])
	hex.Encode(s[14:18], b[6:8])
	hex.Encode(s[19:23], b[8:10])
	hex.Encode(s[24:], b[10:])
	s[8], s[13], s[18], s[23] = '-', '-', '-', '-'
	return string(s[:])
}

// SetResource names what the operation made. The record then keeps this
// reference instead of the response body: a replay has the stored status and
// headers, a Link to url for the present state, and the body that
// [Config.Rebuild] makes, or none. The last call counts. A url with a line
// break or ">", and an id or url over 2048 bytes, are dropped and logged.
func (o *Operation) SetResource(id, url string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if strings.ContainsAny(url, "\r\n>") || len(url) > maxReference {
		url, o.rejected = "", true
	}
	if len(id) > maxReference {
		id, o.rejected = "", true
	}
	o.resource = resource{ID: id, URL: url}
}

func (o *Operation) reference() (ref resource, rejected bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.resource, o.rejected
}

// EffectStarted says that from here on the operation may have an effect which
// can't be undone. A panic or a response that is no result then leaves the
// outcome unknown, instead of freeing the key. It is kept in memory: of a
// process that died, nothing is known anyway.
func (o *Operation) EffectStarted() { o.effect.Store(true) }
