package integration_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// rowsDue inserts n rows of a state, all of them due since the same instant.
func rowsDue(t *testing.T, db *sql.DB, d sqlstore.Dialect, n int, state server.State, since time.Duration) {
	t.Helper()
	const columns = `(id, fingerprint, owner, origin, generation, attempt, state, status, lease_until, created_at, expires_at, purge_at, scope, method, route)`
	if d == sqlstore.Postgres {
		run(t, db, fmt.Sprintf(`INSERT INTO oncemore_keys `+columns+` SELECT decode(md5('%[1]d' || i) || md5('%[1]d, ' || i), 'hex'),
 decode(repeat('00', 32), 'hex'), decode(repeat('00', 16), 'hex'), decode(repeat('00', 16), 'hex'), 1, 1, %[1]d, 200, 'epoch',
 now(), now(), now() - interval '%[2]d second', '', '', '' FROM generate_series(1, %[3]d) i`, state, int(since.Seconds()), n))
		return
	}
	run(t, db, fmt.Sprintf(`INSERT INTO oncemore_keys `+columns+` SELECT UNHEX(SHA2(CONCAT(%[1]d, ' ', seq), 256)),
 REPEAT(CHAR(0), 32), REPEAT(CHAR(0), 16), REPEAT(CHAR(0), 16), 1, 1, %[1]d, 200, '1970-01-01',
 UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) - INTERVAL %[2]d SECOND, '', '', '' FROM seq_1_to_%[3]d`, state, int(since.Seconds()), n))
}

func keys(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM oncemore_keys").Scan(&n))
	return n
}

// All that are due go, batch by batch, and no others: also where all are due at
// the same instant, rows that are spared lie between them, and many purge at once.
func TestPurge(t *testing.T) {
	t.Parallel()
	for _, tt := range batchStores {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			db := open(t, tt.driver, newDatabase(t, tt.dialect, tt.options))
			s := migrated(t, db, tt.dialect)
			rowsDue(t, db, tt.dialect, 30, server.Unknown, 2*time.Hour)
			rowsDue(t, db, tt.dialect, 6000, server.Done, time.Hour)
			rowsDue(t, db, tt.dialect, 20, server.Running, time.Minute)
			fill(t, s, nil, 40, time.Hour)
			var purged atomic.Int64
			all(t, 8, func(int) error {
				n, err := s.Purge(t.Context())
				purged.Add(n)
				return err
			})
			// Each leaves what another one has just locked: the last may have left before.
			n, err := s.Purge(t.Context())
			require.NoError(t, err)
			assert.EqualValues(t, 6000, purged.Load()+n)
			assert.Equal(t, 30+20+40, keys(t, db))
			unsettled, err := s.Unsettled(t.Context())
			require.NoError(t, err)
			assert.EqualValues(t, 30+20, unsettled)
		})
	}
}

// A row that a transaction has locked is left for the next call, and nobody waits
// for that transaction: neither the purge nor who wants the rows that it takes.
func TestPurgeLeavesWhatIsLocked(t *testing.T) {
	t.Parallel()
	for _, tt := range batchStores {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			db := open(t, tt.driver, newDatabase(t, tt.dialect, tt.options))
			s := migrated(t, db, tt.dialect)
			rowsDue(t, db, tt.dialect, 100, server.Done, time.Hour)
			other, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
			require.NoError(t, err)
			defer func() { _ = other.Rollback() }()
			var id []byte
			require.NoError(t, db.QueryRowContext(t.Context(), "SELECT id FROM oncemore_keys ORDER BY id LIMIT 1").Scan(&id))
			lock := "SELECT 1 FROM oncemore_keys WHERE id = ? FOR UPDATE"
			if tt.dialect == sqlstore.Postgres {
				lock = "SELECT 1 FROM oncemore_keys WHERE id = $1 FOR UPDATE"
			}
			_, err = other.ExecContext(t.Context(), lock, id)
			require.NoError(t, err)
			n, err := s.Purge(t.Context())
			require.NoError(t, err)
			assert.EqualValues(t, 99, n)
			require.NoError(t, other.Commit())
			n, err = s.Purge(t.Context())
			require.NoError(t, err)
			assert.EqualValues(t, 1, n)
		})
	}
}

