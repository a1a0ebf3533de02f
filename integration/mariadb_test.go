package integration_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/integration/dbtest"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

func TestMariaDBMigratesFromManyAtOnce(t *testing.T) {
	t.Parallel()
	for range 3 {
		dsn := newMariaDB(t)
		all(t, 20, func(int) error {
			s, err := sqlstore.New(open(t, "mysql", dsn()), sqlstore.MySQL)
			if err != nil {
				return err
			}
			return s.Migrate(t.Context())
		})
	}
}

func TestMariaDBMigrate(t *testing.T) {
	t.Parallel()
	migrate := func(t *testing.T, dsn string) error {
		t.Helper()
		s, err := sqlstore.New(open(t, "mysql", dsn), sqlstore.MySQL)
		require.NoError(t, err)
		return s.Migrate(t.Context())
	}
	t.Run("missing", func(t *testing.T) {
		t.Parallel()
		s, err := sqlstore.New(open(t, "mysql", newMariaDB(t)()), sqlstore.MySQL)
		require.NoError(t, err)
		c := newClaim()
		_, _, err = s.Claim(t.Context(), c)
		require.ErrorContains(t, err, "run Migrate")
		_, _, _, err = s.BeginTx(t.Context(), &c)
		require.ErrorContains(t, err, "run Migrate")
	})
	t.Run("made by hand", func(t *testing.T) {
		t.Parallel()
		dsn := newMariaDB(t)
		run(t, open(t, "mysql", dsn()), sqlstore.Schema(sqlstore.MySQL), sqlstore.Schema(sqlstore.MySQL))
		require.NoError(t, migrate(t, dsn()))
	})
	t.Run("newer", func(t *testing.T) {
		t.Parallel()
		dsn := newMariaDB(t)
		require.NoError(t, migrate(t, dsn()))
		newer := fmt.Sprintf("schema %d", upgradeds[1].newest()+1)
		run(t, open(t, "mysql", dsn()), `ALTER TABLE oncemore_keys COMMENT 'oncemore `+newer+`'`)
		require.ErrorContains(t, migrate(t, dsn()), "has "+newer)
	})
	t.Run("another table of that name", func(t *testing.T) {
		t.Parallel()
		dsn := newMariaDB(t)
		run(t, open(t, "mysql", dsn()), `CREATE TABLE oncemore_keys (id int)`)
		require.ErrorContains(t, migrate(t, dsn()), "is not as Schema makes it")
	})
	t.Run("without autocommit", func(t *testing.T) {
		t.Parallel()
		require.ErrorContains(t, migrate(t, newMariaDB(t)("autocommit=0")), "remove autocommit from the DSN")
	})
	t.Run("with dirty reads", func(t *testing.T) { // which see a result that is rolled back
		t.Parallel()
		require.ErrorContains(t, migrate(t, newMariaDB(t)(mariaDBLevel("READ-UNCOMMITTED"))), "make it READ-COMMITTED or higher")
	})
	t.Run("read-only", func(t *testing.T) {
		t.Parallel()
		servers.mariadb.get(t)
		own, err := dbtest.NewMariaDB("--read-only=1")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, own.Remove()) })
		require.NoError(t, own.Start())
		require.ErrorContains(t, migrate(t, own.MySQLDSN("test")), "the database is read-only")
	})
}

// B218: identities and scopes that a collation would merge.
func TestMariaDBScopeIsKeptAsItIs(t *testing.T) {
	t.Parallel()
	db := open(t, "mysql", newMariaDB(t)())
	s := migrated(t, db, sqlstore.MySQL)
	for _, scope := range []string{"Acme", "ACME", "acme ", "ácme"} {
		c := newClaim()
		c.Scope = scope
		_, _, err := once(t.Context(), s, c, false)
		require.NoError(t, err)
		var n int
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM oncemore_keys WHERE scope = ?", scope).Scan(&n))
		assert.Equal(t, 1, n, "%q", scope)
	}
}

