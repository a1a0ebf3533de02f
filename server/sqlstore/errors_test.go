package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/sqlitetest"
)

// The errors of drivers that this module does not import, by what is exported
// of them. The module integration meets some of the codes as real servers send
// them; the drivers of mattn and ncruces are met nowhere.
type (
	sqlStateError  string                             // pgx, lib/pq
	mySQLError     struct{ Number uint16 }            // go-sql-driver/mysql
	mattnError     struct{ Code, ExtendedCode mattn } // mattn/go-sqlite3
	mattn          int
	temporaryError bool // ncruces/go-sqlite3
)

func (e sqlStateError) Error() string    { return "state " + string(e) }
func (e sqlStateError) SQLState() string { return string(e) }
func (e *mySQLError) Error() string      { return fmt.Sprint("number ", e.Number) }
func (e mattnError) Error() string       { return fmt.Sprint("code ", e.Code) }
func (e temporaryError) Error() string   { return "temporary" }
func (e temporaryError) Temporary() bool { return bool(e) }

func TestErrorsOfDrivers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		d    Dialect
		err  error
		want kind
	}{
		{Postgres, sqlStateError("40001"), transient},
		{Postgres, sqlStateError("40P01"), transient},
		{Postgres, sqlStateError("42P05"), transient},
		{Postgres, sqlStateError("26000"), transient},
		{Postgres, sqlStateError("57P01"), transient},
		{Postgres, sqlStateError("08006"), transient},
		{Postgres, sqlStateError("55P03"), locked},
		{Postgres, sqlStateError("25P02"), aborted},
		{Postgres, sqlStateError("42P01"), missing},
		{Postgres, sqlStateError("25006"), readOnly},
		{Postgres, sqlStateError("23505"), other},
		{Postgres, sqlStateError("22001"), other},
		{Postgres, &mySQLError{1213}, other},

		{MySQL, &mySQLError{1213}, transient},
		{MySQL, &mySQLError{1020}, transient},
		{MySQL, &mySQLError{1047}, transient},
		{MySQL, &mySQLError{1180}, transient},
		{MySQL, &mySQLError{1205}, locked},
		{MySQL, &mySQLError{1146}, missing},
		{MySQL, &mySQLError{1290}, readOnly},
		{MySQL, &mySQLError{1153}, tooLarge},
		{MySQL, &mySQLError{1064}, other},
		{MySQL, errors.New("invalid connection"), transient},
		{MySQL, errors.New("packet for query is too large. Try adjusting the `Config.MaxAllowedPacket`"), tooLarge},

		{SQLite, mattnError{Code: 5, ExtendedCode: 5}, locked},
		{SQLite, mattnError{Code: 5, ExtendedCode: 517}, locked},
		{SQLite, mattnError{Code: 6, ExtendedCode: 262}, transient},
		{SQLite, mattnError{Code: 8}, readOnly},
		{SQLite, mattnError{Code: 18}, tooLarge},
		{SQLite, mattnError{Code: 1}, other},
		{SQLite, temporaryError(true), locked},
		{SQLite, temporaryError(false), other},

		{Postgres, io.ErrUnexpectedEOF, transient},
		{MySQL, driver.ErrBadConn, transient},
		{Postgres, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, transient},
		{MySQL, syscall.ECONNRESET, transient},
		{Postgres, context.DeadlineExceeded, transient},
		{SQLite, context.DeadlineExceeded, locked},
		{Postgres, unsentError(true), transient},
		{Postgres, unsentError(false), other},
		{Postgres, context.Canceled, other},
		{MySQL, errAgain, transient},
		{SQLite, errWriterBusy, locked},
		{MySQL, errors.New("what nobody knows"), other},
	} {
		t.Run(fmt.Sprintf("%v %v", tt.d, tt.err), func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, tt.want, tt.d.classify(tt.err))
			assert.Equal(t, tt.want, tt.d.classify(fmt.Errorf("wrapped: %w", tt.err)))
			assert.Equal(t, tt.want, tt.d.classify(errors.Join(errors.New("one of two"), tt.err)))
		})
	}
}

// unsentError is what pgx says of a connection that it found closed.
type unsentError bool

func (e unsentError) Error() string     { return "conn closed" }
func (e unsentError) SafeToRetry() bool { return bool(e) }

// The driver of the tests, asked for each code that the store knows.
func TestErrorsOfModernc(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "a.db")
	db, other := sqlitetest.OpenFile(t, path), sqlitetest.OpenFile(t, path)
	for _, pool := range []interface{ SetMaxOpenConns(int) }{db, other} {
		pool.SetMaxOpenConns(1)
	}
	_, err := db.ExecContext(ctx, `SELECT * FROM oncemore_keys`)
	assert.Equal(t, missing, SQLite.classify(err), err)

	_, err = db.ExecContext(ctx, `CREATE TABLE t (x); INSERT INTO t VALUES (1); PRAGMA busy_timeout = 0`)
	require.NoError(t, err)
	_, err = other.ExecContext(ctx, `BEGIN IMMEDIATE`)
	require.NoError(t, err)
	_, err = db.ExecContext(ctx, `INSERT INTO t VALUES (2)`)
	assert.Equal(t, locked, SQLite.classify(err), err)
	_, err = other.ExecContext(ctx, `ROLLBACK`)
	require.NoError(t, err)

	err = dropWhileRead(t, other)
	assert.Equal(t, transient, SQLite.classify(err), err)

	// B199: a snapshot that somebody else's write has made old.
	_, err = db.ExecContext(ctx, `BEGIN; SELECT * FROM t`)
	require.NoError(t, err)
	_, err = other.ExecContext(ctx, `INSERT INTO t VALUES (3)`)
	require.NoError(t, err)
	_, err = db.ExecContext(ctx, `INSERT INTO t VALUES (4)`)
	require.ErrorContains(t, err, "517")
	assert.Equal(t, locked, SQLite.classify(err), err)
	_, err = db.ExecContext(ctx, `ROLLBACK; PRAGMA query_only = 1`)
	require.NoError(t, err)
	_, err = db.ExecContext(ctx, `INSERT INTO t VALUES (5)`)
	assert.Equal(t, readOnly, SQLite.classify(err), err)
	_, err = db.ExecContext(ctx, `SELECT zeroblob(2000000000)`)
	assert.Equal(t, tooLarge, SQLite.classify(err), err)
}

// dropWhileRead returns what a connection says that drops a table of which it
// reads the rows: it is LOCKED.
func dropWhileRead(t *testing.T, db *sql.DB) error {
	t.Helper()
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, err = conn.ExecContext(t.Context(), `CREATE TABLE read (x); INSERT INTO read VALUES (1), (2)`)
	require.NoError(t, err)
	rows, err := conn.QueryContext(t.Context(), `SELECT * FROM read`)
	require.NoError(t, err)
	defer func() { _ = rows.Close() }()
	require.True(t, rows.Next())
	require.NoError(t, rows.Err())
	_, err = conn.ExecContext(t.Context(), `DROP TABLE read`)
	return err
}
