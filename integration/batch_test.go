package integration_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// batchStores are the databases, drivers and levels that a batch is run through.
var batchStores = []struct {
	name, driver string
	dialect      sqlstore.Dialect
	options      string
}{
	{"pgx", "pgx", sqlstore.Postgres, ""},
	{"pgx with the simple protocol", "pgx", sqlstore.Postgres, "default_query_exec_mode=simple_protocol"},
	{"pgx, serializable", "pgx", sqlstore.Postgres, "default_transaction_isolation=serializable"},
	{"lib/pq", "postgres", sqlstore.Postgres, ""},
	{"lib/pq, binary, repeatable read", "postgres", sqlstore.Postgres, "binary_parameters=yes&default_transaction_isolation=repeatable%20read"},
	{"MariaDB", "mysql", sqlstore.MySQL, ""},
	{"MariaDB, interpolated, found rows, read committed", "mysql", sqlstore.MySQL, "interpolateParams=true&clientFoundRows=true&tx_isolation=%27READ-COMMITTED%27"},
	{"MariaDB, latin1, serializable", "mysql", sqlstore.MySQL, "charset=latin1&tx_isolation=%27SERIALIZABLE%27"},
}

// newDatabase is a DSN of a database of its own.
func newDatabase(tb testing.TB, d sqlstore.Dialect, options string) string {
	tb.Helper()
	if d == sqlstore.Postgres {
		return newPostgres(tb)(options)
	}
	return newMariaDB(tb)(options)
}

// noError is for goroutines that are not the test's own.
func noError(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Error(err)
	}
}

// together runs the calls while the table is locked, until both slots are taken
// by calls that wait for it and the others have had the time to queue.
func together(t *testing.T, db *sql.DB, d sqlstore.Dialect, calls ...func()) {
	t.Helper()
	lock, unlock := "LOCK TABLE oncemore_keys IN SHARE ROW EXCLUSIVE MODE", "COMMIT"
	if d == sqlstore.MySQL {
		lock, unlock = "LOCK TABLES oncemore_keys READ", "UNLOCK TABLES"
	}
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	exec := func(text string) {
		_, err := conn.ExecContext(t.Context(), text)
		require.NoError(t, err)
	}
	exec("BEGIN")
	exec(lock)
	var wg sync.WaitGroup
	for _, call := range calls {
		wg.Go(call)
	}
	time.Sleep(30 * time.Millisecond)
	exec(unlock)
	exec("COMMIT")
	wg.Wait()
}

// commits is how many of them wrote the rows that are there. MariaDB shows only
// when a row was created, which is one instant for all of a statement.
func commits(t *testing.T, db *sql.DB, d sqlstore.Dialect) (n, rows int) {
	t.Helper()
	by := map[sqlstore.Dialect]string{sqlstore.Postgres: "xmin::text", sqlstore.MySQL: "created_at"}[d]
	require.NoError(t, db.QueryRowContext(t.Context(),
		"SELECT count(DISTINCT "+by+"), count(*) FROM oncemore_keys").Scan(&n, &rows))
	return n, rows
}

var placeholder = map[sqlstore.Dialect]string{sqlstore.Postgres: "$1", sqlstore.MySQL: "?"}

