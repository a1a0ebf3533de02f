package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/oncemore-go/oncemore/server"
)

// pair is two middlewares over one store, as two processes have them; h runs in
// the first.
func pair(t *testing.T, store server.Store, h http.Handler, change func(*server.Config)) (first, second http.Handler) {
	t.Helper()
	never := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the second process ran the handler") })
	return newMiddlewareOver(t, store, change).Wrap(h), newMiddlewareOver(t, store, change).Wrap(never)
}

func TestWaitEndsWithTheFirstInAnotherProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		one, two := pair(t, newMemory(), slow(h, 3*time.Second), nil)
		first := sent(func() *httptest.ResponseRecorder { return post(one, "k", "{}") })
		synctest.Wait()
		start := time.Now()
		second := post(two, "k", "{}")
		wantReplayed(t, second, <-first)
		took := time.Since(start)
		assert.GreaterOrEqual(t, took, 3*time.Second)
		assert.Less(t, took, 3100*time.Millisecond)
	})
}

func TestMismatchIsToldAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		one, two := pair(t, newMemory(), slow(h, 10*time.Second), nil)
		first := sent(func() *httptest.ResponseRecorder { return post(one, "k", "{}") })
		synctest.Wait()
		start := time.Now()
		wantProblem(t, post(one, "k", "[]"), 422, "mismatch")
		wantProblem(t, post(two, "k", "[]"), 422, "mismatch")
		assert.Zero(t, time.Since(start))
		wantExecuted(t, <-first, 201)
	})
}

func TestNegativeWaitDoesNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		one, two := pair(t, newMemory(), slow(h, time.Second), func(c *server.Config) { c.Wait = -1 })
		first := sent(func() *httptest.ResponseRecorder { return post(one, "k", "{}") })
		synctest.Wait()
		start := time.Now()
		wantProblem(t, post(one, "k", "{}"), 409, "in-progress")
		wantProblem(t, post(two, "k", "{}"), 409, "in-progress")
		wantProblem(t, post(one, "k", "[]"), 422, "mismatch")
		assert.Zero(t, time.Since(start))
		wantReplayed(t, post(one, "k", "{}", func(*http.Request) { time.Sleep(2 * time.Second) }), <-first)
	})
}

func TestWaitIsSeenAcrossProcesses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		one, two := pair(t, newMemory(), slow(h, 10*time.Second), func(c *server.Config) { c.Wait = 2 * time.Second })
		first := sent(func() *httptest.ResponseRecorder { return post(one, "k", "{}") })
		synctest.Wait()
		start := time.Now()
		wantProblem(t, post(two, "k", "{}"), 409, "in-progress")
		assert.Equal(t, 2*time.Second, time.Since(start))
		wantExecuted(t, <-first, 201)
	})
}

func TestOneWaiterTooMany(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		g := newMiddleware(t, func(c *server.Config) { c.MaxWaiters = 3 }).Wrap(slow(h, time.Second))
		answers := []<-chan *httptest.ResponseRecorder{}
		for range 4 {
			answers = append(answers, sent(func() *httptest.ResponseRecorder { return post(g, "k", "{}") }))
		}
		synctest.Wait()
		start := time.Now()
		wantProblem(t, post(g, "k", "{}"), 503, "in-progress")
		assert.Zero(t, time.Since(start))
		wantExecuted(t, post(g, "other key", "{}", func(r *http.Request) { r.Header.Set("Idempotency-Key", "other") }), 201)
		for _, ch := range answers {
			assert.Equal(t, 201, (<-ch).Code)
		}
	})
}

func TestWaitFitsIntoTheWriteTimeout(t *testing.T) {
	t.Parallel()
	for writeTimeout, want := range map[time.Duration]time.Duration{
		0:                      30 * time.Second,
		time.Hour:              30 * time.Second,
		10 * time.Second:       9 * time.Second,
		time.Second:            500 * time.Millisecond,
		100 * time.Millisecond: 50 * time.Millisecond,
	} {
		t.Run(fmt.Sprint(writeTimeout), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				srv := &http.Server{WriteTimeout: writeTimeout, ReadHeaderTimeout: time.Second}
				g := newMiddleware(t, nil).Wrap(slow(&counter{}, time.Minute))
				first := sent(func() *httptest.ResponseRecorder { return post(g, "k", "{}") })
				synctest.Wait()
				start := time.Now()
				w := post(g, "k", "{}", within(context.WithValue(t.Context(), http.ServerContextKey, srv)))
				wantProblem(t, w, 409, "in-progress")
				assert.Equal(t, want, time.Since(start))
				<-first
			})
		})
	}
}

// A slow upload has used up a part of the WriteTimeout before the wait begins.
func TestWaitFitsIntoWhatAnUploadLeavesOfTheWriteTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv := &http.Server{WriteTimeout: 10 * time.Second, ReadHeaderTimeout: time.Second}
		g := newMiddleware(t, nil).Wrap(slow(&counter{}, time.Minute))
		first := sent(func() *httptest.ResponseRecorder { return post(g, "k", "{}") })
		synctest.Wait()
		start := time.Now()
		w := post(g, "k", "{}", func(r *http.Request) {
			*r = *r.WithContext(context.WithValue(t.Context(), http.ServerContextKey, srv))
			r.Body = &slowBody{r.Body, 4 * time.Second}
		})
		wantProblem(t, w, 409, "in-progress")
		assert.Equal(t, 9*time.Second, time.Since(start))
		<-first
	})
}

