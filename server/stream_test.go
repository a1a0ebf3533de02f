package server_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
)

// ways are the three ways in which a response leaves before its end.
var ways = map[string]func(w http.ResponseWriter){
	"Flush": func(w http.ResponseWriter) {
		w.(http.Flusher).Flush() //nolint:errcheck,forcetypeassert // it has to be one
		_, _ = io.WriteString(w, "streamed")
	},
	"FlushError": func(w http.ResponseWriter) {
		_, _ = io.WriteString(w, "strea")
		_ = http.NewResponseController(w).Flush()
		_, _ = io.WriteString(w, "med")
	},
	"over the limit": func(w http.ResponseWriter) {
		_, _ = io.WriteString(w, strings.Repeat("x", 60<<10))
		_, _ = io.WriteString(w, strings.Repeat("x", 60<<10))
	},
}

func TestStreamedIsDoneAndNotKept(t *testing.T) {
	t.Parallel()
	for name, write := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var n atomic.Int64
			var seen events
			m := newMiddleware(t, func(c *server.Config) { c.Observer = seen.observe })
			g := m.Wrap(respond(&n, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("ETag", `"x"`)
				w.WriteHeader(http.StatusAccepted)
				write(w)
			}))
			wantExecuted(t, post(g, "k", "{}"), 202)
			again := post(g, "k", "{}")
			wantProblem(t, again, 409, "not-kept")
			assert.Contains(t, again.Body.String(), `"original_status":202`)
			assert.Empty(t, again.Header().Get("Etag"))
			assert.EqualValues(t, 1, n.Load())
			assert.Equal(t, []server.EventKind{server.EventExecuted, server.EventNotKept}, seen.outcomes())
			rec, ok, err := m.Lookup(t.Context(), "acme", "k")
			require.NoError(t, err)
			assert.True(t, ok)
			assert.Equal(t, server.Done, rec.State)
			assert.Equal(t, 202, rec.Status)
			assert.Nil(t, rec.Body)
		})
	}
}

func TestStreamedWithAReferenceReplaysWithoutBody(t *testing.T) {
	t.Parallel()
	for name, write := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, by := range []string{"location", "resource"} {
				var n atomic.Int64
				g := newMiddleware(t, nil).Wrap(respond(&n, func(w http.ResponseWriter, r *http.Request) {
					h := w.Header()
					h.Set("Content-Type", "text/plain")
					h.Set("Content-Encoding", "gzip")
					h.Set("ETag", `"x"`)
					if by == "location" {
						h.Set("Location", "/o/1")
					} else {
						op(r).SetResource("o_1", "/o/1")
					}
					w.WriteHeader(http.StatusCreated)
					write(w)
				}))
				wantExecuted(t, post(g, "k", "{}"), 201)
				again := post(g, "k", "{}")
				assert.Equal(t, 201, again.Code)
				assert.Equal(t, "replayed", status(again))
				assert.Empty(t, again.Body.String())
				assert.Empty(t, again.Header().Get("Etag"))
				assert.Empty(t, again.Header().Get("Content-Encoding"))
				assert.Equal(t, "text/plain", again.Header().Get("Content-Type"))
				if by == "location" {
					assert.Equal(t, "/o/1", again.Header().Get("Location"))
					assert.Empty(t, again.Header().Get("Link"))
				} else {
					assert.Equal(t, `</o/1>; rel="latest-version"`, again.Header().Get("Link"))
				}
				assert.EqualValues(t, 1, n.Load())
			}
		})
	}
}

func TestBytesLeaveOnlyAfterTheRecord(t *testing.T) {
	t.Parallel()
	for name, write := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newFaulty(newMemory())
			w := httptest.NewRecorder()
			store.fail(func(call string) error {
				if call == "Complete" {
					assert.Empty(t, w.Body.String())
					assert.False(t, w.Flushed)
				}
				return nil
			}, nil)
			g := newMiddlewareOver(t, store, nil).Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { write(w) }))
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("{}"))
			r.Header.Set("Idempotency-Key", "k")
			g.ServeHTTP(w, r)
			assert.Equal(t, 1, store.count("Complete"))
			assert.NotEmpty(t, w.Body.String())
		})
	}
}

