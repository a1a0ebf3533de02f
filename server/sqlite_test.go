package server_test

import (
	"context"
	"database/sql"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/sqlitetest"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

func TestAMissingTableNamesMigrate(t *testing.T) {
	t.Parallel()
	for _, claimFirst := range []bool{false, true} {
		store, err := sqlstore.New(sqlitetest.Open(t), sqlstore.SQLite)
		require.NoError(t, err)
		var log logBuffer
		h := &counter{}
		m := newMiddlewareOver(t, store, func(c *server.Config) { c.Logger, c.ClaimFirst = log.logger(), claimFirst })
		wantProblem(t, post(m.Wrap(h), "k", "{}"), 503, "unavailable")
		wantProblem(t, post(m.WrapTx(txNothing), "k", "{}"), 503, "unavailable")
		assert.Contains(t, log.String(), "Migrate")
		assert.Zero(t, h.runs.Load())
		require.NoError(t, store.Migrate(t.Context()))
		wantExecuted(t, post(m.Wrap(h), "k", "{}"), 201)
	}
}

func TestAClosedDatabaseFailsClosed(t *testing.T) {
	t.Parallel()
	db, err := sql.Open("sqlite", sqlitetest.DSN(filepath.Join(t.TempDir(), "oncemore.db")))
	require.NoError(t, err)
	store, err := sqlstore.New(db, sqlstore.SQLite)
	require.NoError(t, err)
	require.NoError(t, store.Migrate(t.Context()))
	require.NoError(t, db.Close())
	h := &counter{}
	m := newMiddlewareOver(t, store, nil)
	wantProblem(t, post(m.Wrap(h), "k", "{}"), 503, "unavailable")
	wantProblem(t, post(m.WrapTx(txNothing), "k", "{}"), 503, "unavailable")
	assert.Zero(t, h.runs.Load())
}

// Waiting holds no connection: one is enough, for the handler too.
func TestWaitersHoldNoConnection(t *testing.T) {
	t.Parallel()
	db := sqlitetest.Open(t)
	db.SetMaxOpenConns(1)
	store, err := sqlstore.New(db, sqlstore.SQLite)
	require.NoError(t, err)
	require.NoError(t, store.Migrate(t.Context()))
	l := newLedger(t, db)
	release := make(chan struct{})
	began := make(chan struct{})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(began)
		<-release
		assert.NoError(t, book(r.Context(), db, "k"))
		w.WriteHeader(http.StatusCreated)
	})
	one, two := newMiddlewareOver(t, store, nil).Wrap(h), newMiddlewareOver(t, store, nil).Wrap(h)
	answers := []<-chan *httptest.ResponseRecorder{sentTo(one, "k")}
	<-began
	for range 20 {
		answers = append(answers, sentTo(one, "k"), sentTo(two, "k"))
	}
	time.Sleep(100 * time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(t, db.PingContext(ctx), "the only connection is free")
	close(release)
	for _, ch := range answers {
		assert.Equal(t, 201, (<-ch).Code)
	}
	assert.Equal(t, 1, l.count(t, "k"))
}

// Where another process's transaction has the key, the wait for its lock is
// bounded.
func TestTxWaitForALockIsBounded(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]time.Duration{"some": 300 * time.Millisecond, "none": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "oncemore.db")
			open := func() *faulty {
				db, err := sql.Open("sqlite", strings.Replace(sqlitetest.DSN(file), "busy_timeout(5000)", "busy_timeout(200)", 1))
				require.NoError(t, err)
				t.Cleanup(func() { assert.NoError(t, db.Close()) })
				store, err := sqlstore.New(db, sqlstore.SQLite)
				require.NoError(t, err)
				require.NoError(t, store.Migrate(t.Context()))
				return newFaulty(store)
			}
			began, release := make(chan struct{}), make(chan struct{})
			_, one := wrapTx(t, open(), func(w http.ResponseWriter, _ *http.Request, _ *sql.Tx) error {
				close(began)
				<-release
				w.WriteHeader(http.StatusCreated)
				return nil
			})
			var seen events
			m, two := wrapTx(t, open(), txNothing, func(c *server.Config) { c.Wait, c.Observer = wait, seen.observe })
			first := sentTo(one, "k")
			<-began
			start := time.Now()
			var duplicates []<-chan *httptest.ResponseRecorder
			for range 20 { // not one after the other
				duplicates = append(duplicates, sentTo(two, "k"))
			}
			for _, answer := range duplicates {
				wantProblem(t, <-answer, 409, "in-progress")
			}
			assert.Less(t, time.Since(start), 15*time.Second)
			assert.Len(t, seen.outcomes(), len(duplicates))
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			wantProblem(t, post(two, "k", "{}", within(ctx)), 409, "in-progress") // its client leaves
			close(release)
			winner := <-first
			wantExecuted(t, winner, 201)
			wantReplayed(t, post(two, "k", "{}"), winner)
			require.NoError(t, m.Shutdown(t.Context()))
		})
	}
}

// An outer timeout answers for itself; the run goes on, and is replayed.
func TestATimeoutHandlerOutside(t *testing.T) {
	t.Parallel()
	store, l := newSQLite(t)
	release, done := make(chan struct{}), make(chan struct{})
	g := newMiddlewareOver(t, store, nil).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(done)
		<-release
		assert.NoError(t, r.Context().Err())
		assert.NoError(t, book(r.Context(), l.db, "k"))
		w.WriteHeader(http.StatusCreated)
	}))
	outer := http.TimeoutHandler(g, 50*time.Millisecond, "too slow")
	assert.Equal(t, http.StatusServiceUnavailable, post(outer, "k", "{}").Code)
	waiting := post(outer, "k", "{}")
	assert.Equal(t, http.StatusServiceUnavailable, waiting.Code)
	close(release)
	<-done
	require.Eventually(t, func() bool { return post(outer, "k", "{}").Code == http.StatusCreated }, 5*time.Second, 20*time.Millisecond)
	assert.Equal(t, 1, l.count(t, "k"))
}
