package server_test

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/sqlitetest"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

func txNothing(http.ResponseWriter, *http.Request, *sql.Tx) error { return nil }

var errHandler = errors.New("the handler says no")

// booking is a WrapTx handler that books its key, and ends as the path says.
func booking(n *atomic.Int64) server.TxHandlerFunc {
	return func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
		n.Add(1)
		key := r.Header.Get("X-Book")
		if o, ok := server.OperationFrom(r.Context()); ok && o.Key() != "" {
			key = o.Key()
		}
		if err := book(r.Context(), tx, key); err != nil {
			return err
		}
		if strings.HasPrefix(r.URL.Path, "/effect") {
			op(r).EffectStarted()
		}
		w.Header().Set("X-Mine", "1")
		switch strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/effect"), "/") {
		case "error":
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "half")
			return errHandler
		case "500":
			w.WriteHeader(http.StatusInternalServerError)
			return nil
		case "panic":
			panic("boom")
		case "404":
			w.WriteHeader(http.StatusNotFound)
			return nil
		}
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Location", "/booked")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "booked")
		return nil
	}
}

// withTx runs a test with both ways of WrapTx, each over a database of its own.
func withTx(t *testing.T, f func(t *testing.T, config func(*server.Config), store *faulty, l *ledger)) {
	t.Helper()
	for name, claimFirst := range map[string]bool{"one transaction": false, "claim first": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, ledger := newSQLite(t)
			f(t, func(c *server.Config) { c.ClaimFirst = claimFirst }, newFaulty(store), ledger)
		})
	}
}

// wrapTx is a WrapTx over store, which may be faulty.
func wrapTx(t *testing.T, store *faulty, h server.TxHandlerFunc, changes ...func(*server.Config)) (*server.Middleware, http.Handler) {
	t.Helper()
	m := newMiddlewareOver(t, faultyTx{store}, func(c *server.Config) {
		for _, change := range changes {
			change(c)
		}
	})
	return m, m.WrapTx(h)
}

func TestTxCommitsBothOrNeither(t *testing.T) {
	t.Parallel()
	withTx(t, func(t *testing.T, config func(*server.Config), store *faulty, l *ledger) {
		t.Helper()
		var n atomic.Int64
		var seen events
		_, g := wrapTx(t, store, booking(&n), config, func(c *server.Config) { c.Observer = seen.observe })
		first := post(g, "ok", "{}")
		wantExecuted(t, first, 201)
		wantReplayed(t, post(g, "ok", "{}"), first)
		assert.Equal(t, 1, l.count(t, "ok"))
		wantProblem(t, post(g, "ok", "[]"), 422, "mismatch")

		notFound := post(g, "404", "{}", to("/404")) // a result like any other
		wantExecuted(t, notFound, 404)
		wantReplayed(t, post(g, "404", "{}", to("/404")), notFound)
		assert.Equal(t, 1, l.count(t, "404"))

		for range 2 {
			w := post(g, "error", "{}", to("/error"))
			wantProblem(t, w, 500, "failed")
			assert.Empty(t, w.Header().Get("X-Mine"))
			wantExecuted(t, post(g, "500", "{}", to("/500")), 500)
			assert.PanicsWithValue(t, "boom", func() { post(g, "panic", "{}", to("/panic")) })
		}
		for _, key := range []string{"error", "500", "panic"} {
			assert.Zero(t, l.count(t, key), key)
		}
		assert.Equal(t, 2, l.records(t), "and no record is left")
		assert.EqualValues(t, 8, n.Load())
		want := []server.EventKind{
			server.EventExecuted, server.EventReplayed, server.EventMismatch, server.EventExecuted, server.EventReplayed,
		}
		for range 6 {
			want = append(want, server.EventReleased)
		}
		assert.Equal(t, want, seen.outcomes())
		for _, e := range seen.of(server.EventReleased) {
			if e.Status == 500 && e.Err != nil {
				require.ErrorIs(t, e.Err, errHandler)
			}
		}
		// What failed runs again, also with another body.
		wantExecuted(t, post(g, "error", "other"), 201)
	})
}

