package server_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
)

// slow is a counter that takes its time, whatever its context says.
func slow(c *counter, d time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(d)
		c.ServeHTTP(w, r)
	})
}

// sent is a request under way.
func sent(f func() *httptest.ResponseRecorder) <-chan *httptest.ResponseRecorder {
	ch := make(chan *httptest.ResponseRecorder, 1)
	go func() { ch <- f() }()
	return ch
}

func TestB128_TheLoserWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		g := newMiddleware(t, nil).Wrap(slow(h, 800*time.Millisecond))
		first := sent(func() *httptest.ResponseRecorder { return post(g, "k", "{}") })
		time.Sleep(500 * time.Millisecond)
		start := time.Now()
		second := post(g, "k", "{}")
		assert.Equal(t, 300*time.Millisecond, time.Since(start))
		wantReplayed(t, second, <-first)
		assert.EqualValues(t, 1, h.runs.Load())
	})
}

func TestB130_LosersOfTheInsertAreNoErrors(t *testing.T) {
	t.Parallel()
	sqlite, _ := newSQLite(t)
	for name, store := range map[string]server.Store{"memory": newMemory(), "sqlite": sqlite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const processes = 8 // each sees its own claim only
			h := &counter{}
			var barrier sync.WaitGroup
			barrier.Add(processes)
			answers := make([]<-chan *httptest.ResponseRecorder, processes)
			for i := range answers {
				f := newFaulty(store)
				f.fail(func(call string) error {
					if call == "Claim" {
						f.fail(nil, nil)
						barrier.Done()
						barrier.Wait()
					}
					return nil
				}, nil)
				g := newMiddlewareOver(t, f, nil).Wrap(slow(h, 20*time.Millisecond))
				answers[i] = sent(func() *httptest.ResponseRecorder { return post(g, "k", "{}") })
			}
			replays := 0
			for _, ch := range answers {
				w := <-ch
				assert.Equal(t, 201, w.Code, "body %q", w.Body)
				if status(w) == "replayed" {
					replays++
				}
			}
			assert.EqualValues(t, 1, h.runs.Load())
			assert.Equal(t, processes-1, replays)
		})
	}
}

func TestB133_TwoInOneSecond(t *testing.T) {
	t.Parallel()
	t.Run("waits", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			h := &counter{}
			g := newMiddleware(t, nil).Wrap(slow(h, time.Second))
			first := sent(func() *httptest.ResponseRecorder { return post(g, "k", "{}") })
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			start := time.Now()
			second := post(g, "k", "{}", within(ctx))
			assert.Equal(t, time.Second, time.Since(start))
			wantReplayed(t, second, <-first)
			assert.EqualValues(t, 1, h.runs.Load())
		})
	})
	t.Run("not for longer than Wait", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			h := &counter{}
			g := newMiddleware(t, func(c *server.Config) { c.Wait = 200 * time.Millisecond }).Wrap(slow(h, time.Second))
			first := sent(func() *httptest.ResponseRecorder { return post(g, "k", "{}") })
			synctest.Wait()
			start := time.Now()
			wantProblem(t, post(g, "k", "{}"), 409, "in-progress")
			assert.Equal(t, 200*time.Millisecond, time.Since(start))
			wantExecuted(t, <-first, 201)
			assert.EqualValues(t, 1, h.runs.Load())
		})
	})
}

func TestB134_APanicFreesTheKey(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	srv := httptest.NewUnstartedServer(newMiddleware(t, nil).Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1) == 1 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusCreated)
	})))
	srv.Start()
	defer srv.Close()
	send := func() (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL, strings.NewReader("{}"))
		require.NoError(t, err)
		req.Header.Set("Idempotency-Key", `"k"`)
		req.GetBody = nil
		resp, err := srv.Client().Do(req)
		if err == nil {
			resp.Body.Close()
		}
		return resp, err
	}
	_, err := send()
	require.Error(t, err)
	resp, err := send()
	require.NoError(t, err)
	assert.Equal(t, http.StatusCreated, resp.StatusCode)
	assert.EqualValues(t, 2, n.Load())
}

