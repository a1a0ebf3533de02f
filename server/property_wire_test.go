package server_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"modernc.org/sqlite"
)

// wire is the network between one process and its database: a driver over the
// driver, whose statements fail before they are run and after, and whose
// connections break. What was open on a connection that breaks is rolled back.
type wire struct {
	dsn string

	mu      sync.Mutex
	rng     *rand.Rand
	trouble float64 // how likely a statement fails
	dead    bool
	conns   map[*wireConn]struct{}
}

var errRefused = errors.New("the statement was refused")

func (w *wire) Driver() driver.Driver { return &sqlite.Driver{} }

func (w *wire) Connect(context.Context) (driver.Conn, error) {
	if !w.alive() {
		return nil, io.ErrUnexpectedEOF
	}
	conn, err := w.Driver().Open(w.dsn)
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

// snap breaks the connection.
func (c *wireConn) snap() {
	c.broken = true
	if c.tx != nil {
		_ = c.tx.Rollback()
		c.tx = nil
	}
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
		rows, err = c.wireable.QueryContext(ctx, query, args)
		return err
	})
	if err != nil && rows != nil {
		_ = rows.Close()
		rows = nil
	}
	return rows, err
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
	return c.wireable.Close()
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