func TestTxEffectStarted(t *testing.T) {
	t.Parallel()
	withTx(t, func(t *testing.T, config func(*server.Config), store *faulty, l *ledger) {
		t.Helper()
		var n atomic.Int64
		m, g := wrapTx(t, store, booking(&n), config)
		for _, end := range []string{"error", "500", "panic"} {
			func() {
				defer func() { _ = recover() }()
				w := post(g, end, "{}", to("/effect/"+end))
				assert.Equal(t, 500, w.Code)
				assert.Equal(t, "unknown", status(w))
			}()
			assert.Zero(t, l.count(t, end), "what was written is undone")
			rec, ok, err := m.Lookup(t.Context(), "acme", end)
			require.NoError(t, err)
			assert.True(t, ok, end)
			assert.Equal(t, server.Unknown, rec.State)
			wantProblem(t, post(g, end, "{}", to("/effect/"+end)), 409, "unknown")
			wantProblem(t, post(g, end, "[]", to("/effect/"+end)), 422, "mismatch")
		}
		assert.EqualValues(t, 3, n.Load())
		require.NoError(t, m.Settle(t.Context(), "acme", "error", server.Response{Status: 201}))
		assert.Equal(t, "replayed", status(post(g, "error", "{}", to("/effect/error"))))
	})
}

func TestTxRecover(t *testing.T) {
	t.Parallel()
	withTx(t, func(t *testing.T, config func(*server.Config), store *faulty, l *ledger) {
		t.Helper()
		var n atomic.Int64
		asked := 0
		_, g := wrapTx(t, store, func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
			if n.Add(1) == 1 {
				op(r).EffectStarted()
				return errHandler
			}
			assert.Equal(t, 2, op(r).Attempt())
			return book(r.Context(), tx, "k")
		}, config, func(c *server.Config) {
			c.Recover = func(context.Context, *server.Operation) (server.Recovery, error) {
				asked++
				return server.Recovery{Action: server.RunAgain}, nil
			}
		})
		assert.Equal(t, "unknown", status(post(g, "k", "{}")))
		first := post(g, "k", "{}")
		wantExecuted(t, first, 200)
		wantReplayed(t, post(g, "k", "{}"), first)
		assert.Equal(t, 1, asked)
		assert.Equal(t, 1, l.count(t, "k"))
	})
}

func TestTxUnguarded(t *testing.T) {
	t.Parallel()
	withTx(t, func(t *testing.T, config func(*server.Config), store *faulty, l *ledger) {
		t.Helper()
		var n atomic.Int64
		_, g := wrapTx(t, store, booking(&n), config, func(c *server.Config) { c.Keyless.Mode = server.PassKeyless })
		booked := func(name string) func(*http.Request) { return func(r *http.Request) { r.Header.Set("X-Book", name) } }
		put := func(r *http.Request) { r.Method = http.MethodPut }
		w := post(g, "", "{}", booked("put"), put)
		assert.Equal(t, 201, w.Code)
		assert.Empty(t, status(w))
		assert.Equal(t, "booked", w.Body.String())
		w = post(g, "", "{}", booked("keyless"))
		assert.Equal(t, 201, w.Code)
		assert.Equal(t, "unprotected", status(w))
		assert.Equal(t, 1, l.count(t, "put"))
		assert.Equal(t, 1, l.count(t, "keyless"))

		w = post(g, "", "{}", booked("error"), put, to("/error"))
		wantProblem(t, w, 500, "failed")
		assert.Empty(t, w.Header().Get("X-Mine"))
		assert.Equal(t, 500, post(g, "", "{}", booked("500"), to("/500")).Code)
		assert.Panics(t, func() { post(g, "", "{}", booked("panic"), to("/panic")) })
		for _, name := range []string{"error", "500", "panic"} {
			assert.Zero(t, l.count(t, name), name)
		}
		assert.Zero(t, l.records(t))

		store.fail(always("BeginTx"), nil)
		wantProblem(t, post(g, "", "{}", booked("down"), put), 503, "unavailable")
		store.fail(nil, always("Tx.Commit"))
		wantProblem(t, post(g, "", "{}", booked("lost"), put), 503, "unavailable")
		assert.EqualValues(t, 6, n.Load())
	})
}

