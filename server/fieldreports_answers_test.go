package server_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
)

// respond is a handler that counts its runs.
func respond(n *atomic.Int64, f func(http.ResponseWriter, *http.Request)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.Add(1)
		f(w, r)
	})
}

// live is a real server on loopback.
func live(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv
}

// call sends a keyed POST over a real connection, and reads the answer.
func call(t *testing.T, srv *httptest.Server, key, body string, change ...func(*http.Request)) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/charges", strings.NewReader(body))
	require.NoError(t, err)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	for _, f := range change {
		f(req)
	}
	resp, err := srv.Client().Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, string(data)
}

func TestB150_HeadersOfAReplay(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	srv := live(t, newMiddleware(t, func(c *server.Config) { c.ReplayHeaders = []string{"x-request-cost"} }).Wrap(
		respond(&n, func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			h.Set("Location", "/o/1")
			h.Set("ETag", `"x"`)
			h["Link"] = []string{`</o/1>; rel="self"`, `</o>; rel="up"`}
			h.Set("Content-Location", "/o/1/v/1")
			h.Set("Content-Type", "application/vnd.x+json")
			h.Set("Content-Language", "en")
			h.Set("Content-Disposition", "attachment")
			h.Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
			h["X-Request-Cost"] = []string{"1", "2"}
			h.Set("X-Other", "gone")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "{}")
		})))
	first, _ := call(t, srv, "k", "{}")
	again, _ := call(t, srv, "k", "{}")
	assert.Equal(t, "replayed", again.Header.Get("Idempotency-Status"))
	for _, name := range []string{
		"Location", "Etag", "Link", "Content-Location", "Content-Type", "Content-Language",
		"Content-Disposition", "Last-Modified", "Content-Length", "X-Request-Cost",
	} {
		assert.NotEmpty(t, first.Header.Values(name), name)
		assert.Equal(t, first.Header.Values(name), again.Header.Values(name), name)
	}
	assert.Empty(t, again.Header.Get("X-Other"))
	assert.EqualValues(t, 1, n.Load())
}

func TestB152_WhatIsNeverReplayed(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	never := map[string]string{
		"Set-Cookie": "sid=1", "Set-Cookie2": "sid=1", "Www-Authenticate": "Basic", "Proxy-Authenticate": "Basic", "Authorization": "Bearer x",
		"Authentication-Info": "x", "Keep-Alive": "timeout=5", "Date": "Mon, 02 Jan 2006 15:04:05 GMT", "Upgrade": "x", "X-Other": "y",
	}
	srv := live(t, newMiddleware(t, nil).Wrap(respond(&n, func(w http.ResponseWriter, _ *http.Request) {
		for name, value := range never {
			w.Header().Set(name, value)
		}
		w.Header().Set("Connection", "close")
		_, _ = io.WriteString(w, "{}")
	})))
	first, _ := call(t, srv, "k", "{}")
	assert.Equal(t, "sid=1", first.Header.Get("Set-Cookie"), "the first answer is the handler's own")
	again, _ := call(t, srv, "k", "{}")
	assert.Equal(t, "replayed", again.Header.Get("Idempotency-Status"))
	for name, value := range never {
		assert.NotEqual(t, value, again.Header.Get(name), name)
	}
	assert.False(t, again.Close, "Connection: close was the first answer's")
	date, err := http.ParseTime(again.Header.Get("Date"))
	require.NoError(t, err)
	assert.WithinDuration(t, time.Now(), date, time.Minute)
}

func TestB154_ContentLengthIsCounted(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	srv := live(t, newMiddleware(t, nil).Wrap(respond(&n, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "103")
		w.WriteHeader(http.StatusNotAcceptable)
		_, _ = io.WriteString(w, "short")
	})))
	for _, want := range []string{"executed", "replayed"} {
		resp, body := call(t, srv, "k", "{}")
		assert.Equal(t, want, resp.Header.Get("Idempotency-Status"))
		assert.Equal(t, 406, resp.StatusCode)
		assert.Equal(t, "short", body)
		assert.EqualValues(t, 5, resp.ContentLength)
	}
}

