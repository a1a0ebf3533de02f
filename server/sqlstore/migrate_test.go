package sqlstore_test

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/sqlitetest"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// open opens the database file by a DSN of the test's own.
func open(tb testing.TB, dsn string) *sql.DB {
	tb.Helper()
	db, err := sql.Open("sqlite", dsn)
	require.NoError(tb, err)
	tb.Cleanup(func() { assert.NoError(tb, db.Close()) })
	return db
}

// migrate migrates db as a new process would.
func migrate(tb testing.TB, db *sql.DB) error {
	tb.Helper()
	s, err := sqlstore.New(db, sqlstore.SQLite)
	require.NoError(tb, err)
	return s.Migrate(tb.Context())
}

func TestMigrateNamesTheMissingSetting(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, from, to, want string }{
		{"WAL", "_pragma=journal_mode(WAL)", "_pragma=journal_mode(DELETE)", "add _pragma=journal_mode(WAL) to the DSN"},
		{"busy timeout", "_pragma=busy_timeout(5000)", "_pragma=busy_timeout(0)", "add _pragma=busy_timeout(5000) to the DSN"},
		{"synchronous", "_pragma=synchronous(FULL)", "_pragma=synchronous(OFF)", "add _pragma=synchronous(FULL) to the DSN"},
		{"immediate", "&_txlock=immediate", "", "add _txlock=immediate to the DSN"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dsn := sqlitetest.DSN(filepath.Join(t.TempDir(), "a.db"))
			err := migrate(t, open(t, strings.Replace(dsn, tt.from, tt.to, 1)))
			require.ErrorContains(t, err, "sqlstore: migrate: ")
			require.ErrorContains(t, err, tt.want)
			assert.NoError(t, migrate(t, open(t, dsn)), "with it, it is well")
		})
	}
	t.Run("normal is a choice", func(t *testing.T) {
		t.Parallel()
		dsn := sqlitetest.DSN(filepath.Join(t.TempDir(), "a.db"))
		assert.NoError(t, migrate(t, open(t, strings.Replace(dsn, "FULL", "NORMAL", 1))))
	})
	t.Run("in memory", func(t *testing.T) {
		t.Parallel()
		require.ErrorContains(t, migrate(t, open(t, ":memory:")), "of a database in a file")
	})
	t.Run("settings are left as they are", func(t *testing.T) {
		t.Parallel()
		db := sqlitetest.Open(t)
		require.NoError(t, migrate(t, db))
		for range 4 {
			conn, err := db.Conn(t.Context())
			require.NoError(t, err)
			defer func() { _ = conn.Close() }()
			var timeout int
			require.NoError(t, conn.QueryRowContext(t.Context(), "PRAGMA busy_timeout").Scan(&timeout))
			assert.Equal(t, 5000, timeout)
		}
	})
}

func TestMigrateIsRepeatable(t *testing.T) {
	t.Parallel()
	db := sqlitetest.Open(t)
	s := migrated(t, db)
	c := newClaim()
	win(t, s, c)
	require.NoError(t, s.Migrate(t.Context()))
	_, found, err := s.Lookup(t.Context(), c.ID)
	require.NoError(t, err)
	assert.True(t, found, "it keeps what is there")
}

// B235: the first start of many. TestProcessesMigrate has real processes.
func TestMigrateFromManyAtOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	all(t, 10, func(int) error { return migrate(t, sqlitetest.OpenPatient(t, path)) })
}

// The same from the goroutines of one process, over a pool that is smaller.
func TestMigrateFromManyOverASmallPool(t *testing.T) {
	t.Parallel()
	for _, conns := range []int{1, 2, 4} {
		for name, stores := range map[string]int{"one store": 1, "a store each": 10} {
			t.Run(fmt.Sprintf("%d connections, %s", conns, name), func(t *testing.T) {
				t.Parallel()
				db := sqlitetest.Open(t)
				db.SetMaxOpenConns(conns)
				made := make([]*sqlstore.Store, stores)
				for i := range made {
					var err error
					made[i], err = sqlstore.New(db, sqlstore.SQLite)
					require.NoError(t, err)
				}
				all(t, 10, func(i int) error { return made[i%stores].Migrate(t.Context()) })
			})
		}
	}
}

func TestMigrateTakesATableMadeByHand(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{
		sqlstore.Schema(sqlstore.SQLite),
		strings.ReplaceAll(sqlstore.Schema(sqlstore.SQLite), "oncemore_keys", "Oncemore_Keys"),
		sqlstore.Schema(sqlstore.SQLite) + "CREATE TRIGGER IF NOT EXISTS ours AFTER DELETE ON oncemore_keys BEGIN SELECT 'oncemore schema 9'; END;\n",
	} {
		db := sqlitetest.Open(t)
		for range 2 { // nothing is created twice
			_, err := db.ExecContext(t.Context(), schema)
			require.NoError(t, err)
		}
		s := migrated(t, db)
		win(t, s, newClaim())
	}
}

// What somebody has set on the only connection is still there.
func TestMigrateGivesItsConnectionBack(t *testing.T) {
	t.Parallel()
	db := sqlitetest.Open(t)
	db.SetMaxOpenConns(1)
	_, err := db.ExecContext(t.Context(), "PRAGMA foreign_keys = ON")
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, migrate(t, db))
		assert.Equal(t, "1", text(t, db, "PRAGMA foreign_keys"))
	}
}

func TestMigrateRefusesATableThatIsNotOurs(t *testing.T) {
	t.Parallel()
	newer := strings.ReplaceAll(sqlstore.Schema(sqlstore.SQLite), fmt.Sprint("oncemore schema ", newest), fmt.Sprint("oncemore schema ", newest+1))
	for _, tt := range []struct{ name, table, want string }{
		{"newer", newer, fmt.Sprintf("has schema %d, and this version knows %d at most: upgrade the program", newest+1, newest)},
		{"another", "CREATE TABLE oncemore_keys (id BLOB PRIMARY KEY)", "is not as Schema makes it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			db := sqlitetest.Open(t)
			_, err := db.ExecContext(t.Context(), tt.table)
			require.NoError(t, err)
			require.ErrorContains(t, migrate(t, db), tt.want)
		})
	}
}

// F24: a database that takes no writes is no place for a claim.
func TestMigrateRefusesAReadOnlyDatabase(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	require.NoError(t, migrate(t, sqlitetest.OpenFile(t, path)))
	require.ErrorContains(t, migrate(t, open(t, sqlitetest.DSN(path)+"&mode=ro")), "the database is read-only")
	require.ErrorContains(t, migrate(t, open(t, sqlitetest.DSN(path)+"&_pragma=query_only(1)")), "the database is read-only")
}