// Claims and completions of one batch: new, found, completed, not held, without
// a row. Each gets what it would get alone.
func TestBatchAnswersEach(t *testing.T) {
	for _, tt := range batchStores {
		t.Run(tt.name, func(t *testing.T) {
			db := open(t, tt.driver, newDatabase(t, tt.dialect, tt.options))
			s := migrated(t, db, tt.dialect)
			ctx := t.Context()
			held := make([]server.Claim, 30)
			for i := range held {
				held[i] = newClaim()
				_, _, err := s.Claim(ctx, held[i])
				require.NoError(t, err)
			}
			taken, gone, taken2 := newClaim(), newClaim(), newClaim()
			for _, c := range []server.Claim{taken, taken2} {
				_, _, err := s.Claim(ctx, c)
				require.NoError(t, err)
			}
			for _, withGone := range []bool{false, true} {
				var calls []func()
				for i := range 40 {
					c := newClaim()
					c.Scope, c.Route = fmt.Sprintf("t'\\\"%d\u2028é<", i), "POST /\x00\xff"
					calls = append(calls, func() {
						row, found, err := s.Claim(ctx, c)
						noError(t, err)
						assert.True(t, found)
						assert.Equal(t, c.Owner, row.Owner)
						row, _, err = s.Lookup(ctx, c.ID)
						noError(t, err)
						assert.Equal(t, c.Owner, row.Owner)
						assert.Equal(t, c.Owner, row.Origin)
						assert.Equal(t, c.Fingerprint, row.Fingerprint)
						assert.Equal(t, server.Running, row.State)
						assert.True(t, row.Live)
						assert.WithinDuration(t, row.CreatedAt.Add(c.TTL), row.ExpiresAt, time.Second)
						var scope, route string
						noError(t, db.QueryRowContext(ctx, "SELECT scope, route FROM oncemore_keys WHERE id = "+placeholder[tt.dialect], c.ID[:]).Scan(&scope, &route))
						assert.Equal(t, c.Scope, scope)
						assert.Equal(t, "POST /??", route)
					})
				}
				for i, c := range held[:15] {
					r := result(c)
					if i%3 == 0 {
						r = server.Result{State: server.Unknown, Status: 504}
					}
					calls = append(calls, func() {
						ok, err := s.Complete(ctx, holdOf(c), r)
						noError(t, err)
						assert.True(t, ok)
						row, _, err := s.Lookup(ctx, c.ID)
						noError(t, err)
						assert.Equal(t, r.State, row.State)
						assert.Equal(t, r.Status, row.Status)
						assert.Equal(t, r.Data, row.Data)
						if r.State == server.Done {
							assert.WithinDuration(t, r.ExecutedAt, row.ExecutedAt, time.Millisecond)
						}
						assert.False(t, row.Live)
						assert.Equal(t, c.Fingerprint, row.Fingerprint)
						assert.Equal(t, 1, row.Attempt)
					})
				}
				held = held[15:]
				// In the middle: who is the first or the last may get a slot of his own.
				calls = slices.Insert(calls, 20, func() {
					row, found, err := s.Claim(ctx, rival(taken))
					noError(t, err)
					assert.True(t, found)
					assert.Equal(t, taken.Owner, row.Owner)
				}, func() {
					ok, err := s.Complete(ctx, holdOf(rival(taken2)), result(taken2))
					noError(t, err)
					assert.False(t, ok, "it holds nothing")
				})
				if withGone {
					calls = slices.Insert(calls, 20, func() {
						ok, err := s.Complete(ctx, holdOf(gone), result(gone))
						noError(t, err)
						assert.False(t, ok, "there is no row")
					})
				}
				before, rows := commits(t, db, tt.dialect)
				together(t, db, tt.dialect, calls...)
				after, all := commits(t, db, tt.dialect)
				assert.Equal(t, 40, all-rows)
				if !withGone { // else the batch is undone
					assert.Less(t, after-before, 30, "transactions for 40 rows")
				}
			}
			_, found, err := s.Lookup(ctx, gone.ID)
			require.NoError(t, err)
			assert.False(t, found)
			row, _, err := s.Lookup(ctx, taken2.ID)
			require.NoError(t, err)
			assert.Equal(t, server.Running, row.State)
		})
	}
}

