package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// checkSQLite says what the DSN lacks. The settings are read on connections of
// the pool: they are given to each one as it is opened.
func (s *Store) checkSQLite(ctx context.Context) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()

	mode, err := s.setting(ctx, conn, `PRAGMA journal_mode`)
	if err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("journal_mode is %s, which makes readers and the writer wait for each other: add _pragma=journal_mode(WAL) to the DSN of a database in a file", mode)
	}
	timeout, err := s.number(ctx, conn, `PRAGMA busy_timeout`)
	if err != nil {
		return err
	}
	if timeout <= 0 {
		return errors.New("busy_timeout is 0, so a write fails while another process writes: add _pragma=busy_timeout(5000) to the DSN")
	}
	s.busy.Store(int64(timeout) * int64(time.Millisecond))
	synchronous, err := s.number(ctx, conn, `PRAGMA synchronous`)
	if err != nil {
		return err
	}
	if synchronous < 1 {
		return errors.New("synchronous is OFF, so a crash of the machine can destroy the database: add _pragma=synchronous(FULL) to the DSN")
	}
	return s.checkImmediate(ctx, conn)
}

// checkImmediate begins a transaction, which is to hold the writer from then
// on, and tries for the writer on a second connection. With one connection in
// the pool that can't be seen, and matters less: nobody in this process can be
// in between.
func (s *Store) checkImmediate(ctx context.Context, conn *sql.Conn) error {
	if s.db.Stats().MaxOpenConnections == 1 {
		return nil
	}
	if err := s.writer.lock(ctx, s.busyTimeout()); err != nil {
		return err
	}
	defer s.writer.unlock()
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	second, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	// Its busy timeout is changed: it does not go back to the pool.
	defer discard(second)
	if _, err := second.ExecContext(ctx, `PRAGMA busy_timeout = 0`); err != nil {
		return err
	}
	_, err = second.ExecContext(ctx, `BEGIN IMMEDIATE`)
	switch {
	case err == nil:
		return errors.New("a transaction does not take the writer as it begins, and fails when it writes later: add _txlock=immediate to the DSN")
	case s.d.classify(err) == locked:
		return nil
	}
	return err
}

// number reads one number.
func (s *Store) number(ctx context.Context, q querier, query string) (int, error) {
	value, err := s.setting(ctx, q, query)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(value)
}
