package server_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
)

// dial opens a connection to a real server.
func dial(t *testing.T, srv *httptest.Server) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", srv.Listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	return conn
}

// readAnswer reads one answer, to its last byte.
func readAnswer(t *testing.T, r *bufio.Reader) (*http.Response, string) {
	t.Helper()
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodPost})
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, string(body)
}

// chunked is a body as it is sent in chunks.
func chunked(body string) string {
	var b strings.Builder
	for len(body) > 0 {
		n := min(len(body), 8<<10)
		fmt.Fprintf(&b, "%x\r\n%s\r\n", n, body[:n])
		body = body[n:]
	}
	return b.String() + "0\r\n\r\n"
}

// A client that sends all of its body before it reads has to get the refusal,
// not a connection that was reset: nginx asks an upstream with Connection:
// close, and a client that retries takes the reset for a lost answer.
func TestRefusalsReachWhoStillSends(t *testing.T) {
	t.Parallel()
	m := newMiddleware(t, func(c *server.Config) {
		c.MaxRequestBody = 512 << 10
		c.Scope = func(r *http.Request) (string, error) {
			if r.Header.Get("X-Fail") != "" {
				return "", &server.StatusError{Status: 401, Err: errors.New("no")}
			}
			return "acme", nil
		}
	})
	srv := httptest.NewUnstartedServer(m.Wrap(&counter{}))
	small := func(c net.Conn) { // so that bytes unread are bytes unsent
		tcp, ok := c.(*net.TCPConn)
		require.True(t, ok)
		require.NoError(t, errors.Join(tcp.SetReadBuffer(16<<10), tcp.SetWriteBuffer(16<<10)))
	}
	srv.Config.ConnState = func(c net.Conn, state http.ConnState) {
		if state == http.StateNew {
			small(c)
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	_, _ = call(t, srv, "used", "{}")
	for name, tt := range map[string]struct {
		header string
		size   int
		word   string
	}{
		"missing":               {"", 200 << 10, "missing"},
		"malformed":             {"Idempotency-Key: a b\r\n", 200 << 10, "malformed"},
		"scope":                 {"Idempotency-Key: k\r\nX-Fail: 1\r\n", 200 << 10, "scope"},
		"mismatch":              {"Idempotency-Key: used\r\n", 512 << 10, "mismatch"},
		"a little too large":    {"Idempotency-Key: k\r\n", 512<<10 + 1, "too-large"},
		"a good deal too large": {"Idempotency-Key: k\r\n", 512<<10 + 250<<10, "too-large"},
	} {
		for _, connection := range []string{"close", "keep-alive"} {
			for _, how := range []string{"length", "chunks"} {
				t.Run(name+", "+connection+", "+how, func(t *testing.T) {
					t.Parallel()
					body := strings.Repeat("x", tt.size)
					conn := dial(t, srv)
					small(conn)
					length := fmt.Sprintf("Content-Length: %d\r\n", tt.size)
					if how == "chunks" {
						length, body = "Transfer-Encoding: chunked\r\n", chunked(body)
					}
					_, err := fmt.Fprintf(conn, "POST /charges HTTP/1.1\r\nHost: x\r\nConnection: %s\r\n%s%s\r\n%s", connection, length, tt.header, body)
					require.NoError(t, err, "the connection was reset")
					resp, text := readAnswer(t, bufio.NewReader(conn))
					assert.Equal(t, tt.word, resp.Header.Get("Idempotency-Status"))
					assert.Contains(t, text, `"code":"`+tt.word+`"`)
				})
			}
		}
	}
}

// The same where the body is longer than what is read of it: the connection
// stays until a client that reads while it sends has the refusal.
func TestRefusalsReachWhoSendsALot(t *testing.T) {
	t.Parallel()
	srv := live(t, newMiddleware(t, func(c *server.Config) { c.MaxRequestBody = 64 << 10 }).Wrap(&counter{}))
	for key, word := range map[string]string{"k": "too-large", "": "missing"} {
		for range 5 {
			resp, _ := call(t, srv, key, strings.Repeat("x", 8<<20), func(r *http.Request) { r.Close = true })
			assert.Equal(t, word, resp.Header.Get("Idempotency-Status"))
		}
	}
}

func TestAConnectionSurvivesARefusal(t *testing.T) {
	t.Parallel()
	srv := live(t, newMiddleware(t, nil).Wrap(&counter{}))
	conn := dial(t, srv)
	r := bufio.NewReader(conn)
	body := strings.Repeat("x", 100<<10)
	for i, key := range []string{"a b", "k", "k"} {
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nIdempotency-Key: %s\r\n\r\n%s", len(body), key, body)
		resp, _ := readAnswer(t, r)
		assert.Equal(t, []string{"malformed", "executed", "replayed"}[i], resp.Header.Get("Idempotency-Status"))
	}
}

// Who asks before sending is answered; a body that is refused is not asked for.
func TestExpectContinue(t *testing.T) {
	t.Parallel()
	srv := live(t, newMiddleware(t, nil).Wrap(&counter{}))
	transport, ok := srv.Client().Transport.(*http.Transport)
	require.True(t, ok)
	transport.ExpectContinueTimeout = 10 * time.Second
	for _, tt := range []struct {
		key, word string
		length    int
	}{{"k", "executed", 5}, {"k", "replayed", 5}, {"a b", "malformed", 5}, {"k2", "too-large", 2 << 20}} {
		resp, _ := call(t, srv, tt.key, strings.Repeat("x", tt.length), func(r *http.Request) { r.Header.Set("Expect", "100-continue") })
		assert.Equal(t, tt.word, resp.Header.Get("Idempotency-Status"))
	}
}

func TestABodyThatStopsComing(t *testing.T) {
	t.Parallel()
	h := &counter{}
	store := newFaulty(newMemory())
	srv := httptest.NewUnstartedServer(newMiddlewareOver(t, store, nil).Wrap(h))
	srv.Config.ReadTimeout = 200 * time.Millisecond
	srv.Start()
	t.Cleanup(srv.Close)
	conn := dial(t, srv)
	fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\nIdempotency-Key: k\r\n\r\nonly this")
	resp, _ := readAnswer(t, bufio.NewReader(conn))
	assert.Equal(t, "malformed", resp.Header.Get("Idempotency-Status"))
	assert.Zero(t, store.count("Claim"))
	assert.Zero(t, h.runs.Load())
}

// The client leaves over a real connection: the run is not undone, and its
// retry gets the answer.
func TestTheConnectionBreaksAndTheRunGoesOn(t *testing.T) {
	t.Parallel()
	h := &counter{}
	began := make(chan struct{}, 1)
	srv := live(t, newMiddleware(t, nil).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		time.Sleep(100 * time.Millisecond)
		assert.NoError(t, r.Context().Err())
		h.ServeHTTP(w, r)
	})))
	conn := dial(t, srv)
	fmt.Fprint(conn, "POST /charges HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nIdempotency-Key: k\r\n\r\n{}")
	<-began
	conn.Close()
	resp, body := call(t, srv, "k", "{}", func(r *http.Request) { r.Header.Del("Content-Type") })
	assert.Equal(t, "replayed", resp.Header.Get("Idempotency-Status"))
	assert.Contains(t, body, `"charge":1`)
	assert.EqualValues(t, 1, h.runs.Load())
}