// The rows of a purge are found in the index, each once, and fetched by their
// places: though a second look into the index seems cheap where the statistics
// don't know of the due rows yet, though an old transaction keeps what earlier
// batches have deleted from being cleaned away, and though many before them are
// spared.
func TestPurgeReadsIndexOnce(t *testing.T) {
	t.Parallel()
	const due, spared = 3000, 1000
	for _, tt := range []struct {
		name, driver, read string
		dialect            sqlstore.Dialect
	}{
		{"PostgreSQL", "pgx", "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'oncemore_keys_purge_at'", sqlstore.Postgres},
		{"MariaDB", "mysql", `SELECT coalesce(sum(rows_read), 0) FROM information_schema.index_statistics
 WHERE table_schema = DATABASE() AND index_name = 'oncemore_keys_purge_at'`, sqlstore.MySQL},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			db := open(t, tt.driver, newDatabase(t, tt.dialect, ""))
			s := migrated(t, db, tt.dialect)
			fill(t, s, nil, 300, time.Hour)
			if tt.dialect == sqlstore.MySQL {
				run(t, db, "SET GLOBAL userstat = 1", "ANALYZE TABLE oncemore_keys")
			} else {
				run(t, db, "ANALYZE oncemore_keys")
			}
			rowsDue(t, db, tt.dialect, spared, server.Unknown, time.Hour)
			fill(t, s, nil, due, time.Microsecond)
			old, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
			require.NoError(t, err)
			defer func() { _ = old.Rollback() }()
			_, err = old.ExecContext(t.Context(), "SELECT 1 FROM oncemore_keys WHERE id = ''")
			require.NoError(t, err)
			db.SetMaxIdleConns(0) // the end of a connection brings what it counted
			n, err := s.Purge(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, due, n)
			var read int64
			require.Eventually(t, func() bool {
				require.NoError(t, db.QueryRowContext(t.Context(), tt.read).Scan(&read))
				return read >= due
			}, 20*time.Second, 100*time.Millisecond, "by the index")
			t.Log(read)
			assert.Less(t, read, int64(2*due), "the planner reads a few, too")
		})
	}
}

// A database that takes no writes for a while, as in a failover, does not end a
// purger for good.
func TestPurgerOutlivesAFailover(t *testing.T) {
	t.Parallel()
	dsn := newPostgres(t)
	db := open(t, "pgx", dsn())
	s := migrated(t, db, sqlstore.Postgres)
	var name string
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT current_database()").Scan(&name))
	operator := open(t, "pgx", dsn("default_transaction_read_only=off"))
	db.SetMaxIdleConns(0) // so that the next statement sees what the operator sets
	run(t, operator, "ALTER DATABASE "+name+" SET default_transaction_read_only = on")
	_, err := s.Purge(t.Context())
	require.ErrorContains(t, err, "read-only")
	ctx, cancel := context.WithCancel(t.Context())
	var purger sync.WaitGroup
	defer purger.Wait()
	defer cancel()
	purger.Go(func() { _ = s.RunPurger(ctx, 20*time.Millisecond) })
	time.Sleep(100 * time.Millisecond) // some rounds
	run(t, operator, "ALTER DATABASE "+name+" SET default_transaction_read_only = off")
	rowsDue(t, operator, sqlstore.Postgres, 10, server.Done, time.Hour)
	require.Eventually(t, func() bool { return keys(t, operator) == 0 }, 20*time.Second, 20*time.Millisecond)
}

// A server that hangs at the end of a batch does not keep the purger.
func TestPurgeLeavesADatabaseThatHangs(t *testing.T) {
	t.Parallel()
	// As it is sent: READ COMMITTED is another statement.
	commits := map[string]string{"pgx": "commit\x00", "mysql": "\x03COMMIT"}
	for _, tt := range lossyDrivers {
		commit, ok := commits[tt.driver]
		if !ok {
			continue // lib/pq does not return from a server that hangs
		}
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, _, dsn := tt.connect(t)
			db := open(t, tt.driver, dsn)
			s := migrated(t, db, tt.dialect)
			rowsDue(t, db, tt.dialect, 10, server.Done, time.Hour)
			p.freeze.Store(&commit)
			purged := make(chan error, 1)
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := s.Purge(ctx)
				purged <- err
			}()
			select {
			case err := <-purged:
				require.ErrorIs(t, err, context.DeadlineExceeded)
			case <-time.After(30 * time.Second):
				require.Fail(t, "it still waits")
			}
			assert.True(t, p.frozen.Load())
			allReturned(t, db)
		})
	}
}
