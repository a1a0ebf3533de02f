package oncemore_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore"
	"github.com/oncemore-go/oncemore/internal/faultproxy"
	"github.com/oncemore-go/oncemore/internal/sqlitetest"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// The tests of this file are the pair: the client against the server, over
// networks that lose answers, on real SQLite files.

// ledger is a table of effects beside the keys, in one SQLite file.
type ledger struct {
	db    *sql.DB
	store *sqlstore.Store
}

// openLedger opens it with patience: what a handler writes on its own takes its
// chance against all the others.
func openLedger(tb testing.TB, path string) *ledger {
	tb.Helper()
	db := sqlitetest.OpenPatient(tb, path)
	store, err := sqlstore.New(db, sqlstore.SQLite)
	require.NoError(tb, err)
	require.NoError(tb, store.Migrate(tb.Context()))
	_, err = db.ExecContext(tb.Context(), `CREATE TABLE IF NOT EXISTS effects (id INTEGER PRIMARY KEY, operation TEXT NOT NULL)`)
	require.NoError(tb, err)
	return &ledger{db: db, store: store}
}

// effects counts the effects of each operation.
func (l *ledger) effects(tb testing.TB) map[string]int {
	tb.Helper()
	rows, err := l.db.QueryContext(tb.Context(), `SELECT operation, COUNT(*) FROM effects GROUP BY operation`)
	require.NoError(tb, err)
	defer rows.Close()
	got := make(map[string]int)
	for rows.Next() {
		var operation string
		var n int
		require.NoError(tb, rows.Scan(&operation, &n))
		got[operation] = n
	}
	require.NoError(tb, rows.Err())
	return got
}

// middleware is over the ledger, for one tenant.
func (l *ledger) middleware(tb testing.TB, change func(*server.Config)) *server.Middleware {
	tb.Helper()
	cfg := server.Config{Scope: server.SharedScope}
	if change != nil {
		change(&cfg)
	}
	m, err := server.New(l.store, cfg)
	require.NoError(tb, err)
	return m
}

// handler has one effect a run, and answers 201 with what it did.
func (l *ledger) handler(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		_, err = l.db.ExecContext(r.Context(), `INSERT INTO effects (operation) VALUES (?)`, string(body))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "did %s", body)
}

// txHandler is handler with its effect in the transaction.
func txHandler(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(r.Context(), `INSERT INTO effects (operation) VALUES (?)`, string(body)); err != nil {
		return err
	}
	w.WriteHeader(http.StatusCreated)
	_, err = fmt.Fprintf(w, "did %s", body)
	return err
}

// quickPolicy retries often and soon, and never for want of budget.
func quickPolicy() *oncemore.Policy {
	p := oncemore.DefaultPolicy()
	p.MaxAttempts, p.BaseDelay, p.MaxDelay = 12, 5*time.Millisecond, 100*time.Millisecond
	p.AttemptTimeout = 20 * time.Second
	p.OverallTimeout = time.Minute
	p.Budget.Capacity = -1
	return p
}

// TestPairOverAFaultyNetwork sends many operations through a network that loses
// answers, resets connections and refuses: each operation has one effect.
func TestPairOverAFaultyNetwork(t *testing.T) {
	t.Parallel()
	const operations, workers = 150, 8
	forms := map[string]func(*ledger, *server.Middleware) http.Handler{
		"Wrap":   func(l *ledger, m *server.Middleware) http.Handler { return m.Wrap(http.HandlerFunc(l.handler)) },
		"WrapTx": func(_ *ledger, m *server.Middleware) http.Handler { return m.WrapTx(txHandler) },
	}
	for name, wrap := range forms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := openLedger(t, filepath.Join(t.TempDir(), "ledger.db"))
			api := httptest.NewServer(wrap(l, l.middleware(t, nil)))
			t.Cleanup(api.Close)
			network, err := faultproxy.Start(api.Listener.Addr().String(), faultproxy.Config{
				Seed: 7,
				Rates: map[faultproxy.Fault]float64{
					faultproxy.LostAnswer: 0.15, faultproxy.CutAnswer: 0.1, faultproxy.GatewayTimeout: 0.05,
					faultproxy.ResetBefore: 0.1, faultproxy.Unavailable: 0.05, faultproxy.TooManyRequests: 0.05,
				},
			})
			require.NoError(t, err)
			t.Cleanup(func() { _ = network.Close() })
			client, err := oncemore.New(oncemore.Config{Policy: quickPolicy()})
			require.NoError(t, err)
			t.Cleanup(client.CloseIdleConnections)

			var replays atomic.Int64
			todo := make(chan int)
			var wg sync.WaitGroup
			for range workers {
				wg.Go(func() {
					for n := range todo {
						body := fmt.Sprintf("operation %d", n)
						resp, err := client.Post(network.URL(), "text/plain", strings.NewReader(body))
						if err != nil {
							t.Error(err)
							continue
						}
						answer, err := io.ReadAll(resp.Body)
						if err = errors.Join(err, resp.Body.Close()); err != nil {
							t.Error(err)
						}
						assert.Equal(t, http.StatusCreated, resp.StatusCode, "%s", answer)
						assert.Equal(t, "did "+body, string(answer))
						if oncemore.Replayed(resp) {
							replays.Add(1)
						}
					}
				})
			}
			for n := range operations {
				todo <- n
			}
			close(todo)
			wg.Wait()

			effects := l.effects(t)
			assert.Len(t, effects, operations)
			for operation, n := range effects {
				assert.Equal(t, 1, n, "%s", operation)
			}
			assert.Positive(t, replays.Load(), "answers were lost after the work, so some are replays")
		})
	}
}

