package propertytest

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"time"
)

// wire is the network between one process and its database: a driver over the
// driver, whose statements fail before they are run and after, and whose
// connections break. What was open on a connection that breaks is rolled back.
type wire struct {
	database driver.Connector

	mu      sync.Mutex
	rng     *rand.Rand
	trouble float64 // how likely a statement fails
	dead    bool
	conns   map[*wireConn]struct{}
}

var errRefused = errors.New("the statement was refused")

func (w *wire) Driver() driver.Driver { return w.database.Driver() }

func (w *wire) Connect(ctx context.Context) (driver.Conn, error) {
	if !w.alive() {
		return nil, io.ErrUnexpectedEOF
	}
	conn, err := w.database.Connect(ctx)
	if err != nil {
		return nil, err
	}
	full, ok := conn.(wireable)
	if !ok {
		return nil, errors.New("the driver has changed")
	}
	c := &wireConn{wireable: full, w: w}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		_ = conn.Close()
		return nil, io.ErrUnexpectedEOF
	}
	w.conns[c] = struct{}{}
	return c, nil
}

func (w *wire) alive() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.dead
}

// calm ends the faults.
func (w *wire) calm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trouble = 0
}

// kill breaks all connections, and lets no new ones be made: the process is
// dead.
func (w *wire) kill() {
	w.mu.Lock()
	w.dead = true
	conns := w.conns
	w.conns = make(map[*wireConn]struct{})
	w.mu.Unlock()
	for c := range conns {
		c.mu.Lock()
		c.snap()
		c.mu.Unlock()
	}
}

// mishap is what can befall a statement.
type mishap int

const (
	noMishap mishap = iota
	refused         // it is not run, and the connection is well
	unsent          // the connection breaks before it arrives
	unheard         // it is run, and the connection breaks before its reply
	lateArrival
	mishaps
)

func (w *wire) draw() mishap {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.dead:
		return unsent
	case w.rng.Float64() >= w.trouble:
		return noMishap
	}
	return mishap(1 + w.rng.IntN(int(mishaps)-1))
}

type wireable interface {
	driver.Conn
	driver.ExecerContext
	driver.QueryerContext
	driver.ConnBeginTx
}

type wireConn struct {
	wireable
	w *wire

	mu     sync.Mutex
	tx     driver.Tx
	broken bool
}

// snap breaks the connection, and has all of it ended at the database when it
// returns. A connection that is broken already stays so.
func (c *wireConn) snap() {
	if c.broken {
		return
	}
	c.broken = true
	if c.tx != nil {
		_ = c.tx.Rollback()
		c.tx = nil
	}
	_ = c.wireable.Close()
}

// send runs a statement, or not.
func (c *wireConn) send(do func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken {
		return driver.ErrBadConn
	}
	what := c.w.draw()
	switch what {
	case refused:
		return errRefused
	case unsent:
		c.snap()
		return io.ErrUnexpectedEOF
	case lateArrival:
		time.Sleep(5 * time.Millisecond)
	case noMishap, unheard, mishaps:
	}
	err := do()
	if what == unheard {
		c.snap()
		return io.ErrUnexpectedEOF
	}
	return err
}

func (c *wireConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (res driver.Result, err error) {
	err = c.send(func() error {
		res, err = c.wireable.ExecContext(ctx, query, args)
		return err
	})
	return res, err
}

func (c *wireConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (rows driver.Rows, err error) {
	err = c.send(func() error {
		if rows, err = c.wireable.QueryContext(ctx, query, args); err == nil {
			rows, err = buffer(rows)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// Prepare keeps the text: what is prepared is sent as all else is.
func (c *wireConn) Prepare(query string) (driver.Stmt, error) { return &wireStmt{c, query}, nil }

type wireStmt struct {
	c     *wireConn
	query string
}

func (s *wireStmt) Close() error { return nil }

func (s *wireStmt) NumInput() int { return -1 } // it is not known

func (s *wireStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.c.ExecContext(ctx, s.query, args)
}

func (s *wireStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.c.QueryContext(ctx, s.query, args)
}

var errNoContext = errors.New("a statement without a context")

func (s *wireStmt) Exec([]driver.Value) (driver.Result, error) { return nil, errNoContext }

func (s *wireStmt) Query([]driver.Value) (driver.Rows, error) { return nil, errNoContext }

// bufferedRows are all there before their connection may break.
type bufferedRows struct {
	columns []string
	left    [][]driver.Value
}

func buffer(from driver.Rows) (driver.Rows, error) {
	r := &bufferedRows{columns: from.Columns()}
	for {
		row := make([]driver.Value, len(r.columns))
		err := from.Next(row)
		if errors.Is(err, io.EOF) {
			return r, from.Close()
		}
		if err != nil {
			return nil, errors.Join(err, from.Close())
		}
		for i, v := range row {
			if b, ok := v.([]byte); ok {
				row[i] = bytes.Clone(b) // it is the driver's until the next
			}
		}
		r.left = append(r.left, row)
	}
}

func (r *bufferedRows) Columns() []string { return r.columns }

func (r *bufferedRows) Close() error { return nil }

func (r *bufferedRows) Next(row []driver.Value) error {
	if len(r.left) == 0 {
		return io.EOF
	}
	copy(row, r.left[0])
	r.left = r.left[1:]
	return nil
}

func (c *wireConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	err := c.send(func() error {
		tx, err := c.wireable.BeginTx(ctx, opts)
		if err == nil {
			c.tx = tx
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &wireTx{c}, nil
}

func (c *wireConn) ResetSession(context.Context) error {
	if !c.IsValid() {
		return driver.ErrBadConn
	}
	return nil
}

func (c *wireConn) IsValid() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.broken
}

func (c *wireConn) Close() error {
	c.w.mu.Lock()
	delete(c.w.conns, c)
	c.w.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.snap()
	return nil
}

type wireTx struct{ c *wireConn }

// Commit that is refused has rolled back.
func (t *wireTx) Commit() error {
	err := t.c.send(func() error { return t.end(driver.Tx.Commit) })
	if errors.Is(err, errRefused) {
		t.c.mu.Lock()
		defer t.c.mu.Unlock()
		_ = t.end(driver.Tx.Rollback)
	}
	return err
}

// Rollback that is refused has broken the connection.
func (t *wireTx) Rollback() error {
	err := t.c.send(func() error { return t.end(driver.Tx.Rollback) })
	if errors.Is(err, errRefused) {
		t.c.mu.Lock()
		defer t.c.mu.Unlock()
		t.c.snap()
	}
	return err
}

func (t *wireTx) end(how func(driver.Tx) error) error {
	tx := t.c.tx
	t.c.tx = nil
	if tx == nil {
		return driver.ErrBadConn
	}
	return how(tx)
}