// B242: a result over max_allowed_packet is told, and costs no connection.
func TestMariaDBPacketIsTooSmall(t *testing.T) {
	t.Parallel()
	servers.mariadb.get(t)
	own, err := dbtest.NewMariaDB("--max-allowed-packet=1M")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Remove()) })
	require.NoError(t, own.Start())
	for _, options := range []string{"", "interpolateParams=true", "maxAllowedPacket=65536", "maxAllowedPacket=0"} {
		s := migrated(t, open(t, "mysql", own.MySQLDSN("test", options)), sqlstore.MySQL)
		for _, inTx := range []bool{false, true} {
			c := newClaim()
			complete := func(ctx context.Context, h server.Hold, r server.Result) (bool, error) { return s.Complete(ctx, h, r) }
			commit := func() error { return nil }
			if inTx {
				tx, _, _, err := s.BeginTx(t.Context(), &c)
				require.NoError(t, err)
				complete, commit = tx.Complete, func() error { return tx.Commit(t.Context()) }
			} else {
				_, _, err := s.Claim(t.Context(), c)
				require.NoError(t, err)
			}
			r := result(c)
			for _, size := range []int{900 << 10, 2 << 20, 17 << 20} {
				r.Data = []byte(strings.Repeat("\x00'", size/2))
				_, err := complete(t.Context(), holdOf(c), r)
				require.ErrorIs(t, err, server.ErrTooLarge, "%s, %d bytes", options, size)
			}
			ok, err := complete(t.Context(), holdOf(c), result(c))
			require.NoError(t, err)
			assert.True(t, ok, "without the data it is kept")
			require.NoError(t, commit())
		}
	}
}

// B242: where the packet is large enough, so is the column.
func TestMariaDBKeepsLargeData(t *testing.T) {
	t.Parallel()
	servers.mariadb.get(t)
	own, err := dbtest.NewMariaDB("--max-allowed-packet=128M")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Remove()) })
	require.NoError(t, own.Start())
	s := migrated(t, open(t, "mysql", own.MySQLDSN("test", "interpolateParams=true")), sqlstore.MySQL)
	c := newClaim()
	_, _, err = s.Claim(t.Context(), c)
	require.NoError(t, err)
	r := result(c)
	r.Data = bytes.Repeat([]byte("0123456789abcde\x00"), 17<<20/16)
	ok, err := s.Complete(t.Context(), holdOf(c), r)
	require.NoError(t, err)
	require.True(t, ok)
	row, _, err := s.Lookup(t.Context(), c.ID)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(r.Data, row.Data))
}

// session is what a transaction changes of its connection.
func session(t *testing.T, q interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
},
) string {
	t.Helper()
	var s string
	require.NoError(t, q.QueryRowContext(t.Context(),
		"SELECT CONCAT(@@autocommit + 0, ' ', @@innodb_lock_wait_timeout, ' ', @@tx_isolation)").Scan(&s))
	return s
}

