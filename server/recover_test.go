package server_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
)

// recovering is a middleware that asks f, over a store with an abandoned run of
// key k.
func recovering(
	t *testing.T, store server.Store, f func(context.Context, *server.Operation) (server.Recovery, error), change func(*server.Config),
) *server.Middleware {
	t.Helper()
	return newMiddlewareOver(t, store, func(c *server.Config) {
		c.Recover = f
		if change != nil {
			change(c)
		}
	})
}

func TestRecoverLeavesUnknown(t *testing.T) {
	t.Parallel()
	for _, abandoned := range []server.Abandoned{server.RefuseAbandoned, server.RerunAbandoned} {
		synctest.Test(t, func(t *testing.T) {
			store := newMemory()
			abandon(t, store, "k", time.Second)
			asked := 0
			h := &counter{}
			var seen events
			g := recovering(t, store, func(_ context.Context, o *server.Operation) (server.Recovery, error) {
				asked++
				assert.Equal(t, "k", o.Key())
				assert.Equal(t, "acme", o.Scope())
				assert.Equal(t, 1, o.Attempt(), "it is the run that died")
				return server.Recovery{}, nil
			}, func(c *server.Config) { c.Abandoned, c.Observer = abandoned, seen.observe }).Wrap(h)
			for i := range 3 {
				w := post(g, "k", "{}")
				wantProblem(t, w, 409, "unknown")
				assert.Empty(t, w.Header().Get("Retry-After"))
				assert.Equal(t, i+1, asked, "at every arrival")
			}
			wantProblem(t, post(g, "k", "[]"), 422, "mismatch")
			assert.Equal(t, 3, asked)
			assert.Zero(t, h.runs.Load(), "it is a decision, whatever Abandoned says")
			assert.Equal(t, []server.EventKind{server.EventUnknown, server.EventUnknown, server.EventUnknown, server.EventMismatch}, seen.outcomes())
		})
	}
}

func TestRecoverRunsAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		abandon(t, store, "k", time.Second)
		var seen events
		g := recovering(t, store, func(context.Context, *server.Operation) (server.Recovery, error) {
			return server.Recovery{Action: server.RunAgain}, nil
		}, func(c *server.Config) { c.Observer, c.Lease = seen.observe, 2*time.Second }).Wrap(
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				assert.Equal(t, 2, op(r).Attempt())
				body, _ := io.ReadAll(r.Body)
				assert.Equal(t, "{}", string(body))
				time.Sleep(10 * time.Second)
				w.WriteHeader(http.StatusCreated)
			}))
		first := post(g, "k", "{}")
		wantExecuted(t, first, 201)
		wantReplayed(t, post(g, "k", "{}"), first)
		assert.Len(t, seen.of(server.EventTakeover), 1)
		assert.Len(t, seen.of(server.EventRecovered), 1)
		assert.Equal(t, []server.EventKind{server.EventExecuted, server.EventReplayed}, seen.outcomes())
	})
}

func TestRecoverSettles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		abandon(t, store, "k", time.Second)
		h := &counter{}
		asked := 0
		var seen events
		m := recovering(t, store, func(context.Context, *server.Operation) (server.Recovery, error) {
			asked++
			return server.Recovery{Action: server.SettleAs, Response: server.Response{
				Status: 201, Body: []byte("found"),
				Header: http.Header{"location": {"/o/1"}, "Set-Cookie": {"sid=1"}, "Content-Type": {"text/plain"}},
			}}, nil
		}, func(c *server.Config) { c.Observer = seen.observe })
		g := m.Wrap(h)
		for range 2 {
			w := post(g, "k", "{}")
			assert.Equal(t, 201, w.Code)
			assert.Equal(t, "replayed", status(w))
			assert.Equal(t, "found", w.Body.String())
			assert.Equal(t, "/o/1", w.Header().Get("Location"))
			assert.Equal(t, "text/plain", w.Header().Get("Content-Type"))
			assert.Empty(t, w.Header().Get("Set-Cookie"))
		}
		assert.Equal(t, 1, asked)
		assert.Zero(t, h.runs.Load())
		assert.Equal(t, []server.EventKind{server.EventReplayed, server.EventReplayed}, seen.outcomes())
		assert.Len(t, seen.of(server.EventRecovered), 1)
	})
}

