package server_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
)

func TestLookup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		m := newMiddlewareOver(t, store, func(c *server.Config) { c.TTL, c.Lease = time.Hour, 3*time.Second })
		_, ok, err := m.Lookup(t.Context(), "acme", "k")
		require.NoError(t, err)
		assert.False(t, ok)

		start := time.Now()
		first := sentTo(m.Wrap(slow(&counter{}, 10*time.Second)), "k")
		time.Sleep(5 * time.Second)
		rec, ok, err := m.Lookup(t.Context(), "acme", `"k"`)
		require.NoError(t, err)
		require.True(t, ok)
		assert.Equal(t, server.Record{State: server.Running, Attempt: 1, CreatedAt: start, ExpiresAt: start.Add(time.Hour)}, rec)
		assert.Equal(t, "running", rec.State.String())

		w := <-first
		rec, _, err = m.Lookup(t.Context(), "acme", "k")
		require.NoError(t, err)
		assert.Equal(t, server.Done, rec.State)
		assert.Equal(t, 201, rec.Status)
		assert.Equal(t, w.Body.String(), string(rec.Body))
		assert.Equal(t, http.Header{"Content-Type": {"application/json"}, "Location": {"/charges/1"}}, rec.Header)
		assert.True(t, rec.ExecutedAt.Equal(start.Add(10*time.Second)))

		time.Sleep(time.Hour)
		rec, _, err = m.Lookup(t.Context(), "acme", "k")
		require.NoError(t, err)
		assert.Equal(t, server.Expired, rec.State)
		assert.Equal(t, 201, rec.Status)

		abandon(t, store, "dead", time.Second)
		rec, ok, err = m.Lookup(t.Context(), "acme", "dead")
		require.NoError(t, err)
		assert.True(t, ok)
		assert.Equal(t, server.Unknown, rec.State, "a dead lease")
	})
}

func TestSettle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		var seen events
		m := newMiddlewareOver(t, store, func(c *server.Config) { c.Observer = seen.observe })
		h := &counter{}
		g := m.Wrap(h)
		ctx := t.Context()
		r := server.Response{Status: 201, Header: http.Header{"Location": {"/o/9"}, "Set-Cookie": {"x"}}, Body: []byte("settled")}
		require.ErrorIs(t, m.Settle(ctx, "acme", "k", r), server.ErrNotFound)

		abandon(t, store, "k", time.Second)
		wantProblem(t, post(g, "k", "{}"), 409, "unknown")
		for _, bad := range []server.Response{
			{Status: 500},
			{Status: 0},
			{Status: 101},
			{Status: 1000},
			{Status: 429},
			{Status: 204, Body: []byte("x")},
			{Status: 200, Body: make([]byte, 65<<10)},
		} {
			require.Error(t, m.Settle(ctx, "acme", "k", bad), "status %d", bad.Status)
		}
		wantProblem(t, post(g, "k", "{}"), 409, "unknown")
		require.NoError(t, m.Settle(ctx, "acme", "k", r))
		w := post(g, "k", "{}")
		assert.Equal(t, 201, w.Code)
		assert.Equal(t, "replayed", status(w))
		assert.Equal(t, "settled", w.Body.String())
		assert.Equal(t, "/o/9", w.Header().Get("Location"))
		assert.Empty(t, w.Header().Get("Set-Cookie"))
		wantProblem(t, post(g, "k", "[]"), 422, "mismatch")
		require.ErrorIs(t, m.Settle(ctx, "acme", "k", r), server.ErrSettled)
		assert.Len(t, seen.of(server.EventSettled), 1)
		assert.Zero(t, h.runs.Load())

		first := sentTo(m.Wrap(slow(h, time.Second)), "k2")
		synctest.Wait()
		require.ErrorIs(t, m.Settle(ctx, "acme", "k2", r), server.ErrRunning)
		<-first
		require.ErrorIs(t, m.Settle(ctx, "acme", "k2", r), server.ErrSettled)

		for _, bad := range [][2]string{{"", "k"}, {"acme", ""}, {"acme", "a b"}, {"acme", `"k`}} {
			require.Error(t, m.Settle(ctx, bad[0], bad[1], r))
			require.Error(t, m.Forget(ctx, bad[0], bad[1]))
			_, _, err := m.Lookup(ctx, bad[0], bad[1])
			require.Error(t, err)
		}
	})
}

