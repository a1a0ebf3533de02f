package oncemore

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

const (
	// What a discarded response is drained of at most, so that its connection
	// can be used again: beyond that a new connection is cheaper.
	drainBytes = 64 << 10
	drainTime  = 50 * time.Millisecond
)

// attempt is one send. It is the context of its request, which lives until the
// response body is closed.
type attempt struct {
	context.Context

	call   *call
	number int
	began  time.Time
	limit  time.Duration // how long it may take; 0: as long as it likes
	timer  *time.Timer
	cancel context.CancelCauseFunc // nil: nothing to cancel
	trace  *trace                  // nil: not traced
	req    *http.Request           // as it was sent

	withBody bool
	overall  bool // the limit is what is left of the overall time
	timedOut bool
	late     bool // timed out, and the overall time is over
	retry    bool // if nothing else speaks against it

	resp   *http.Response
	err    error
	reason Reason
	body   attemptBody
	reader bodyReader
}

type attemptKey struct{}

// AttemptNumber returns the number of the attempt that ctx belongs to: 1 on
// the first one, 0 outside of an attempt. It is for transports and hooks below
// this package, for example to put it into a span or a header.
func AttemptNumber(ctx context.Context) int {
	if a, ok := ctx.Value(attemptKey{}).(*attempt); ok {
		return a.number
	}
	return 0
}

// Value makes the attempt its own value.
func (a *attempt) Value(key any) any {
	if key == (attemptKey{}) {
		return a
	}
	return a.Context.Value(key)
}

// attempt makes one attempt and records it. The error says that there was none:
// the call is over.
func (h *hop) attempt() (*attempt, error) {
	a := h.newAttempt()
	if err := h.mayStart(a); err != nil {
		return nil, err
	}
	ctx := a.start(h)
	if err := a.prepare(ctx, h); err != nil {
		a.release()
		return nil, err
	}
	a.receive(h.client.roundTripper().RoundTrip(a.req))
	a.decide(h)
	h.attempts = append(h.attempts, a.record())
	h.observe(EventAttempt, h.req, a.resp, 0)
	return a, nil
}

func (h *hop) newAttempt() *attempt {
	a := &h.first
	if n := len(h.attempts); n > 0 {
		var t *tracedAttempt
		if n == 1 && h.again != nil { // there is none after a redirect
			t = &h.again.second
		} else {
			t = new(tracedAttempt)
		}
		a, t.attempt.trace = &t.attempt, &t.trace
	}
	a.call, a.number, a.withBody, a.began = h.call, len(h.attempts)+1, h.withBody, time.Now()
	return a
}

// mayStart sets the attempt's time, and refuses to begin when there is none.
func (h *hop) mayStart(a *attempt) error {
	if err := h.over(); err != nil {
		return err
	}
	a.limit = max(h.policy.AttemptTimeout, 0)
	if h.overall == 0 {
		return nil
	}
	if left := h.overall - a.began.Sub(h.began); a.limit == 0 || left <= a.limit {
		a.limit, a.overall = left, true
	}
	return nil
}

// over returns why the call's time is over, nil while it is not, and remembers
// it as the reason to stop.
func (h *hop) over() error {
	if err := h.ended(h.req); err != nil {
		return err
	}
	if h.overall == 0 {
		return nil
	}
	gone := time.Since(h.began)
	if gone < h.overall {
		return nil
	}
	h.stop = StopDeadline
	return &timeoutError{gone}
}

// start starts the attempt's clock, and returns the context of its request.
func (a *attempt) start(h *hop) context.Context {
	a.Context = h.call
	if a.limit > 0 {
		a.Context, a.cancel = context.WithCancelCause(h.call)
		a.timer = time.AfterFunc(a.limit, a.expire)
	}
	// A trace tells what was written. It is worth its price where the answer
	// decides, on a retry, and where somebody looks.
	if a.trace == nil && (h.client.observer != nil || !h.safe() && a.limit > 0) {
		a.trace = new(trace)
	}
	if a.trace == nil {
		return a
	}
	if a.trace.WroteHeaders = a.trace.wrote; !h.safe() {
		a.trace.GetConn = a.trace.asked
	}
	return httptrace.WithClientTrace(a, &a.trace.ClientTrace)
}

// tracedAttempt is an attempt and its trace in one allocation.
type tracedAttempt struct {
	attempt attempt
	trace   trace
}

// expire ends the attempt's time.
func (a *attempt) expire() { a.cancel(&timeoutError{a.limit}) }

// safe reports whether the hop's request may be repeated.
func (h *hop) safe() bool { return h.keyed || isIdempotent(h.req.Method) }

