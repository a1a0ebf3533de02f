package oncemore

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/memhttp"
)

// sent is a request as the server has seen it.
type sent struct {
	method, path, key, body string
	keys                    []string // all values of the header
	length                  int64
	header                  http.Header
	at                      time.Time
}

// script is a server that gives its answers in order; the last one repeats.
type script struct {
	mu      sync.Mutex
	seen    []sent
	answers []http.HandlerFunc
}

func answers(a ...http.HandlerFunc) *script { return &script{answers: a} }

// statuses answers with these statuses in order.
func statuses(codes ...int) *script {
	s := &script{}
	for _, code := range codes {
		s.answers = append(s.answers, status(code))
	}
	return s
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at := time.Now()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		body = fmt.Appendf(body, " (cut off: %v)", err)
	}
	s.mu.Lock()
	n := len(s.seen)
	s.seen = append(s.seen, sent{
		r.Method, r.URL.Path, r.Header.Get(KeyHeader), string(body), r.Header.Values(KeyHeader), r.ContentLength, r.Header.Clone(), at,
	})
	answer := s.answers[min(n, len(s.answers)-1)]
	s.mu.Unlock()
	answer(w, r)
}

func (s *script) requests() []sent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]sent(nil), s.seen...)
}

// gaps returns the times between requests.
func (s *script) gaps() []time.Duration {
	var gaps []time.Duration
	seen := s.requests()
	for i := 1; i < len(seen); i++ {
		gaps = append(gaps, seen[i].at.Sub(seen[i-1].at))
	}
	return gaps
}

// sameOperation fails unless all requests have one key and one body.
func sameOperation(t *testing.T, seen []sent) {
	t.Helper()
	for _, r := range seen {
		assert.Equal(t, seen[0].keys, r.keys)
		assert.Equal(t, sha256.Sum256([]byte(seen[0].body)), sha256.Sum256([]byte(r.body)))
		assert.Equal(t, seen[0].length, r.length)
	}
}

// status answers with a status, headers, and its text as the body.
func status(code int, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(code)
		if code != http.StatusNoContent && code != http.StatusNotModified {
			_, _ = io.WriteString(w, http.StatusText(code))
		}
	}
}

// silence answers nothing until the client has gone.
func silence(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// reset answers nothing and cuts the connection, or the stream.
func reset(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// quick is a policy that does not keep a test waiting, and does not mind a
// busy machine.
func quick() *Policy {
	return &Policy{BaseDelay: time.Millisecond, AttemptTimeout: time.Minute, OverallTimeout: 3 * time.Minute}
}

// stubborn is quick, with many attempts.
func stubborn() *Policy {
	p := quick()
	p.MaxAttempts, p.Budget.Capacity = 9, -1
	return p
}

// env is one form of the client against one server.
type env struct {
	client *Client
	do     func(*http.Request) (*http.Response, error)
	std    bool // it is the StandardClient
	http2  bool
	url    string
}

// request makes a request with the test's context.
func (e env) request(t *testing.T, method, path string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, e.url+path, body)
	require.NoError(t, err)
	return req
}

// send makes a request, sends it, and reads the response.
func (e env) send(t *testing.T, method, path string, body io.Reader) (*http.Response, string) {
	t.Helper()
	resp, err := e.do(e.request(t, method, path, body))
	require.NoError(t, err)
	return resp, read(t, resp)
}

// read reads and closes a response body.
func read(t *testing.T, resp *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return string(body)
}

// forms are the two ways to use a client.
var forms = []string{"Client", "StandardClient"}

func formOf(c *Client, form, url string, http2 bool) env {
	if form == "Client" {
		return env{c, c.Do, false, http2, url}
	}
	return env{c, c.StandardClient().Do, true, http2, url}
}

// everywhere runs a test through both forms, over HTTP/1.1 and HTTP/2, on real
// sockets. The transport of cfg is filled in unless it is there.
func everywhere(t *testing.T, cfg Config, handler func() http.Handler, test func(*testing.T, env, http.Handler)) {
	t.Helper()
	for _, form := range forms {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/HTTP%d", form, 1+b2i(http2)), func(t *testing.T) {
				t.Parallel()
				h := handler()
				srv := startServer(t, h, http2)
				test(t, formOf(newClient(t, cfg, srv), form, srv.URL, http2), h)
			})
		}
	}
}