func TestSettleGivesANotKeptAnswerItsBody(t *testing.T) {
	t.Parallel()
	m := newMiddleware(t, nil)
	g := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op(r).SetResource("o_1", "/o/1")
		_ = http.NewResponseController(w).Flush()
		_, _ = io.WriteString(w, "streamed")
	}))
	post(g, "k", "{}")
	before, _, err := m.Lookup(t.Context(), "acme", "k")
	require.NoError(t, err)
	require.NoError(t, m.Settle(t.Context(), "acme", "k", server.Response{Status: 200, Body: []byte("by hand")}))
	w := post(g, "k", "{}")
	assert.Equal(t, "by hand", w.Body.String())
	assert.Equal(t, `</o/1>; rel="latest-version"`, w.Header().Get("Link"))
	after, _, err := m.Lookup(t.Context(), "acme", "k")
	require.NoError(t, err)
	assert.True(t, before.ExecutedAt.Equal(after.ExecutedAt), "it was executed when it was")
	require.ErrorIs(t, m.Settle(t.Context(), "acme", "k", server.Response{Status: 200}), server.ErrSettled)
}

func TestForget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		var seen events
		m := newMiddlewareOver(t, store, func(c *server.Config) { c.Observer = seen.observe })
		h := &counter{}
		g := m.Wrap(slow(h, time.Second))
		require.NoError(t, m.Forget(t.Context(), "acme", "never-seen"))
		first := sentTo(g, "k")
		synctest.Wait()
		require.ErrorIs(t, m.Forget(t.Context(), "acme", "k"), server.ErrRunning)
		wantExecuted(t, <-first, 201)
		require.NoError(t, m.Forget(t.Context(), "acme", "k"))
		wantExecuted(t, post(g, "k", "{}"), 201)
		assert.EqualValues(t, 2, h.runs.Load())
		abandon(t, store, "dead", time.Second)
		require.NoError(t, m.Forget(t.Context(), "acme", "dead"))
		wantExecuted(t, post(g, "dead", "[]"), 201)
		assert.Len(t, seen.of(server.EventForgotten), 3)
	})
}

func TestStoreErrorsReachThoseWhoAsk(t *testing.T) {
	t.Parallel()
	store := newFaulty(newMemory())
	m := newMiddlewareOver(t, store, nil)
	store.fail(always("Lookup", "Forget"), nil)
	_, _, err := m.Lookup(t.Context(), "acme", "k")
	require.ErrorIs(t, err, errStore)
	require.ErrorIs(t, m.Settle(t.Context(), "acme", "k", server.Response{Status: 200}), errStore)
	require.ErrorIs(t, m.Forget(t.Context(), "acme", "k"), errStore)
}

func TestShutdown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		store := newMemory()
		m := newMiddlewareOver(t, store, nil)
		g := m.Wrap(slow(h, 5*time.Second))
		done := post(g, "done", "{}")
		abandon(t, store, "dead", time.Second)

		first := sentTo(g, "k")
		synctest.Wait()
		waiter := sentTo(g, "k")
		time.Sleep(time.Second)
		start := time.Now()
		ended := make(chan error)
		go func() { ended <- m.Shutdown(t.Context()) }()
		synctest.Wait()
		w := post(g, "new", "{}")
		wantProblem(t, w, 503, "unavailable")
		assert.Equal(t, "close", w.Header().Get("Connection"))
		wantReplayed(t, post(g, "done", "{}"), done)
		wantProblem(t, post(g, "done", "[]"), 422, "mismatch")
		wantProblem(t, post(g, "dead", "{}"), 409, "unknown")
		late := sentTo(g, "k") // who comes now still waits
		require.NoError(t, <-ended)
		assert.Equal(t, 4*time.Second, time.Since(start))
		winner := <-first
		wantExecuted(t, winner, 201)
		wantReplayed(t, <-waiter, winner)
		wantReplayed(t, <-late, winner)
		require.NoError(t, m.Shutdown(t.Context()), "again")
		over, cancel := context.WithCancel(t.Context())
		cancel()
		for range 20 {
			require.NoError(t, m.Shutdown(over), "there is nothing to wait for")
		}
		wantProblem(t, post(g, uuidv7(time.Now().Add(-100*24*time.Hour)), "{}"), 503, "unavailable")
		assert.EqualValues(t, 2, h.runs.Load())
		wantExecuted(t, post(newMiddlewareOver(t, store, nil).Wrap(h), "new", "{}"), 201)
	})
}

func TestShutdownDoesNotBeginAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		abandon(t, store, "k", time.Second)
		h := &counter{}
		m := newMiddlewareOver(t, store, func(c *server.Config) { c.Abandoned = server.RerunAbandoned })
		require.NoError(t, m.Shutdown(t.Context()))
		wantProblem(t, post(m.Wrap(h), "k", "{}"), 503, "unavailable")
		assert.Zero(t, h.runs.Load())
		w := post(newMiddlewareOver(t, store, func(c *server.Config) { c.Abandoned = server.RerunAbandoned }).Wrap(h), "k", "{}")
		wantExecuted(t, w, 201)
	})
}

func TestShutdownEndsTheHandlers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		end   func(http.ResponseWriter, *http.Request)
		after string // what a retry gets in another process
	}{
		"released": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }, "executed"},
		"unknown": {func(w http.ResponseWriter, r *http.Request) {
			op(r).EffectStarted()
			w.WriteHeader(http.StatusServiceUnavailable)
		}, "unknown"},
		"done": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }, "replayed"},
		// As handlers do whose client has left: no 200 is implied by that.
		"without a word":            {func(http.ResponseWriter, *http.Request) {}, "executed"},
		"without a word, an effect": {func(_ http.ResponseWriter, r *http.Request) { op(r).EffectStarted() }, "unknown"},
		"deaf": {func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(time.Hour)
			w.WriteHeader(http.StatusServiceUnavailable)
		}, "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newMemory()
				m := newMiddlewareOver(t, store, nil)
				var cause error
				first := sentTo(m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					<-r.Context().Done()
					cause = context.Cause(r.Context())
					tt.end(w, r)
				})), "k")
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				start := time.Now()
				require.ErrorIs(t, m.Shutdown(ctx), context.DeadlineExceeded)
				assert.Equal(t, 3*time.Second, time.Since(start))
				synctest.Wait()
				require.ErrorIs(t, cause, server.ErrShutdown)
				other := newMiddlewareOver(t, store, func(c *server.Config) { c.Wait = time.Minute })
				w := post(other.Wrap(&counter{}), "k", "{}")
				assert.Equal(t, tt.after, status(w))
				assert.LessOrEqual(t, time.Since(start), 34*time.Second, "its last lease")
				<-first
			})
		})
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	store := newMemory()
	_, err := server.New(nil, server.Config{Scope: tenant})
	require.Error(t, err)
	_, err = server.New(nil, server.Config{})
	require.ErrorContains(t, err, "store")
	require.ErrorContains(t, err, "Scope", "everything at once")
	for name, change := range map[string]func(*server.Config){
		"scope":                func(c *server.Config) { c.Scope = nil },
		"ttl":                  func(c *server.Config) { c.TTL = -1 },
		"retention":            func(c *server.Config) { c.Retention = -1 },
		"retention under ttl":  func(c *server.Config) { c.TTL, c.Retention = time.Hour, time.Minute },
		"default retention":    func(c *server.Config) { c.TTL = 8 * 24 * time.Hour },
		"default ttl":          func(c *server.Config) { c.Retention = time.Hour },
		"lease":                func(c *server.Config) { c.Lease = -1 },
		"short lease":          func(c *server.Config) { c.Lease = 99 * time.Millisecond },
		"max run":              func(c *server.Config) { c.MaxRun = -1 },
		"window":               func(c *server.Config) { c.Keyless.Window = -1 },
		"keyless":              func(c *server.Config) { c.Keyless.Mode = 3 },
		"negative keyless":     func(c *server.Config) { c.Keyless.Mode = -1 },
		"abandoned":            func(c *server.Config) { c.Abandoned = 2 },
		"a method":             func(c *server.Config) { c.Methods = []string{"PO ST"} },
		"an empty method":      func(c *server.Config) { c.Methods = []string{""} },
		"max waiters":          func(c *server.Config) { c.MaxWaiters = -1 },
		"max request body":     func(c *server.Config) { c.MaxRequestBody = -1 },
		"a bad header":         func(c *server.Config) { c.ReplayHeaders = []string{"a b"} },
		"an empty header name": func(c *server.Config) { c.ReplayHeaders = []string{""} },
	} {
		cfg := server.Config{Scope: tenant}
		change(&cfg)
		_, err := server.New(store, cfg)
		require.Error(t, err, name)
	}
	for _, name := range []string{
		"Set-Cookie", "set-cookie", "SET-COOKIE", "Date", "Authorization", "WWW-Authenticate", "Proxy-Authenticate", "proxy-authorization",
		"Proxy-Connection", "Connection", "Keep-Alive", "TE", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length",
		"Idempotency-Key", "Idempotency-Status", "idempotency-replayed",
	} {
		_, err := server.New(store, server.Config{Scope: tenant, ReplayHeaders: []string{"X-Fine", name}})
		require.Error(t, err, name)
	}
	for name, change := range map[string]func(*server.Config){
		"zero":                  func(*server.Config) {},
		"shortest lease":        func(c *server.Config) { c.Lease = 100 * time.Millisecond },
		"no wait":               func(c *server.Config) { c.Wait = -1 },
		"no stored body":        func(c *server.Config) { c.MaxStoredBody = -1 },
		"retention as ttl":      func(c *server.Config) { c.TTL, c.Retention = time.Hour, time.Hour },
		"no methods":            func(c *server.Config) { c.Methods = []string{} },
		"a header twice":        func(c *server.Config) { c.ReplayHeaders = []string{"x-a", "X-A", "location"} },
		"a method of their own": func(c *server.Config) { c.Methods = []string{"MKCOL"} },
	} {
		cfg := server.Config{Scope: tenant}
		change(&cfg)
		_, err := server.New(store, cfg)
		require.NoError(t, err, name)
	}
}

