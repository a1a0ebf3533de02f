package oncemore

import (
	"bytes"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// requestBody is the body of a call: it gives every attempt a reader of its
// own, from the start, over the same bytes.
//
// A body with GetBody is opened again for each attempt, the first one too, and
// nothing of it is kept: the caller's own reader is left alone, so that the
// same request can be sent twice. Any other body is read once, when the wire
// asks for it, and what was read is kept up to a limit, see spool.
type requestBody struct {
	orig   io.ReadCloser // the caller's; nil: there is no body
	get    func() (io.ReadCloser, error)
	length int64  // what the request declares; 0 or less: unknown
	spool  *spool // without get

	mu       sync.Mutex
	current  *bodyReader // the newest one; of the spool only this one may still read
	finished bool        // there will be no other
	closed   bool        // orig is
	failed   error       // why the caller's reader failed
}

// init takes the body of a request, of which up to keep bytes may be kept.
func (b *requestBody) init(req *http.Request, keep int64) {
	if req.Body == nil || req.Body == http.NoBody {
		return
	}
	b.orig, b.get, b.length = req.Body, req.GetBody, req.ContentLength
	if b.get == nil {
		if b.length > keep {
			keep = 0 // it would not fit
		}
		b.spool = &spool{src: req.Body, keep: keep, length: b.length}
	}
}

// exists reports whether there is a body at all.
func (b *requestBody) exists() bool { return b.orig != nil }

// open makes r the reader of the next attempt. The one before it reads no
// more from the spool: its attempt is over, although the transport may not
// know it yet.
func (b *requestBody) open(r *bodyReader) (io.ReadCloser, error) {
	if err := b.failure(); err != nil {
		return nil, err
	}
	var opened io.ReadCloser
	if b.get != nil {
		rc, err := b.get()
		if err != nil {
			return nil, &bodyError{err}
		}
		if opened = rc; rc == nil {
			opened = http.NoBody
		}
	} else if !b.spool.replayable() {
		return nil, errBodyGone
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.current != nil && b.spool != nil {
		b.current.stop()
	}
	if b.spool == nil && inMemory(opened) == b.length && b.length < minCut {
		b.current = nil
		return opened, nil
	}
	r.body, r.opened = b, opened
	if b.spool != nil {
		r.done = make(chan struct{})
	}
	b.current = r
	return r, nil
}

// inMemory returns how much is left of a body that net/http knows to be in
// memory, -1 for any other. It sends header and body of those in one packet, and
// they can neither fail nor be shorter than they say, so it is better given them
// as they are.
func inMemory(body io.ReadCloser) int64 {
	if t := reflect.TypeOf(body); t != nopCloser && t != nopCloserWriterTo {
		return -1
	}
	switch r := reflect.ValueOf(body).Field(0).Interface().(type) {
	case *bytes.Reader:
		return int64(r.Len())
	case *bytes.Buffer:
		return int64(r.Len())
	case *strings.Reader:
		return int64(r.Len())
	}
	return -1
}

// What io.NopCloser makes. If that changes, bodies are sent in two packets.
var (
	nopCloser         = reflect.TypeOf(io.NopCloser(nil))
	nopCloserWriterTo = reflect.TypeOf(io.NopCloser(new(bytes.Reader)))
)

// replayable reports whether the body can be sent again.
func (b *requestBody) replayable() bool {
	if b.orig == nil {
		return true
	}
	return b.failure() == nil && (b.get != nil || b.spool.replayable())
}

// finish says that there will be no other attempt. The caller's body is closed
// now, or when the last attempt has done with it: a server may have answered
// before it has read all.
func (b *requestBody) finish() {
	if b.orig == nil {
		return
	}
	b.mu.Lock()
	b.finished = true
	idle := b.current == nil || b.current.stopped.Load()
	b.mu.Unlock()
	if idle {
		b.closeOrig()
	}
}

// released is told by a reader that it has been closed.
func (b *requestBody) released(r *bodyReader) {
	b.mu.Lock()
	last := b.finished && b.current == r
	b.mu.Unlock()
	if last {
		b.closeOrig()
	}
}

func (b *requestBody) closeOrig() {
	b.mu.Lock()
	closed := b.closed
	b.closed = true
	b.mu.Unlock()
	if !closed {
		_ = b.orig.Close()
	}
}

// taken is how much the latest attempt has read.
func (b *requestBody) taken() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.current == nil {
		return 0
	}
	return b.current.n.Load()
}

func (b *requestBody) failure() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failed
}

// fail keeps the first failure of the caller's reader: it is final, whatever
// the transport makes of it.
func (b *requestBody) fail(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failed == nil {
		b.failed = &bodyError{err}
	}
	return b.failed
}

