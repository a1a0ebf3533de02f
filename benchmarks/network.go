package benchmarks

import (
	"io"
	"net/http"
	"strings"
	"sync"
)

// buffers are for reading bodies: what is measured must not be the reading.
var buffers = sync.Pool{New: func() any {
	b := make([]byte, 32<<10)
	return &b
}}

// answer is what the fake network and the servers send.
const answer = `{"id":"ch_1","status":"paid"}`

// fakeNetwork is a transport that costs nothing but the response. It reads the
// request body to its end, as a connection does.
type fakeNetwork struct {
	failFirst bool // each second request gets a 503 instead, the first one too
	failed    bool // the latest one did
	answered  bool // responses have a body
}

func (f *fakeNetwork) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		err := discard(req.Body)
		_ = req.Body.Close()
		if err != nil {
			return nil, err
		}
	}
	f.failed = f.failFirst && !f.failed
	resp := &http.Response{
		Status: "201 Created", StatusCode: http.StatusCreated,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: http.NoBody, Request: req,
	}
	if f.answered {
		resp.Body, resp.ContentLength = io.NopCloser(strings.NewReader(answer)), int64(len(answer))
	}
	if f.failed {
		resp.Status, resp.StatusCode = "503 Service Unavailable", http.StatusServiceUnavailable
	}
	return resp, nil
}

// newTransport has room for the idle connections of every worker.
func newTransport() *http.Transport {
	return &http.Transport{MaxIdleConnsPerHost: 64}
}
