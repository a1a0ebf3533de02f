package integration_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/upgrades"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// upgraded is a database whose table is upgraded.
type upgraded struct {
	dialect  sqlstore.Dialect
	database func(testing.TB) (pool func(i int) *sql.DB) // a new one, and the pools of its programs
	step     string                                      // leads to version $N, adds column extra$N, and counts itself
	count    [2]string                                   // what counts how often a step was begun
	broken   string                                      // a step that fails when it has added its column
	table    []string                                    // all that makes the table what it is, without the spelling
}

var upgradeds = []*upgraded{
	{
		dialect: sqlstore.Postgres,
		database: func(tb testing.TB) func(int) *sql.DB {
			tb.Helper()
			url := newPostgres(tb)
			return func(i int) *sql.DB {
				level := "read%20committed"
				if i > 0 { // where a transaction sees nothing that is newer than its first statement
					level = "serializable"
				}
				return open(tb, []string{"pgx", "postgres"}[i%2], url("default_transaction_isolation="+level))
			}
		},
		count: [2]string{`CREATE SEQUENCE steps`, `SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM steps`},
		step: `SELECT nextval('steps');
ALTER TABLE oncemore_keys ADD COLUMN extra$N text NOT NULL DEFAULT 'none';
COMMENT ON TABLE oncemore_keys IS 'oncemore schema $N';
`,
		broken: `ALTER TABLE oncemore_keys ADD COLUMN extra text;
COMMENT ON TABLE oncemore_keys IS 'oncemore schema $N';
ALTER TABLE oncemore_keys DROP COLUMN nowhere;
`,
		table: []string{
			`SELECT obj_description('oncemore_keys'::regclass, 'pg_class')`,
			`SELECT concat_ws(' ', relkind, relpersistence, reloptions) FROM pg_class WHERE oid = 'oncemore_keys'::regclass`,
			`SELECT concat_ws(' ', column_name, data_type, is_nullable, column_default, collation_name)
 FROM information_schema.columns WHERE table_name = 'oncemore_keys' ORDER BY column_name`,
			`SELECT indexdef FROM pg_indexes WHERE tablename = 'oncemore_keys' ORDER BY indexname`,
			`SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'oncemore_keys'::regclass ORDER BY conname`,
		},
	},
	{
		dialect: sqlstore.MySQL,
		database: func(tb testing.TB) func(int) *sql.DB {
			tb.Helper()
			dsn := newMariaDB(tb)
			return func(i int) *sql.DB {
				return open(tb, "mysql", dsn([]string{"interpolateParams=true", "interpolateParams=false"}[i%2]))
			}
		},
		step:   `ALTER TABLE oncemore_keys ADD COLUMN extra$N VARCHAR(20) NOT NULL DEFAULT 'none', COMMENT = 'oncemore schema $N'`,
		broken: `ALTER TABLE oncemore_keys ADD COLUMN extra INT, COMMENT = 'oncemore schema $N', DROP COLUMN nowhere`,
		table: []string{
			`SELECT table_comment FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'oncemore_keys'`,
			`SELECT concat_ws(' ', engine, row_format, table_collation, create_options)
 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'oncemore_keys'`,
			`SELECT concat_ws(' ', column_name, column_type, is_nullable, column_default, collation_name, extra, column_comment)
 FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'oncemore_keys' ORDER BY column_name`,
			`SELECT concat_ws(' ', index_name, non_unique, seq_in_index, column_name, sub_part)
 FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = 'oncemore_keys' ORDER BY index_name, seq_in_index`,
		},
	},
}

// newest is the version that this program knows.
func (u *upgraded) newest() int { return 1 + len(upgrades.Steps[u.dialect.String()]) }

// learn makes this a later program, until forget or the end of the test. What
// calls it is not parallel.
func (u *upgraded) learn(t *testing.T, steps ...string) (forget func()) {
	t.Helper()
	name := u.dialect.String()
	known := upgrades.Steps[name]
	forget = func() { upgrades.Steps[name] = known }
	t.Cleanup(forget)
	var later []string
	for i, step := range steps {
		later = append(later, strings.ReplaceAll(step, "$N", fmt.Sprint(len(known)+2+i)))
	}
	upgrades.Steps[name] = append(known[:len(known):len(known)], later...)
	return forget
}

