package integration_test

import (
	"crypto/rand"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore"
	"github.com/oncemore-go/oncemore/internal/faultproxy"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// ledger is a table of effects in the database that has the keys.
type ledger struct {
	db     *sql.DB
	insert string // operation, run
}

// effect has the effect of an operation, and answers with what this run did.
func (l *ledger) effect(w http.ResponseWriter, r *http.Request, tx interface {
	Exec(query string, args ...any) (sql.Result, error)
},
) error {
	operation, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	run := rand.Text()
	if _, err := tx.Exec(l.insert, string(operation), run); err != nil {
		return err
	}
	w.WriteHeader(http.StatusCreated)
	_, err = io.WriteString(w, run)
	return err
}

// runs returns which run had the effect of each operation, and fails for one
// that has several.
func (l *ledger) runs(t *testing.T) map[string]string {
	t.Helper()
	rows, err := l.db.QueryContext(t.Context(), "SELECT operation, run FROM effects")
	require.NoError(t, err)
	defer func() { _ = rows.Close() }()
	found := map[string]string{}
	for rows.Next() {
		var operation, run string
		require.NoError(t, rows.Scan(&operation, &run))
		assert.NotContains(t, found, operation, "a second effect")
		found[operation] = run
	}
	require.NoError(t, rows.Err())
	return found
}

// The forms of the middleware, each with one effect a run.
var pairForms = []struct {
	name       string
	claimFirst bool
	wrap       func(l *ledger, m *server.Middleware) http.Handler
}{
	{"Wrap", false, func(l *ledger, m *server.Middleware) http.Handler {
		return m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := l.effect(w, r, l.db); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		}))
	}},
	{"WrapTx", false, pairInTx},
	{"WrapTx, claim first", true, pairInTx},
}

func pairInTx(l *ledger, m *server.Middleware) http.Handler {
	return m.WrapTx(func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error { return l.effect(w, r, tx) })
}

// The client and the server, over networks that lose answers whose work is done,
// cut them off, reset connections and refuse. Two processes share a database,
// and each key is sent to both: it has one effect, and every answer is that of
// the run that had it.
func TestPairOverAFaultyNetwork(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, driver string
		dialect      sqlstore.Dialect
		insert       string
	}{
		{"PostgreSQL", "pgx", sqlstore.Postgres, "INSERT INTO effects VALUES ($1, $2)"},
		{"MariaDB", "mysql", sqlstore.MySQL, "INSERT INTO effects VALUES (?, ?)"},
	} {
		for _, form := range pairForms {
			t.Run(tt.name+", "+form.name, func(t *testing.T) {
				t.Parallel()
				var dsn string
				if tt.dialect == sqlstore.Postgres {
					dsn = newPostgres(t)()
				} else {
					dsn = newMariaDB(t)()
				}
				l := &ledger{db: open(t, tt.driver, dsn), insert: tt.insert}
				run(t, l.db, "CREATE TABLE effects (operation VARCHAR(100) NOT NULL, run VARCHAR(100) NOT NULL)")
				var networks [2]*faultproxy.Proxy
				for i := range networks {
					db := l.db
					if i > 0 {
						db = open(t, tt.driver, dsn)
					}
					m, err := server.New(migrated(t, db, tt.dialect), server.Config{Scope: server.SharedScope, ClaimFirst: form.claimFirst})
					require.NoError(t, err)
					networks[i] = faulty(t, form.wrap(&ledger{db: db, insert: tt.insert}, m), uint64(i))
				}
				runPair(t, l, networks)
			})
		}
	}
}

// faulty serves h behind a network that fails.
func faulty(t *testing.T, h http.Handler, seed uint64) *faultproxy.Proxy {
	t.Helper()
	api := httptest.NewServer(h)
	t.Cleanup(api.Close)
	network, err := faultproxy.Start(api.Listener.Addr().String(), faultproxy.Config{
		Seed: seed,
		Rates: map[faultproxy.Fault]float64{
			faultproxy.LostAnswer: 0.15, faultproxy.CutAnswer: 0.1, faultproxy.GatewayTimeout: 0.05,
			faultproxy.ResetBefore: 0.1, faultproxy.Unavailable: 0.05, faultproxy.TooManyRequests: 0.05,
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = network.Close() })
	return network
}

// runPair sends each of many operations four times, twice through each network.
func runPair(t *testing.T, l *ledger, networks [2]*faultproxy.Proxy) {
	t.Helper()
	operations, workers := 300, 16
	if testing.Short() || raceDetector {
		operations = 60
	}
	policy := oncemore.DefaultPolicy()
	policy.MaxAttempts, policy.BaseDelay, policy.MaxDelay = 15, 2*time.Millisecond, 50*time.Millisecond
	policy.AttemptTimeout, policy.OverallTimeout = 30*time.Second, time.Minute
	policy.Budget.Capacity = -1
	client, err := oncemore.New(oncemore.Config{Policy: policy})
	require.NoError(t, err)
	t.Cleanup(client.CloseIdleConnections)

	const arrivals = 4
	var next, replays atomic.Int64
	answers := make([][arrivals]string, operations)
	keys := make([]string, operations)
	for i := range keys {
		keys[i] = oncemore.NewKey()
	}
	// Neighbours in this order are arrivals of one operation, so that many meet.
	all(t, workers, func(int) error {
		for {
			n := int(next.Add(1)) - 1
			if n >= operations*arrivals {
				return nil
			}
			operation, arrival := n/arrivals, n%arrivals
			ctx := oncemore.WithKey(t.Context(), keys[operation])
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, networks[arrival%2].URL(), strings.NewReader(fmt.Sprint("operation ", operation)))
			if err != nil {
				return err
			}
			resp, err := client.Do(req)
			if err != nil {
				return err
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusCreated {
				return fmt.Errorf("operation %d: status %d, %q, %w", operation, resp.StatusCode, body, err)
			}
			answers[operation][arrival] = string(body)
			if oncemore.Replayed(resp) {
				replays.Add(1)
			}
		}
	})
	runs := l.runs(t)
	assert.Len(t, runs, operations)
	for i, of := range answers {
		want := runs[fmt.Sprint("operation ", i)]
		assert.NotEmpty(t, want, "operation %d", i)
		assert.Equal(t, [arrivals]string{want, want, want, want}, of, "operation %d", i)
	}
	// Beside the three that come later, some are replays because the first
	// answer was lost.
	assert.Greater(t, replays.Load(), int64(operations*(arrivals-1)))
	for _, network := range networks {
		assert.Positive(t, network.Counts().Faults[faultproxy.LostAnswer])
	}
}
