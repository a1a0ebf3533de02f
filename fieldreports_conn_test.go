package oncemore

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/memhttp"
)

// The recipes about connections, timeouts, statuses and responses.

// wire is a raw server that records the requests it reads.
type wire struct {
	mu   sync.Mutex
	keys []string
}

func (w *wire) read(r *bufio.Reader) error {
	req, err := http.ReadRequest(r)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, req.Body); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keys = append(w.keys, req.Header.Get(KeyHeader))
	return nil
}

func (w *wire) seen() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.keys...)
}

const okReply = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// rawClient is a client with a plain transport for a raw server.
func rawClient(t *testing.T, p *Policy) *Client {
	t.Helper()
	return newClient(t, Config{HTTPClient: &http.Client{Transport: &http.Transport{}}, Policy: p}, nil)
}

func TestB054_KeepAliveThatHasJustBeenClosed(t *testing.T) {
	t.Parallel()
	for _, form := range forms {
		for _, newBody := range []func() io.Reader{func() io.Reader { return strings.NewReader("x") }, func() io.Reader { return oneWay("x") }} {
			w := &wire{}
			url := rawServer(t, func(n int, conn net.Conn) {
				r := bufio.NewReader(conn)
				for i := range 2 {
					if w.read(r) != nil || n == 0 && i == 1 {
						return
					}
					_, _ = io.WriteString(conn, okReply)
				}
			})
			do := formOf(rawClient(t, quick()), form, url, false).do
			for range 2 {
				resp, err := do(requestTo(t, http.MethodPost, url, newBody()))
				require.NoError(t, err)
				assert.Equal(t, "ok", read(t, resp))
			}
			keys := w.seen()
			require.Len(t, keys, 3)
			assert.NotEqual(t, keys[0], keys[1])
			assert.Equal(t, keys[1], keys[2])
			assert.NotEmpty(t, keys[1])
		}
	}
}

func TestB056_StreamLimit(t *testing.T) {
	t.Parallel()
	srv := newH2Server(t, 1, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		time.Sleep(time.Millisecond)
	}))
	p := stubborn()
	p.BaseDelay = 20 * time.Millisecond
	c := newClient(t, Config{Policy: p}, srv)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			resp, err := c.Post(srv.URL, "text/plain", oneWay("x"))
			if assert.NoError(t, err) {
				assert.Equal(t, 200, resp.StatusCode)
				_ = resp.Body.Close()
			}
		})
	}
	wg.Wait()
}

func TestB059_HiddenResendsHaveTheSameKey(t *testing.T) {
	t.Parallel()
	w := &wire{}
	url := rawServer(t, func(n int, conn net.Conn) {
		r := bufio.NewReader(conn)
		if w.read(r) != nil {
			return
		}
		if n == 0 {
			_, _ = io.WriteString(conn, okReply)
			_ = w.read(r) // and no answer to the second one
		}
	})
	c := newClient(t, Config{
		HTTPClient: &http.Client{Transport: &http.Transport{}}, Policy: &Policy{MaxAttempts: 1}, Observer: func(context.Context, Event) {},
	}, nil)
	resp, err := c.Post(url, "text/plain", strings.NewReader("x"))
	require.NoError(t, err)
	read(t, resp)
	_, err = c.Post(url, "text/plain", strings.NewReader("x"))
	f := failure(t, err)
	require.Len(t, f.Attempts, 1)
	assert.Equal(t, 2, f.Attempts[0].Sends, "net/http sends once more on its own, where the connection was a used one")
	keys := w.seen()
	require.Len(t, keys, 3)
	assert.Equal(t, []string{f.Key, f.Key}, keys[1:])
}