func TestB156_TheSameBytes(t *testing.T) {
	t.Parallel()
	binary := make([]byte, 4096)
	for i := range binary {
		binary[i] = byte(i * 7)
	}
	for name, body := range map[string]string{
		"odd spacing": "{\"id\" :\t\"o_1\",\n\n \"z\":1 , \"a\":[ ]}\r\n",
		"null":        "null",
		"binary":      string(binary),
		"gzip magic":  "\x1f\x8b\x08\x00\x00",
	} {
		var n atomic.Int64
		g := newMiddleware(t, nil).Wrap(respond(&n, func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i < len(body); i += 100 { // in pieces
				_, _ = io.WriteString(w, body[i:min(i+100, len(body))])
			}
		}))
		first, again := post(g, "k", "{}"), post(g, "k", "{}")
		assert.Equal(t, body, first.Body.String(), name)
		assert.Equal(t, body, again.Body.String(), name)
		assert.EqualValues(t, 1, n.Load())
	}
}

func TestB159_TheSameStatus(t *testing.T) {
	t.Parallel()
	for _, code := range []int{200, 201, 202, 203, 205, 206, 207, 208, 226, 299, 300, 302, 303, 307, 308, 400, 404, 418, 451} {
		var n atomic.Int64
		g := newMiddleware(t, nil).Wrap(respond(&n, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/o/1")
			w.WriteHeader(code)
			w.WriteHeader(http.StatusInternalServerError) // superfluous
			_, _ = io.WriteString(w, "x")
		}))
		first := post(g, "k", "{}")
		wantExecuted(t, first, code)
		wantReplayed(t, post(g, "k", "{}"), first)
		assert.EqualValues(t, 1, n.Load())
	}
}

func TestB164_AnExpiredKeyIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		g := newMiddleware(t, func(c *server.Config) { c.TTL = time.Second }).Wrap(h)
		wantExecuted(t, post(g, "k", "{}"), 201)
		time.Sleep(1500 * time.Millisecond)
		wantProblem(t, post(g, "k", "{}"), 412, "expired")
		assert.EqualValues(t, 1, h.runs.Load())
	})
}

func TestB166_TheRowSaysWhenItExpires(t *testing.T) {
	t.Parallel()
	sqlite, _ := newSQLite(t)
	for name, store := range map[string]server.Store{"memory": newMemory(), "sqlite": sqlite} {
		m := newMiddlewareOver(t, store, func(c *server.Config) { c.TTL = time.Hour })
		post(m.Wrap(&counter{}), "k", "{}")
		rec, ok, err := m.Lookup(t.Context(), "acme", "k")
		require.NoError(t, err)
		require.True(t, ok, name)
		assert.WithinDuration(t, time.Now().Add(time.Hour), rec.ExpiresAt, time.Minute, name)
		assert.Equal(t, time.Hour, rec.ExpiresAt.Sub(rec.CreatedAt), name)
	}
}

