package server_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
)

func TestTheLeaseIsRenewedEveryThirdOfIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty(newMemory())
		g := newMiddlewareOver(t, store, func(c *server.Config) { c.Lease = 3 * time.Second }).Wrap(slow(&counter{}, 10500*time.Millisecond))
		wantExecuted(t, post(g, "k", "{}"), 201)
		assert.Equal(t, 10, store.count("Renew"))
		time.Sleep(time.Minute)
		assert.Equal(t, 10, store.count("Renew"), "no renewal after the end")
	})
}

func TestARenewalThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty(newMemory())
		store.fail(times(5, "Renew"), nil)
		var seen events
		g := newMiddlewareOver(t, store, func(c *server.Config) { c.Lease, c.Observer = 3*time.Second, seen.observe }).Wrap(
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(10 * time.Second)
				assert.NoError(t, r.Context().Err())
				w.WriteHeader(http.StatusCreated)
			}))
		wantExecuted(t, post(g, "k", "{}"), 201)
		assert.Len(t, seen.of(server.EventStoreFailure), 5)
		assert.Empty(t, seen.of(server.EventLeaseLost))
	})
}

// steal is what another process does once the lease has ended: it takes the
// row, and gives it this result after that long.
func steal(t *testing.T, store server.Store, key string, lease, after time.Duration) {
	t.Helper()
	m := newMiddlewareOver(t, store, func(c *server.Config) { c.Lease, c.Abandoned = lease, server.RerunAbandoned })
	w := post(m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, 2, op(r).Attempt())
		time.Sleep(after)
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, "the thief's")
	})), key, "{}")
	wantExecuted(t, w, 202)
}

// lostLease runs a handler whose renewals reach nobody, while another process
// takes its key over.
func lostLease(t *testing.T, thief time.Duration, h http.HandlerFunc) (*httptest.ResponseRecorder, *events) {
	t.Helper()
	memory := newMemory()
	store := newFaulty(memory)
	store.fail(always("Renew"), nil)
	var seen events
	g := newMiddlewareOver(t, store, func(c *server.Config) { c.Lease, c.Observer = 3*time.Second, seen.observe }).Wrap(h)
	go func() {
		time.Sleep(3*time.Second + time.Millisecond)
		steal(t, memory, "k", time.Minute, thief) //nolint:testifylint // New does not fail, and the bubble waits
	}()
	w := post(g, "k", "{}")
	time.Sleep(time.Minute) // until the thief is done
	return w, &seen
}

func TestALostLeaseEndsTheHandler(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]int{"final": 201, "not final": 500} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var cause error
				var took time.Duration
				w, seen := lostLease(t, 20*time.Second, func(w http.ResponseWriter, r *http.Request) {
					start := time.Now()
					<-r.Context().Done()
					took = time.Since(start)
					cause = context.Cause(r.Context())
					w.Header().Set("X-Mine", "1")
					w.WriteHeader(answer)
					_, _ = io.WriteString(w, "the loser's")
				})
				require.ErrorIs(t, cause, server.ErrLeaseLost)
				assert.Less(t, took, 5*time.Second)
				wantProblem(t, w, 409, "in-progress")
				assert.Empty(t, w.Header().Get("X-Mine"))
				assert.NotContains(t, w.Body.String(), "loser")
				assert.Len(t, seen.of(server.EventLeaseLost), 1)
				assert.Equal(t, []server.EventKind{server.EventInProgress}, seen.outcomes())
			})
		})
		t.Run(name+", and the winner is done", func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, seen := lostLease(t, time.Second, func(w http.ResponseWriter, _ *http.Request) {
					time.Sleep(10 * time.Second)
					w.WriteHeader(answer)
					_, _ = io.WriteString(w, "the loser's")
				})
				assert.Equal(t, 202, w.Code)
				assert.Equal(t, "replayed", status(w))
				assert.Equal(t, "the thief's", w.Body.String())
				assert.Equal(t, []server.EventKind{server.EventReplayed}, seen.outcomes())
			})
		})
	}
}

// Renewals that reach nobody lose the lease by our own clock. If nobody took it
// meanwhile, the result still counts, and the key can still be freed.
func TestASilentStoreAndNobodyElse(t *testing.T) {
	t.Parallel()
	for _, answer := range []int{201, 500} {
		synctest.Test(t, func(t *testing.T) {
			store := newFaulty(newMemory())
			store.fail(always("Renew"), nil)
			var n atomic.Int64
			g := newMiddlewareOver(t, store, func(c *server.Config) { c.Lease = 3 * time.Second }).Wrap(respond(&n,
				func(w http.ResponseWriter, r *http.Request) {
					if n.Load() == 1 {
						<-r.Context().Done()
					}
					w.WriteHeader(answer)
				}))
			wantExecuted(t, post(g, "k", "{}"), answer)
			again := post(g, "k", "{}")
			assert.Equal(t, answer, again.Code)
			assert.EqualValues(t, map[int]int{201: 1, 500: 2}[answer], n.Load())
		})
	}
}