// counted makes what a step counts itself by.
func (u *upgraded) counted(tb testing.TB, db *sql.DB) {
	tb.Helper()
	if u.count[0] != "" {
		run(tb, db, u.count[0])
	}
}

// migrate migrates as a new process does.
func (u *upgraded) migrate(ctx context.Context, db *sql.DB) error {
	s, err := sqlstore.New(db, u.dialect)
	if err != nil {
		return err
	}
	return s.Migrate(ctx)
}

// describe returns the lines of u.table; the first has the version.
func (u *upgraded) describe(tb testing.TB, db *sql.DB) (lines []string) {
	tb.Helper()
	for _, query := range u.table {
		func() {
			rows, err := db.QueryContext(tb.Context(), query)
			require.NoError(tb, err)
			defer func() { _ = rows.Close() }()
			for rows.Next() {
				var line string
				require.NoError(tb, rows.Scan(&line))
				lines = append(lines, line)
			}
			require.NoError(tb, rows.Err())
		}()
	}
	return lines
}

func (u *upgraded) version(tb testing.TB, db *sql.DB) (n int) {
	tb.Helper()
	_, err := fmt.Sscanf(u.describe(tb, db)[0], "oncemore schema %d", &n)
	require.NoError(tb, err)
	return n
}

// upgrade runs test on each database.
func upgrade(t *testing.T, test func(*testing.T, *upgraded)) {
	t.Helper()
	for _, u := range upgradeds {
		t.Run(u.dialect.String(), func(t *testing.T) { test(t, u) })
	}
}

// kept are two rows: c is done, and r runs.
type kept struct{ c, r server.Claim }

func keep(t *testing.T, s *sqlstore.Store) kept {
	t.Helper()
	k := kept{newClaim(), newClaim()}
	_, won, err := once(t.Context(), s, k.c, false)
	require.NoError(t, err)
	require.True(t, won)
	row, _, err := s.Claim(t.Context(), k.r)
	require.NoError(t, err)
	require.Equal(t, k.r.Owner, row.Owner)
	return k
}

// check asserts that they are as they were.
func (k kept) check(t *testing.T, s *sqlstore.Store) {
	t.Helper()
	row, _, err := s.Claim(t.Context(), rival(k.c))
	require.NoError(t, err)
	assert.Equal(t, server.Done, row.State)
	assert.Equal(t, string(result(k.c).Data), string(row.Data))
	row, _, err = s.Claim(t.Context(), rival(k.r))
	require.NoError(t, err)
	assert.Equal(t, server.Running, row.State)
	assert.Equal(t, k.r.Owner, row.Owner)
}

// serve sends new keys, with and without a transaction, until stop; served is
// how many were done, and all of them have to be.
func serve(t *testing.T, s *sqlstore.Store) (stop func() (served int)) {
	t.Helper()
	return serveBy(t, func(inTx bool) (bool, error) {
		_, won, err := once(t.Context(), s, newClaim(), inTx)
		return won, err
	})
}

// serveBy is serve, with one new key as arrive sends it.
func serveBy(t *testing.T, arrive func(inTx bool) (won bool, err error)) (stop func() (served int)) {
	t.Helper()
	var wg sync.WaitGroup
	var served atomic.Int64
	var over atomic.Bool
	for worker := range 4 {
		wg.Go(func() {
			for !over.Load() {
				if won, err := arrive(worker%2 == 0); err != nil || !won {
					t.Errorf("a program of before works on: won %t, %v", won, err)
					return
				}
				served.Add(1)
			}
		})
	}
	stop = func() int {
		over.Store(true)
		wg.Wait()
		return int(served.Load())
	}
	t.Cleanup(func() { stop() })
	return stop
}