func TestB069_NoOther4xxIsRetried(t *testing.T) {
	t.Parallel()
	for _, code := range []int{400, 401, 402, 403, 404, 405, 406, 408, 409, 410, 411, 412, 413, 414, 415, 416, 417, 418, 421, 422, 423, 424, 425, 426, 428, 431, 451} {
		scripted(t, Config{Policy: quick()}, func() *script { return answers(retryAfter(code, "0")) }, func(t *testing.T, e env, s *script) {
			resp, _ := e.send(t, http.MethodPost, "/", strings.NewReader("x"))
			assert.Equal(t, code, resp.StatusCode)
			assert.Len(t, s.requests(), 1)
			assert.Equal(t, StopFinal, StopOf(resp))
		})
	}
}

func TestB255_AThrottleSentAs400(t *testing.T) {
	t.Parallel()
	const body = `{"__type":"ThrottlingException"}`
	scripted(t, Config{Policy: quick()}, func() *script {
		return answers(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, body)
		})
	}, func(t *testing.T, e env, s *script) {
		_, got := e.send(t, http.MethodPost, "/", strings.NewReader("x"))
		assert.JSONEq(t, body, got)
		assert.Len(t, s.requests(), 1)
	})
}

func TestB071_AnAttemptsTimeIsNotTheCallers(t *testing.T) {
	t.Parallel()
	var conns atomic.Int32
	url := rawServer(t, func(n int, conn net.Conn) {
		conns.Add(1)
		if n < 2 {
			_, _ = io.Copy(io.Discard, conn)
			return
		}
		if (&wire{}).read(bufio.NewReader(conn)) == nil {
			_, _ = io.WriteString(conn, okReply)
		}
	})
	c := rawClient(t, &Policy{AttemptTimeout: 100 * time.Millisecond, MaxAttempts: 4, BaseDelay: 1})
	resp, err := c.Get(url)
	require.NoError(t, err)
	assert.Equal(t, "ok", read(t, resp))
	assert.EqualValues(t, 3, conns.Load())
}

func TestB073_TheContextLivesAsLongAsTheBody(t *testing.T) {
	t.Parallel()
	content := strings.Repeat("x", 4<<20)
	inBubble(t, Config{Policy: &Policy{AttemptTimeout: 2 * time.Second}}, func() *script {
		return answers(func(w http.ResponseWriter, _ *http.Request) {
			for i := range 8 {
				_, _ = io.WriteString(w, content[i<<19:(i+1)<<19])
				time.Sleep(time.Second)
			}
		})
	}, func(t *testing.T, e env, _ *script) {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			_, body := e.send(t, method, "/", nil)
			assert.Equal(t, body, content)
		}
	})
}

func TestB247_TimeoutRetryAndBodyCompose(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{Policy: &Policy{AttemptTimeout: 100 * time.Millisecond, MaxAttempts: 4}}, func() *script {
		return answers(silence, silence, status(200))
	}, func(t *testing.T, e env, s *script) {
		e.send(t, http.MethodPost, "/", bytes.NewReader(bytes.Repeat([]byte("x"), 32)))
		require.Len(t, s.requests(), 3)
		sameOperation(t, s.requests())
	})
}

func TestB248_TheCallersDeadlineEndsTheCall(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{Policy: &Policy{AttemptTimeout: -1, MaxAttempts: 3}}, func() *script { return answers(silence) }, func(t *testing.T, e env, s *script) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := e.do(e.request(t, http.MethodPut, "/", strings.NewReader("x")).WithContext(ctx))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Len(t, s.requests(), 1)
		assert.Equal(t, StopDeadline, failure(t, err).Stop)
	})
}

// countingDialer counts the connections that are open.
func countingDialer(tr *http.Transport) (made, open *atomic.Int32) {
	made, open = new(atomic.Int32), new(atomic.Int32)
	tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err == nil {
			made.Add(1)
			open.Add(1)
			conn = &countedConn{Conn: conn, open: open}
		}
		return conn, err
	}
	return made, open
}

type countedConn struct {
	net.Conn
	open *atomic.Int32
	once sync.Once
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.Conn.Close()
}