// A late finisher must not undo the new owner's work, whatever its end.
func TestALateFinisherChangesNothing(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(http.ResponseWriter, *http.Request){
		"panic":            func(http.ResponseWriter, *http.Request) { panic("late") },
		"panic and effect": func(_ http.ResponseWriter, r *http.Request) { op(r).EffectStarted(); panic("late") },
		"5xx and effect": func(w http.ResponseWriter, r *http.Request) {
			op(r).EffectStarted()
			w.WriteHeader(http.StatusInternalServerError)
		},
		"flush": func(w http.ResponseWriter, _ *http.Request) { _ = http.NewResponseController(w).Flush() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				memory := newMemory()
				store := newFaulty(memory)
				store.fail(always("Renew"), nil)
				g := newMiddlewareOver(t, store, func(c *server.Config) { c.Lease = 3 * time.Second }).Wrap(
					http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						time.Sleep(10 * time.Second)
						end(w, r)
					}))
				go func() {
					defer func() { _ = recover() }()
					post(g, "k", "{}")
				}()
				time.Sleep(4 * time.Second)
				steal(t, memory, "k", time.Minute, 20*time.Second)
				w := post(newMiddlewareOver(t, memory, nil).Wrap(&counter{}), "k", "{}")
				assert.Equal(t, "the thief's", w.Body.String())
				assert.Equal(t, "replayed", status(w))
			})
		})
	}
}

// No beat is left to see the loss: completing does.
func TestALossThatCompletingFinds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := newMemory()
		var seen events
		g := newMiddlewareOver(t, memory, func(c *server.Config) {
			c.Lease, c.MaxRun, c.Observer = 3*time.Second, time.Second, seen.observe
		}).Wrap(slow(&counter{}, 10*time.Second))
		first := sentTo(g, "k")
		time.Sleep(5 * time.Second)
		steal(t, memory, "k", time.Minute, time.Second)
		assert.Equal(t, "the thief's", (<-first).Body.String())
		assert.Len(t, seen.of(server.EventLeaseLost), 1)
		assert.Equal(t, []server.EventKind{server.EventReplayed}, seen.outcomes())
	})
}

// A handler that returns without a word when its time is over has no result.
func TestAHandlerThatGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen events
		m := newMiddleware(t, func(c *server.Config) { c.MaxRun, c.Observer = time.Second, seen.observe })
		effect := false
		g := m.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if effect {
				op(r).EffectStarted()
			}
			<-r.Context().Done()
		}))
		wantProblem(t, post(g, "k", "{}"), 503, "unavailable")
		_, found, err := m.Lookup(t.Context(), "acme", "k")
		require.NoError(t, err)
		assert.False(t, found)
		effect = true
		wantProblem(t, post(g, "k", "{}"), 409, "unknown")
		rec, _, err := m.Lookup(t.Context(), "acme", "k")
		require.NoError(t, err)
		assert.Equal(t, server.Unknown, rec.State)
		assert.Equal(t, []server.EventKind{server.EventReleased, server.EventUnknown}, seen.outcomes())
		require.ErrorIs(t, seen.of()[0].Err, server.ErrMaxRun)
	})
}

func TestMaxRunEndsTheHandler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty(newMemory())
		config := func(c *server.Config) { c.Lease, c.MaxRun, c.Wait = 3*time.Second, 10*time.Second, time.Minute }
		var cause error
		g := newMiddlewareOver(t, store, config).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			start := time.Now()
			_, hasDeadline := r.Context().Deadline()
			assert.False(t, hasDeadline)
			<-r.Context().Done()
			assert.Equal(t, 10*time.Second, time.Since(start))
			cause = context.Cause(r.Context())
			time.Sleep(10 * time.Second) // it does not listen
			w.WriteHeader(http.StatusCreated)
		}))
		first := sent(func() *httptest.ResponseRecorder { return post(g, "k", "{}") })
		time.Sleep(9 * time.Second)
		other := newMiddlewareOver(t, store, config).Wrap(http.NotFoundHandler())
		start := time.Now()
		wantProblem(t, post(other, "k", "{}"), 409, "unknown") // abandoned by the ordinary rule
		assert.Less(t, time.Since(start), 5*time.Second)
		wantExecuted(t, <-first, 201) // nobody took it
		require.ErrorIs(t, cause, server.ErrMaxRun)
		require.ErrorIs(t, cause, context.DeadlineExceeded)
	})
}