func TestTxDoesNotStream(t *testing.T) {
	t.Parallel()
	withTx(t, func(t *testing.T, config func(*server.Config), store *faulty, _ *ledger) {
		t.Helper()
		large := strings.Repeat("x", 100<<10)
		_, g := wrapTx(t, store, func(w http.ResponseWriter, r *http.Request, _ *sql.Tx) error {
			_, _ = io.WriteString(w, "x")
			w.(http.Flusher).Flush()                                                          //nolint:errcheck,forcetypeassert // it has to be one
			assert.ErrorIs(t, http.NewResponseController(w).Flush(), server.ErrStreamingInTx) //nolint:testifylint // in a handler
			_, _, err := http.NewResponseController(w).Hijack()
			assert.ErrorIs(t, err, server.ErrStreamingInTx)
			if r.URL.Path == "/large" {
				_, _ = io.WriteString(w, large)
			}
			return nil
		}, config)
		first := post(g, "k", "{}")
		wantExecuted(t, first, 200)
		assert.False(t, first.Flushed)
		assert.Equal(t, "x", first.Body.String())
		wantReplayed(t, post(g, "k", "{}"), first)
		assert.Equal(t, 1+len(large), post(g, "k2", "{}", to("/large")).Body.Len())
		wantProblem(t, post(g, "k2", "{}", to("/large")), 409, "not-kept")
	})
}

func TestTxDuplicates(t *testing.T) {
	t.Parallel()
	withTx(t, func(t *testing.T, config func(*server.Config), store *faulty, l *ledger) {
		t.Helper()
		var n atomic.Int64
		began := make(chan struct{}, 1)
		slowly := func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
			began <- struct{}{}
			time.Sleep(100 * time.Millisecond)
			return booking(&n)(w, r, tx)
		}
		_, one := wrapTx(t, store, slowly, config)
		_, two := wrapTx(t, store, slowly, config)
		first := sentTo(one, "k")
		<-began
		wantProblem(t, post(one, "k", "[]"), 422, "mismatch") // seen at once in its own process
		answers := make([]*httptest.ResponseRecorder, 20)
		var wg sync.WaitGroup
		for i := range answers {
			wg.Go(func() { answers[i] = post([]http.Handler{one, two}[i%2], "k", "{}") })
		}
		wg.Wait()
		winner := <-first
		wantExecuted(t, winner, 201)
		for _, w := range answers {
			wantReplayed(t, w, winner)
		}
		assert.EqualValues(t, 1, n.Load())
		assert.Equal(t, 1, l.count(t, "k"))
	})
}

func TestTxLostCommitReplyIsLookedUp(t *testing.T) {
	t.Parallel()
	withTx(t, func(t *testing.T, config func(*server.Config), store *faulty, l *ledger) {
		t.Helper()
		var n atomic.Int64
		_, g := wrapTx(t, store, booking(&n), config)
		store.fail(nil, times(1, "Tx.Commit"))
		first := post(g, "k", "{}")
		wantExecuted(t, first, 201)
		wantReplayed(t, post(g, "k", "{}"), first)
		assert.Equal(t, 1, l.count(t, "k"))

		store.fail(times(2, "Lookup"), times(1, "Tx.Commit")) // and the question is lost too
		first = post(g, "k2", "{}")
		wantExecuted(t, first, 201)
		assert.Equal(t, 1, l.count(t, "k2"))
		assert.EqualValues(t, 2, n.Load())
	})
}

func TestTxFailedCommitIsNoSuccess(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"Tx.Commit", "Tx.Complete"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			withTx(t, func(t *testing.T, config func(*server.Config), store *faulty, l *ledger) {
				t.Helper()
				var n atomic.Int64
				var seen events
				_, g := wrapTx(t, store, booking(&n), config, func(c *server.Config) { c.Observer = seen.observe })
				store.fail(times(1, step), nil)
				w := post(g, "k", "{}")
				wantProblem(t, w, 503, "unavailable")
				assert.Empty(t, w.Header().Get("X-Mine"))
				assert.Zero(t, l.count(t, "k"))
				assert.Zero(t, l.records(t))
				assert.Equal(t, []server.EventKind{server.EventUnavailable}, seen.outcomes())
				wantExecuted(t, post(g, "k", "{}"), 201)
				assert.Equal(t, 1, l.count(t, "k"))

				store.fail(times(1, step), nil)
				w = post(g, "k2", "{}", to("/effect"))
				wantProblem(t, w, 503, "unavailable")
				wantProblem(t, post(g, "k2", "{}", to("/effect")), 409, "unknown")
				assert.Zero(t, l.count(t, "k2"))
			})
		})
	}
}