// prepare makes the attempt's own request.
func (a *attempt) prepare(ctx context.Context, h *hop) error {
	hook := h.client.beforeAttempt
	switch {
	case hook != nil:
		a.req = h.req.Clone(ctx)
		a.req.Trailer = h.req.Trailer // which the body fills in while it is read
	case a.number > 1:
		a.req = h.req.WithContext(ctx)
		a.req.Header = maps.Clone(a.req.Header) // the attempt before may still be writing its own
	case a.cancel == nil && a.trace == nil:
		a.req, h.bare = h.req, true // nothing to tell the attempt's context from the call's
	default:
		a.req = h.req.WithContext(ctx)
	}
	if h.withBody {
		body, err := h.body.open(&a.reader)
		if err != nil {
			h.stop = StopBody
			return err
		}
		a.req.Body = body
	}
	if hook == nil {
		return nil
	}
	err := hook(a.req, a.number)
	switch {
	case err == nil:
		err = h.over() // a hook takes its time
	case errors.Is(err, endOf(h.req)):
		err = h.ended(h.req) // the hook was cancelled too, and says so
	default:
		h.stop = StopHook
	}
	if err != nil {
		if a.req.Body != nil {
			_ = a.req.Body.Close()
		}
		return err
	}
	if a.req.Header == nil {
		a.req.Header = http.Header{}
	}
	setKey(a.req.Header, h.hopKey())
	a.restart()
	return nil
}

// restart starts the clock again: a hook that fetches a token has a time of its
// own.
func (a *attempt) restart() {
	if a.timer == nil || !a.timer.Stop() {
		return
	}
	if a.overall {
		a.timer.Reset(a.call.overall - time.Since(a.call.began))
		return
	}
	a.timer.Reset(a.limit)
}

// receive takes what the transport returned, and straightens what http.Client
// would.
func (a *attempt) receive(resp *http.Response, err error) {
	switch {
	case err != nil:
		if resp != nil && resp.Body != nil {
			_ = resp.Body.Close() // a transport must not return both; the error counts
		}
		if bad, ok := err.(tls.RecordHeaderError); ok && string(bad.RecordHeader[:]) == "HTTP/" { //nolint:errorlint // as net/http looks at it
			err = http.ErrSchemeMismatch
		}
		a.err = err
	case resp == nil:
	case resp.Body == nil && resp.ContentLength > 0 && a.req.Method != http.MethodHead:
	default:
		if resp.Body == nil {
			resp.Body = http.NoBody
		}
		a.resp = resp
	}
}

// decide classifies the outcome, and reads the response of a keyed request as
// long as the attempt lasts, so that one that is cut off counts as no answer.
func (a *attempt) decide(h *hop) {
	a.classify(h)
	if !a.retry && a.wantsBuffer(h) {
		if err := a.buffer(); err != nil {
			_ = a.resp.Body.Close()
			a.resp, a.err = nil, err
			a.classify(h)
		}
	}
	if a.timer != nil && !a.timer.Stop() {
		a.timedOut, a.late = true, a.overall
		if a.resp != nil {
			_ = a.resp.Body.Close()
			a.resp = nil
		}
		a.classify(h)
	}
	if a.resp == nil {
		a.release()
	}
	if a.resp == nil && a.err == nil {
		a.err = fmt.Errorf("%T returned neither a response nor an error", h.client.roundTripper())
	}
}

func (a *attempt) classify(h *hop) {
	if a.resp == nil && h.withBody {
		a.err = cmp.Or(h.body.failure(), a.err)
	}
	o := outcome{resp: a.resp, err: a.err, ended: endOf(h.req), safe: h.safe()}
	if a.trace != nil {
		o.unsent, o.sent = a.trace.unsent(), a.trace.sends.Load() > 0
	}
	if a.timedOut && o.ended == nil && !isBodyError(a.err) {
		o.err = &timeoutError{a.limit}
	}
	d := o.decide(h.policy.FinalStatuses)
	a.retry, a.reason = d.Retry, d.Reason
	a.err = o.err
	if a.reason == ReasonCanceled && a.resp == nil {
		a.err = withCause(h.Context, o.ended)
	}
}

// wantsBuffer reports whether the response body is to be read inside the
// attempt: that of a keyed request, if it is known to be short.
func (a *attempt) wantsBuffer(h *hop) bool {
	r := a.resp
	if r == nil || !h.keyed || r.Body == http.NoBody || a.req.Method == http.MethodHead {
		return false
	}
	switch r.StatusCode {
	case http.StatusSwitchingProtocols, http.StatusNoContent, http.StatusNotModified:
		return false
	}
	return r.ContentLength > 0 && r.ContentLength <= h.policy.BufferResponse && a.reason != ReasonCanceled
}

