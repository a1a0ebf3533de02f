package integration_test

import (
	"context"
	crand "crypto/rand"
	"database/sql"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/sqlitetest"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

var (
	rounds = flag.Int("rounds", 0, "TestTable: measure for this many rounds, and print the tables; 0: only see that everything works")
	rows   = flag.Int("rows", 1_000_000, "TestTable: the rows of a large table")
)

// plan is how much is measured.
type plan struct {
	rounds int
	cell   time.Duration // of one measurement
	rows   int           // of a large table
	due    int           // those of a round that a purge may take
}

// subject is a database.
type subject struct {
	name    string
	dialect sqlstore.Dialect
	open    func(testing.TB) *sql.DB
	durable [2]string         // what turns durable commits off and on
	floor   *strings.Replacer // spells the floor's statements
	writer  chan struct{}     // where writes line up, also those of the floor
}

var subjects = []subject{
	{
		name: "PostgreSQL", dialect: sqlstore.Postgres,
		open:    func(tb testing.TB) *sql.DB { return open(tb, "pgx", newPostgres(tb)()) },
		durable: [2]string{"ALTER SYSTEM SET fsync = off", "ALTER SYSTEM SET fsync = on"},
		floor:   strings.NewReplacer("(?, ?", "($1, $2", "data = ?", "data = $2", "id = ?", "id = $1", "BLOB", "bytea"),
	},
	{
		name: "MariaDB", dialect: sqlstore.MySQL,
		open:    func(tb testing.TB) *sql.DB { return open(tb, "mysql", newMariaDB(tb)("interpolateParams=true")) },
		durable: [2]string{"SET GLOBAL innodb_flush_log_at_trx_commit = 2", "SET GLOBAL innodb_flush_log_at_trx_commit = 1"},
		floor:   strings.NewReplacer("id BLOB", "id BINARY(32)"),
	},
	{
		name: "SQLite", dialect: sqlstore.SQLite,
		open: func(tb testing.TB) *sql.DB {
			tb.Helper()
			return open(tb, "sqlite", sqlitetest.DSN(tb.TempDir()+"/a.db")+"&_pragma=cache_size(-16000)&_pragma=wal_autocheckpoint(10000)")
		},
		durable: [2]string{"PRAGMA synchronous = FULL", "PRAGMA synchronous = FULL"},
		floor:   strings.NewReplacer(),
		writer:  make(chan struct{}, 1),
	},
}

// commits durably or not: the tests kill servers, and no kernels.
func (s *subject) setDurable(tb testing.TB, db *sql.DB, on bool) {
	tb.Helper()
	text := s.durable[0]
	if on {
		text = s.durable[1]
	}
	run(tb, db, text)
	if s.dialect == sqlstore.Postgres {
		run(tb, db, "SELECT pg_reload_conf()")
	}
}

// TestTable prints the tables of docs/benchmarks.md: the store beside the least
// that would do on the same database, in turns.
func TestTable(t *testing.T) {
	p := plan{rounds: 1, cell: 20 * time.Millisecond, rows: 500, due: 100}
	out := io.Discard
	if *rounds > 0 {
		p = plan{rounds: *rounds, cell: 2 * time.Second, rows: *rows, due: 50_000}
		out = os.Stdout
	}
	var speed, growth strings.Builder
	for i := range subjects {
		t.Run(subjects[i].name, func(t *testing.T) {
			speed.WriteString(compare(t, &subjects[i], p))
			growth.WriteString(grow(t, &subjects[i], p))
		})
	}
	_, _ = fmt.Fprintf(out, `
| store to floor | a new key, 1 worker | 4 | 16 | 64 | a replay, 1 worker | 16 |
| --- | --: | --: | --: | --: | --: | --: |
%s
| a table of %d rows to one of %d, p50 | a new key | a replay | a new key, the store alone | a replay, the store alone | while purging: new keys, p99 to that of before and after | rows purged meanwhile |
| --- | --: | --: | --: | --: | --: | --: |
%s
`, &speed, p.rows, 2*sample, &growth)
}

// floor is the least that a key costs without sharing transactions: two durable
// writes of the same width, and one read.
type floor struct{ insert, update, lookup string }

func newFloor(tb testing.TB, s *subject, db *sql.DB) floor {
	tb.Helper()
	run(tb, db, s.floor.Replace(`CREATE TABLE floor (id BLOB PRIMARY KEY, pad BLOB, state INTEGER, data BLOB)`))
	return floor{
		insert: s.floor.Replace(`INSERT INTO floor VALUES (?, ?, 1, NULL)`),
		update: s.floor.Replace(`UPDATE floor SET state = 2, data = ? WHERE id = ?`),
		lookup: s.floor.Replace(`SELECT pad, state, data FROM floor WHERE id = ?`),
	}
}

// compare measures new keys and replays, and returns a line of the table.
func compare(t *testing.T, s *subject, p plan) string {
	t.Helper()
	db := s.open(t)
	store := migrated(t, db, s.dialect)
	f := newFloor(t, s, db)
	s.setDurable(t, db, true)
	defer s.setDurable(t, db, false)
	ctx := t.Context()
	pad, data := make([]byte, 200), make([]byte, 512)
	exec := func(text string, args ...any) {
		if s.writer != nil {
			s.writer <- struct{}{}
			defer func() { <-s.writer }()
		}
		_, err := db.ExecContext(ctx, text, args...)
		noError(t, err)
	}
	bare := func() [32]byte {
		c := newClaim()
		exec(f.insert, c.ID[:], pad)
		if s.dialect == sqlstore.Postgres {
			exec(f.update, c.ID[:], data)
		} else {
			exec(f.update, data, c.ID[:])
		}
		return c.ID
	}
	// Who is faster would have the larger table, and measure another thing.
	empty := func() {
		if s.dialect == sqlstore.SQLite {
			run(t, db, "DELETE FROM floor", "DELETE FROM oncemore_keys")
		} else {
			run(t, db, "TRUNCATE TABLE floor", "TRUNCATE TABLE oncemore_keys")
		}
	}
	cells := []string{s.name}
	for _, workers := range []int{1, 4, 16, 64} {
		cells = append(cells, ratio(p, workers, empty, func() { bare() }, func() { finish(t, store, time.Hour, data) }))
	}
	empty()
	keys := make([]server.Claim, 200)
	bareKeys := make([][32]byte, len(keys))
	for i := range keys {
		keys[i], bareKeys[i] = finish(t, store, time.Hour, data), bare()
	}
	for _, workers := range []int{1, 16} {
		cells = append(cells, ratio(p, workers, func() {}, func() {
			var pad, data []byte
			var state int
			id := bareKeys[rand.N(len(bareKeys))]
			noError(t, db.QueryRowContext(ctx, f.lookup, id[:]).Scan(&pad, &state, &data))
		}, func() { replay(t, store, keys) }))
	}
	return "| " + strings.Join(cells, " | ") + " |\n"
}

// finish claims a new key and completes it.
func finish(tb testing.TB, s *sqlstore.Store, keep time.Duration, data []byte) server.Claim {
	tb.Helper()
	c := newClaim()
	c.TTL, c.Keep = min(c.TTL, keep), keep
	row, _, err := s.Claim(tb.Context(), c)
	noError(tb, err)
	r := result(c)
	r.Data = data
	ok, err := s.Complete(tb.Context(), holdOf(c), r)
	noError(tb, err)
	if !ok || row.Owner != c.Owner {
		tb.Error("a new key was somebody else's")
	}
	return c
}

// replay claims one of the keys, which is done.
func replay(tb testing.TB, s *sqlstore.Store, keys []server.Claim) {
	tb.Helper()
	row, _, err := s.Claim(tb.Context(), rival(keys[rand.N(len(keys))]))
	noError(tb, err)
	if row.State != server.Done {
		tb.Error("a key that was done is " + row.State.String())
	}
}

// ratio measures floor and store in turns, after prepare, and returns the median
// of what the rounds say, and the store's median rate.
func ratio(p plan, workers int, prepare, floor, store func()) string {
	var ratios, rates []float64
	for round := range p.rounds {
		prepare()
		var rate [2]float64
		for i := range 2 {
			which := (i + round) % 2 // neither is always the first
			rate[which] = perSecond(workers, p.cell, []func(){floor, store}[which])
		}
		ratios, rates = append(ratios, rate[1]/rate[0]), append(rates, rate[1])
	}
	return fmt.Sprintf("×%.2f, %.0f/s", median(ratios), median(rates))
}

// perSecond is the rate of workers that call one again and again.
func perSecond(workers int, d time.Duration, one func()) float64 {
	var wg sync.WaitGroup
	begin := time.Now()
	counts := make([]int, workers)
	for i := range workers {
		wg.Go(func() {
			for time.Since(begin) < d {
				one()
				counts[i]++
			}
		})
	}
	wg.Wait()
	n := 0
	for _, c := range counts {
		n += c
	}
	return float64(n) / time.Since(begin).Seconds()
}

func median[T float64 | time.Duration](values []T) T { return quantile(values, 0.5) }

func quantile[T float64 | time.Duration](values []T, q float64) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// grow measures a large table beside a small one, and beside a purge.
func grow(t *testing.T, s *subject, p plan) string {
	t.Helper()
	var stores [2]*sqlstore.Store // of the small table, and of the large one
	var guarded [2]http.Handler
	var sent [2][]string
	var keys [2][]server.Claim
	data := make([]byte, 200)
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) })
	for i := range stores {
		db := s.open(t)
		stores[i] = migrated(t, db, s.dialect)
		m, err := server.New(stores[i], server.Config{Scope: server.SharedScope})
		require.NoError(t, err)
		guarded[i] = m.Wrap(handler)
		s.setDurable(t, db, false)
		n := 2 * sample
		if i == 1 {
			n = p.rows
		}
		sent[i], keys[i] = fill(t, stores[i], guarded[i], n, 48*time.Hour)
		if s.dialect != sqlstore.SQLite {
			run(t, db, map[sqlstore.Dialect]string{sqlstore.Postgres: "VACUUM ANALYZE oncemore_keys", sqlstore.MySQL: "ANALYZE TABLE oncemore_keys"}[s.dialect])
		}
		s.setDurable(t, db, true)
		defer s.setDurable(t, db, false)
	}
	// What a client asks for, and what the store does of it.
	ops := [4]func(i int){
		func(i int) { arrive(t, guarded[i], crand.Text(), "executed") },
		func(i int) { arrive(t, guarded[i], sent[i][rand.N(len(sent[i]))], "replayed") },
		func(i int) { finish(t, stores[i], 48*time.Hour, data) },
		func(i int) { replay(t, stores[i], keys[i]) },
	}
	var growth [len(ops)][]float64
	var purging []float64
	var purged int64
	for range p.rounds {
		for op, one := range ops {
			var took [2][]time.Duration
			const turns = 10 // what else the machine does, it does to both
			for turn := range 2 * turns {
				i := turn % 2
				took[i] = append(took[i], latencies(nil, 1, 0, p.cell/turns, func() { one(i) })...)
			}
			growth[op] = append(growth[op], float64(median(took[1]))/float64(median(took[0])))
		}

		fill(t, stores[1], nil, p.due, time.Microsecond)
		serve := func(stop <-chan struct{}) []time.Duration {
			return latencies(stop, 4, 5*time.Millisecond, p.cell, func() { finish(t, stores[1], 48*time.Hour, data) })
		}
		idle := serve(nil)
		over := make(chan struct{})
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			defer close(over) // nothing is left to purge, and nothing to see
			n, err := stores[1].Purge(ctx)
			if ctx.Err() == nil {
				noError(t, err)
			}
			purged += n
		})
		busy := serve(over)
		stop()
		wg.Wait()
		_, err := stores[1].Purge(t.Context()) // what is left is not the next round's
		require.NoError(t, err)
		idle = append(idle, serve(nil)...)
		purging = append(purging, float64(quantile(busy, 0.99))/float64(quantile(idle, 0.99)))
	}
	cells := []string{s.name}
	for _, ratios := range append(growth[:], purging) {
		cells = append(cells, fmt.Sprintf("×%.2f", median(ratios)))
	}
	return fmt.Sprintf("| %s | %d |\n", strings.Join(cells, " | "), purged)
}