func TestNewCopies(t *testing.T) {
	t.Parallel()
	methods := []string{"POST"}
	m := newMiddleware(t, func(c *server.Config) { c.Methods = methods })
	methods[0] = "GET"
	assert.Equal(t, "executed", status(post(m.Wrap(&counter{}), "k", "{}")))
	none := newMiddleware(t, func(c *server.Config) { c.Methods = []string{} })
	assert.Empty(t, status(post(none.Wrap(&counter{}), "k", "{}")), "an empty list guards nothing")
}

func TestWrapPanics(t *testing.T) {
	t.Parallel()
	m := newMiddleware(t, nil)
	assert.Panics(t, func() { m.Wrap(nil) })
	assert.Panics(t, func() { m.WrapTx(nil) })
	assert.Panics(t, func() { m.WrapTx(txNothing) }, "the store in memory has no transactions")
}

func TestKeylessGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		var seen events
		for _, mode := range []server.KeylessMode{server.PassKeyless, server.BodyHashKeyless} {
			until := time.Now().Add(time.Hour)
			g := newMiddleware(t, func(c *server.Config) {
				c.Keyless, c.Observer = server.Keyless{Mode: mode, Until: until}, seen.observe
			}).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, guarded := server.OperationFrom(r.Context())
				assert.Equal(t, mode == server.BodyHashKeyless || r.Header.Get("Idempotency-Key") != "", guarded)
				h.ServeHTTP(w, r)
			}))
			time.Sleep(time.Hour - time.Millisecond)
			w := post(g, "", fmt.Sprint(mode))
			assert.Equal(t, 201, w.Code)
			assert.Equal(t, map[server.KeylessMode]string{server.PassKeyless: "unprotected", server.BodyHashKeyless: "executed"}[mode], status(w))
			time.Sleep(time.Millisecond)
			wantProblem(t, post(g, "", fmt.Sprint(mode)), 400, "missing")
			wantExecuted(t, post(g, "k", "{}"), 201)
		}
		assert.Equal(t, []server.EventKind{
			server.EventUnprotected, server.EventMissing, server.EventExecuted,
			server.EventExecuted, server.EventMissing, server.EventExecuted,
		}, seen.outcomes())
	})
}

