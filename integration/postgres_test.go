package integration_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/integration/dbtest"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// B235: the first start of many processes.
func TestPostgresMigratesFromManyAtOnce(t *testing.T) {
	t.Parallel()
	for range 3 {
		url := newPostgres(t)
		all(t, 20, func(i int) error {
			driver := []string{"pgx", "postgres"}[i%2]
			s, err := sqlstore.New(open(t, driver, url()), sqlstore.Postgres)
			if err != nil {
				return err
			}
			return s.Migrate(t.Context())
		})
	}
}

func TestPostgresMigrate(t *testing.T) {
	t.Parallel()
	migrate := func(t *testing.T, url string) error {
		t.Helper()
		s, err := sqlstore.New(open(t, "pgx", url), sqlstore.Postgres)
		require.NoError(t, err)
		return s.Migrate(t.Context())
	}
	t.Run("missing", func(t *testing.T) {
		t.Parallel()
		for _, driver := range []string{"pgx", "postgres"} {
			s, err := sqlstore.New(open(t, driver, newPostgres(t)()), sqlstore.Postgres)
			require.NoError(t, err)
			c := newClaim()
			_, _, err = s.Claim(t.Context(), c)
			require.ErrorContains(t, err, "run Migrate")
			_, _, _, err = s.BeginTx(t.Context(), &c)
			require.ErrorContains(t, err, "run Migrate")
		}
	})
	t.Run("made by hand, by a user who may not create", func(t *testing.T) {
		t.Parallel()
		url := newPostgres(t)
		admin := open(t, "postgres", url())
		run(t, admin, sqlstore.Schema(sqlstore.Postgres), sqlstore.Schema(sqlstore.Postgres),
			`DO $$ BEGIN CREATE ROLE clerk LOGIN; EXCEPTION WHEN duplicate_object THEN END $$`,
			`GRANT SELECT, INSERT, UPDATE, DELETE ON oncemore_keys TO clerk`)
		db := open(t, "pgx", url("user=clerk"))
		var who string
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT current_user").Scan(&who))
		require.Equal(t, "clerk", who)
		s := migrated(t, db, sqlstore.Postgres)
		for _, inTx := range []bool{false, true} {
			_, won, err := once(t.Context(), s, newClaim(), inTx)
			require.NoError(t, err)
			assert.True(t, won)
		}
		_, err := s.Purge(t.Context())
		require.NoError(t, err)
	})
	t.Run("newer", func(t *testing.T) {
		t.Parallel()
		url := newPostgres(t)
		require.NoError(t, migrate(t, url()))
		newer := fmt.Sprintf("schema %d", upgradeds[0].newest()+1)
		run(t, open(t, "pgx", url()), `COMMENT ON TABLE oncemore_keys IS 'oncemore `+newer+`'`)
		require.ErrorContains(t, migrate(t, url()), "has "+newer)
	})
	t.Run("another table of that name", func(t *testing.T) {
		t.Parallel()
		url := newPostgres(t)
		run(t, open(t, "pgx", url()), `CREATE TABLE oncemore_keys (id int)`)
		require.ErrorContains(t, migrate(t, url()), "is not as Schema makes it")
	})
	t.Run("read-only", func(t *testing.T) {
		t.Parallel()
		url := newPostgres(t)
		require.NoError(t, migrate(t, url()))
		require.ErrorContains(t, migrate(t, url("default_transaction_read_only=on")), "the database is read-only")
	})
	t.Run("bytes as text", func(t *testing.T) {
		t.Parallel()
		url := newPostgres(t)
		require.ErrorContains(t, migrate(t, url("bytea_output=escape", "default_query_exec_mode=exec")), "set bytea_output to hex")
		require.NoError(t, migrate(t, url("bytea_output=escape")), "pgx reads them in binary")
	})
	t.Run("in a schema of its own", func(t *testing.T) {
		t.Parallel()
		url := newPostgres(t)
		run(t, open(t, "pgx", url()), `CREATE SCHEMA app`)
		require.NoError(t, migrate(t, url("search_path=app")))
		require.NoError(t, migrate(t, url("search_path=app")))
	})
}