// B235: the first start of many processes of a new version, while one of the
// old version serves on.
func TestUpgradeFromManyAtOnce(t *testing.T) {
	upgrade(t, func(t *testing.T, u *upgraded) {
		pool := u.database(t)
		db := pool(0)
		old := migrated(t, db, u.dialect)
		rows := keep(t, old)
		u.counted(t, db)
		stop := serve(t, old)
		require.Eventually(t, func() bool {
			n := 0
			require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM oncemore_keys").Scan(&n))
			return n >= 10
		}, 10*time.Second, 5*time.Millisecond)

		u.learn(t, u.step)
		stores := make([]*sqlstore.Store, 10)
		all(t, len(stores), func(i int) (err error) {
			if stores[i], err = sqlstore.New(pool(i), u.dialect); err != nil {
				return err
			}
			return stores[i].Migrate(t.Context())
		})
		_, won, err := once(t.Context(), stores[0], newClaim(), true)
		require.NoError(t, err)
		assert.True(t, won)
		served := stop()

		assert.Equal(t, u.newest(), u.version(t, db))
		var n, extra int
		require.NoError(t, db.QueryRowContext(t.Context(), fmt.Sprintf(
			"SELECT count(*), count(CASE WHEN extra%d = 'none' THEN 1 END) FROM oncemore_keys", u.newest())).Scan(&n, &extra))
		assert.Equal(t, served+3, n)
		assert.Equal(t, n, extra)
		if u.count[1] != "" { // else the second of two steps fails, see TestStepFailsWhereItHasRun
			require.NoError(t, db.QueryRowContext(t.Context(), u.count[1]).Scan(&n))
			assert.Equal(t, 1, n, "the step ran once")
		}
		for _, s := range append(stores, old) {
			rows.check(t, s)
		}
		ok, err := old.Complete(t.Context(), holdOf(rows.r), result(rows.r))
		require.NoError(t, err)
		assert.True(t, ok, "who ran through it completes")
	})
}

// A step that fails in the middle has not been, and is made again.
func TestUpgradeThatIsInterrupted(t *testing.T) {
	upgrade(t, func(t *testing.T, u *upgraded) {
		db := u.database(t)(0)
		s := migrated(t, db, u.dialect)
		rows := keep(t, s)
		before := u.describe(t, db)
		forget := u.learn(t, u.broken)
		err := s.Migrate(t.Context())
		require.ErrorContains(t, err, fmt.Sprintf("sqlstore: migrate: table oncemore_keys has schema %d, and could not be brought to %d: ", u.newest()-1, u.newest()))
		require.ErrorContains(t, err, "nowhere")
		assert.Equal(t, before, u.describe(t, db))
		rows.check(t, s)
		forget()

		u.counted(t, db)
		u.learn(t, u.step)
		require.NoError(t, s.Migrate(t.Context()))
		assert.Equal(t, u.newest(), u.version(t, db))
		rows.check(t, s)
	})
}

// F2: a connection that is lost in the middle, before or after what was asked is
// done. The step is made once, by the same call.
func TestUpgradeWhoseConnectionIsLost(t *testing.T) {
	for _, tt := range []struct {
		u               *upgraded
		shared          *shared
		driver, options string
		at              []string
	}{
		{upgradeds[0], &servers.postgres, "pgx", "default_query_exec_mode=exec", []string{"begin", "advisory", "ALTER", "COMMENT", "commit\x00", "to_regclass"}},
		{upgradeds[0], &servers.postgres, "postgres", "", []string{"BEGIN", "ALTER", "COMMIT\x00"}},
		{upgradeds[1], &servers.mariadb, "mysql", "", []string{"lock_wait", "START", "ALTER", "table_comment"}},
	} {
		for i, at := range append(tt.at, tt.at...) {
			t.Run(fmt.Sprintf("%s, %s %q, %d", tt.u.dialect, tt.driver, at, i), func(t *testing.T) {
				p := newProxy(t, tt.shared.get(t).Addr())
				p.hasty.Store(i < len(tt.at))
				dsn := newDatabase(t, tt.u.dialect, tt.options)
				direct := open(t, tt.driver, dsn)
				s := migrated(t, direct, tt.u.dialect)
				rows := keep(t, s)
				tt.u.counted(t, direct)
				tt.u.learn(t, tt.u.step)
				db := open(t, tt.driver, through(dsn, p.port()))
				db.SetMaxOpenConns(1)
				p.lose.Store(&at)
				require.NoError(t, tt.u.migrate(t.Context(), db))
				assert.EqualValues(t, 1, p.lost.Load())
				assert.Equal(t, tt.u.newest(), tt.u.version(t, direct))
				rows.check(t, s)
			})
		}
	}
}