// What a batch stores is byte for byte what each call has sent, and to the
// microsecond.
func TestBatchKeepsWhatItIsGiven(t *testing.T) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	datas := [][]byte{
		nil, []byte(""), []byte("\x00"), []byte("\xff"), every, []byte(`\x41`), []byte(`\\'"$1?{now}')--`), nil, []byte(""),
		bytes.Repeat([]byte{0}, 16<<10), bytes.Repeat([]byte{'\\'}, 16<<10), bytes.Repeat(every, 64),
	}
	for range 28 {
		datas = append(datas, bytes.Repeat(every, 8)[rand.N(256):][:rand.N(1700)])
	}
	for _, tt := range batchStores {
		t.Run(tt.name, func(t *testing.T) {
			db := open(t, tt.driver, newDatabase(t, tt.dialect, tt.options))
			s := migrated(t, db, tt.dialect)
			claims, results := make([]server.Claim, len(datas)), make([]server.Result, len(datas))
			var calls []func()
			for i, data := range datas {
				c := newClaim()
				r := server.Result{State: server.Done, Status: 200 + i, Data: data, ExecutedAt: time.UnixMicro(rand.Int64N(7e15)).UTC()}
				claims[i], results[i] = c, r
				_, _, err := s.Claim(t.Context(), c)
				require.NoError(t, err)
				calls = append(calls, func() {
					ok, err := s.Complete(t.Context(), holdOf(c), r)
					noError(t, err)
					assert.True(t, ok)
				}, func() {
					_, _, err := s.Claim(t.Context(), newClaim())
					noError(t, err)
				})
			}
			together(t, db, tt.dialect, calls...)
			for i, c := range claims {
				row, _, err := s.Lookup(t.Context(), c.ID)
				require.NoError(t, err)
				require.True(t, bytes.Equal(results[i].Data, row.Data), "data %d", i)
				assert.Equal(t, results[i].Status, row.Status)
				assert.Equal(t, results[i].ExecutedAt, row.ExecutedAt)
				assert.Equal(t, c.Owner, row.Origin)
				assert.Equal(t, c.Fingerprint, row.Fingerprint)
				var null bool
				require.NoError(t, db.QueryRowContext(t.Context(), "SELECT data IS NULL FROM oncemore_keys WHERE id = "+placeholder[tt.dialect], c.ID[:]).Scan(&null))
				assert.Equal(t, results[i].Data == nil, null, "data %d", i)
			}
		})
	}
}