func TestBytesThatCanNotBeRecordedDoNotLeave(t *testing.T) {
	t.Parallel()
	for name, write := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newFaulty(newMemory())
				store.fail(always("Complete"), nil)
				var seen events
				g := newMiddlewareOver(t, store, func(c *server.Config) { c.Observer = seen.observe }).Wrap(
					http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
						write(w)
						_, err := io.WriteString(w, "more")
						assert.Error(t, err)
					}))
				w := post(g, "k", "{}")
				wantProblem(t, w, 503, "unavailable")
				assert.Equal(t, []server.EventKind{server.EventUnavailable}, seen.outcomes())
			})
		})
	}
}

func TestANonFinalStreamFreesTheKey(t *testing.T) {
	t.Parallel()
	for name, write := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var n atomic.Int64
			g := newMiddleware(t, nil).Wrap(respond(&n, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("X-Effect") != "" {
					op(r).EffectStarted()
				}
				w.WriteHeader(http.StatusInternalServerError)
				write(w)
			}))
			wantExecuted(t, post(g, "k", "{}"), 500)
			wantExecuted(t, post(g, "k", "{}"), 500)
			assert.EqualValues(t, 2, n.Load())
			effect := func(r *http.Request) { r.Header.Set("X-Effect", "1") }
			w := post(g, "k2", "{}", effect)
			assert.Equal(t, 500, w.Code)
			assert.Equal(t, "unknown", status(w))
			wantProblem(t, post(g, "k2", "{}", effect), 409, "unknown")
			assert.EqualValues(t, 3, n.Load())
		})
	}
}

func TestNoBodyIsStored(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	g := newMiddleware(t, func(c *server.Config) { c.MaxStoredBody = -1 }).Wrap(respond(&n, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/o" {
			w.Header().Set("Location", "/o/1")
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "x")
	}))
	wantExecuted(t, post(g, "k", "{}"), 201)
	wantProblem(t, post(g, "k", "{}"), 409, "not-kept")
	first := post(g, "k2", "{}", to("/o"))
	assert.Equal(t, "x", first.Body.String())
	again := post(g, "k2", "{}", to("/o"))
	assert.Equal(t, 201, again.Code)
	assert.Equal(t, "replayed", status(again))
	assert.Equal(t, "/o/1", again.Header().Get("Location"))
	assert.Empty(t, again.Body.String())
	assert.EqualValues(t, 2, n.Load())
}

func TestABodyOfExactlyTheLimitIsKept(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	g := newMiddleware(t, func(c *server.Config) { c.MaxStoredBody = 10 }).Wrap(respond(&n, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "01234")
		_, _ = io.WriteString(w, strings.TrimPrefix(r.URL.Path, "/"))
	}))
	first := post(g, "k", "{}", to("/56789"))
	wantReplayed(t, post(g, "k", "{}", to("/56789")), first)
	assert.Equal(t, "0123456789", first.Body.String())
	assert.Equal(t, "0123456789a", post(g, "k2", "{}", to("/56789a")).Body.String())
	wantProblem(t, post(g, "k2", "{}", to("/56789a")), 409, "not-kept")
}

// noHijack has the method, and can't.
type noHijack struct{ *httptest.ResponseRecorder }

func (noHijack) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, errors.New("HTTP/2") }