// A handler may end the transaction, though it must not.
func TestTxEndedByTheHandler(t *testing.T) {
	t.Parallel()
	withTx(t, func(t *testing.T, config func(*server.Config), store *faulty, l *ledger) {
		t.Helper()
		_, g := wrapTx(t, store, func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
			if err := book(r.Context(), tx, "k"); err != nil {
				return err
			}
			w.WriteHeader(http.StatusCreated)
			return tx.Rollback()
		}, config)
		wantProblem(t, post(g, "k", "{}"), 503, "unavailable")
		assert.Zero(t, l.count(t, "k"))
		assert.Zero(t, l.records(t))
	})
}

func TestTxStoreDown(t *testing.T) {
	t.Parallel()
	withTx(t, func(t *testing.T, config func(*server.Config), store *faulty, l *ledger) {
		t.Helper()
		var n atomic.Int64
		_, g := wrapTx(t, store, booking(&n), config)
		store.fail(always("BeginTx", "Claim"), nil)
		wantProblem(t, post(g, "k", "{}"), 503, "unavailable")
		assert.Zero(t, n.Load())
		store.fail(nil, nil)
		wantExecuted(t, post(g, "k", "{}"), 201)
		assert.Equal(t, 1, l.count(t, "k"))
	})
}

func TestTxClientLeaves(t *testing.T) {
	t.Parallel()
	withTx(t, func(t *testing.T, config func(*server.Config), store *faulty, l *ledger) {
		t.Helper()
		var n atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		_, g := wrapTx(t, store, func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
			cancel()
			time.Sleep(50 * time.Millisecond)
			return booking(&n)(w, r, tx)
		}, config)
		first := post(g, "k", "{}", within(ctx))
		wantReplayed(t, post(g, "k", "{}"), first)
		assert.EqualValues(t, 1, n.Load())
		assert.Equal(t, 1, l.count(t, "k"))
	})
}

func TestTxMaxRun(t *testing.T) {
	t.Parallel()
	withTx(t, func(t *testing.T, config func(*server.Config), store *faulty, l *ledger) {
		t.Helper()
		var n atomic.Int64
		_, g := wrapTx(t, store, func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
			if n.Add(1) == 1 {
				if err := book(r.Context(), tx, "k"); err != nil {
					return err
				}
				<-r.Context().Done()
				assert.ErrorIs(t, context.Cause(r.Context()), server.ErrMaxRun) //nolint:testifylint // in a handler
				time.Sleep(50 * time.Millisecond)
				w.WriteHeader(http.StatusCreated)
				return nil // it has not noticed
			}
			return book(r.Context(), tx, "k")
		}, config, func(c *server.Config) { c.MaxRun = 300 * time.Millisecond })
		wantProblem(t, post(g, "k", "{}"), 503, "unavailable")
		assert.Zero(t, l.count(t, "k"))
		wantExecuted(t, post(g, "k", "{}"), 200)
		assert.Equal(t, 1, l.count(t, "k"))
	})
}

func TestTxShutdown(t *testing.T) {
	t.Parallel()
	withTx(t, func(t *testing.T, config func(*server.Config), store *faulty, l *ledger) {
		t.Helper()
		began := make(chan struct{})
		m, g := wrapTx(t, store, func(_ http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
			if err := book(r.Context(), tx, "k"); err != nil {
				return err
			}
			close(began)
			<-r.Context().Done()
			return context.Cause(r.Context())
		}, config)
		first := sentTo(g, "k")
		<-began
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, m.Shutdown(ctx), context.DeadlineExceeded)
		wantProblem(t, <-first, 500, "failed")
		wantProblem(t, post(g, "k2", "{}"), 503, "unavailable")
		assert.Zero(t, l.count(t, "k"))
		assert.Zero(t, l.records(t))
	})
}

