package oncemoretest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"
)

// Step is what becomes of one request. It may read the request's body, which is
// a copy, and need not close it.
//
// It is an alias, so that the RoundTrip method of any transport is a step, as
// are the responders of github.com/jarcoal/httpmock.
type Step = func(*http.Request) (*http.Response, error)

// Answer answers with a status, a body and pairs of header names and values.
// The response has the body's length as its ContentLength; to a HEAD request it
// has the length and no body. Answer panics if a name has no value.
func Answer(status int, body string, header ...string) Step {
	if len(header)%2 != 0 {
		panic("oncemoretest: Answer with a header name that has no value")
	}
	return func(req *http.Request) (*http.Response, error) {
		resp := &http.Response{
			Status:     fmt.Sprintf("%d %s", status, http.StatusText(status)),
			StatusCode: status,
			Proto:      "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header:        http.Header{},
			Body:          http.NoBody,
			ContentLength: int64(len(body)),
			Request:       req,
		}
		for i := 0; i < len(header); i += 2 {
			resp.Header.Add(header[i], header[i+1])
		}
		if body != "" && req.Method != http.MethodHead {
			resp.Body = io.NopCloser(strings.NewReader(body))
		}
		return resp, nil
	}
}

// Handler answers as h does, for instance a handler of the user's own behind
// the middleware of package server. The answer comes whole when h has returned,
// so a handler that hijacks can't be had; informational responses are dropped.
// The context that h sees ends when h has returned or the request's context has,
// and has none of its values: they stay on the client's side. A panic with
// http.ErrAbortHandler breaks the connection; any other goes on to the caller of
// the client, to be seen.
func Handler(h http.Handler) Step {
	return func(req *http.Request) (resp *http.Response, err error) {
		defer func() {
			switch p := recover(); p {
			case nil:
			case http.ErrAbortHandler:
				err = errReset()
			default:
				panic(p)
			}
		}()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		defer context.AfterFunc(req.Context(), cancel)()
		rec := httptest.NewRecorder()
		h.ServeHTTP(finalOnly{rec}, arrived(ctx, req)) //nolint:contextcheck // a server's context is not the client's
		return answered(rec, req), nil
	}
}

// arrived is a request as a server sees it.
func arrived(ctx context.Context, req *http.Request) *http.Request {
	r := req.Clone(ctx)
	r.Method = cmp.Or(req.Method, http.MethodGet)
	r.Host = cmp.Or(req.Host, req.URL.Host)
	r.RequestURI = req.URL.RequestURI()
	r.URL = &url.URL{Path: req.URL.Path, RawPath: req.URL.RawPath, RawQuery: req.URL.RawQuery, ForceQuery: req.URL.ForceQuery}
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.1", 1, 1
	r.RemoteAddr = "192.0.2.1:1234" // the one of httptest.NewRequest
	r.GetBody = nil
	switch {
	case r.Body == nil:
		r.Body = http.NoBody
	case r.Body != http.NoBody && r.ContentLength == 0:
		r.ContentLength = -1 // unknown: to a server, 0 is none
	}
	return r
}

// finalOnly drops informational responses, of which the recorder would take the
// first for the answer.
type finalOnly struct{ *httptest.ResponseRecorder }

func (w finalOnly) WriteHeader(status int) {
	if status < 100 || status >= 200 || status == http.StatusSwitchingProtocols {
		w.ResponseRecorder.WriteHeader(status)
	}
}

// answered is a handler's response as a client sees it: net/http finds out the
// length of a short one by itself.
func answered(rec *httptest.ResponseRecorder, req *http.Request) *http.Response {
	const short = 2048
	resp := rec.Result()
	if resp.ContentLength < 0 && !rec.Flushed && rec.Body.Len() <= short {
		resp.ContentLength = int64(rec.Body.Len())
	}
	if req.Method == http.MethodHead {
		resp.Body = http.NoBody
	}
	return resp
}

// Reset breaks the connection before the server has done anything. The error is
// the *net.OpError of a read that met ECONNRESET: it proves nothing about what
// the server did, which makes it the same as that of [Lost].
func Reset(*http.Request) (*http.Response, error) { return nil, errReset() }

func errReset() error {
	return &net.OpError{
		Op: "read", Net: "tcp", Source: clientAddr, Addr: serverAddr,
		Err: os.NewSyscallError("read", syscall.ECONNRESET),
	}
}

// Addresses for documentation (RFC 5737).
var (
	clientAddr = &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1234}
	serverAddr = &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 443}
)

// Lost lets the server do its work, and breaks the connection as [Reset] does
// before the answer arrives. An error of step is returned as it is.
func Lost(step Step) Step {
	return func(req *http.Request) (*http.Response, error) {
		resp, err := step(req)
		if err != nil {
			return nil, err
		}
		closeBody(resp)
		return nil, errReset()
	}
}

// Cut lets the head of the answer and half of its body arrive. After that half,
// Read fails with io.ErrUnexpectedEOF. The work is done. Cut panics if the
// answer has no body.
func Cut(step Step) Step {
	return func(req *http.Request) (*http.Response, error) {
		resp, err := step(req)
		if err != nil {
			return nil, err
		}
		var body []byte
		if resp.Body != nil {
			body, err = io.ReadAll(resp.Body)
			closeBody(resp)
		}
		switch {
		case err != nil:
			return nil, err
		case len(body) == 0:
			panic("oncemoretest: Cut of an answer that has no body")
		}
		half := body[:len(body)/2]
		resp.Body = io.NopCloser(io.MultiReader(bytes.NewReader(half), broken{}))
		return resp, nil
	}
}

// broken is the rest of a body that does not come.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// Delay lets the server do its work at once, and holds the answer back for d: a
// client that gives up before does not know what was done. It then gets the
// cause of its context's end, as from net/http. An error of step is held back
// as well.
func Delay(d time.Duration, step Step) Step {
	return func(req *http.Request) (*http.Response, error) {
		resp, err := step(req)
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return resp, err
		case <-req.Context().Done():
			closeBody(resp)
			return nil, context.Cause(req.Context())
		}
	}
}

func closeBody(resp *http.Response) {
	if resp != nil && resp.Body != nil {
		_ = resp.Body.Close()
	}
}

var errNoResponse = errors.New("oncemoretest: the step returned neither a response nor an error")