// However a transaction ends, the connection is as the DSN made it, and the
// handler's statements wait as long as they always do.
func TestMariaDBSessionIsPutBack(t *testing.T) {
	t.Parallel()
	db := open(t, "mysql", newMariaDB(t)("innodb_lock_wait_timeout=17"))
	s := migrated(t, db, sqlstore.MySQL)
	db.SetMaxOpenConns(1)
	const as = "1 17 REPEATABLE-READ"
	require.Equal(t, as, session(t, db))
	for name, end := range map[string]func(server.Tx, context.CancelFunc){
		"commit":   func(tx server.Tx, _ context.CancelFunc) { require.NoError(t, tx.Commit(t.Context())) },
		"rollback": func(tx server.Tx, _ context.CancelFunc) { require.NoError(t, tx.Rollback()) },
		"context":  func(_ server.Tx, cancel context.CancelFunc) { cancel() }, // and nobody rolls back
		"handler": func(tx server.Tx, _ context.CancelFunc) {
			require.NoError(t, tx.SQL().Rollback())
			require.NoError(t, tx.Rollback())
		},
	} {
		for _, claims := range []bool{true, false} {
			ctx, cancel := context.WithCancel(t.Context())
			c := newClaim()
			claim := &c
			if !claims {
				claim = nil
			}
			tx, _, _, err := s.BeginTx(ctx, claim)
			require.NoError(t, err)
			if claims {
				assert.Equal(t, "0 17 REPEATABLE-READ", session(t, tx.SQL()), "for the handler")
			}
			end(tx, cancel)
			assert.Equal(t, as, session(t, db), name)
			_, found, err := s.Lookup(t.Context(), c.ID)
			require.NoError(t, err)
			assert.Equal(t, claims && name == "commit", found, name)
			cancel()
		}
	}
	c := newClaim()
	_, _, err := once(t.Context(), s, c, false)
	require.NoError(t, err)
	for range 3 { // a claim that has lost
		lost := rival(c)
		tx, _, found, err := s.BeginTx(t.Context(), &lost)
		require.NoError(t, err)
		require.True(t, found)
		require.Nil(t, tx)
		assert.Equal(t, as, session(t, db))
	}
}

// MariaDB ends a transaction on a deadlock. A handler that swallows the error
// and writes on must not leave that write behind, nor a record of its success:
// with the claim in the transaction, and with the claim before it.
func TestMariaDBSwallowedDeadlockIsFoundOut(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{true, false} {
		t.Run(fmt.Sprintf("claim in the transaction %t", first), func(t *testing.T) {
			t.Parallel()
			db := open(t, "mysql", newMariaDB(t)())
			s := migrated(t, db, sqlstore.MySQL)
			run(t, db, "CREATE TABLE account (id INT PRIMARY KEY, balance INT) ENGINE=InnoDB",
				"INSERT INTO account VALUES (1, 0), (2, 0), (3, 0)")
			c := newClaim()
			claim := &c
			if !first {
				_, _, err := s.Claim(t.Context(), c)
				require.NoError(t, err)
				claim = nil
			}
			tx, _, _, err := s.BeginTx(t.Context(), claim)
			require.NoError(t, err)
			deadlock(t, db, tx.SQL())
			_, err = tx.SQL().ExecContext(t.Context(), "UPDATE account SET balance = 100 WHERE id = 3")
			require.NoError(t, err, "the handler writes on")
			ok, err := tx.Complete(t.Context(), holdOf(c), result(c))
			require.NoError(t, err)
			assert.False(t, ok)
			require.NoError(t, tx.Rollback())

			var sum int
			require.NoError(t, db.QueryRowContext(t.Context(), "SELECT sum(balance) FROM account WHERE id = 3").Scan(&sum))
			assert.Zero(t, sum, "nothing of the handler's is left")
			row, found, err := s.Lookup(t.Context(), c.ID)
			require.NoError(t, err)
			assert.Equal(t, !first, found)
			assert.NotEqual(t, server.Done, row.State)
			assert.Equal(t, "1 50 REPEATABLE-READ", session(t, db))
		})
	}
}

// deadlock makes the handler's transaction the victim of one.
func deadlock(t *testing.T, db *sql.DB, victim *sql.Tx) {
	t.Helper()
	ctx := t.Context()
	other, err := db.BeginTx(ctx, nil)
	require.NoError(t, err)
	defer func() { _ = other.Rollback() }()
	for range 20 { // the heavier transaction survives
		_, err = other.ExecContext(ctx, "INSERT INTO account SELECT 100 + coalesce(max(id), 0), 0 FROM account WHERE id > 10")
		require.NoError(t, err)
	}
	_, err = other.ExecContext(ctx, "UPDATE account SET balance = balance + 1 WHERE id = 2")
	require.NoError(t, err)
	_, err = victim.ExecContext(ctx, "UPDATE account SET balance = balance + 1 WHERE id = 1")
	require.NoError(t, err)
	waiting := make(chan error, 1)
	go func() {
		_, err := other.ExecContext(ctx, "UPDATE account SET balance = balance + 1 WHERE id = 1")
		waiting <- err
	}()
	time.Sleep(200 * time.Millisecond)
	_, err = victim.ExecContext(ctx, "UPDATE account SET balance = balance + 1 WHERE id = 2")
	var e *mysql.MySQLError
	require.ErrorAs(t, err, &e)
	require.EqualValues(t, 1213, e.Number)
	require.NoError(t, <-waiting)
}