func TestTxReference(t *testing.T) {
	t.Parallel()
	withTx(t, func(t *testing.T, config func(*server.Config), store *faulty, _ *ledger) {
		t.Helper()
		_, g := wrapTx(t, store, func(w http.ResponseWriter, r *http.Request, _ *sql.Tx) error {
			op(r).SetResource("o_1", "/o/1")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "body")
			return nil
		}, config)
		post(g, "k", "{}")
		w := post(g, "k", "{}")
		assert.Equal(t, 201, w.Code)
		assert.Empty(t, w.Body.String())
		assert.Equal(t, `</o/1>; rel="latest-version"`, w.Header().Get("Link"))
	})
}

// A run whose process died under ClaimFirst is simply run again: its writes were
// rolled back.
func TestClaimFirstAbandonedIsRunAgain(t *testing.T) {
	t.Parallel()
	store, l := newSQLite(t)
	dead := newFaulty(store)
	dead.fail(always("Renew", "Release", "Tx.Complete"), nil)
	var n atomic.Int64
	config := func(c *server.Config) { c.ClaimFirst, c.Lease = true, 200*time.Millisecond }
	_, one := wrapTx(t, dead, booking(&n), config)
	wantProblem(t, post(one, "k", "{}"), 503, "unavailable")
	_, two := wrapTx(t, newFaulty(store), booking(&n), config)
	wantExecuted(t, post(two, "k", "{}"), 201)
	assert.EqualValues(t, 2, n.Load())
	assert.Equal(t, 1, l.count(t, "k"))
}

// Under ClaimFirst a handler that outlived its lease can't commit.
func TestClaimFirstLostLease(t *testing.T) {
	t.Parallel()
	store, l := newSQLite(t)
	deaf := newFaulty(store)
	deaf.fail(always("Renew"), nil)
	var n atomic.Int64
	config := func(c *server.Config) { c.ClaimFirst, c.Lease = true, 200*time.Millisecond }
	stolen := make(chan struct{})
	_, one := wrapTx(t, deaf, func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
		<-r.Context().Done()
		assert.ErrorIs(t, context.Cause(r.Context()), server.ErrLeaseLost) //nolint:testifylint // in a handler
		_ = book(context.WithoutCancel(r.Context()), tx, "k")              // the transaction has ended, or is about to
		<-stolen
		w.WriteHeader(http.StatusCreated)
		return nil
	}, config)
	_, two := wrapTx(t, newFaulty(store), booking(&n), config)
	first := sentTo(one, "k")
	time.Sleep(400 * time.Millisecond)
	winner := post(two, "k", "{}")
	wantExecuted(t, winner, 201)
	close(stolen)
	wantReplayed(t, <-first, winner)
	assert.Equal(t, 1, l.count(t, "k"))
}

// A database that is busy with somebody's long transaction lets nobody take a
// key over either: it is no lost lease.
func TestABusyDatabaseLosesNoLease(t *testing.T) {
	t.Parallel()
	for name, processes := range map[string]int{"one process": 1, "two processes": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "oncemore.db")
			var stores []*faulty
			for range processes {
				store, err := sqlstore.New(sqlitetest.OpenFile(t, file), sqlstore.SQLite)
				require.NoError(t, err)
				require.NoError(t, store.Migrate(t.Context()))
				stores = append(stores, newFaulty(store))
			}
			var seen events
			began, busy := make(chan struct{}), make(chan struct{})
			config := func(c *server.Config) { c.Lease, c.Observer = 300*time.Millisecond, seen.observe }
			g := newMiddlewareOver(t, stores[0], config).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				close(began)
				<-busy
				assert.NoError(t, r.Context().Err())
				w.WriteHeader(http.StatusCreated)
			}))
			first := sentTo(g, "k")
			<-began
			_, long := wrapTx(t, stores[processes-1], func(http.ResponseWriter, *http.Request, *sql.Tx) error {
				time.Sleep(1200 * time.Millisecond)
				close(busy)
				return nil
			})
			wantExecuted(t, post(long, "long", "{}"), 200)
			wantExecuted(t, <-first, 201)
			assert.Empty(t, seen.of(server.EventLeaseLost))
		})
	}
}
