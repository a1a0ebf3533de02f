package server_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
)

func TestAClaimWhoseReplyIsLostLeavesTheKeyFree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		store := newFaulty(newMemory())
		g := newMiddlewareOver(t, store, nil).Wrap(h)
		store.fail(nil, times(1, "Claim")) // it took effect, and the reply was lost
		wantProblem(t, post(g, "k", "{}"), 503, "unavailable")
		assert.Zero(t, h.runs.Load())
		start := time.Now()
		wantExecuted(t, post(g, "k", "{}"), 201) // nothing ran, so nothing is unknown
		assert.Less(t, time.Since(start), time.Second)
	})
}

func TestATakeoverWhoseReplyIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		memory := newMemory()
		abandon(t, memory, "k", time.Second)
		store := newFaulty(memory)
		store.fail(nil, times(1, "Takeover"))
		g := newMiddlewareOver(t, store, func(c *server.Config) { c.Abandoned, c.Lease = server.RerunAbandoned, 3*time.Second }).Wrap(h)
		wantProblem(t, post(g, "k", "{}"), 503, "unavailable")
		assert.Zero(t, h.runs.Load())
		wantExecuted(t, post(g, "k", "{}"), 201)
	})
}

func TestCompletionIsRepeated(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*faulty){
		"failed":     func(f *faulty) { f.fail(times(5, "Complete"), nil) },
		"reply lost": func(f *faulty) { f.fail(nil, times(5, "Complete")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := &counter{}
				store := newFaulty(newMemory())
				var seen events
				g := newMiddlewareOver(t, store, func(c *server.Config) { c.Observer = seen.observe }).Wrap(h)
				fail(store)
				first := post(g, "k", "{}")
				wantExecuted(t, first, 201)
				assert.Len(t, seen.of(server.EventStoreFailure), 5)
				wantReplayed(t, post(g, "k", "{}"), first)
				assert.EqualValues(t, 1, h.runs.Load())
			})
		})
	}
}

// A store that is away for most of the lease loses nothing.
func TestCompletionIsRepeatedToTheEndOfTheLease(t *testing.T) {
	t.Parallel()
	for _, lease := range []time.Duration{100 * time.Millisecond, time.Second, 30 * time.Second} {
		t.Run(lease.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newFaulty(newMemory())
				start := time.Now()
				store.fail(func(call string) error {
					if call == "Complete" && time.Since(start) < lease*4/5 {
						return errStore
					}
					return nil
				}, nil)
				g := newMiddlewareOver(t, store, func(c *server.Config) { c.Lease = lease }).Wrap(&counter{})
				wantExecuted(t, post(g, "k", "{}"), 201)
				assert.Less(t, time.Since(start), lease)
				assert.Less(t, store.count("Complete"), 50)
			})
		})
	}
}

func TestNoSuccessThatNobodyRecorded(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]bool{"failed": false, "reply lost": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var log logBuffer
				store := newFaulty(newMemory())
				g := newMiddlewareOver(t, store, func(c *server.Config) { c.Logger, c.Lease = log.logger(), 10*time.Second }).Wrap(
					http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						op(r).SetResource("payment-7", "")
						w.Header().Set("X-Paid", "1")
						w.WriteHeader(http.StatusCreated)
						_, _ = io.WriteString(w, "the body")
					}))
				if reply {
					store.fail(nil, always("Complete"))
				} else {
					store.fail(always("Complete"), nil)
				}
				start := time.Now()
				w := post(g, "k", "{}")
				wantProblem(t, w, 503, "unavailable")
				assert.Empty(t, w.Header().Get("X-Paid"))
				took := time.Since(start)
				assert.LessOrEqual(t, took, 10*time.Second, "while the lease lasts")
				assert.Greater(t, took, 5*time.Second)
				assert.Contains(t, log.String(), "payment-7", "for whoever settles it")
				assert.Contains(t, log.String(), "201")
				assert.NotContains(t, log.String(), "the body")
				store.fail(nil, nil)
				again := post(g, "k", "{}")
				if reply {
					assert.Equal(t, 201, again.Code)
					assert.Equal(t, "replayed", status(again))
				} else {
					wantProblem(t, again, 409, "unknown")
				}
			})
		})
	}
}