func TestB134_EveryWayToWriteIsRecorded(t *testing.T) {
	t.Parallel()
	content := strings.Repeat("content ", 100)
	for name, write := range map[string]func(http.ResponseWriter, *http.Request){
		"ServeContent": func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "a.txt", time.Now(), strings.NewReader(content))
		},
		"io.Copy": func(w http.ResponseWriter, _ *http.Request) { _, _ = copyAll(w, strings.NewReader(content)) },
		"ReadFrom": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = copyAll(w, http.MaxBytesReader(nil, readCloser{strings.NewReader(content)}, 1<<20))
		},
		"Error":    func(w http.ResponseWriter, _ *http.Request) { http.Error(w, content, http.StatusConflict) },
		"Redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusSeeOther) },
		"nothing":  func(http.ResponseWriter, *http.Request) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var n atomic.Int64
			g := newMiddleware(t, nil).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n.Add(1)
				write(w, r)
			}))
			first := post(g, "k", "{}")
			wantReplayed(t, post(g, "k", "{}"), first)
			assert.EqualValues(t, 1, n.Load())
		})
	}
}

// B136 with a process that is killed is TestCrash; here its owner only stops
// to renew.
func TestB136_TheLeaseIsNotTheTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		store := newMemory()
		died := newFaulty(store)
		died.fail(always("Renew", "Complete", "Release"), nil)
		config := func(c *server.Config) {
			c.Lease, c.Abandoned, c.TTL = 2*time.Second, server.RerunAbandoned, 24*time.Hour
		}
		w := post(newMiddlewareOver(t, died, config).Wrap(h), "k", "{}")
		wantProblem(t, w, 503, "unavailable")
		time.Sleep(2 * time.Second)
		g := newMiddlewareOver(t, store, config).Wrap(h)
		start := time.Now()
		wantExecuted(t, post(g, "k", "{}"), 201)
		assert.Less(t, time.Since(start), 3*time.Second)
	})
}

func TestB139_SlowButAliveIsNotTakenOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		store := newMemory()
		config := func(c *server.Config) { c.Lease, c.Abandoned = 300*time.Millisecond, server.RerunAbandoned }
		one := newMiddlewareOver(t, store, config).Wrap(slow(h, 1500*time.Millisecond))
		two := newMiddlewareOver(t, store, config).Wrap(slow(h, 1500*time.Millisecond))
		first := sent(func() *httptest.ResponseRecorder { return post(one, "k", "{}") })
		time.Sleep(500 * time.Millisecond)
		second := post(two, "k", "{}")
		wantReplayed(t, second, <-first)
		assert.EqualValues(t, 1, h.runs.Load())
	})
}

func TestB141_AnExpiredLeaseCanBeTakenOnEveryStore(t *testing.T) {
	t.Parallel()
	sqlite, _ := newSQLite(t)
	for name, store := range map[string]server.Store{"memory": newMemory(), "sqlite": sqlite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := server.ID{1}
			claim := server.Claim{ID: id, Owner: server.Token{1}, Lease: 2 * time.Second, TTL: time.Hour, Keep: time.Hour}
			_, found, err := store.Claim(t.Context(), claim)
			require.NoError(t, err)
			require.True(t, found)
			take := server.Takeover{ID: id, Owner: server.Token{2}, From: server.Token{1}, Generation: 1, Lease: 10 * time.Millisecond}
			ok, err := store.Takeover(t.Context(), take)
			require.NoError(t, err)
			assert.False(t, ok, "the lease is live")
			require.Eventually(t, func() bool {
				ok, err := store.Takeover(t.Context(), take)
				require.NoError(t, err)
				return ok
			}, 20*time.Second, 50*time.Millisecond, "the lease has ended, and the new one may be shorter")
		})
	}
}