// A waiter over a real connection whose client leaves does not stay.
func TestAWaitersConnectionBreaks(t *testing.T) {
	t.Parallel()
	began, release := make(chan struct{}), make(chan struct{})
	var seen events
	srv := live(t, newMiddleware(t, func(c *server.Config) { c.Observer = seen.observe }).Wrap(http.HandlerFunc(
		func(http.ResponseWriter, *http.Request) { close(began); <-release })))
	request := "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nIdempotency-Key: k\r\n\r\n{}"
	first, second := dial(t, srv), dial(t, srv)
	fmt.Fprint(first, request)
	<-began
	fmt.Fprint(second, request)
	time.Sleep(50 * time.Millisecond)
	second.Close()
	require.Eventually(t, func() bool { return len(seen.of(server.EventInProgress)) == 1 }, 5*time.Second, 5*time.Millisecond)
	close(release)
	resp, _ := readAnswer(t, bufio.NewReader(first))
	assert.Equal(t, "executed", resp.Header.Get("Idempotency-Status"))
}

// The connection breaks within the body, and the retry gets all of it.
func TestAnAnswerThatWasCutOffIsReplayedInFull(t *testing.T) {
	t.Parallel()
	body := strings.Repeat("0123456789", 5000)
	srv := live(t, newMiddleware(t, nil).Wrap(&textHandler{body, nil}))
	conn := dial(t, srv)
	fmt.Fprint(conn, "POST /charges HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nIdempotency-Key: k\r\n\r\n{}")
	_, err := io.ReadFull(conn, make([]byte, 1000))
	require.NoError(t, err)
	conn.Close()
	resp, again := call(t, srv, "k", "{}")
	assert.Equal(t, "replayed", resp.Header.Get("Idempotency-Status"))
	assert.Equal(t, body, again)
}

func TestTheWaitIsAnsweredBeforeTheWriteTimeout(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	began := make(chan struct{}, 1)
	srv := httptest.NewUnstartedServer(newMiddleware(t, nil).Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		began <- struct{}{}
		<-release
	})))
	srv.Config.WriteTimeout = 400 * time.Millisecond
	srv.Start()
	t.Cleanup(srv.Close)
	request := "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nIdempotency-Key: k\r\n\r\n{}"
	fmt.Fprint(dial(t, srv), request)
	<-began
	second := dial(t, srv)
	fmt.Fprint(second, request)
	resp, _ := readAnswer(t, bufio.NewReader(second))
	assert.Equal(t, 409, resp.StatusCode)
	assert.NotEmpty(t, resp.Header.Get("Retry-After"))
	close(release)
}

// HTTP/2 with TLS, for the parts that differ: no Hijack, resets of streams.
func TestHTTP2(t *testing.T) {
	t.Parallel()
	h := &counter{}
	srv := httptest.NewUnstartedServer(newMiddleware(t, nil).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _, err := http.NewResponseController(w).Hijack()
		assert.Error(t, err)
		h.ServeHTTP(w, r)
	})))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	first, body := call(t, srv, "k", "{}")
	assert.Equal(t, 2, first.ProtoMajor)
	assert.Equal(t, "executed", first.Header.Get("Idempotency-Status"))
	again, body2 := call(t, srv, "k", "{}")
	assert.Equal(t, "replayed", again.Header.Get("Idempotency-Status"))
	assert.Equal(t, body, body2)
	resp, _ := call(t, srv, "k2", strings.Repeat("x", 2<<20))
	assert.Equal(t, 413, resp.StatusCode)
	resp, _ = call(t, srv, "k2", strings.Repeat("x", 2<<20), func(r *http.Request) { r.ContentLength = -1 })
	assert.Equal(t, 413, resp.StatusCode)
	assert.EqualValues(t, 1, h.runs.Load())
}