func TestB081_DiscardedResponsesLeakNothing(t *testing.T) {
	t.Parallel()
	var n atomic.Int32
	srv := startServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1)%4 != 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, strings.Repeat("x", 10<<10))
		}
	}), false)
	tr := &http.Transport{}
	made, _ := countingDialer(tr)
	c := newClient(t, Config{HTTPClient: &http.Client{Transport: tr}, Policy: &Policy{BaseDelay: 1, Budget: BudgetPolicy{Capacity: -1}}}, nil)
	for range 200 {
		resp, err := c.Post(srv.URL, "text/plain", strings.NewReader("x"))
		require.NoError(t, err)
		assert.Equal(t, 200, resp.StatusCode)
		read(t, resp)
	}
	assert.LessOrEqual(t, made.Load(), int32(5), "800 responses; a busy machine may cut a drain off")
}

func TestB083_OneConnectionIsEnough(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"short", strings.Repeat("x", 1<<20)} {
		var n atomic.Int32
		srv := startServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if n.Add(1) == 1 {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			_, _ = io.WriteString(w, body)
		}), false)
		c := newClient(t, Config{HTTPClient: &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}, Policy: quick()}, nil)
		resp, err := c.Get(srv.URL)
		require.NoError(t, err)
		assert.Equal(t, read(t, resp), body)
		assert.Equal(t, 200, resp.StatusCode)
	}
}

func TestB258_NothingLeaksOnGivingUp(t *testing.T) {
	t.Parallel()
	srv := startServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, strings.Repeat("x", 10<<10))
	}), false)
	tr := &http.Transport{}
	_, open := countingDialer(tr)
	c := newClient(t, Config{HTTPClient: &http.Client{Transport: tr}, Policy: &Policy{BaseDelay: time.Millisecond, Budget: BudgetPolicy{Capacity: -1}}}, nil)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%20)*time.Millisecond)
			defer cancel()
			resp, err := c.Do(requestTo(t, http.MethodGet, srv.URL, nil).WithContext(ctx))
			if err == nil {
				assert.Equal(t, 500, resp.StatusCode)
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		})
	}
	wg.Wait()
	c.CloseIdleConnections()
	assert.Eventually(t, func() bool { return open.Load() == 0 }, 5*time.Second, time.Millisecond)
}

func TestB085_TheLastResponseIsNotLost(t *testing.T) {
	t.Parallel()
	scripted(t, Config{Policy: &Policy{MaxAttempts: 3, BaseDelay: 1}}, func() *script {
		return answers(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, `{"e":"db"}`)
		})
	}, func(t *testing.T, e env, s *script) {
		resp, body := e.send(t, http.MethodPost, "/", strings.NewReader("x"))
		assert.Equal(t, 500, resp.StatusCode)
		assert.JSONEq(t, `{"e":"db"}`, body)
		assert.Len(t, s.requests(), 3)
	})
}

func TestB087_EveryAttemptIsListed(t *testing.T) {
	t.Parallel()
	scripted(t, Config{Policy: &Policy{MaxAttempts: 11, BaseDelay: 1}}, func() *script { return statuses(502) }, func(t *testing.T, e env, _ *script) {
		resp, _ := e.send(t, http.MethodPost, "/", strings.NewReader("x"))
		assert.Equal(t, 502, resp.StatusCode)
		attempts := Attempts(resp)
		require.Len(t, attempts, 11)
		for _, a := range attempts {
			assert.Equal(t, 502, a.Status)
		}
		assert.Equal(t, StopMaxAttempts, StopOf(resp))
	})
}

func TestB089_AnUnknownAuthorityIsFinal(t *testing.T) {
	t.Parallel()
	srv := startServer(t, statuses(200), true)
	var conns atomic.Int32
	tr := &http.Transport{}
	tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conns.Add(1)
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	c := newClient(t, Config{HTTPClient: &http.Client{Transport: tr}}, nil)
	_, err := c.Get(srv.URL)
	f := failure(t, err)
	assert.Equal(t, StopFinal, f.Stop)
	assert.Equal(t, []Reason{ReasonFinalError}, reasons(f.Attempts))
	assert.EqualValues(t, 1, conns.Load())
}

