package oncemore

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// fakeServer answers at once, with 503 to the first fail sends of each ten.
type fakeServer struct{ fail, n int }

func (f *fakeServer) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_, _ = io.Copy(io.Discard, req.Body)
		_ = req.Body.Close()
	}
	code := http.StatusOK
	if f.n++; f.fail > 0 && f.n%2 == 1 {
		code = http.StatusServiceUnavailable
	}
	return &http.Response{StatusCode: code, Header: http.Header{}, Body: http.NoBody, Request: req}, nil
}

// timeless is the default policy with both timeouts off.
func timeless() *Policy {
	return &Policy{AttemptTimeout: -1, OverallTimeout: -1, BaseDelay: 1, MaxDelay: 1}
}

var kilobyte = []byte(strings.Repeat("x", 1024))

type doer func(*http.Request) (*http.Response, error)

// allocations runs calls of one kind, and reports what each allocates.
func allocations(b *testing.B, do doer, method string, change func(*http.Request)) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		var body io.Reader
		if method == http.MethodPost {
			body = bytes.NewReader(kilobyte)
		}
		req, err := http.NewRequestWithContext(b.Context(), method, "http://pay.example/v1/charges", body)
		if err != nil {
			b.Fatal(err)
		}
		if change != nil {
			change(req)
		}
		resp, err := do(req)
		if err != nil {
			b.Fatal(err)
		}
		_ = resp.Body.Close()
	}
}

func benchClient(b *testing.B, p *Policy, rt http.RoundTripper) doer {
	b.Helper()
	c, err := New(Config{Policy: p, HTTPClient: &http.Client{Transport: rt}})
	if err != nil {
		b.Fatal(err)
	}
	return c.Do
}

func withKeyHeader(req *http.Request) { req.Header.Set(KeyHeader, "a-key-of-the-callers-own") }

// The floor is plain net/http over the same transport; the difference is what
// the client costs.
func BenchmarkGET(b *testing.B) {
	b.Run("plain", func(b *testing.B) {
		allocations(b, (&http.Client{Transport: &fakeServer{}}).Do, http.MethodGet, nil)
	})
	b.Run("timeouts off", func(b *testing.B) {
		allocations(b, benchClient(b, timeless(), &fakeServer{}), http.MethodGet, nil)
	})
	b.Run("default", func(b *testing.B) {
		allocations(b, benchClient(b, nil, &fakeServer{}), http.MethodGet, nil)
	})
}

func BenchmarkPOST(b *testing.B) {
	b.Run("plain", func(b *testing.B) {
		allocations(b, (&http.Client{Transport: &fakeServer{}}).Do, http.MethodPost, nil)
	})
	b.Run("plain, with a header", func(b *testing.B) {
		allocations(b, (&http.Client{Transport: &fakeServer{}}).Do, http.MethodPost, withKeyHeader)
	})
	b.Run("own key, timeouts off", func(b *testing.B) {
		allocations(b, benchClient(b, timeless(), &fakeServer{}), http.MethodPost, withKeyHeader)
	})
	b.Run("keys off, timeouts off", func(b *testing.B) {
		p := timeless()
		p.KeyMethods = []string{}
		allocations(b, benchClient(b, p, &fakeServer{}), http.MethodPost, nil)
	})
	b.Run("new key, timeouts off", func(b *testing.B) {
		allocations(b, benchClient(b, timeless(), &fakeServer{}), http.MethodPost, nil)
	})
	b.Run("new key, default", func(b *testing.B) {
		allocations(b, benchClient(b, nil, &fakeServer{}), http.MethodPost, nil)
	})
	b.Run("one retry, timeouts off", func(b *testing.B) {
		allocations(b, benchClient(b, timeless(), &fakeServer{fail: 1}), http.MethodPost, nil)
	})
	b.Run("two plain calls", func(b *testing.B) {
		do := (&http.Client{Transport: &fakeServer{}}).Do
		allocations(b, func(req *http.Request) (*http.Response, error) {
			again := req.Clone(req.Context())
			again.Body, _ = req.GetBody()
			if _, err := do(again); err != nil {
				return nil, err
			}
			return do(req)
		}, http.MethodPost, nil)
	})
}

// BenchmarkUpload sends 16 MiB: opened again nothing of it is kept, and read
// once it is streamed.
func BenchmarkUpload(b *testing.B) {
	content := make([]byte, 16<<20)
	for name, newBody := range map[string]func() io.Reader{
		"bytes.Reader": func() io.Reader { return bytes.NewReader(content) },
		"one way":      func() io.Reader { return struct{ io.Reader }{bytes.NewReader(content)} },
	} {
		b.Run(name, func(b *testing.B) {
			do := benchClient(b, timeless(), &fakeServer{})
			b.ReportAllocs()
			b.SetBytes(int64(len(content)))
			for b.Loop() {
				req, err := http.NewRequestWithContext(b.Context(), http.MethodPut, "http://x.example", newBody())
				if err != nil {
					b.Fatal(err)
				}
				resp, err := do(req)
				if err != nil {
					b.Fatal(err)
				}
				_ = resp.Body.Close()
			}
		})
	}
}

func BenchmarkBackoff(b *testing.B) {
	p := DefaultPolicy()
	for b.Loop() {
		delays := newDelays(p)
		_, _ = waitAfter(nil, shake(delays.NextBackOff(), p.Jitter), p)
	}
	_ = time.Second
}