func TestB264_ReleaseChecksTheOwner(t *testing.T) {
	t.Parallel()
	sqlite, _ := newSQLite(t)
	for name, store := range map[string]server.Store{"memory": newMemory(), "sqlite": sqlite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			claim := server.Claim{ID: server.ID{1}, Owner: server.Token{1}, Lease: 50 * time.Millisecond, TTL: time.Hour, Keep: time.Hour}
			_, _, err := store.Claim(ctx, claim)
			require.NoError(t, err)
			time.Sleep(80 * time.Millisecond)
			ok, err := store.Takeover(ctx, server.Takeover{ID: claim.ID, Owner: server.Token{2}, From: server.Token{1}, Generation: 1, Lease: time.Minute})
			require.NoError(t, err)
			require.True(t, ok)
			ok, err = store.Release(ctx, server.Hold{ID: claim.ID, Owner: server.Token{1}, Generation: 1})
			require.NoError(t, err)
			assert.False(t, ok)
			claim.Owner = server.Token{3}
			row, found, err := store.Claim(ctx, claim)
			require.NoError(t, err)
			require.True(t, found)
			assert.Equal(t, server.Token{2}, row.Owner)
			assert.True(t, row.Live)
		})
	}
}

func TestB144_TheClientLeavesAndTheRunGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		g := newMiddleware(t, nil).Wrap(slow(h, 300*time.Millisecond))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		first := post(g, "k", "{}", within(ctx))
		require.Error(t, ctx.Err())
		wantReplayed(t, post(g, "k", "{}"), first)
		assert.EqualValues(t, 1, h.runs.Load())
	})
}

func TestB146_WhichResultsAreKept(t *testing.T) {
	t.Parallel()
	for code, kept := range map[int]bool{
		200: true, 201: true, 202: true, 204: true, 206: true, 301: true, 303: true, 400: true, 402: true, 404: true,
		409: true, 410: true, 412: true, 413: true, 422: true, 499: true,
		401: false, 403: false, 408: false, 425: false, 429: false, 500: false, 502: false, 503: false, 504: false, 599: false,
	} {
		var n atomic.Int64
		g := newMiddleware(t, nil).Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			n.Add(1)
			w.WriteHeader(code)
		}))
		wantExecuted(t, post(g, "k", "{}"), code)
		second := post(g, "k", "{}")
		if kept {
			assert.EqualValues(t, 1, n.Load(), "status %d", code)
			assert.Equal(t, "replayed", status(second), "status %d", code)
		} else {
			assert.EqualValues(t, 2, n.Load(), "status %d", code)
			assert.Equal(t, "executed", status(second), "status %d", code)
		}
	}
	t.Run("our own answers are not", func(t *testing.T) {
		t.Parallel()
		h := &counter{}
		g := newMiddleware(t, nil).Wrap(h)
		first := post(g, "k", "1")
		wantProblem(t, post(g, "k", "2"), 422, "mismatch")
		wantReplayed(t, post(g, "k", "1"), first)
	})
	t.Run("the application may say otherwise", func(t *testing.T) {
		t.Parallel()
		var n atomic.Int64
		g := newMiddleware(t, func(c *server.Config) {
			c.Final = func(status int) bool { return status == 500 }
		}).Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			n.Add(1)
			w.WriteHeader(http.StatusInternalServerError)
		}))
		first := post(g, "k", "{}")
		wantReplayed(t, post(g, "k", "{}"), first)
		assert.EqualValues(t, 1, n.Load())
	})
}

func TestB148_AStale400IsNotForAnotherBody(t *testing.T) {
	t.Parallel()
	g := newMiddleware(t, nil).Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "wrong password", http.StatusBadRequest)
	}))
	wantExecuted(t, post(g, "k", `{"otp":"0000"}`), 400)
	wantProblem(t, post(g, "k", `{"otp":"1234"}`), 422, "mismatch")
}

func TestB162_WaitersAreMarked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		store := newMemory()
		one := newMiddlewareOver(t, store, nil).Wrap(slow(h, time.Second))
		two := newMiddlewareOver(t, store, nil).Wrap(slow(h, time.Second))
		first := sent(func() *httptest.ResponseRecorder { return post(one, "k", "{}") })
		synctest.Wait()
		var waiters []<-chan *httptest.ResponseRecorder
		for i := range 10 {
			g := []http.Handler{one, two}[i%2]
			waiters = append(waiters, sent(func() *httptest.ResponseRecorder { return post(g, "k", "{}") }))
		}
		winner := <-first
		wantExecuted(t, winner, 201)
		for _, ch := range waiters {
			wantReplayed(t, <-ch, winner)
		}
		assert.EqualValues(t, 1, h.runs.Load())
	})
}