// A batch whose commit fails is told to nobody as a win, through any driver.
func TestBatchWhoseCommitFails(t *testing.T) {
	for _, tt := range batchStores {
		t.Run(tt.name, func(t *testing.T) {
			db := open(t, tt.driver, newDatabase(t, tt.dialect, tt.options))
			s := migrated(t, db, tt.dialect)
			if tt.dialect == sqlstore.MySQL {
				run(t, db, `CREATE TRIGGER refuse AFTER INSERT ON oncemore_keys FOR EACH ROW
 IF NEW.scope = 'poison' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'poison'; END IF`)
			} else {
				run(t, db, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
 IF NEW.scope = 'poison' THEN RAISE EXCEPTION 'poison'; END IF; RETURN NULL; END $$`,
					`CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON oncemore_keys
 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`)
			}
			var calls []func()
			for i := range 40 {
				c := newClaim()
				if i%10 == 7 {
					c.Scope = "poison"
				}
				calls = append(calls, func() {
					row, _, err := s.Claim(t.Context(), c)
					if c.Scope == "poison" {
						assert.True(t, err != nil && strings.Contains(err.Error(), "poison"), "%v", err)
						return
					}
					noError(t, err)
					assert.Equal(t, c.Owner, row.Owner)
				})
			}
			together(t, db, tt.dialect, calls...)
			_, rows := commits(t, db, tt.dialect)
			assert.Equal(t, 36, rows)
		})
	}
}

// A transaction that has a key, for long, holds up nobody who wants another.
func TestBatchDoesNotWaitForATransaction(t *testing.T) {
	for _, d := range []sqlstore.Dialect{sqlstore.Postgres, sqlstore.MySQL} {
		t.Run(d.String(), func(t *testing.T) {
			db := open(t, map[sqlstore.Dialect]string{sqlstore.Postgres: "pgx", sqlstore.MySQL: "mysql"}[d], newDatabase(t, d, ""))
			s := migrated(t, db, d)
			ctx := t.Context()
			c := newClaim()
			tx, _, _, err := s.BeginTx(ctx, &c)
			require.NoError(t, err)
			var rivals sync.WaitGroup
			for range 6 {
				rivals.Go(func() {
					row, found, err := s.Claim(ctx, rival(c))
					noError(t, err)
					assert.True(t, found)
					assert.NotEqual(t, c.Owner, row.Owner, "it was rolled back")
				})
			}
			time.Sleep(20 * time.Millisecond)
			begin := time.Now()
			var longest time.Duration
			var mu sync.Mutex
			all(t, 40, func(int) error {
				for range 5 {
					begin := time.Now()
					if _, _, err := once(ctx, s, newClaim(), false); err != nil {
						return err
					}
					mu.Lock()
					longest = max(longest, time.Since(begin))
					mu.Unlock()
				}
				return nil
			})
			t.Logf("200 keys in %v, the longest %v", time.Since(begin), longest)
			assert.Less(t, longest, 4*time.Second, "a statement that waits for the key does so for five")
			require.NoError(t, tx.Rollback())
			rivals.Wait()
		})
	}
}

// The reply to a batch is lost after the server has committed it: each call
// asks alone, and knows its own work.
func TestBatchWhoseReplyIsLost(t *testing.T) {
	for _, tt := range []struct {
		driver, options, claims, completions string
		dialect                              sqlstore.Dialect
		shared                               *shared
	}{
		{"pgx", "default_query_exec_mode=simple_protocol", "json_to_recordset", "json_to_recordset", sqlstore.Postgres, &servers.postgres},
		{"postgres", "binary_parameters=yes", "json_to_recordset", "json_to_recordset", sqlstore.Postgres, &servers.postgres},
		{"mysql", "interpolateParams=true", "FOR */ INSERT", "FOR */ UPDATE", sqlstore.MySQL, &servers.mariadb},
	} {
		t.Run(tt.driver, func(t *testing.T) {
			p := newProxy(t, tt.shared.get(t).Addr())
			dsn := newDatabase(t, tt.dialect, tt.options)
			direct := open(t, tt.driver, dsn)
			s := migrated(t, open(t, tt.driver, through(dsn, p.port())), tt.dialect)
			const rounds, n = 10, 30
			for range rounds {
				var claims, completions []func()
				for range n {
					c := newClaim()
					claims = append(claims, func() {
						row, _, err := s.Claim(t.Context(), c)
						noError(t, err)
						assert.Equal(t, c.Owner, row.Owner, "the claim is its own")
					})
					completions = append(completions, func() {
						ok, err := s.Complete(t.Context(), holdOf(c), result(c))
						noError(t, err)
						assert.True(t, ok)
					})
				}
				p.lose.Store(&tt.claims)
				together(t, direct, tt.dialect, claims...)
				p.lose.Store(&tt.completions)
				together(t, direct, tt.dialect, completions...)
			}
			assert.EqualValues(t, 2*rounds, p.lost.Load(), "all were lost")
			var rows int
			require.NoError(t, direct.QueryRowContext(t.Context(),
				"SELECT count(*) FROM oncemore_keys WHERE state = 2 AND generation = 1 AND attempt = 1").Scan(&rows))
			assert.Equal(t, rounds*n, rows)
		})
	}
}

// Nobody stays in the queue of a server that hangs.
func TestQueueOfAFrozenDatabaseIsLeft(t *testing.T) {
	t.Parallel()
	p := newProxy(t, servers.postgres.get(t).Addr())
	s := migrated(t, open(t, "pgx", through(newPostgres(t)(), p.port())), sqlstore.Postgres)
	p.frozen.Store(true)
	begin := time.Now()
	all(t, 60, func(i int) error {
		ctx := t.Context()
		if i%2 == 0 {
			short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			defer cancel()
			ctx = short
		}
		_, _, err := s.Claim(ctx, newClaim())
		if since := time.Since(begin); i%2 == 0 && since > 4*time.Second {
			return fmt.Errorf("the caller's deadline came after %v", since)
		}
		return wanted(err)
	})
	assert.Less(t, time.Since(begin), 30*time.Second)
	p.frozen.Store(false)
	all(t, 60, func(int) error {
		_, _, err := once(t.Context(), s, newClaim(), false)
		return err
	})
}
