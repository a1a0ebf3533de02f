package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/oncemore-go/oncemore/server"
)

// tx is a transaction of [Store.BeginTx].
type tx struct {
	s      *Store
	tx     *sql.Tx
	conn   *sql.Conn       // MySQL: its session is put back at the end
	begun  context.Context // what BeginTx was given
	cancel context.CancelFunc
	unbind func() bool // from the end of that context
	end    sync.Once
	// marked: a savepoint tells whether this is still the same transaction.
	marked bool
}

// savepoint is set where no row of ours is in the transaction.
const savepoint = "oncemore_begin"

// BeginTx implements [server.TxStore]. The transaction is READ COMMITTED where
// the database has levels.
//
// On SQLite it holds the only writer until its end. Elsewhere it holds a
// connection, and so does each claim that waits for another transaction, for
// three to six seconds at most.
func (s *Store) BeginTx(ctx context.Context, c *server.Claim) (server.Tx, server.Row, bool, error) {
	begin := time.Now()
	for try := 0; ; try++ {
		t, row, found, err := s.begin(ctx, c)
		if c != nil && err == nil && found {
			s.learn(row.Owner != c.Owner)
		}
		switch {
		case t != nil:
			return t, row, found, nil
		case err == nil && (found || c.MustExist):
			return nil, row, found, nil
		case err == nil:
			err = errAgain
		}
		k := s.d.classify(err)
		again := (k == transient || k == locked) && try < maxRetries && time.Since(begin) < lockWait
		if !again || ctx.Err() != nil || !pause(ctx, err, try) {
			return nil, server.Row{}, false, s.fail(ctx, "begin", err)
		}
	}
}

// begin is one try of BeginTx. Nothing of the handler's has run in it, so it
// may be rolled back and tried again. No transaction, and no row: somebody else
// was quicker, in one direction or the other.
func (s *Store) begin(ctx context.Context, c *server.Claim) (t *tx, row server.Row, found bool, err error) {
	read := func(ctx context.Context) error {
		row, found, err = s.read(ctx, *c)
		return err
	}
	if c != nil && (c.MustExist || s.d.readFirst || s.streak.Load() <= -sure) {
		if err := s.try(ctx, reads, read); err != nil || found || c.MustExist {
			return nil, row, found, err
		}
	}
	t, err = s.win(ctx, c)
	switch {
	case err != nil:
		return nil, server.Row{}, false, err
	case t == nil:
		err = s.try(ctx, reads, read)
		return nil, row, found, err
	case c == nil:
		return t, server.Row{}, false, nil
	}
	return t, created(*c), true, nil
}

// win opens a transaction that has c in it. Nil: the key is somebody else's.
func (s *Store) win(ctx context.Context, c *server.Claim) (*tx, error) {
	t, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	won := false
	defer func() { // also if the driver panics
		if !won {
			_ = t.Rollback()
		}
	}()
	won, err = t.start(ctx, c)
	if won = won && err == nil; !won {
		return nil, err
	}
	t.unbind = context.AfterFunc(ctx, func() { _ = t.rollback(ctx) })
	return t, nil
}

// open begins a transaction, and no more.
func (s *Store) open(ctx context.Context) (*tx, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t := &tx{s: s, begun: ctx, unbind: func() bool { return true }}
	if s.writer != nil {
		if err := s.writer.lock(ctx, s.busyTimeout()); err != nil {
			return nil, err
		}
	}
	caller := ctx
	if s.d.autocommit {
		ctx = context.WithoutCancel(ctx) // its driver would roll back at the end of ctx, for as long as that takes
	}
	ctx, t.cancel = context.WithCancel(ctx)
	defer context.AfterFunc(caller, t.cancel)()
	// The context lives as long as the transaction; only its beginning is bounded.
	timer := time.AfterFunc(statementTimeout+s.busyTimeout(), t.cancel)
	defer timer.Stop()
	defer func() { // also if the driver panics
		if t.tx == nil {
			t.giveBack(false)
		}
	}()
	var err error
	if s.d.autocommit {
		if t.conn, err = s.session(ctx); err == nil {
			t.tx, err = t.conn.BeginTx(ctx, s.d.readCommitted())
		}
	} else {
		t.tx, err = s.db.BeginTx(ctx, s.d.readCommitted())
	}
	if err == nil {
		return t, nil
	}
	if ctx.Err() != nil && caller.Err() == nil {
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return nil, err
}

// start makes the first statement of the transaction. False: the key is
// somebody else's.
func (t *tx) start(ctx context.Context, c *server.Claim) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	if c == nil {
		if !t.s.d.savepoint {
			return true, nil
		}
		_, err := t.tx.ExecContext(ctx, "SAVEPOINT "+savepoint)
		t.marked = err == nil
		return err == nil, err
	}
	won, err := t.s.createTx(ctx, t.tx, c)
	if err == nil && won && t.conn != nil {
		_, err = t.tx.ExecContext(ctx, unboundWait)
	}
	return won, err
}