// bodyReader is what one attempt reads. It checks the length and tells a
// failure of the caller's reader from one of the connection.
type bodyReader struct {
	body    *requestBody
	opened  io.ReadCloser // from GetBody; nil: the spool
	n       atomic.Int64  // bytes read
	done    chan struct{} // ends a read of the spool; only with one
	stopped atomic.Bool
}

func (r *bodyReader) Read(p []byte) (int, error) {
	if r.stopped.Load() {
		return 0, errBodyClosed
	}
	n, err := r.read(p)
	all, length := r.n.Add(int64(n)), r.body.length
	switch {
	case r.stopped.Load():
		return n, err // what a closed reader says is nobody's fault
	case length > 0 && all > length:
		return 0, r.body.fail(errBodyLong)
	case err == io.EOF && all < length: //nolint:errorlint // readers return io.EOF itself
		return n, r.body.fail(errBodyShort)
	case err != nil && err != io.EOF && err != errBodyGone: //nolint:errorlint // as above
		return n, r.body.fail(err)
	}
	return n, err
}

func (r *bodyReader) read(p []byte) (int, error) {
	if r.opened != nil {
		return r.opened.Read(p)
	}
	return r.body.spool.read(p, r.n.Load(), r.done)
}

// Close may be called while Read waits, as HTTP/2 does, and more than once.
func (r *bodyReader) Close() error {
	if !r.stop() {
		return nil
	}
	var err error
	if r.opened != nil {
		err = r.opened.Close()
	}
	r.body.released(r)
	return err
}

// stop ends reading, and reports whether it had not been ended before.
func (r *bodyReader) stop() bool {
	if r.stopped.Swap(true) {
		return false
	}
	if r.done != nil {
		close(r.done)
	}
	return true
}

// spool reads a source that can be read once, for readers that may each start
// at its beginning. It reads no further than it is asked to, so a body that is
// written while the answer is awaited does not hang; and what it has read it
// keeps, as long as the whole is no longer than keep. From there on only the
// newest reader can go on.
//
// The source is read in a goroutine of its own, so that an attempt whose time
// is over need not wait for a source that has nothing to say. What such a read
// brings in the end is kept for the next attempt: nothing is lost.
type spool struct {
	src    io.Reader
	keep   int64
	length int64

	mu      sync.Mutex
	buf     []byte // bytes of src from base on
	base    int64
	gone    bool          // it was longer than keep
	err     error         // how src ended
	filling chan struct{} // closed when the read under way is over
	chunk   []byte        // what that read reads into
}

// maxSpoolRead is how much is read from the source at once.
const maxSpoolRead = 32 << 10

// replayable reports whether a reader can start at the beginning.
func (s *spool) replayable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.gone
}

// read reads at an offset, until done is closed.
func (s *spool) read(p []byte, off int64, done <-chan struct{}) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		s.mu.Lock()
		at := off - s.base
		switch {
		case at < 0:
			s.mu.Unlock()
			return 0, errBodyGone
		case at < int64(len(s.buf)):
			n := copy(p, s.buf[at:])
			s.mu.Unlock()
			return n, nil
		case s.err != nil:
			s.mu.Unlock()
			return 0, s.err
		}
		filled := s.filling
		if filled == nil {
			filled = make(chan struct{})
			s.filling = filled
			go s.fill(min(len(p), maxSpoolRead), done)
		}
		s.mu.Unlock()
		select {
		case <-filled:
		case <-done:
			return 0, errBodyClosed
		}
	}
}

// fill reads once from the source, for the reader that has taken everything
// that was read before and that ends with done.
func (s *spool) fill(size int, done <-chan struct{}) {
	if cap(s.chunk) < size {
		s.chunk = make([]byte, size)
	}
	n, err := s.src.Read(s.chunk[:size])
	chunk := s.chunk[:max(n, 0)]
	s.mu.Lock()
	defer s.mu.Unlock()
	over := s.gone || int64(len(s.buf)+len(chunk)) > s.keep
	select {
	case <-done:
		over = false // another reader may have to start at the beginning
	default:
	}
	if over && len(chunk) > 0 {
		s.base += int64(len(s.buf))
		if s.buf = s.buf[:0]; !s.gone {
			s.buf = nil // give back what was kept
		}
		s.gone = true
	}
	s.buf = append(slices.Grow(s.buf, s.room(len(chunk))), chunk...)
	s.err = err
	close(s.filling)
	s.filling = nil
}

// room is how much to make room for: all of it, where its length is known.
func (s *spool) room(n int) int {
	if s.base == 0 && len(s.buf) == 0 && s.length > 0 && s.length <= s.keep {
		return int(s.length)
	}
	return n
}

// bufferedBody is a response body that was read inside the attempt.
type bufferedBody struct {
	bytes.Reader
	closed bool
}

func (b *bufferedBody) Read(p []byte) (int, error) {
	if b.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	return b.Reader.Read(p)
}

func (b *bufferedBody) Close() error {
	b.closed = true
	return nil
}