// The claim's bound on its own wait is not one on the handler's statements.
func TestPostgresLockTimeoutIsTheClaimsOwn(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"pgx", "postgres"} {
		for _, want := range []string{"0", "7s"} {
			db := open(t, driver, newPostgres(t)("lock_timeout="+want))
			s := migrated(t, db, sqlstore.Postgres)
			old := newClaim()
			old.TTL = time.Millisecond
			_, _, err := once(t.Context(), s, old, false)
			require.NoError(t, err)
			time.Sleep(5 * time.Millisecond)
			lapsing := rival(old)
			lapsing.Lapses = true
			for _, c := range []server.Claim{newClaim(), lapsing} {
				tx, row, _, err := s.BeginTx(t.Context(), &c)
				require.NoError(t, err)
				require.Equal(t, c.Owner, row.Owner)
				var got string
				require.NoError(t, tx.SQL().QueryRowContext(t.Context(), "SHOW lock_timeout").Scan(&got))
				assert.Equal(t, want, got)
				require.NoError(t, tx.SQL().QueryRowContext(t.Context(), "SHOW transaction_isolation").Scan(&got))
				assert.Equal(t, "read committed", got)
				require.NoError(t, tx.Rollback())
			}
			var got string
			require.NoError(t, db.QueryRowContext(t.Context(), "SHOW lock_timeout").Scan(&got))
			assert.Equal(t, want, got)
			allReturned(t, db)
		}
	}
}

// An error of the handler's that it swallows has killed the transaction.
func TestPostgresSwallowedErrorIsFoundOut(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"pgx", "postgres"} {
		s := migrated(t, open(t, driver, newPostgres(t)()), sqlstore.Postgres)
		c := newClaim()
		tx, _, _, err := s.BeginTx(t.Context(), &c)
		require.NoError(t, err)
		_, err = tx.SQL().ExecContext(t.Context(), "SELECT 1/0")
		require.Error(t, err)
		ok, err := tx.Complete(t.Context(), holdOf(c), result(c))
		require.NoError(t, err)
		assert.False(t, ok)
		require.Error(t, tx.Commit(t.Context()), "nothing was committed")
		require.NoError(t, tx.Rollback())
		_, found, err := s.Lookup(t.Context(), c.ID)
		require.NoError(t, err)
		assert.False(t, found)
	}
}

// A replay writes nothing, not even to the log; a completion touches no index.
func TestPostgresReplayWritesNothing(t *testing.T) {
	t.Parallel()
	// A server of its own: the log is the server's.
	servers.postgres.get(t)
	own, err := dbtest.NewPostgres()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Remove()) })
	require.NoError(t, own.Start())
	db := open(t, "pgx", own.PostgresURL("postgres", "default_query_exec_mode=exec"))
	s := migrated(t, db, sqlstore.Postgres)
	position := func() (lsn int64) {
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT pg_current_wal_insert_lsn() - '0/0'").Scan(&lsn))
		return lsn
	}
	c := newClaim()
	_, _, err = once(t.Context(), s, c, false)
	require.NoError(t, err)
	_, _, err = once(t.Context(), s, rival(c), false) // hint bits
	require.NoError(t, err)
	run(t, db, "CHECKPOINT")
	before := position()
	for range 200 {
		_, won, err := once(t.Context(), s, rival(c), false)
		require.NoError(t, err)
		require.False(t, won)
	}
	assert.Less(t, position()-before, int64(2000), "what the server writes of its own accord, at most")
	before = position()
	_, _, err = once(t.Context(), s, newClaim(), false)
	require.NoError(t, err)
	assert.Greater(t, position()-before, int64(200), "a new key does write")

	for range 200 {
		_, _, err = once(t.Context(), s, newClaim(), false)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		var updates, hot int64
		require.NoError(t, db.QueryRowContext(t.Context(),
			"SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'oncemore_keys'").Scan(&updates, &hot))
		return updates >= 200 && hot*10 >= updates*9
	}, 20*time.Second, 100*time.Millisecond, "completions are heap-only updates")
}