func TestB091_ARedirectLoopIsOneChain(t *testing.T) {
	t.Parallel()
	scripted(t, Config{Policy: quick()}, func() *script { return answers(to(302, "/")) }, func(t *testing.T, e env, s *script) {
		resp, err := e.do(e.request(t, http.MethodGet, "/", nil))
		require.ErrorContains(t, err, "redirects")
		_ = resp.Body.Close()
		assert.LessOrEqual(t, len(s.requests()), 11)
	})
}

const cutReply = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n0123456789"

func TestB093_ACutResponse(t *testing.T) {
	t.Parallel()
	for _, form := range forms {
		var conns atomic.Int32
		url := rawServer(t, func(n int, conn net.Conn) {
			conns.Add(1)
			if (&wire{}).read(bufio.NewReader(conn)) == nil {
				_, _ = io.WriteString(conn, cutReply)
				if n == 3 {
					_, _ = io.WriteString(conn, strings.Repeat("x", 90))
				}
			}
		})
		e := formOf(rawClient(t, quick()), form, url, false)
		resp, err := e.do(e.request(t, http.MethodGet, "", nil))
		require.NoError(t, err)
		_, err = io.ReadAll(resp.Body)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "a streamed body is the caller's")
		_ = resp.Body.Close()
		assert.EqualValues(t, 1, conns.Load())

		resp, err = e.do(e.request(t, http.MethodPost, "", strings.NewReader("x")))
		require.NoError(t, err, "that of a keyed request is read inside the attempt")
		assert.Len(t, read(t, resp), 100)
		assert.Equal(t, []Reason{ReasonConnection, ReasonConnection, ReasonOK}, reasons(Attempts(resp)))
	}
}

func TestB102_HEAD(t *testing.T) {
	t.Parallel()
	scripted(t, Config{Policy: quick()}, func() *script {
		return answers(status(503), func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "1234") })
	}, func(t *testing.T, e env, _ *script) {
		resp, body := e.send(t, http.MethodHead, "/", nil)
		assert.Equal(t, 200, resp.StatusCode)
		assert.Empty(t, body)
		assert.EqualValues(t, 1234, resp.ContentLength)
	})
}

// A refused stream is sent again by net/http, with waits of its own, which the
// attempt's time bounds.
func TestARefusedStreamIsBoundedByTheAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ln := memhttp.Listen()
		var streams atomic.Int32
		go serveRawH2(ln, func() uint32 { streams.Add(1); return 7 })
		tr := &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return ln.Dial(ctx) },
			Protocols:   new(http.Protocols),
		}
		tr.Protocols.SetUnencryptedHTTP2(true)
		c, err := New(Config{HTTPClient: &http.Client{Transport: tr}, Policy: &Policy{KeyMethods: []string{}, AttemptTimeout: 5 * time.Second, MaxAttempts: 2}})
		require.NoError(t, err)
		began := time.Now()
		_, err = c.Do(requestTo(t, http.MethodPost, memhttp.URL, strings.NewReader("x")))
		require.Error(t, err)
		assert.Less(t, time.Since(began), 11*time.Second)
		assert.Greater(t, streams.Load(), int32(2))
		tr.CloseIdleConnections()
		_ = ln.Close()
	})
}

func TestStreamErrorsOfARealConnection(t *testing.T) {
	t.Parallel()
	for code, want := range map[uint32][]Reason{
		2:  {ReasonConnection, ReasonConnection},
		8:  {ReasonConnection, ReasonConnection},
		11: {ReasonConnection, ReasonConnection},
		3:  {ReasonFinalError},
		13: {ReasonFinalError},
	} {
		synctest.Test(t, func(t *testing.T) {
			ln := memhttp.Listen()
			go serveRawH2(ln, func() uint32 { return code })
			tr := &http.Transport{
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return ln.Dial(ctx) },
				Protocols:   new(http.Protocols),
			}
			tr.Protocols.SetUnencryptedHTTP2(true)
			c, err := New(Config{HTTPClient: &http.Client{Transport: tr}, Policy: &Policy{MaxAttempts: 2}})
			require.NoError(t, err)
			_, err = c.Do(requestTo(t, http.MethodPost, memhttp.URL, strings.NewReader("x")))
			assert.Equal(t, want, reasons(failure(t, err).Attempts), "code %d", code)
			tr.CloseIdleConnections()
			_ = ln.Close()
		})
	}
}