// slowBody takes its time for the first bytes.
type slowBody struct {
	io.ReadCloser
	delay time.Duration
}

func (b *slowBody) Read(p []byte) (int, error) {
	time.Sleep(b.delay)
	b.delay = 0
	return b.ReadCloser.Read(p)
}

func TestAWaiterMayLeave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		var seen events
		store := newFaulty(newMemory())
		one, two := pair(t, store, slow(h, 10*time.Second), func(c *server.Config) { c.Observer = seen.observe })
		first := sent(func() *httptest.ResponseRecorder { return post(one, "k", "{}") })
		synctest.Wait()
		for _, g := range []http.Handler{one, two} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			start := time.Now()
			post(g, "k", "{}", within(ctx))
			assert.Equal(t, time.Second, time.Since(start))
			cancel()
		}
		asked := store.count("Lookup")
		time.Sleep(5 * time.Second)
		assert.Equal(t, asked, store.count("Lookup"), "nobody waits, and the row is still read")
		assert.Equal(t, []server.EventKind{server.EventInProgress, server.EventInProgress}, seen.outcomes())
		wantReplayed(t, post(two, "k", "{}"), <-first)
		assert.EqualValues(t, 1, h.runs.Load())
	})
}

// An outer middleware may end the context while the client is still there:
// what it gets must not look like a success.
func TestAWaiterWhoseContextEndsIsNoSuccess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newMiddleware(t, nil).Wrap(slow(&counter{}, time.Minute))
		first := sent(func() *httptest.ResponseRecorder { return post(g, "k", "{}") })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantProblem(t, post(g, "k", "{}", within(ctx)), 409, "in-progress")
		<-first
	})
}

func TestAThousandDuplicatesAreAHandfulOfLookups(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		store := newFaulty(newMemory())
		one, two := pair(t, store, slow(h, 2*time.Second), func(c *server.Config) { c.MaxWaiters = 1000 })
		first := sent(func() *httptest.ResponseRecorder { return post(one, "k", "{}") })
		synctest.Wait()
		claims := store.count("Claim")
		var wg sync.WaitGroup
		answers := make([]*httptest.ResponseRecorder, 1000)
		for i := range answers {
			wg.Go(func() { answers[i] = post([]http.Handler{one, two}[i%2], "k", "{}") })
		}
		wg.Wait()
		winner := <-first
		for _, w := range answers {
			wantReplayed(t, w, winner)
		}
		assert.EqualValues(t, 1, h.runs.Load())
		assert.LessOrEqual(t, store.count("Lookup"), 80, "2 seconds of one watcher")
		assert.Positive(t, store.count("Lookup"))
		assert.LessOrEqual(t, store.count("Claim")-claims, 1)
	})
}

func TestLosersOfARunWithoutResult(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n int
		var mu sync.Mutex
		g := newMiddleware(t, func(c *server.Config) { c.Wait = 5 * time.Second }).Wrap(http.HandlerFunc(
			func(w http.ResponseWriter, _ *http.Request) {
				mu.Lock()
				n++
				run := n
				mu.Unlock()
				time.Sleep(2 * time.Second)
				if run < 3 {
					w.WriteHeader(http.StatusInternalServerError)
					return
				}
				w.WriteHeader(http.StatusCreated)
			}))
		start := time.Now()
		var wg sync.WaitGroup
		codes := make(map[string]int)
		for range 10 {
			wg.Go(func() {
				w := post(g, "k", "{}")
				mu.Lock()
				defer mu.Unlock()
				codes[fmt.Sprintf("%d %s", w.Code, status(w))]++
			})
		}
		wg.Wait()
		assert.Equal(t, 3, n, "one claims anew, the others wait on")
		assert.Equal(t, map[string]int{"500 executed": 2, "201 executed": 1, "409 in-progress": 7}, codes)
		assert.Equal(t, 6*time.Second, time.Since(start), "each within its own Wait")
	})
}

func TestWaitersOfAPanic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		first := true
		g := newMiddleware(t, nil).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if first {
				first = false
				time.Sleep(time.Second)
				panic("boom")
			}
			h.ServeHTTP(w, r)
		}))
		go func() {
			defer func() { _ = recover() }()
			post(g, "k", "{}")
		}()
		synctest.Wait()
		wantExecuted(t, post(g, "k", "{}"), 201)
	})
}

func TestAWatcherOutlivesAStoreFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		store := newFaulty(newMemory())
		one, two := pair(t, store, slow(h, 3*time.Second), nil)
		first := sent(func() *httptest.ResponseRecorder { return post(one, "k", "{}") })
		synctest.Wait()
		second := sent(func() *httptest.ResponseRecorder { return post(two, "k", "{}") })
		time.Sleep(100 * time.Millisecond)
		store.fail(always("Lookup"), nil)
		time.Sleep(time.Second)
		store.fail(nil, nil)
		winner := <-first
		wantReplayed(t, <-second, winner)
	})
}

func TestAClaimThatFailsFailsForAllWhoWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFaulty(newMemory())
		store.fail(func(call string) error {
			if call == "Claim" {
				time.Sleep(time.Second)
				return errors.New("down")
			}
			return nil
		}, nil)
		h := &counter{}
		g := newMiddlewareOver(t, store, nil).Wrap(h)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { wantProblem(t, post(g, "k", "{}"), 503, "unavailable") })
		}
		wg.Wait()
		assert.Equal(t, 1, store.count("Claim"))
		assert.Zero(t, h.runs.Load())
	})
}