func TestBodyHashAcrossTheEdgeOfTheWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		store := newMemory()
		config := func(c *server.Config) { c.Keyless.Mode = server.BodyHashKeyless }
		g := newMiddlewareOver(t, store, config).Wrap(h)
		two := newMiddlewareOver(t, store, config).Wrap(h)
		first := post(g, "", "{}")
		time.Sleep(10*time.Second - time.Millisecond)
		wantReplayed(t, post(g, "", "{}"), first)
		time.Sleep(time.Millisecond)
		// At the edge two taps race: one runs anew, the other gets its answer.
		a, b := sent(func() *httptest.ResponseRecorder { return post(g, "", "{}") }), sent(func() *httptest.ResponseRecorder { return post(two, "", "{}") })
		x, y := <-a, <-b
		if status(x) == "replayed" {
			x, y = y, x
		}
		wantExecuted(t, x, 201)
		wantReplayed(t, y, x)
		assert.EqualValues(t, 2, h.runs.Load())
		wantExecuted(t, post(g, "", "{}", as("umbrella")), 201)
		wantExecuted(t, post(g, "", "{}", to("/refunds")), 201)
	})
}

func TestBodyHashWindowEndsNotBeforeTheRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		store := newMemory()
		config := func(c *server.Config) {
			c.Keyless, c.Wait = server.Keyless{Mode: server.BodyHashKeyless, Window: time.Second}, time.Minute
		}
		one := newMiddlewareOver(t, store, config).Wrap(slow(h, 20*time.Second))
		two := newMiddlewareOver(t, store, config).Wrap(slow(h, 20*time.Second))
		first := sent(func() *httptest.ResponseRecorder { return post(one, "", "{}") })
		time.Sleep(5 * time.Second)
		second, third := sent(func() *httptest.ResponseRecorder { return post(one, "", "{}") }), sent(func() *httptest.ResponseRecorder { return post(two, "", "{}") })
		winner := <-first
		wantReplayed(t, <-second, winner)
		wantReplayed(t, <-third, winner)
		assert.EqualValues(t, 1, h.runs.Load())
		wantExecuted(t, post(one, "", "{}"), 201) // after the run the window is over
	})
}

func TestDownstreamKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		keys := make(map[string]string)
		m := newMiddleware(t, func(c *server.Config) { c.Keyless.Mode = server.BodyHashKeyless })
		g := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			o := op(r)
			name := r.Header.Get("X-Name")
			keys[name] = o.DownstreamKey("charge")
			keys[name+"/mail"] = o.DownstreamKey("mail")
			assert.Equal(t, keys[name], o.DownstreamKey("charge"))
			w.WriteHeader(http.StatusInternalServerError)
		}))
		named := func(name string) func(*http.Request) { return func(r *http.Request) { r.Header.Set("X-Name", name) } }
		post(g, "k", "{}", named("first"))
		post(g, "k", "{}", named("again"))
		post(g, "k2", "{}", named("other key"))
		post(g, "k", "{}", named("other tenant"), as("umbrella"))
		post(g, "", "{}", named("hash"))
		post(g, "", "{}", named("hash again"))
		assert.Equal(t, keys["first"], keys["again"])
		delete(keys, "again")
		delete(keys, "again/mail")
		seen := make(map[string]string)
		for name, key := range keys {
			assert.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, key)
			assert.Empty(t, seen[key], name)
			seen[key] = name
		}
	})
}