func TestB170_AReplayStandsAlone(t *testing.T) {
	t.Parallel()
	store, ledger := newSQLite(t)
	g := newMiddlewareOver(t, store, nil).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.NoError(t, book(r.Context(), ledger.db, "k"))
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"lines":%d}`, ledger.count(t, "k")) //nolint:contextcheck // it outlives the request
	}))
	first := post(g, "k", "{}")
	_, err := ledger.db.ExecContext(t.Context(), "DELETE FROM ledger")
	require.NoError(t, err)
	wantReplayed(t, post(g, "k", "{}"), first)
}

func TestB172_EmptyResponsesReplay(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(http.ResponseWriter){
		"204":              func(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) },
		"202":              func(w http.ResponseWriter) { w.WriteHeader(http.StatusAccepted) },
		"304":              func(w http.ResponseWriter) { w.Header().Set("Etag", `"x"`); w.WriteHeader(http.StatusNotModified) },
		"Content-Length 0": func(w http.ResponseWriter) { w.Header().Set("Content-Length", "0"); w.WriteHeader(http.StatusOK) },
		"empty write":      func(w http.ResponseWriter) { _, _ = w.Write(nil) },
		"nothing":          func(http.ResponseWriter) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, max := range []int64{0, -1} { // an empty body is kept where none is
				var n atomic.Int64
				srv := live(t, newMiddleware(t, func(c *server.Config) { c.MaxStoredBody = max }).Wrap(
					respond(&n, func(w http.ResponseWriter, _ *http.Request) { write(w) })))
				first, body := call(t, srv, "k", "{}")
				assert.Empty(t, body)
				again, body := call(t, srv, "k", "{}")
				assert.Equal(t, "replayed", again.Header.Get("Idempotency-Status"))
				assert.Equal(t, first.StatusCode, again.StatusCode)
				assert.Equal(t, first.ContentLength, again.ContentLength)
				assert.Empty(t, body)
				assert.EqualValues(t, 1, n.Load())
			}
		})
	}
}

func TestB175_EventsArriveAsTheyAreFlushed(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	next := make(chan struct{})
	srv := live(t, newMiddleware(t, nil).Wrap(respond(&n, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 5 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			assert.NoError(t, http.NewResponseController(w).Flush())
			<-next // the client has seen it
		}
	})))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL, strings.NewReader("{}"))
	require.NoError(t, err)
	req.Header.Set("Idempotency-Key", "k")
	resp, err := srv.Client().Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.Equal(t, "executed", resp.Header.Get("Idempotency-Status"))
	lines := bufio.NewReader(resp.Body)
	for i := range 5 {
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		assert.Equal(t, fmt.Sprintf("data: %d\n", i), line)
		_, err = lines.ReadString('\n')
		require.NoError(t, err)
		if i == 0 { // it is done from the first flush on
			again, body := call(t, srv, "k", "{}", func(r *http.Request) { r.URL.Path = "" })
			assert.Equal(t, 409, again.StatusCode)
			assert.Equal(t, "not-kept", again.Header.Get("Idempotency-Status"))
			assert.Contains(t, body, `"original_status":200`)
		}
		next <- struct{}{}
	}
	assert.EqualValues(t, 1, n.Load())
}

func TestB178_AnUpgradePasses(t *testing.T) {
	t.Parallel()
	echo := func(w http.ResponseWriter, _ *http.Request) {
		conn, buf, err := http.NewResponseController(w).Hijack()
		if !assert.NoError(t, err) {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		line, _ := buf.ReadString('\n')
		_, _ = io.WriteString(conn, line)
	}
	var n atomic.Int64
	srv := live(t, newMiddleware(t, nil).Wrap(respond(&n, echo)))
	upgrade := func(method string) string {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", srv.Listener.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
		fmt.Fprintf(conn, "%s /ws HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello\n", method)
		r := bufio.NewReader(conn)
		resp, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusSwitchingProtocols {
			return resp.Header.Get("Idempotency-Status")
		}
		line, err := r.ReadString('\n')
		require.NoError(t, err)
		return line
	}
	assert.Equal(t, "hello\n", upgrade(http.MethodGet), "the key of a GET is ignored")
	assert.Equal(t, "hello\n", upgrade(http.MethodGet))
	assert.Equal(t, "hello\n", upgrade(http.MethodPost))
	assert.Equal(t, "not-kept", upgrade(http.MethodPost))
	assert.EqualValues(t, 3, n.Load())
}

func TestB181_EarlyHintsAreNotTheStatus(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	srv := live(t, newMiddleware(t, nil).Wrap(respond(&n, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusProcessing)
		w.Header().Set("Location", "/o/1")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "made")
	})))
	hints := 0
	traced := func(r *http.Request) {
		*r = *r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(int, textproto.MIMEHeader) error { hints++; return nil },
		}))
	}
	first, body := call(t, srv, "k", "{}", traced)
	assert.Equal(t, 2, hints)
	assert.Equal(t, 201, first.StatusCode)
	assert.Equal(t, "made", body)
	again, body := call(t, srv, "k", "{}", traced)
	assert.Equal(t, 2, hints, "a replay has none")
	assert.Equal(t, 201, again.StatusCode)
	assert.Equal(t, "made", body)
	assert.Equal(t, "/o/1", again.Header.Get("Location"))
	assert.Equal(t, "</style.css>; rel=preload", again.Header.Get("Link"))
	assert.EqualValues(t, 1, n.Load())
}

func TestB183_RequestBodyLimit(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	srv := live(t, newMiddleware(t, nil).Wrap(respond(&n, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		fmt.Fprint(w, len(body))
	})))
	chunked := func(r *http.Request) { r.ContentLength = -1 }
	for i, change := range []func(*http.Request){func(*http.Request) {}, chunked} {
		resp, body := call(t, srv, fmt.Sprint("fits", i), strings.Repeat("x", 1<<20), change)
		assert.Equal(t, 200, resp.StatusCode)
		assert.Equal(t, fmt.Sprint(1<<20), body)
		resp, _ = call(t, srv, fmt.Sprint("over", i), strings.Repeat("x", 1<<20+1), change)
		assert.Equal(t, 413, resp.StatusCode)
		assert.Equal(t, "too-large", resp.Header.Get("Idempotency-Status"))
		resp, _ = call(t, srv, fmt.Sprint("over", i), "{}")
		assert.Equal(t, "executed", resp.Header.Get("Idempotency-Status"), "nothing was stored")
	}
}

func TestB185_TooLargeToStore(t *testing.T) {
	t.Parallel()
	sqlite, _ := newSQLite(t)
	for name, store := range map[string]server.Store{"memory": newMemory(), "sqlite": sqlite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			large := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB
			var n atomic.Int64
			srv := live(t, newMiddlewareOver(t, store, func(c *server.Config) { c.MaxStoredBody = 256 << 10 }).Wrap(
				respond(&n, func(w http.ResponseWriter, _ *http.Request) {
					w.WriteHeader(http.StatusCreated)
					_, _ = copyAll(w, strings.NewReader(large))
				})))
			first, body := call(t, srv, "k", "{}")
			assert.Equal(t, 201, first.StatusCode)
			assert.Equal(t, large, body)
			again, body := call(t, srv, "k", "{}")
			assert.Equal(t, 409, again.StatusCode)
			assert.Equal(t, "not-kept", again.Header.Get("Idempotency-Status"))
			assert.Contains(t, body, `"original_status":201`)
			assert.EqualValues(t, 1, n.Load())
		})
	}
}

func TestB189_ProvisionalKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		g := newMiddleware(t, func(c *server.Config) {
			c.Keyless = server.Keyless{Mode: server.BodyHashKeyless, Window: time.Second}
		}).Wrap(h)
		first := post(g, "", `{"a":1}`)
		wantExecuted(t, first, 201)
		time.Sleep(100 * time.Millisecond)
		wantReplayed(t, post(g, "", `{"a":1}`), first)
		time.Sleep(1400 * time.Millisecond)
		wantExecuted(t, post(g, "", `{"a":1}`), 201)
		assert.EqualValues(t, 2, h.runs.Load())
	})
}

func TestB262_Trailers(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	big := strings.Repeat("x", 100<<10)
	srv := live(t, newMiddleware(t, nil).Wrap(respond(&n, func(w http.ResponseWriter, r *http.Request) {
		body := "body"
		w.Header().Set("Trailer", "X-Sum")
		switch r.URL.Path {
		case "/flush", "/late-flush":
			w.WriteHeader(http.StatusOK)
			if r.URL.Path == "/late-flush" {
				w.Header().Set("X-Sum", "1")
			}
			assert.NoError(t, http.NewResponseController(w).Flush())
		case "/large":
			body = big
		}
		_, _ = io.WriteString(w, body)
		if r.URL.Path != "/late-flush" {
			w.Header().Set("X-Sum", "1")
		}
		w.Header().Set(http.TrailerPrefix+"X-More", "2")
	})))
	for _, path := range []string{"/held", "/flush", "/late-flush", "/large"} {
		there := func(r *http.Request) { r.URL.Path = path }
		first, body := call(t, srv, path, "{}", there)
		assert.Equal(t, "executed", first.Header.Get("Idempotency-Status"))
		assert.Equal(t, "1", first.Trailer.Get("X-Sum"), path)
		assert.Equal(t, "2", first.Trailer.Get("X-More"), path)
		assert.Empty(t, first.Header.Get("X-Sum"), path)
		if path == "/held" {
			assert.Equal(t, "body", body)
			again, body := call(t, srv, path, "{}", there)
			assert.Equal(t, "replayed", again.Header.Get("Idempotency-Status"))
			assert.Equal(t, "body", body)
			assert.Empty(t, again.Trailer, "trailers are not kept")
		}
	}
	assert.EqualValues(t, 4, n.Load())
}