// abandon leaves a run of the key behind whose process died.
func abandon(t *testing.T, store server.Store, key string, lease time.Duration) {
	t.Helper()
	dead := newFaulty(store)
	dead.fail(always("Renew", "Complete", "Release"), nil)
	g := newMiddlewareOver(t, dead, func(c *server.Config) { c.Lease = lease }).Wrap(&counter{})
	wantProblem(t, post(g, key, "{}"), 503, "unavailable")
	time.Sleep(lease)
}

func TestAbandonedIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		abandon(t, store, "k", time.Second)
		h := &counter{}
		var seen events
		m := newMiddlewareOver(t, store, func(c *server.Config) { c.Observer, c.TTL = seen.observe, time.Hour })
		g := m.Wrap(h)
		for range 2 {
			w := post(g, "k", "{}")
			wantProblem(t, w, 409, "unknown")
			assert.Empty(t, w.Header().Get("Retry-After"))
		}
		for _, event := range seen.of(server.EventUnknown) {
			assert.Equal(t, 1, event.Attempt, "of the run that is unknown")
		}
		wantProblem(t, post(g, "k", "[]"), 422, "mismatch")
		time.Sleep(30 * 24 * time.Hour)
		wantProblem(t, post(g, "k", "{}"), 409, "unknown") // 412 does not replace it
		n, err := store.Purge(t.Context())
		require.NoError(t, err)
		assert.Zero(t, n, "and no purge takes it")
		require.NoError(t, m.Settle(t.Context(), "acme", "k", server.Response{Status: 200}))
		wantProblem(t, post(g, "k", "{}"), 412, "expired")
		assert.Zero(t, h.runs.Load())
	})
}

func TestAbandonedIsRunAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		abandon(t, store, "k", time.Second)
		var seen events
		var attempts []int
		g := newMiddlewareOver(t, store, func(c *server.Config) {
			c.Abandoned, c.Observer = server.RerunAbandoned, seen.observe
		}).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			attempts = append(attempts, op(r).Attempt())
			time.Sleep(time.Second)
			w.WriteHeader(map[bool]int{true: 500, false: 201}[len(attempts) == 1])
		}))
		wantProblem(t, post(g, "k", "[]"), 422, "mismatch")
		wantExecuted(t, post(g, "k", "{}"), 500)
		wantExecuted(t, post(g, "k", "{}"), 201)
		assert.Equal(t, []int{2, 1}, attempts, "a released run starts at 1 again")
		takeovers := seen.of(server.EventTakeover)
		assert.Len(t, takeovers, 1)
	})
}

func TestOneTakesOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		abandon(t, store, "k", time.Second)
		h := &counter{}
		var answers []<-chan *httptest.ResponseRecorder
		for range 10 {
			g := newMiddlewareOver(t, store, func(c *server.Config) { c.Abandoned = server.RerunAbandoned }).Wrap(slow(h, time.Second))
			answers = append(answers, sent(func() *httptest.ResponseRecorder { return post(g, "k", "{}") }))
		}
		replays := 0
		for _, ch := range answers {
			w := <-ch
			assert.Equal(t, 201, w.Code)
			if status(w) == "replayed" {
				replays++
			}
		}
		assert.Equal(t, 9, replays)
		assert.EqualValues(t, 1, h.runs.Load())
	})
}

func TestWaitersWakeAtTheEndOfTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		dead := newFaulty(store)
		dead.fail(always("Renew", "Complete"), nil)
		ends := make(chan struct{})
		one := newMiddlewareOver(t, dead, func(c *server.Config) { c.Lease = 5 * time.Second }).Wrap(
			http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-ends }))
		first := sent(func() *httptest.ResponseRecorder { return post(one, "k", "{}") })
		synctest.Wait()
		h := &counter{}
		two := newMiddlewareOver(t, store, func(c *server.Config) { c.Abandoned = server.RerunAbandoned }).Wrap(h)
		start := time.Now()
		wantExecuted(t, post(two, "k", "{}"), 201)
		assert.Less(t, time.Since(start), 6*time.Second)
		close(ends)
		<-first
	})
}

// taken is a store that says of every renewal that somebody else has the key.
type taken struct{ server.Store }

func (taken) Renew(context.Context, server.Hold, time.Duration) (bool, error) { return false, nil }

func TestARenewalThatIsRefusedLosesTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen events
		g := newMiddlewareOver(t, taken{newMemory()}, func(c *server.Config) { c.Lease, c.Observer = 3*time.Second, seen.observe }).Wrap(
			http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				start := time.Now()
				<-r.Context().Done()
				assert.Equal(t, time.Second, time.Since(start))
				assert.Equal(t, server.ErrLeaseLost, context.Cause(r.Context()))
			}))
		post(g, "k", "{}")
		assert.Len(t, seen.of(server.EventLeaseLost), 1)
	})
}
