package oncemore

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
)

// KeyHeader is the header that carries the idempotency key: the same value on
// every attempt of a call, so that the server can tell a retry from a new
// operation.
const KeyHeader = "Idempotency-Key"

// replayedHeader marks an answer that the server had stored.
const replayedHeader = "Idempotency-Replayed"

// maxKeyLength is the longest key that is sent.
const maxKeyLength = 255

// NewKey returns a fresh key, a UUIDv7 (RFC 9562 section 5.7): unique, hard to
// guess, and with the time in it, so that a server can tell how old it is even
// after it has forgotten it. It is what Config.NewKey defaults to.
func NewKey() string {
	// Not uuid.NewV7: that one never goes back, so once a clock that was ahead
	// has been set right its keys would claim a future for as long as the
	// process lives, and servers refuse those.
	id := uuid.New()
	low := binary.BigEndian.Uint64(id[:8]) & 0xffff
	binary.BigEndian.PutUint64(id[:8], uint64(time.Now().UnixMilli())<<16|low)
	id[6] = id[6]&0x0f | 7<<4
	return id.String()
}

// KeyFor returns the key of an operation that the caller can name again after
// a crash: the same parts in the same order always give the same UUID. The
// parts must name one operation of one caller, for example a tenant, a kind
// and an order number. Their borders count: KeyFor("a", "bc") differs from
// KeyFor("ab", "c").
//
// The key can't be traced back to its parts, but whoever can guess them can
// compute it. It holds no time, so a server that has forgotten it takes it for
// new.
func KeyFor(operation ...string) string {
	var named []byte
	for _, part := range operation {
		named = binary.BigEndian.AppendUint64(named, uint64(len(part)))
		named = append(named, part...)
	}
	return uuid.NewHash(sha256.New(), keySpace, named, 8).String()
}

// keySpace is the UUID namespace of KeyFor. Changing it would change every
// key, and break the recovery of operations that are under way.
var keySpace = uuid.MustParse("5b2f3f0e-8f0c-4c7e-9f43-0c1f6a0d7e51")

type withKey struct{}

// WithKey returns a context in which a call sends this key; "" sends none. It
// acts on the methods in Policy.KeyMethods only, and a key header that is
// already on the request wins over it.
//
// The context is for one operation. Two different requests made with it would
// carry one key, and a server answers the second with an error at best. It is
// not handed on to hooks and transports below the call.
func WithKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, withKey{}, key)
}

type withoutRetry struct{}

// WithoutRetry returns a context in which a call is one attempt. It still has
// its key, so that the caller can send the request again by its own means.
func WithoutRetry(ctx context.Context) context.Context {
	return context.WithValue(ctx, withoutRetry{}, true)
}

// KeyOf returns the key of the call that resp answers, also where the last hop
// of a redirect carried it no more; "" if the call had none, or if resp does
// not come from this package.
func KeyOf(resp *http.Response) string {
	if c := callOf(resp); c != nil {
		return c.key
	}
	return ""
}

// Replayed reports whether the server says that this is a stored answer: the
// operation had been done by an earlier request with the same key.
func Replayed(resp *http.Response) bool {
	return resp != nil && strings.EqualFold(strings.TrimSpace(resp.Header.Get(replayedHeader)), "true")
}

// findKey returns the key of a new call: the header that is on the request,
// else WithKey, else Config.NewKey; "" for none.
func (c *call) findKey(req *http.Request, p *Policy) (string, error) {
	key, found, err := headerKey(req.Header)
	if err != nil || found {
		return key, err
	}
	if !p.keyed(req.Method) {
		return "", nil
	}
	if key, found := c.Context.Value(withKey{}).(string); found {
		if key == "" {
			return "", nil
		}
		return key, checkKey(key)
	}
	if c.client.newKey == nil {
		return NewKey(), nil
	}
	key, err = c.client.newKey(req)
	if err == nil {
		err = checkKey(key)
	}
	if err != nil {
		c.stop = StopHook
		return "", fmt.Errorf("new key: %w", err)
	}
	return key, nil
}

// headerKey returns the key in h, however its name is spelled.
func headerKey(h http.Header) (key string, found bool, err error) {
	for name, values := range h {
		if !isKeyHeader(name) {
			continue
		}
		if found || len(values) != 1 {
			return "", false, errKeyCount
		}
		key, found = values[0], true
	}
	if !found {
		return "", false, nil
	}
	return key, true, checkKey(key)
}

// setKey puts the key on a request that is ours to change; "" takes off what
// is there.
func setKey(h http.Header, key string) {
	if values := h[KeyHeader]; key != "" && len(values) == 1 && values[0] == key {
		return
	}
	for name := range h {
		if isKeyHeader(name) {
			delete(h, name)
		}
	}
	if key != "" {
		h[KeyHeader] = []string{key}
	}
}

func isKeyHeader(name string) bool {
	return name == KeyHeader || len(name) == len(KeyHeader) && strings.EqualFold(name, KeyHeader)
}

var (
	errKeyCount = errors.New("the idempotency key is not a single header value")
	errKeyForm  = errors.New("the idempotency key is not 1 to 255 visible ASCII characters")
)

// checkKey returns an error unless key has the form that a server must be able
// to take. The error does not hold the key.
func checkKey(key string) error {
	if key == "" || len(key) > maxKeyLength {
		return errKeyForm
	}
	for i := range len(key) {
		if key[i] < 0x21 || key[i] > 0x7E {
			return errKeyForm
		}
	}
	return nil
}

// keyHash names a key in a log: enough to match lines, not to be used.
func keyHash(key string) string {
	if key == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(key))
	return fmt.Sprintf("%x", sum[:8])
}