func TestRecoverFails(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func() (server.Recovery, error){
		"error":          func() (server.Recovery, error) { return server.Recovery{Action: server.RunAgain}, errors.New("down") },
		"no such action": func() (server.Recovery, error) { return server.Recovery{Action: 7}, nil },
		"not final": func() (server.Recovery, error) {
			return server.Recovery{Action: server.SettleAs, Response: server.Response{Status: 500}}, nil
		},
		"too long": func() (server.Recovery, error) {
			return server.Recovery{Action: server.SettleAs, Response: server.Response{Status: 200, Body: make([]byte, 1<<20)}}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newMemory()
				abandon(t, store, "k", time.Second)
				h := &counter{}
				var seen events
				fails := true
				g := recovering(t, store, func(context.Context, *server.Operation) (server.Recovery, error) {
					if fails {
						return f()
					}
					return server.Recovery{Action: server.RunAgain}, nil
				}, func(c *server.Config) { c.Observer = seen.observe }).Wrap(h)
				wantProblem(t, post(g, "k", "{}"), 503, "unavailable")
				assert.Equal(t, []server.EventKind{server.EventUnavailable}, seen.outcomes())
				fails = false
				wantExecuted(t, post(g, "k", "{}"), 201) // asked again at once
				assert.EqualValues(t, 1, h.runs.Load())
			})
		})
	}
}

func TestRecoverPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		abandon(t, store, "k", time.Second)
		h := &counter{}
		var seen events
		panics := true
		m := recovering(t, store, func(context.Context, *server.Operation) (server.Recovery, error) {
			if panics {
				panic("boom")
			}
			return server.Recovery{Action: server.RunAgain}, nil
		}, func(c *server.Config) { c.Observer = seen.observe })
		g := m.Wrap(h)
		assert.PanicsWithValue(t, "boom", func() { post(g, "k", "{}") })
		assert.Len(t, seen.outcomes(), 1)
		panics = false
		wantExecuted(t, post(g, "k", "{}"), 201)
		require.NoError(t, m.Shutdown(t.Context()), "nothing is left running")
	})
}

func TestOneAsksAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		abandon(t, store, "k", time.Second)
		var asking, most, asked atomic.Int64
		h := &counter{}
		var answers []<-chan *httptest.ResponseRecorder
		for range 5 {
			g := recovering(t, store, func(context.Context, *server.Operation) (server.Recovery, error) {
				most.Store(max(most.Load(), asking.Add(1)))
				time.Sleep(10 * time.Second) // longer than the lease, so it is renewed
				asking.Add(-1)
				if asked.Add(1) < 3 {
					return server.Recovery{}, nil
				}
				return server.Recovery{Action: server.RunAgain}, nil
			}, func(c *server.Config) { c.Lease, c.Wait = 2*time.Second, time.Hour }).Wrap(h)
			for range 2 {
				answers = append(answers, sent(func() *httptest.ResponseRecorder { return post(g, "k", "{}") }))
			}
		}
		codes := make(map[string]int)
		for _, ch := range answers {
			codes[status(<-ch)]++
		}
		assert.EqualValues(t, 1, most.Load())
		assert.EqualValues(t, 1, h.runs.Load())
		assert.Equal(t, map[string]int{"unknown": 2, "executed": 1, "replayed": 7}, codes)
	})
}

// A backend that can't say is not asked by all who wait, one after the other.
func TestAnErrorOfRecoverIsForAllWhoWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		abandon(t, store, "k", time.Second)
		asked := 0
		g := recovering(t, store, func(context.Context, *server.Operation) (server.Recovery, error) {
			asked++
			time.Sleep(time.Second)
			return server.Recovery{}, errors.New("down")
		}, nil).Wrap(&counter{})
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { wantProblem(t, post(g, "k", "{}"), 503, "unavailable") })
		}
		wg.Wait()
		assert.Equal(t, 1, asked)
	})
}

func TestRecoverIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		abandon(t, store, "k", time.Second)
		g := recovering(t, store, func(ctx context.Context, _ *server.Operation) (server.Recovery, error) {
			_, guarded := server.OperationFrom(ctx)
			assert.True(t, guarded)
			<-ctx.Done()
			return server.Recovery{}, context.Cause(ctx)
		}, func(c *server.Config) { c.MaxRun = 10 * time.Second }).Wrap(&counter{})
		start := time.Now()
		wantProblem(t, post(g, "k", "{}"), 503, "unavailable")
		assert.Equal(t, 10*time.Second, time.Since(start))
	})
}

func TestRecoverIsAskedAfterEffectStarted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		asked := 0
		g := recovering(t, newMemory(), func(context.Context, *server.Operation) (server.Recovery, error) {
			asked++
			return server.Recovery{Action: server.RunAgain}, nil
		}, nil).Wrap(respond(&n, func(w http.ResponseWriter, r *http.Request) {
			if n.Load() == 1 {
				op(r).EffectStarted()
				w.WriteHeader(http.StatusBadGateway)
				return
			}
			assert.Equal(t, 2, op(r).Attempt())
			w.WriteHeader(http.StatusCreated)
		}))
		w := post(g, "k", "{}")
		assert.Equal(t, 502, w.Code)
		assert.Equal(t, "unknown", status(w))
		wantExecuted(t, post(g, "k", "{}"), 201)
		assert.Equal(t, 1, asked)
	})
}

func TestRecoverIsNotAskedForBodyHashes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		g := recovering(t, newMemory(), func(context.Context, *server.Operation) (server.Recovery, error) {
			t.Error("asked")
			return server.Recovery{}, nil
		}, func(c *server.Config) { c.Keyless.Mode = server.BodyHashKeyless }).Wrap(respond(&n,
			func(w http.ResponseWriter, r *http.Request) {
				assert.Empty(t, op(r).Key())
				op(r).EffectStarted()
				w.WriteHeader(http.StatusBadGateway)
			}))
		assert.Equal(t, 502, post(g, "", "{}").Code)
		wantProblem(t, post(g, "", "{}"), 409, "unknown")
		time.Sleep(11 * time.Second)
		assert.Equal(t, 502, post(g, "", "{}").Code, "records of any state lapse with the window")
		assert.EqualValues(t, 2, n.Load())
	})
}

func TestEffectStarted(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(http.ResponseWriter){
		"500":   func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) },
		"429":   func(w http.ResponseWriter) { w.WriteHeader(http.StatusTooManyRequests) },
		"panic": func(http.ResponseWriter) { panic("boom") },
		"abort": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var n atomic.Int64
			m := newMiddleware(t, nil)
			g := m.Wrap(respond(&n, func(w http.ResponseWriter, r *http.Request) {
				op(r).EffectStarted()
				end(w)
			}))
			func() {
				defer func() { _ = recover() }()
				w := post(g, "k", "{}")
				assert.Equal(t, "unknown", status(w))
				assert.Contains(t, []int{500, 429}, w.Code)
			}()
			wantProblem(t, post(g, "k", "{}"), 409, "unknown")
			assert.EqualValues(t, 1, n.Load())
			rec, ok, err := m.Lookup(t.Context(), "acme", "k")
			require.NoError(t, err)
			assert.True(t, ok)
			assert.Equal(t, server.Unknown, rec.State)
		})
	}
	t.Run("a result is a result", func(t *testing.T) {
		t.Parallel()
		g := newMiddleware(t, nil).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			op(r).EffectStarted()
			w.WriteHeader(http.StatusPaymentRequired)
		}))
		first := post(g, "k", "{}")
		wantExecuted(t, first, 402)
		wantReplayed(t, post(g, "k", "{}"), first)
	})
}
