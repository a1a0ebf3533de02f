package integration_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/integration/dbtest"
)

// The database is killed under load, again and again. What was acknowledged is
// there when it is back; whatever was not is decided by asking again.
func TestDatabaseKilledUnderLoad(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		engine
		make func() (*dbtest.Server, error)
		dsn  func(*dbtest.Server) string
	}{
		{engines[0], dbtest.NewPostgres, func(s *dbtest.Server) string { return s.PostgresURL("postgres") }},
		{
			engines[1],
			func() (*dbtest.Server, error) { return dbtest.NewMariaDB("--innodb-flush-log-at-trx-commit=1") },
			func(s *dbtest.Server) string { return s.MySQLDSN("test", "interpolateParams=true") },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.server.get(t)
			own, err := tt.make()
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, own.Remove()) })
			require.NoError(t, own.Start())
			db := open(t, tt.driver, tt.dsn(own))
			prepare(t, db, tt.dialect)
			l := &load{db: db, app: &application{Driver: tt.driver}}
			l.serve(t, db)
			for range twenty() {
				l.round(t, func() {
					own.Kill()
					require.NoError(t, own.Start())
				})
			}
			allReturned(t, db)
		})
	}
}

// load is what clients do to applications of every mode over one database.
type load struct {
	app      *application // to read the ledger
	db       *sql.DB
	handlers [][]http.Handler // of each mode, one for each database server
	pace     time.Duration    // of each client: from an answer to what it asks for next
	keys     atomic.Int64

	mu      sync.Mutex
	answers map[string]answered // of this round, by key
}

// answered is what the client of a key got, and how often it had to ask.
type answered struct {
	answer
	asked int
	mode  mode
	by    []http.Handler
}

// serve adds applications of every mode over db.
func (l *load) serve(t *testing.T, db *sql.DB) {
	t.Helper()
	if l.handlers == nil {
		l.handlers = make([][]http.Handler, len(modes))
	}
	for i, m := range modes {
		// A lease about as long as the server is away.
		app := &application{Driver: l.app.Driver, Mode: m, Lease: 500 * time.Millisecond}
		h, _, err := app.handler(db)
		require.NoError(t, err)
		l.handlers[i] = append(l.handlers[i], h)
	}
}

// client asks for one operation after the other, each until it has an answer,
// and each time at the next application.
func (l *load) client(ctx context.Context, worker int, stop *atomic.Bool) error {
	i, first := worker%len(modes), worker/len(modes)
	for !stop.Load() {
		key := fmt.Sprint(l.keys.Add(1))
		a := answered{mode: modes[i], by: l.handlers[i]}
		for a.status != http.StatusCreated {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("no answer in time to key %s, %s, but %+v: %w", key, a.mode, a.answer, err)
			}
			if a.asked > 0 {
				time.Sleep(10 * time.Millisecond)
			}
			a.answer = ask(ctx, a.by[(first+a.asked)%len(a.by)], key)
			a.asked++
		}
		l.mu.Lock()
		l.answers[key] = a
		l.mu.Unlock()
		time.Sleep(l.pace)
	}
	return nil
}

func (l *load) answered() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.answers)
}

// round disturbs a server while clients are at it, until it works again, and
// looks at what there is when all of them have their answers.
func (l *load) round(t *testing.T, disturb func()) {
	t.Helper()
	l.answers = map[string]answered{}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const clients = 16
	var stop atomic.Bool
	var done sync.WaitGroup
	errs := make([]error, clients)
	for worker := range clients {
		done.Go(func() { errs[worker] = l.client(ctx, worker, &stop) })
	}
	time.Sleep(100 * time.Millisecond)
	require.Eventually(t, func() bool { return l.answered() >= clients }, time.Minute, time.Millisecond)
	before := l.answered()
	disturb()
	stop.Store(true)
	done.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}

	effects := l.effects(t)
	var disturbed, settled, again int
	for key, a := range l.answers {
		runs := effects[key]
		delete(effects, key)
		require.Contains(t, runs, a.body, "the effect of an operation is lost")
		if a.mode != wrapRerun { // in a transaction, or looked for in the ledger
			require.Len(t, runs, 1, "effects of an operation, %s", a.mode)
		}
		for _, h := range a.by {
			require.Equal(t, answer{http.StatusCreated, "replayed", a.body}, ask(ctx, h, key), "an acknowledged answer is lost")
		}
		if a.asked > 1 {
			disturbed++
			if a.word == "replayed" {
				settled++
			}
		}
		again += len(runs) - 1
	}
	require.Empty(t, effects, "effects without a record")
	require.Positive(t, disturbed, "nobody has noticed")
	t.Logf("%d answered before, %d later; %d asked again, %d of them for what was done; %d effects twice, without a transaction or a look at them",
		before, len(l.answers)-before, disturbed, settled, again)
}

// effects takes what is in the ledger out of it: the runs of each operation.
func (l *load) effects(t *testing.T) map[string][]string {
	t.Helper()
	rows, err := l.db.QueryContext(t.Context(), "SELECT operation, run FROM ledger")
	require.NoError(t, err)
	defer rows.Close()
	effects := map[string][]string{}
	for rows.Next() {
		var operation, run string
		require.NoError(t, rows.Scan(&operation, &run))
		effects[operation] = append(effects[operation], run)
	}
	require.NoError(t, rows.Err())
	run(t, l.db, "DELETE FROM ledger")
	return effects
}