// TestPairHundredArrivals sends one key a hundred times at once: the handler
// runs once, and all get its answer.
func TestPairHundredArrivals(t *testing.T) {
	t.Parallel()
	l := openLedger(t, filepath.Join(t.TempDir(), "ledger.db"))
	m := l.middleware(t, func(c *server.Config) { c.MaxWaiters = 100 })
	api := httptest.NewServer(m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(100 * time.Millisecond)
		l.handler(w, r)
	})))
	t.Cleanup(api.Close)
	client, err := oncemore.New(oncemore.Config{})
	require.NoError(t, err)
	t.Cleanup(client.CloseIdleConnections)

	key := oncemore.NewKey()
	var replays atomic.Int64
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			ctx := oncemore.WithKey(t.Context(), key)
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, api.URL, strings.NewReader("once"))
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			answer, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Error(err)
			}
			assert.Equal(t, http.StatusCreated, resp.StatusCode)
			assert.Equal(t, "did once", string(answer))
			assert.Equal(t, key, oncemore.KeyOf(resp))
			if oncemore.Replayed(resp) {
				replays.Add(1)
			}
		})
	}
	wg.Wait()
	assert.EqualValues(t, 99, replays.Load())
	assert.Equal(t, map[string]int{"once": 1}, l.effects(t))
}

// hammer sends every key from several goroutines in an order of their own, and
// checks the answers.
func hammer(t *testing.T, h http.Handler, goroutines, keys int) {
	t.Helper()
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range keys {
				n := (i*7 + g*31) % keys // the same keys, met from all sides
				body := fmt.Sprintf("operation %d", n)
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(body))
				r.Header.Set(oncemore.KeyHeader, fmt.Sprintf("key-%d", n))
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code != http.StatusCreated || w.Body.String() != "did "+body {
					t.Errorf("%s: status %d, %q", body, w.Code, w.Body)
				}
			}
		})
	}
	wg.Wait()
}

// TestManyKeysManyGoroutines: 64 goroutines each send the same 500 keys.
func TestManyKeysManyGoroutines(t *testing.T) {
	t.Parallel()
	const goroutines, keys = 64, 500
	l := openLedger(t, filepath.Join(t.TempDir(), "ledger.db"))
	hammer(t, l.middleware(t, nil).Wrap(http.HandlerFunc(l.handler)), goroutines, keys)
	effects := l.effects(t)
	assert.Len(t, effects, keys)
	for operation, n := range effects {
		assert.Equal(t, 1, n, operation)
	}
}

// hammerFile is the environment variable by which a second process is told the
// file that it shares.
const hammerFile = "ONCEMORE_TEST_HAMMER_FILE"

// TestTwoProcessesOneFile is the same from two processes on one SQLite file, in
// transactions and without.
func TestTwoProcessesOneFile(t *testing.T) {
	const goroutines, keys = 16, 100
	path := os.Getenv(hammerFile)
	child := path != ""
	if !child {
		path = filepath.Join(t.TempDir(), "ledger.db")
	}
	l := openLedger(t, path)
	work := func() {
		m := l.middleware(t, nil)
		mux := http.NewServeMux()
		mux.Handle("/", m.Wrap(http.HandlerFunc(l.handler)))
		hammer(t, mux, goroutines, keys)
		hammer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Set(oncemore.KeyHeader, "tx-"+r.Header.Get(oncemore.KeyHeader))
			m.WrapTx(txHandler).ServeHTTP(w, r)
		}), goroutines, keys)
	}
	if child {
		work()
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), hammerFile+"="+path)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	work()
	require.NoError(t, cmd.Wait(), "the other process: %s", &out)

	effects := l.effects(t)
	assert.Len(t, effects, keys)
	for operation, n := range effects {
		assert.Equal(t, 2, n, "%s: once under each of its two keys", operation)
	}
}

// TestB067PairRunsAgainAfterAFailure: a 500 is not kept, so the client's retry runs
// the handler again and gets its success.
func TestB067PairRunsAgainAfterAFailure(t *testing.T) {
	t.Parallel()
	l := openLedger(t, filepath.Join(t.TempDir(), "ledger.db"))
	var runs atomic.Int64
	api := httptest.NewServer(l.middleware(t, nil).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if runs.Add(1) == 1 {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		l.handler(w, r)
	})))
	t.Cleanup(api.Close)
	client, err := oncemore.New(oncemore.Config{Policy: quickPolicy()})
	require.NoError(t, err)
	t.Cleanup(client.CloseIdleConnections)
	resp, err := client.Post(api.URL, "text/plain", strings.NewReader("once"))
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.Equal(t, http.StatusCreated, resp.StatusCode)
	assert.EqualValues(t, 2, runs.Load())
	assert.Len(t, oncemore.Attempts(resp), 2)
	assert.False(t, oncemore.Replayed(resp))
	assert.Equal(t, map[string]int{"once": 1}, l.effects(t))
}