func TestAHijackThatFailsLosesNoAnswer(t *testing.T) {
	t.Parallel()
	for name, w := range map[string]http.ResponseWriter{
		"no hijacker": httptest.NewRecorder(), "a hijacker that can't": noHijack{httptest.NewRecorder()},
	} {
		g := newMiddleware(t, nil).Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _, err := http.NewResponseController(w).Hijack()
			assert.Error(t, err, name)
			http.Error(w, "no upgrade", http.StatusBadRequest)
		}))
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("{}"))
		r.Header.Set("Idempotency-Key", "k")
		g.ServeHTTP(w, r)
		rec, ok := w.(*httptest.ResponseRecorder)
		if !ok {
			rec = w.(noHijack).ResponseRecorder //nolint:errcheck,forcetypeassert // the other one
		}
		assert.Equal(t, 400, rec.Code, name)
		assert.Equal(t, "no upgrade\n", rec.Body.String(), name)
	}
}

func TestAHijackedConnectionIsTheHandlers(t *testing.T) {
	t.Parallel()
	var seen events
	m := newMiddleware(t, func(c *server.Config) { c.Observer = seen.observe })
	srv := live(t, m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op(r).SetResource("o_1", "/o/1")
		conn, _, err := w.(http.Hijacker).Hijack() //nolint:errcheck,forcetypeassert // it has to be one
		if !assert.NoError(t, err) {
			return
		}
		_, err = w.Write([]byte("x"))
		assert.ErrorIs(t, err, http.ErrHijacked)
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		conn.Close()
	})))
	resp, body := call(t, srv, "k", "{}")
	assert.Equal(t, 200, resp.StatusCode)
	assert.Equal(t, "ok", body)
	resp, body = call(t, srv, "k", "{}")
	assert.Equal(t, 409, resp.StatusCode)
	assert.Equal(t, "not-kept", resp.Header.Get("Idempotency-Status"))
	assert.Contains(t, body, `"original_status":101`)
	// The handler may still be on its way when its answer is there.
	require.Eventually(t, func() bool { return len(seen.outcomes()) == 2 }, 5*time.Second, time.Millisecond)
	assert.ElementsMatch(t, []server.EventKind{server.EventExecuted, server.EventNotKept}, seen.outcomes())
	rec, _, err := m.Lookup(t.Context(), "acme", "k")
	require.NoError(t, err)
	assert.Equal(t, "o_1", rec.ResourceID)
}

func TestAStreamFollowsTheConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty(newMemory())
		m := newMiddlewareOver(t, store, func(c *server.Config) { c.MaxRun = time.Minute })
		ctx, cancel := context.WithCancel(t.Context())
		var took time.Duration
		g := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			start := time.Now()
			time.Sleep(30 * time.Second)
			assert.NoError(t, r.Context().Err())
			_ = http.NewResponseController(w).Flush()
			renewals := store.count("Renew")
			time.Sleep(2 * time.Minute)
			assert.NoError(t, r.Context().Err(), "MaxRun has stopped")
			assert.Equal(t, renewals, store.count("Renew"), "and the renewals too")
			assert.NoError(t, m.Shutdown(t.Context()), "a stream holds up no shutdown") //nolint:contextcheck // not the request's
			<-r.Context().Done()
			took = time.Since(start)
		}))
		time.AfterFunc(10*time.Minute, cancel)
		wantExecuted(t, post(g, "k", "{}", within(ctx)), 200)
		assert.Equal(t, 10*time.Minute, took)
	})
}

func TestLateWritesGoNowhere(t *testing.T) {
	t.Parallel()
	for _, flush := range []bool{false, true} {
		returned, done := make(chan struct{}), make(chan struct{})
		g := newMiddleware(t, nil).Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "in time")
			if flush {
				_ = http.NewResponseController(w).Flush()
			}
			go func() {
				defer close(done)
				<-returned
				_, err := io.WriteString(w, "late")
				assert.Error(t, err)
				assert.Error(t, http.NewResponseController(w).Flush())
				w.WriteHeader(http.StatusInternalServerError)
				_, _, err = w.(http.Hijacker).Hijack() //nolint:errcheck,forcetypeassert // it has to be one
				assert.Error(t, err)
			}()
		}))
		first := post(g, "k", "{}")
		close(returned)
		<-done
		assert.Equal(t, "in time", first.Body.String())
		if !flush {
			wantReplayed(t, post(g, "k", "{}"), first)
		}
	}
}