// scripted is everywhere with a script as the server.
func scripted(t *testing.T, cfg Config, newScript func() *script, test func(*testing.T, env, *script)) {
	t.Helper()
	everywhere(t, cfg, func() http.Handler { return newScript() }, func(t *testing.T, e env, h http.Handler) {
		s, ok := h.(*script)
		require.True(t, ok)
		test(t, e, s)
	})
}

// inBubble runs a test through both forms and both protocols where time is
// fake.
func inBubble(t *testing.T, cfg Config, newScript func() *script, test func(*testing.T, env, *script)) {
	t.Helper()
	for _, form := range forms {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/HTTP%d", form, 1+b2i(http2)), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					s := newScript()
					start := memhttp.New
					if http2 {
						start = memhttp.NewHTTP2
					}
					srv := start(s)
					tr := srv.Transport()
					cfg := cfg
					hc := http.Client{}
					if cfg.HTTPClient != nil {
						hc = *cfg.HTTPClient
					}
					hc.Transport = tr
					cfg.HTTPClient = &hc
					c, err := New(cfg)
					require.NoError(t, err)
					defer func() { // the bubble ends only with them
						tr.CloseIdleConnections()
						_ = srv.Close()
					}()
					test(t, formOf(c, form, memhttp.URL, http2), s)
				})
			})
		}
	}
}

func startServer(t *testing.T, h http.Handler, http2 bool) *httptest.Server {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = silentLog()
	if http2 {
		srv.EnableHTTP2 = true
		srv.StartTLS()
	} else {
		srv.Start()
	}
	t.Cleanup(srv.Close)
	return srv
}

// newClient returns a client of a test server, closed with the test.
func newClient(t *testing.T, cfg Config, srv *httptest.Server) *Client {
	t.Helper()
	hc := http.Client{}
	if cfg.HTTPClient != nil {
		hc = *cfg.HTTPClient
	}
	if hc.Transport == nil && srv != nil {
		tr, ok := srv.Client().Transport.(*http.Transport)
		require.True(t, ok)
		hc.Transport = tr.Clone()
	}
	cfg.HTTPClient = &hc
	c, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// simple is an env over one real HTTP/1.1 server.
func simple(t *testing.T, cfg Config, h http.Handler) env {
	t.Helper()
	srv := startServer(t, h, false)
	return formOf(newClient(t, cfg, srv), "Client", srv.URL, false)
}

// rawServer accepts connections and hands each to serve with its number from
// 0. It returns the address.
func rawServer(t *testing.T, serve func(n int, conn net.Conn)) string {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for n := 0; ; n++ {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			wg.Go(func() {
				defer conn.Close()
				serve(n, conn)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		mu.Lock()
		for _, conn := range conns {
			conn.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return "http://" + ln.Addr().String()
}

// roundTrip is a transport made of a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// answer is a response without a server.
func answer(req *http.Request, code int, body string) *http.Response {
	return &http.Response{
		StatusCode: code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{},
		Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)), Request: req,
	}
}

// failure returns the *Error in err.
func failure(t *testing.T, err error) *Error {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	return e
}

// reasons lists the reasons of attempts.
func reasons(attempts []Attempt) []Reason {
	var list []Reason
	for i, a := range attempts {
		if a.Number != i+1 {
			panic("attempts are not numbered in order")
		}
		list = append(list, a.Reason)
	}
	return list
}

// oneWay is a reader without GetBody.
func oneWay(s string) io.Reader { return struct{ io.Reader }{strings.NewReader(s)} }

// isContextError tells the two ends of a context apart.
func isContextError(err, want error) bool {
	other := context.Canceled
	if errors.Is(want, context.Canceled) {
		other = context.DeadlineExceeded
	}
	return errors.Is(err, want) && !errors.Is(err, other)
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