// createTx is create inside of a transaction, where it waits for whoever has
// the key.
func (s *Store) createTx(ctx context.Context, q querier, c *server.Claim) (bool, error) {
	if !s.d.boundedInsert {
		return s.create(ctx, q, c)
	}
	text := s.d.sql.insertTx
	if c.Lapses {
		text = s.d.sql.replaceTx
	}
	var timeout string
	err := q.QueryRowContext(ctx, text, insertArgs(c)...).Scan(&timeout)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// SQL implements [server.Tx].
func (t *tx) SQL() *sql.Tx { return t.tx }

// Complete implements [server.Tx].
func (t *tx) Complete(ctx context.Context, h server.Hold, r server.Result) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, access{data: len(r.Data)}.timeout())
	defer cancel()
	ok, err := t.complete(ctx, h, r)
	if err != nil && (errors.Is(err, sql.ErrTxDone) || t.s.d.classify(err) == aborted) {
		return false, nil
	}
	if err != nil {
		return false, t.s.fail(ctx, "complete", err)
	}
	return ok, nil
}

func (t *tx) complete(ctx context.Context, h server.Hold, r server.Result) (bool, error) {
	args, err := t.s.resultArgs(ctx, t.tx, r)
	if err != nil {
		return false, err
	}
	if t.marked {
		if _, err := t.tx.ExecContext(ctx, "RELEASE SAVEPOINT "+savepoint); err != nil {
			if t.s.d.classify(err) == other && ctx.Err() == nil && !errors.Is(err, sql.ErrTxDone) {
				return false, nil // there is no such savepoint: another transaction
			}
			return false, err
		}
		t.marked = false
	}
	return t.s.changeIn(ctx, t.tx, h.ID, completed(h, r),
		t.s.d.sql.complete, append(args, h.ID[:], h.Owner[:], h.Generation)...)
}

// Commit implements [server.Tx].
func (t *tx) Commit(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	err := t.begun.Err() // what AfterFunc does at its end may come too late
	if err == nil {
		err = t.finish(bounded, "COMMIT", t.tx.Commit)
	} else {
		_ = t.rollback(bounded)
	}
	t.unbind()
	if err != nil {
		return t.s.fail(bounded, "commit", err)
	}
	return nil
}

// Rollback implements [server.Tx].
func (t *tx) Rollback() error {
	err := t.rollback(t.begun)
	t.unbind()
	if err != nil && !errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("sqlstore: rollback: %w", err)
	}
	return nil
}

func (t *tx) rollback(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementTimeout)
	defer cancel()
	return t.finish(ctx, "ROLLBACK", t.tx.Rollback)
}

// finish ends the transaction, once, and gives back what it held. database/sql
// does that without a context, but the transaction's own ends it. MySQL's driver
// does not look at that one: there the statement is sent as any other, and what
// database/sql sends after it finds nothing to do.
func (t *tx) finish(ctx context.Context, statement string, end func() error) error {
	err := sql.ErrTxDone
	t.end.Do(func() {
		defer context.AfterFunc(ctx, t.cancel)()
		ended := false
		defer func() { t.giveBack(ended) }() // also if the driver panics
		if t.conn == nil {
			err = end()
			ended = err == nil
			return
		}
		_, err = t.tx.ExecContext(ctx, statement)
		ended = t.tx.Rollback() == nil && err == nil
	})
	return err
}

// giveBack gives back what the transaction held. ended: the database has
// confirmed its end.
func (t *tx) giveBack(ended bool) {
	if t.conn != nil {
		closeSession(t.begun, t.conn, ended)
	}
	if t.s.writer != nil {
		t.s.writer.unlock()
	}
	t.cancel()
}

// What a MySQL session is told. Without autocommit, what a handler writes on
// after the database has ended its transaction (a deadlock does) is in a new
// transaction, which is rolled back, instead of being committed at once.
const (
	boundWait = `SET @oncemore_lock_wait = @@SESSION.innodb_lock_wait_timeout,
 SESSION innodb_lock_wait_timeout = 3, SESSION autocommit = 0`
	unboundWait = `SET SESSION innodb_lock_wait_timeout = @oncemore_lock_wait`
	restore     = `SET SESSION innodb_lock_wait_timeout = @oncemore_lock_wait, SESSION autocommit = 1`
)

// session takes a connection out of the pool for one transaction.
func (s *Store) session(ctx context.Context) (*sql.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.ExecContext(ctx, boundWait); err != nil {
		discard(conn)
		return nil, err
	}
	return conn, nil
}

// closeSession puts the session back as it was, and gives it back. Switching
// autocommit on commits what is open, so a transaction whose end is not
// confirmed is rolled back first.
func closeSession(ctx context.Context, conn *sql.Conn, ended bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementTimeout)
	defer cancel()
	var err error
	if !ended {
		_, err = conn.ExecContext(ctx, "ROLLBACK")
	}
	if err == nil {
		_, err = conn.ExecContext(ctx, restore)
	}
	if err != nil {
		discard(conn)
		return
	}
	_ = conn.Close()
}

// discard closes the connection, instead of giving it back to the pool.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close()
}