// arrive sends a request with a key.
func arrive(tb testing.TB, h http.Handler, key, want string) {
	tb.Helper()
	if got := ask(tb.Context(), h, key); got.status != http.StatusOK || got.word != want {
		tb.Errorf("%+v, want %s", got, want)
	}
}

// sample is how many rows of a table are replayed.
const sample = 1000

// fill makes n rows that are done, evenly some of them through h, if there is
// one. It returns the keys of those, and as many of the others.
func fill(t *testing.T, s *sqlstore.Store, h http.Handler, n int, keep time.Duration) (sent []string, keys []server.Claim) {
	t.Helper()
	const workers = 64
	data := make([]byte, 200)
	every := max(n/sample, 2)
	var mu sync.Mutex
	all(t, workers, func(worker int) error {
		for i := worker; i < n; i += workers {
			if h != nil && i%every == 0 {
				key := crand.Text()
				arrive(t, h, key, "executed")
				mu.Lock()
				sent = append(sent, key)
				mu.Unlock()
				continue
			}
			c := finish(t, s, keep, data)
			if i%every == 1 {
				mu.Lock()
				keys = append(keys, c)
				mu.Unlock()
			}
		}
		return nil
	})
	return sent, keys
}

// latencies are those of workers that call one, not more often than once in
// every, for d or until stop is closed.
func latencies(stop <-chan struct{}, workers int, every, d time.Duration, one func()) []time.Duration {
	var mu sync.Mutex
	var all []time.Duration
	var wg sync.WaitGroup
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-stop:
		case <-time.After(d):
		}
	}()
	for range workers {
		wg.Go(func() {
			var own []time.Duration
			for over := false; !over; {
				begin := time.Now()
				one()
				own = append(own, time.Since(begin))
				select {
				case <-ended:
					over = true
				case <-time.After(every - time.Since(begin)):
				}
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, own...)
		})
	}
	wg.Wait()
	return all
}
