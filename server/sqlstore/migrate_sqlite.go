package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// checking lets one Migrate of this process look at SQLite at a time: each needs
// a second connection while it holds its first, and a pool may have two.
var checking = make(gate, 1)

// checkSQLite says what the DSN lacks. The settings are read on connections of
// the pool: they are given to each one as it is opened.
func (s *Store) checkSQLite(ctx context.Context) error {
	if err := checking.lock(ctx, time.Minute); err != nil { // others may have other, slow databases
		return err
	}
	defer checking.unlock()
	// The writer before the connection, as all who write do.
	if err := s.writer.lock(ctx, s.busyTimeout()); err != nil {
		return err
	}
	defer s.writer.unlock()
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()

	version, err := s.setting(ctx, conn, `SELECT CASE WHEN typeof(unixepoch('subsec')) = 'real' THEN '' ELSE sqlite_version() END`)
	if err != nil {
		return err
	}
	if version != "" {
		return errors.New("SQLite " + version + " has no clock with fractions of a second: 3.42 or later is needed")
	}
	readOnly, err := s.number(ctx, conn, `PRAGMA query_only`)
	if err != nil {
		return err
	}
	if readOnly != 0 {
		return errReadOnly
	}
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
// on, and asks whether it can write at all.
func (s *Store) checkImmediate(ctx context.Context, conn *sql.Conn) error {
	// With one connection in the pool it can't be seen whether a second one is
	// refused the writer, and matters less: nobody in this process can come in
	// between. Where there are more, it is taken before the writer: who has it
	// may be waiting for that.
	var second *sql.Conn
	if s.db.Stats().MaxOpenConnections != 1 {
		var err error
		if second, err = s.db.Conn(ctx); err != nil {
			return err
		}
		defer discard(second) // its busy timeout is changed below
	}
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	immediate := true
	if second != nil {
		if immediate, err = s.refused(ctx, second); err != nil {
			return err
		}
	}
	// A database that can't be written is begun on without an error.
	if _, err := tx.ExecContext(ctx, `CREATE TABLE oncemore_probe (x)`); err != nil {
		return err
	}
	if !immediate {
		return errors.New("a transaction does not take the writer as it begins, and fails when it writes later: add _txlock=immediate to the DSN")
	}
	return nil
}

// refused reports whether conn does not get the writer.
func (s *Store) refused(ctx context.Context, conn *sql.Conn) (bool, error) {
	if _, err := conn.ExecContext(ctx, `PRAGMA busy_timeout = 0`); err != nil {
		return false, err
	}
	_, err := conn.ExecContext(ctx, `BEGIN IMMEDIATE`)
	if s.d.classify(err) == locked {
		return true, nil
	}
	if err == nil {
		_, err = conn.ExecContext(ctx, `ROLLBACK`)
	}
	return false, err
}

// number reads one number.
func (s *Store) number(ctx context.Context, q querier, query string) (int, error) {
	value, err := s.setting(ctx, q, query)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(value)
}