// A change of the table waits for the transactions that have used it, and who
// comes later waits for the change: nobody may wait for long.
func TestUpgradeWaitsForATransactionAndHoldsNobodyUp(t *testing.T) {
	pools, olds := map[*upgraded]func(int) *sql.DB{}, map[*upgraded]*sqlstore.Store{}
	for _, u := range upgradeds {
		pools[u] = u.database(t)
		olds[u] = migrated(t, pools[u](0), u.dialect)
		u.counted(t, pools[u](1))
	}
	for _, u := range upgradeds {
		u.learn(t, u.step)
	}
	upgrade(t, func(t *testing.T, u *upgraded) {
		t.Parallel()
		old, pool := olds[u], pools[u]
		db := pool(0)
		rows := keep(t, old)
		before := u.describe(t, db)
		c := newClaim()
		tx, _, _, err := old.BeginTx(t.Context(), &c)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()

		if !raceDetector && !testing.Short() { // it takes seconds
			stop := serve(t, old)
			err = u.migrate(t.Context(), pool(1))
			require.ErrorIs(t, err, server.ErrBusy)
			require.ErrorContains(t, err, "could not be brought to")
			assert.Positive(t, stop())
			assert.Equal(t, before, u.describe(t, db))
		}

		// A process that ends while it waits leaves nobody waiting.
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, u.migrate(ctx, pool(1)), context.DeadlineExceeded)
		_, _, err = once(t.Context(), old, newClaim(), false)
		require.NoError(t, err)
		assert.Equal(t, before, u.describe(t, db))

		done := make(chan error, 1)
		go func() { done <- u.migrate(t.Context(), pool(2)) }()
		time.Sleep(100 * time.Millisecond)
		ok, err := tx.Complete(t.Context(), holdOf(c), result(c))
		require.NoError(t, err)
		require.True(t, ok)
		require.NoError(t, tx.Commit(t.Context()))
		require.NoError(t, <-done)
		assert.Equal(t, u.newest(), u.version(t, db))
		rows.check(t, old)
		row, _, err := old.Lookup(t.Context(), c.ID)
		require.NoError(t, err)
		assert.Equal(t, server.Done, row.State)
	})
}

// A program that is rolled back does not work on what it does not know.
func TestOlderProgramRefusesANewerTable(t *testing.T) {
	upgrade(t, func(t *testing.T, u *upgraded) {
		pool := u.database(t)
		db := pool(0)
		u.counted(t, db)
		forget := u.learn(t, u.step)
		s := migrated(t, db, u.dialect)
		rows := keep(t, s)
		before := u.describe(t, db)
		forget()
		require.EqualError(t, u.migrate(t.Context(), pool(1)), fmt.Sprintf("sqlstore: migrate: table oncemore_keys has schema %d, and this version knows %d at most: "+
			"upgrade the program before it runs on this database", u.newest()+1, u.newest()))
		assert.Equal(t, before, u.describe(t, db))
		rows.check(t, s)
	})
}

func TestUpgradeOverSeveralVersions(t *testing.T) {
	upgrade(t, func(t *testing.T, u *upgraded) {
		pool, newPool := u.database(t), u.database(t)
		db, fresh := pool(0), newPool(0)
		s := migrated(t, db, u.dialect)
		rows := keep(t, s)
		u.counted(t, db)
		u.counted(t, fresh)
		u.learn(t, u.step, u.step)
		all(t, 10, func(i int) error { return u.migrate(t.Context(), pool(i)) })
		all(t, 10, func(i int) error { return u.migrate(t.Context(), newPool(i)) })
		assert.Equal(t, u.newest(), u.version(t, db))
		assert.Equal(t, u.describe(t, db), u.describe(t, fresh), "a new table is of the newest version at once")
		rows.check(t, s)
	})
}

