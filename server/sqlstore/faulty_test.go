package sqlstore_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"path/filepath"
	"sync"
	"testing"

	"modernc.org/sqlite"

	"github.com/oncemore-go/oncemore/internal/sqlitetest"
)

// faults are put between the pool and the driver.
type faults struct {
	mu sync.Mutex
	// before is asked before a statement is run, after when it has run. What it
	// returns, if anything, is all that the pool gets to see.
	before, after func(statement string) error
	args          []driver.NamedValue // of every statement
}

// openFaulty opens a new database through f.
func openFaulty(tb testing.TB, f *faults) *sql.DB {
	tb.Helper()
	dsn := sqlitetest.DSN(filepath.Join(tb.TempDir(), "oncemore.db"))
	db := sql.OpenDB(&faultyConnector{f, dsn})
	tb.Cleanup(func() { _ = db.Close() })
	return db
}

// set changes the faults.
func (f *faults) set(before, after func(string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before, f.after = before, after
}

func (f *faults) check(after bool, statement string, args []driver.NamedValue) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	check := f.before
	if after {
		check = f.after
	} else {
		f.args = append(f.args, args...)
	}
	if check == nil {
		return nil
	}
	return check(statement)
}

type faultyConnector struct {
	f   *faults
	dsn string
}

func (c *faultyConnector) Driver() driver.Driver { return &sqlite.Driver{} }

func (c *faultyConnector) Connect(context.Context) (driver.Conn, error) {
	conn, err := c.Driver().Open(c.dsn)
	if err != nil {
		return nil, err
	}
	full, ok := conn.(sqliteConn)
	if !ok {
		return nil, errors.New("the driver has changed")
	}
	return &faultyConn{full, c.f}, nil
}

type sqliteConn interface {
	driver.Conn
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.ConnBeginTx
}

type faultyConn struct {
	sqliteConn
	f *faults
}

func (c *faultyConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.f.check(false, query, args); err != nil {
		return nil, err
	}
	res, err := c.sqliteConn.ExecContext(ctx, query, args)
	if err != nil {
		return nil, err
	}
	if err := c.f.check(true, query, nil); err != nil {
		return nil, err
	}
	return res, nil
}

func (c *faultyConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.f.check(false, query, args); err != nil {
		return nil, err
	}
	return c.sqliteConn.QueryContext(ctx, query, args)
}

func (c *faultyConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	s, err := c.sqliteConn.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	full, ok := s.(sqliteStmt)
	if !ok {
		return nil, errors.New("the driver has changed")
	}
	return &faultyStmt{full, query, c.f}, nil
}

type sqliteStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

type faultyStmt struct {
	sqliteStmt
	query string
	f     *faults
}

func (s *faultyStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if err := s.f.check(false, s.query, args); err != nil {
		return nil, err
	}
	res, err := s.sqliteStmt.ExecContext(ctx, args)
	if err != nil {
		return nil, err
	}
	if err := s.f.check(true, s.query, nil); err != nil {
		return nil, err
	}
	return res, nil
}

func (s *faultyStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if err := s.f.check(false, s.query, args); err != nil {
		return nil, err
	}
	return s.sqliteStmt.QueryContext(ctx, args)
}

func (c *faultyConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if err := c.f.check(false, "BEGIN", nil); err != nil {
		return nil, err
	}
	tx, err := c.sqliteConn.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	return &faultyTx{tx, c.f}, nil
}

type faultyTx struct {
	driver.Tx
	f *faults
}

func (t *faultyTx) Commit() error {
	if err := t.f.check(false, "COMMIT", nil); err != nil {
		return err
	}
	if err := t.Tx.Commit(); err != nil {
		return err
	}
	return t.f.check(true, "COMMIT", nil)
}