// Where a change ends whoever has an older snapshot, a handler is not ended: its
// transaction is READ COMMITTED, and so is not of the level that the DSN says.
func TestMariaDBSnapshotIsolation(t *testing.T) {
	t.Parallel()
	db := open(t, "mysql", newMariaDB(t)(snapshotIsolation))
	s := migrated(t, db, sqlstore.MySQL)
	run(t, db, "CREATE TABLE account (id INT PRIMARY KEY, balance INT) ENGINE=InnoDB", "INSERT INTO account VALUES (1, 0)")
	deposit := func(tx *sql.Tx) error {
		var balance int
		require.NoError(t, tx.QueryRowContext(t.Context(), "SELECT balance FROM account WHERE id = 1").Scan(&balance))
		run(t, db, "UPDATE account SET balance = balance + 1 WHERE id = 1")
		_, err := tx.ExecContext(t.Context(), "UPDATE account SET balance = balance + 10 WHERE id = 1")
		return err
	}
	plain, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	var e *mysql.MySQLError
	require.ErrorAs(t, deposit(plain), &e)
	require.EqualValues(t, 1020, e.Number)
	require.NoError(t, plain.Rollback())

	for _, first := range []bool{true, false} {
		c := newClaim()
		claim := &c
		if !first {
			_, _, err := s.Claim(t.Context(), c)
			require.NoError(t, err)
			claim = nil
		}
		tx, _, _, err := s.BeginTx(t.Context(), claim)
		require.NoError(t, err)
		require.NoError(t, deposit(tx.SQL()))
		ok, err := tx.Complete(t.Context(), holdOf(c), result(c))
		require.NoError(t, err)
		require.True(t, ok)
		require.NoError(t, tx.Commit(t.Context()))
	}
	var balance int
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT balance FROM account").Scan(&balance))
	assert.Equal(t, 23, balance)
}

// A replay writes nothing, not even to the log.
func TestMariaDBReplayWritesNothing(t *testing.T) {
	t.Parallel()
	servers.mariadb.get(t)
	own, err := dbtest.NewMariaDB()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Remove()) })
	require.NoError(t, own.Start())
	db := open(t, "mysql", own.MySQLDSN("test"))
	s := migrated(t, db, sqlstore.MySQL)
	status := func(name string) (n int64) {
		require.NoError(t, db.QueryRowContext(t.Context(), "SHOW GLOBAL STATUS LIKE '"+name+"'").Scan(&name, &n))
		return n
	}
	position := func() int64 { return status("Innodb_lsn_current") }
	c := newClaim()
	_, _, err = once(t.Context(), s, c, false)
	require.NoError(t, err)
	require.Eventually(t, func() bool { // purge and statistics of the server's own
		before := position()
		time.Sleep(500 * time.Millisecond)
		return position() == before
	}, 30*time.Second, time.Millisecond)
	before, inserts := position(), status("Com_insert")
	for range 200 {
		_, won, err := once(t.Context(), s, rival(c), false)
		require.NoError(t, err)
		require.False(t, won)
	}
	assert.Less(t, position()-before, int64(2000), "what the server writes of its own accord, at most")
	assert.LessOrEqual(t, status("Com_insert")-inserts, int64(10), "one replay after the other is expected to be one")
	before = position()
	_, _, err = once(t.Context(), s, newClaim(), false)
	require.NoError(t, err)
	assert.Greater(t, position()-before, int64(200), "a new key does write")
}