func TestReleaseIsRepeated(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*faulty){
		"failed":     func(f *faulty) { f.fail(times(5, "Release"), nil) },
		"reply lost": func(f *faulty) { f.fail(nil, times(5, "Release")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var n atomic.Int64
				store := newFaulty(newMemory())
				g := newMiddlewareOver(t, store, nil).Wrap(respond(&n, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }))
				fail(store)
				wantExecuted(t, post(g, "k", "{}"), 500)
				store.fail(nil, nil)
				wantExecuted(t, post(g, "k", "{}"), 500)
				assert.EqualValues(t, 2, n.Load())
			})
		})
	}
}

func TestAReleaseThatNeverWorksEndsWithTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log logBuffer
		store := newFaulty(newMemory())
		g := newMiddlewareOver(t, store, func(c *server.Config) { c.Logger, c.Lease, c.Wait = log.logger(), 5*time.Second, time.Minute }).Wrap(
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }))
		store.fail(always("Release"), nil)
		start := time.Now()
		wantExecuted(t, post(g, "k", "{}"), 500)
		assert.LessOrEqual(t, time.Since(start), 5*time.Second)
		assert.Contains(t, log.String(), "claimed until its lease ends")
		store.fail(nil, nil)
		wantProblem(t, post(g, "k", "{}"), 409, "unknown")
	})
}

// tooLarge takes no results over a size.
type tooLarge struct {
	server.Store
	max int
}

func (s tooLarge) Complete(ctx context.Context, h server.Hold, r server.Result) (bool, error) {
	if len(r.Data) > s.max {
		return false, fmt.Errorf("mystore: %w", server.ErrTooLarge)
	}
	return s.Store.Complete(ctx, h, r)
}

func TestWhatTheStoreCanNotTakeIsNotKept(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	store := newFaulty(tooLarge{newMemory(), 1000})
	g := newMiddlewareOver(t, store, nil).Wrap(respond(&n, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/o" {
			w.Header().Set("Location", "/o/1")
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, strings.Repeat("x", 5000))
	}))
	first := post(g, "k", "{}")
	wantExecuted(t, first, 201)
	assert.Equal(t, 5000, first.Body.Len(), "the first caller gets all of it")
	assert.Equal(t, 2, store.count("Complete"), "it is not sent again as it is")
	wantProblem(t, post(g, "k", "{}"), 409, "not-kept")
	post(g, "k2", "{}", to("/o"))
	again := post(g, "k2", "{}", to("/o"))
	assert.Equal(t, 201, again.Code)
	assert.Equal(t, "/o/1", again.Header().Get("Location"))
	assert.EqualValues(t, 2, n.Load())
}

func TestAStoreThatComesBackWhileTheHandlerRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		store := newFaulty(newMemory())
		g := newMiddlewareOver(t, store, func(c *server.Config) { c.Lease = 30 * time.Second }).Wrap(http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				store.fail(always("Renew", "Complete", "Claim", "Lookup", "Release", "Takeover"), nil)
				time.AfterFunc(20*time.Second, func() { store.fail(nil, nil) })
				time.Sleep(15 * time.Second)
				h.ServeHTTP(w, r)
			}))
		first := post(g, "k", "{}")
		wantExecuted(t, first, 201)
		wantReplayed(t, post(g, "k", "{}"), first)
	})
}

func TestALostLookupAfterALostLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := newMemory()
		store := newFaulty(memory)
		store.fail(always("Renew", "Lookup"), nil)
		g := newMiddlewareOver(t, store, func(c *server.Config) { c.Lease = 3 * time.Second }).Wrap(slow(&counter{}, 20*time.Second))
		first := sentTo(g, "k")
		time.Sleep(4 * time.Second)
		steal(t, memory, "k", time.Minute, time.Second)
		wantProblem(t, <-first, 409, "in-progress")
		require.NoError(t, t.Context().Err())
	})
}

func TestTheClientThatLeftDoesNotStopTheStore(t *testing.T) {
	t.Parallel()
	for _, code := range []int{201, 500} {
		synctest.Test(t, func(t *testing.T) {
			h := &atomic.Int64{}
			store := newFaulty(newMemory())
			store.fail(times(2, "Complete", "Release"), nil)
			ctx, cancel := context.WithCancel(t.Context())
			g := newMiddlewareOver(t, store, nil).Wrap(respond(h, func(w http.ResponseWriter, r *http.Request) {
				cancel()
				assert.NoError(t, r.Context().Err())
				w.WriteHeader(code)
			}))
			post(g, "k", "{}", within(ctx))
			w := post(g, "k", "{}")
			assert.Equal(t, map[int]string{201: "replayed", 500: "executed"}[code], status(w))
		})
	}
}