// buffer reads the response body to its end, so that trailers are in, too.
func (a *attempt) buffer() error {
	r := a.resp
	buf := make([]byte, r.ContentLength+1)
	n, err := io.ReadFull(r.Body, buf)
	switch {
	case err == nil: // longer than declared: not net/http's, and not ours to judge
		r.Body = joinedBody{io.MultiReader(bytes.NewReader(buf), r.Body), r.Body}
		return nil
	case int64(n) < r.ContentLength && errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	case int64(n) < r.ContentLength || !errors.Is(err, io.ErrUnexpectedEOF):
		return err
	}
	_ = r.Body.Close()
	a.call.buffered = bufferedBody{}
	a.call.buffered.Reset(buf[:n])
	r.Body = &a.call.buffered
	return nil
}

type joinedBody struct {
	io.Reader
	io.Closer
}

// record describes the attempt for those who look at the call.
func (a *attempt) record() Attempt {
	r := Attempt{Number: a.number, Err: a.err, Reason: a.reason, Duration: time.Since(a.began)}
	if a.resp != nil {
		r.Status = a.resp.StatusCode
	}
	if a.trace != nil {
		r.Sends = int(a.trace.sends.Load())
	}
	return r
}

// hand prepares the response for the caller: closing its body ends the
// attempt, and not before.
func (a *attempt) hand() *http.Response {
	r, c := a.resp, a.call
	if callOf(r) == c && r.Request.URL != c.req.URL {
		r.Request = r.Request.WithContext(c) // what a hook or the transport has made of it
	} else {
		r.Request = c.req
	}
	switch {
	case r.Body == http.NoBody && !a.withBody:
		a.release() // there is nothing left to read, nor to send
	case a.cancel == nil && c.cancel == nil:
	default:
		a.body = attemptBody{r.Body, a}
		r.Body = &a.body
		if w, ok := a.body.ReadCloser.(io.Writer); ok && r.StatusCode == http.StatusSwitchingProtocols {
			r.Body = &upgradedBody{&a.body, w}
		}
	}
	return r
}

// release ends the context of the attempt.
func (a *attempt) release() {
	if a.timer != nil {
		a.timer.Stop()
	}
	if a.cancel != nil {
		a.cancel(nil)
	}
}

// discard makes an end of a response that nobody will read.
func (a *attempt) discard() {
	if a.resp != nil {
		drain(a.resp, a.call.Err() == nil)
	}
	a.release()
}

// drain reads what is left of a response, if it is little and comes soon, and
// closes it.
func drain(resp *http.Response, read bool) {
	defer resp.Body.Close()
	if !read || resp.Body == http.NoBody || resp.ContentLength > drainBytes {
		return
	}
	slow := time.AfterFunc(drainTime, func() { _ = resp.Body.Close() })
	defer slow.Stop()
	rest := drainReader{resp.Body, drainBytes + 1, time.Now().Add(drainTime)}
	_, _ = io.Copy(io.Discard, &rest) // a drain that fails loses the connection, not the call
}

// drainReader reads so much, and until then: a body that is not net/http's may
// go on after it has been closed.
type drainReader struct {
	body io.Reader
	left int
	end  time.Time
}

func (r *drainReader) Read(p []byte) (int, error) {
	if r.left <= 0 || !time.Now().Before(r.end) {
		return 0, io.EOF
	}
	n, err := r.body.Read(p[:min(len(p), r.left)])
	r.left -= n
	return n, err
}

// attemptBody ends the attempt when it is closed.
type attemptBody struct {
	io.ReadCloser
	attempt *attempt
}

func (b *attemptBody) Close() error {
	err := b.ReadCloser.Close()
	b.attempt.release()
	if c := b.attempt.call; c.returned && c.cancel != nil {
		c.cancel() // not on a hop that net/http itself closes
	}
	return err
}

// upgradedBody is the body of a 101: it can be written to as well.
type upgradedBody struct {
	*attemptBody
	io.Writer
}

// CloseWrite is what net/http's own body has.
func (b *upgradedBody) CloseWrite() error {
	if w, ok := b.ReadCloser.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return fmt.Errorf("CloseWrite: %w", http.ErrNotSupported)
}

// hasCloser reports whether closing resp's body ends the call.
func hasCloser(resp *http.Response) bool {
	switch resp.Body.(type) {
	case *attemptBody, *upgradedBody:
		return true
	}
	return false
}

// trace sees what net/http does with a request. Its hooks run in other
// goroutines too, and after the attempt.
type trace struct {
	httptrace.ClientTrace

	seen  atomic.Bool // the transport does call hooks: its silence means something
	sends atomic.Int32
}

func (t *trace) asked(string) { t.seen.Store(true) }
func (t *trace) wrote()       { t.sends.Add(1) }

// unsent reports that no request header was written. A transport that calls no
// hooks proves nothing.
func (t *trace) unsent() bool { return t.seen.Load() && t.sends.Load() == 0 }