// What a user's DSN says of timeouts is for the user's own statements.
func TestPostgresUpgradeHasTimeoutsOfItsOwn(t *testing.T) {
	u := upgradeds[0]
	for _, option := range []string{"statement_timeout=500", "lock_timeout=50"} {
		url := newPostgres(t)
		db := open(t, "pgx", url())
		s := migrated(t, db, u.dialect)
		u.counted(t, db)
		forget := u.learn(t, u.step)
		c := newClaim()
		tx, _, _, err := s.BeginTx(t.Context(), &c)
		require.NoError(t, err)
		time.AfterFunc(1500*time.Millisecond, func() { _ = tx.Rollback() })
		all(t, 10, func(int) error { return u.migrate(t.Context(), open(t, "pgx", url(option))) })
		assert.Equal(t, u.newest(), u.version(t, db))
		forget()
	}
}

// Whoever may not change the table is told what is missing, and goes on when
// somebody else has changed it.
func TestPostgresUpgradeByTheOwner(t *testing.T) {
	u := upgradeds[0]
	url := newPostgres(t)
	owner := open(t, "pgx", url())
	migrated(t, owner, u.dialect)
	run(t, owner, u.count[0], `DO $$ BEGIN CREATE ROLE clerk LOGIN; EXCEPTION WHEN duplicate_object THEN END $$`,
		`GRANT SELECT, INSERT, UPDATE, DELETE ON oncemore_keys TO clerk`, `GRANT USAGE ON steps TO clerk`)
	clerk := open(t, "pgx", url("user=clerk"))
	u.learn(t, u.step)
	require.ErrorContains(t, u.migrate(t.Context(), clerk),
		fmt.Sprintf("could not be brought to %d: ERROR: must be owner of table oncemore_keys", u.newest()))
	require.NoError(t, u.migrate(t.Context(), owner))
	require.NoError(t, u.migrate(t.Context(), clerk))
}

// first is the first version of the schema, which no later one changes.
func (u *upgraded) first(tb testing.TB) string {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join("..", "server", "sqlstore", "testdata", "schema-1", u.dialect.String()+".sql"))
	require.NoError(tb, err)
	return string(text)
}

// Whoever changes the schema has to add a step, and the other way round: a table
// of the first version that is upgraded, a new one, and one made by hand are the
// same.
func TestSchemaIsWhereTheUpgradesLead(t *testing.T) {
	upgrade(t, func(t *testing.T, u *upgraded) {
		byHand, older, made := u.database(t)(0), u.database(t)(0), u.database(t)(0)
		run(t, byHand, sqlstore.Schema(u.dialect))
		run(t, older, u.first(t))
		first, want := u.describe(t, older), u.describe(t, byHand)

		// Schema by hand upgrades nothing, and does not say that it has.
		_, err := older.ExecContext(t.Context(), sqlstore.Schema(u.dialect))
		if err != nil {
			t.Logf("as it should be, once there are more versions: %v", err)
		}
		assert.Equal(t, first, u.describe(t, older))

		require.NoError(t, u.migrate(t.Context(), older))
		require.NoError(t, u.migrate(t.Context(), made))
		assert.Equal(t, u.newest(), u.version(t, byHand), "Schema says which version it is")
		assert.Equal(t, want, u.describe(t, older), "the steps lead to Schema")
		assert.Equal(t, want, u.describe(t, made), "Migrate makes what Schema says")
	})
}

// On MySQL two processes may begin the same step, also one that is long past: the
// second has to fail, and to change nothing.
func TestStepFailsWhereItHasRun(t *testing.T) {
	u := upgradeds[1]
	u.learn(t, u.step) // what is true of it has to be true of all
	db := u.database(t)(0)
	run(t, db, u.first(t))
	require.NoError(t, u.migrate(t.Context(), db))
	want := u.describe(t, db)
	for i, step := range upgrades.Steps[u.dialect.String()] {
		_, err := db.ExecContext(t.Context(), step)
		require.Error(t, err, "the step to version %d", i+2)
		assert.Equal(t, want, u.describe(t, db))
	}
}