func TestGoexitIsAPanic(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	var seen events
	g := newMiddleware(t, func(c *server.Config) { c.Observer = seen.observe }).Wrap(respond(&n, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "never sent")
		if r.Header.Get("X-Effect") != "" {
			op(r).EffectStarted()
		}
		if n.Load() != 2 {
			runtime.Goexit()
		}
	}))
	exit := func(key string, change ...func(*http.Request)) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			post(g, key, "{}", change...)
			t.Error("it returned")
		}()
		<-done
	}
	exit("k")
	wantExecuted(t, post(g, "k", "{}"), 201)
	effect := func(r *http.Request) { r.Header.Set("X-Effect", "1") }
	exit("k2", effect)
	wantProblem(t, post(g, "k2", "{}", effect), 409, "unknown")
	assert.EqualValues(t, 3, n.Load())
	assert.Equal(t, []server.EventKind{server.EventReleased, server.EventExecuted, server.EventUnknown, server.EventUnknown}, seen.outcomes())
}

func TestAPanicAfterTheFlushIsDone(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	g := newMiddleware(t, nil).Wrap(respond(&n, func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).Flush()
		panic("boom")
	}))
	assert.Panics(t, func() { post(g, "k", "{}") })
	wantProblem(t, post(g, "k", "{}"), 409, "not-kept")
	assert.EqualValues(t, 1, n.Load())
}

func TestResponseControllerDeadlines(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	srv := live(t, newMiddleware(t, nil).Wrap(respond(&n, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		assert.NoError(t, rc.SetReadDeadline(time.Now().Add(time.Minute)))
		assert.NoError(t, rc.SetWriteDeadline(time.Now().Add(time.Minute)))
		if r.Header.Get("X-Cut") != "" {
			assert.NoError(t, rc.SetWriteDeadline(time.Now().Add(-time.Second)))
		}
		fmt.Fprint(w, "x")
	})))
	_, body := call(t, srv, "k", "{}")
	assert.Equal(t, "x", body)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/charges", strings.NewReader("{}"))
	require.NoError(t, err)
	req.GetBody = nil
	req.Header.Set("Idempotency-Key", "k2")
	req.Header.Set("X-Cut", "1")
	resp, err := srv.Client().Do(req)
	if err == nil {
		resp.Body.Close()
	}
	require.Error(t, err, "the answer is cut off")
	resp, body = call(t, srv, "k2", "{}")
	assert.Equal(t, "replayed", resp.Header.Get("Idempotency-Status"), "and it was recorded before")
	assert.Equal(t, "x", body)
	assert.EqualValues(t, 2, n.Load())
}

func TestHead(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	srv := live(t, newMiddleware(t, func(c *server.Config) { c.Methods = []string{http.MethodHead} }).Wrap(
		respond(&n, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1234")
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(w, strings.Repeat("x", 1234))
		})))
	for _, want := range []string{"executed", "replayed"} {
		resp, _ := call(t, srv, "k", "", func(r *http.Request) { r.Method, r.Body = http.MethodHead, nil })
		assert.Equal(t, want, resp.Header.Get("Idempotency-Status"))
		assert.EqualValues(t, 1234, resp.ContentLength, want)
	}
	assert.EqualValues(t, 1, n.Load())
}

func TestAnInvalidStatusPanicsAsNetHTTPDoes(t *testing.T) {
	t.Parallel()
	for _, code := range []int{0, 99, 1000, -1} {
		g := newMiddleware(t, nil).Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }))
		assert.Panics(t, func() { post(g, "k", "{}") }, code)
	}
}