// serveRawH2 speaks just enough HTTP/2 to reset each stream with a code.
func serveRawH2(ln net.Listener, code func() uint32) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			_ = resetStreams(conn, code)
		}()
	}
}

func resetStreams(conn net.Conn, code func() uint32) error {
	preface := make([]byte, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	if _, err := io.ReadFull(conn, preface); err != nil {
		return err
	}
	replies := make(chan []byte, 100)
	defer close(replies)
	go func() { // a pipe has no buffer: reading must not wait for writing
		for reply := range replies {
			_, _ = conn.Write(reply)
		}
	}()
	replies <- []byte{0, 0, 0, 4, 0, 0, 0, 0, 0} // SETTINGS
	head := make([]byte, 9)
	for {
		if _, err := io.ReadFull(conn, head); err != nil {
			return err
		}
		if _, err := io.CopyN(io.Discard, conn, int64(head[0])<<16|int64(head[1])<<8|int64(head[2])); err != nil {
			return err
		}
		const headers, settings, reset = 1, 4, 3
		switch {
		case head[3] == settings && head[4] == 0:
			replies <- []byte{0, 0, 0, settings, 1, 0, 0, 0, 0}
		case head[3] == headers:
			c := code()
			replies <- append([]byte{0, 0, 4, reset, 0}, append(bytes.Clone(head[5:9]), byte(c>>24), byte(c>>16), byte(c>>8), byte(c))...)
		}
	}
}

func TestConnectionRefusedIsRetriedWithoutAKey(t *testing.T) {
	t.Parallel()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	url := "http://" + ln.Addr().String()
	require.NoError(t, ln.Close())
	for _, form := range forms {
		e := formOf(rawClient(t, &Policy{KeyMethods: []string{}, MaxAttempts: 3, BaseDelay: 1}), form, url, false)
		_, err := e.do(e.request(t, http.MethodPost, "", strings.NewReader("x")))
		f := failure(t, err)
		assert.Equal(t, []Reason{ReasonNotSent, ReasonNotSent, ReasonNotSent}, reasons(f.Attempts))
		assert.Equal(t, StopMaxAttempts, f.Stop)
		assert.Empty(t, f.Key)
		var op *net.OpError
		require.ErrorAs(t, err, &op)
	}
}

func TestAResetIsNotRetriedWithoutAKey(t *testing.T) {
	t.Parallel()
	scripted(t, Config{Policy: &Policy{KeyMethods: []string{}, BaseDelay: 1}}, func() *script { return answers(reset) }, func(t *testing.T, e env, s *script) {
		_, err := e.do(e.request(t, http.MethodPost, "/", strings.NewReader("x")))
		f := failure(t, err)
		assert.Equal(t, []Reason{ReasonConnection}, reasons(f.Attempts))
		assert.Equal(t, StopFinal, f.Stop)
		assert.Len(t, s.requests(), 1)
	})
}

func TestUnprovenSilenceOfATransport(t *testing.T) {
	t.Parallel()
	c, err := New(Config{Policy: &Policy{KeyMethods: []string{}}, HTTPClient: &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response, error) {
		return nil, errors.New("boom") // and no httptrace hook was called
	})}})
	require.NoError(t, err)
	_, err = c.Post("http://x.example", "text/plain", strings.NewReader("x"))
	assert.Equal(t, []Reason{ReasonConnection}, reasons(failure(t, err).Attempts))
}
