package oncemoretest

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync"
	"time"

	"github.com/oncemore-go/oncemore"
)

// Transport is an http.RoundTripper that follows a script and keeps what was
// sent. The zero Transport answers everything with 200. It may be used by many
// goroutines at once; the steps are taken in the order in which requests come,
// so calls that run side by side are better given a Transport each.
type Transport struct {
	steps []Step

	mu   sync.Mutex
	sent []Request
}

var _ http.RoundTripper = (*Transport)(nil)

// NewTransport returns a transport that does the first step with the first
// request, the second with the second, and so on. The last one repeats: what
// the network has come to, it stays.
func NewTransport(steps ...Step) *Transport {
	return &Transport{steps: slices.Clone(steps)}
}

// Request is what was sent.
type Request struct {
	Method string
	URL    string
	Header http.Header // with the key
	Key    string      // the Idempotency-Key, "" if there was none
	Body   string
	At     time.Time // when it was sent

	// Attempt is oncemore.AttemptNumber: it tells where a new call begins. 0
	// if another client sent it.
	Attempt int
}

// RoundTrip reads the whole request body, keeps the request, and does the next
// step. A request whose context has ended is not sent, nor is one whose body
// fails: it is not kept, and takes no step.
//
// The httptrace hooks GetConn, WroteHeaders and WroteRequest are called, so
// that a client which counts what it wrote finds that out.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := readBody(req)
	if err != nil {
		return nil, err
	}
	step := t.take(Request{
		Method: cmp.Or(req.Method, http.MethodGet), URL: req.URL.String(), Header: req.Header.Clone(),
		Key: req.Header.Get(oncemore.KeyHeader), Body: string(body), At: time.Now(),
		Attempt: oncemore.AttemptNumber(req.Context()),
	})
	wrote(req)

	r := req.Clone(req.Context()) // ours, so that a step can't change the caller's
	r.Body = http.NoBody
	if len(body) > 0 {
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	resp, err := step(r)
	err = cmp.Or(context.Cause(req.Context()), err) // who has gone gets no answer
	switch {
	case err != nil:
		closeBody(resp)
		return nil, err
	case resp == nil:
		return nil, errNoResponse
	}
	resp.Request = req
	return resp, nil
}

// readBody reads and closes the body, as a RoundTripper must in any case.
func readBody(req *http.Request) ([]byte, error) {
	if req.Body == nil {
		return nil, context.Cause(req.Context())
	}
	defer req.Body.Close()
	if err := context.Cause(req.Context()); err != nil {
		return nil, err
	}
	return io.ReadAll(req.Body)
}

// take keeps a request, and returns the step that it gets.
func (t *Transport) take(r Request) Step {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sent = append(t.sent, r)
	if len(t.steps) == 0 {
		return Answer(http.StatusOK, "")
	}
	return t.steps[min(len(t.sent), len(t.steps))-1]
}

// Sent returns the requests that were sent until now, in order.
func (t *Transport) Sent() []Request {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.sent)
}

// wrote tells the trace of a request that it was written.
func wrote(req *http.Request) {
	trace := httptrace.ContextClientTrace(req.Context())
	if trace == nil {
		return
	}
	if trace.GetConn != nil {
		trace.GetConn(req.URL.Host)
	}
	if trace.WroteHeaders != nil {
		trace.WroteHeaders()
	}
	if trace.WroteRequest != nil {
		trace.WroteRequest(httptrace.WroteRequestInfo{})
	}
}
