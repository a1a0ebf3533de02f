package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/oncemore-go/oncemore/internal/upgrades"
	"github.com/oncemore-go/oncemore/server"
)

var errReadOnly = errors.New("the database is read-only, and a claim has to be written: use the primary")

// The version of the schema is kept in the comment of the table, which is part of
// the one statement that makes it.
var versionText = regexp.MustCompile(`oncemore schema (\d+)`)

// Migrate makes the table oncemore_keys where it is missing, brings one of an
// older schema to this package's, and checks that it can work with what is there
// then. Rows are kept. Several processes may call it at once, while others work on
// the table. Where the table is there and up to date, it needs no right to create
// or to alter anything.
//
// A table of a newer schema is an error, and is left as it is. So are a database
// that takes no writes, on SQLite a DSN that lacks one of the settings of the
// package comment, on PostgreSQL a bytea_output that the driver can't read, and on
// MySQL sessions without autocommit or at READ UNCOMMITTED. All of them say so. An
// upgrade waits for open transactions, but not for more than some seconds: then
// the error matches [server.ErrBusy], and the table is as it was.
func (s *Store) Migrate(ctx context.Context) error {
	// Of several processes that open a new SQLite file at once one makes it
	// WAL, and the others may be told that it is busy without any wait.
	begin := time.Now()
	for try := 0; ; try++ {
		err := s.migrate(ctx)
		k := s.d.classify(err)
		again := (k == transient || k == locked) && try < maxRetries && time.Since(begin) < patience
		if !again || !pause(ctx, err, try) {
			return err
		}
	}
}

// migrate is one try of Migrate.
func (s *Store) migrate(ctx context.Context) error {
	check := map[*dialect]func(context.Context) error{
		SQLite.dialect:   s.checkSQLite,
		Postgres.dialect: s.checkPostgres,
		MySQL.dialect:    s.checkMySQL,
	}[s.d]
	if err := check(ctx); err != nil {
		return s.failMigrate(ctx, err)
	}
	newest := 1 + len(upgrades.Steps[s.d.name])
	version, err := s.version(ctx, s.db)
	for err == nil && version < newest {
		version, err = s.advance(ctx, version)
	}
	switch {
	case err != nil:
		return s.failMigrate(ctx, err)
	case version > newest:
		return fmt.Errorf("sqlstore: migrate: table oncemore_keys has schema %d, and this version knows %d at most: upgrade the program before it runs on this database",
			version, newest)
	}
	return s.probe(ctx)
}

// advance makes the table, or brings it to the next version, and returns the
// version that is there then.
func (s *Store) advance(ctx context.Context, version int) (int, error) {
	statements := s.d.schema
	if version > 0 {
		statements = upgrades.Steps[s.d.name][version-1]
	}
	err := s.try(ctx, writes, func(ctx context.Context) error {
		return s.changeSchema(ctx, version, statements)
	})
	// Whatever it says: somebody may have been quicker, or a reply been lost.
	reached, lookErr := s.version(ctx, s.db)
	switch {
	case lookErr == nil && reached > version:
		return reached, nil
	case err == nil && lookErr == nil:
		err = errors.New("its version was not left")
	case err == nil:
		err = lookErr
	}
	if version > 0 {
		err = fmt.Errorf("table oncemore_keys has schema %d, and could not be brought to %d: %w", version, version+1, err)
	}
	return version, err
}

// changeSchema runs the statements that lead from a version to the next, unless
// somebody has done so. They are in one transaction, which on MySQL is the
// statement itself.
//
// A change of a table waits for every transaction that has used it, and all who
// come later wait behind it. So it waits for a second, and is tried again.
func (s *Store) changeSchema(ctx context.Context, version int, statements string) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	ended := true
	defer func() {
		// Its session was changed, or it may still be in the transaction: it does
		// not go back to the pool. Otherwise it does, with what its user has set.
		if s.d == MySQL.dialect || !ended {
			discard(conn)
		} else {
			_ = conn.Close()
		}
	}()
	if s.d == MySQL.dialect {
		if _, err := conn.ExecContext(ctx, `SET SESSION lock_wait_timeout = 1`); err != nil {
			return err
		}
	}
	tx, err := conn.BeginTx(ctx, s.d.readCommitted())
	if err != nil {
		return err
	}
	defer func() {
		err := tx.Rollback()
		ended = err == nil || errors.Is(err, sql.ErrTxDone) && ended
	}()
	if s.d == Postgres.dialect {
		// "IF NOT EXISTS" is not atomic there: a lock lines up those who come at once.
		if err := runAll(ctx, tx, `SET LOCAL lock_timeout = '1s'`, `SET LOCAL statement_timeout = 0`,
			`SELECT pg_advisory_xact_lock(hashtext('oncemore_keys'))`); err != nil {
			return err
		}
	}
	if now, err := s.version(ctx, tx); err != nil || now != version {
		return err
	}
	if err := runAll(ctx, tx, strings.Split(statements, ";\n")...); err != nil {
		return err
	}
	err = tx.Commit()
	ended = err == nil
	return err
}

// runAll runs statements, except for what is blank.
func runAll(ctx context.Context, tx *sql.Tx, statements ...string) error {
	for _, statement := range statements {
		if strings.TrimSpace(statement) == "" {
			continue
		}
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) failMigrate(ctx context.Context, err error) error {
	if err != nil && s.d.classify(err) == readOnly {
		return fmt.Errorf("sqlstore: migrate: %w: %w", errReadOnly, err)
	}
	return s.fail(ctx, "migrate", err)
}

// version returns the schema's version, 0 if there is no table. A table whose
// comment was lost counts as the first version; probe says whether it is.
func (s *Store) version(ctx context.Context, q querier) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	var text string
	err := q.QueryRowContext(ctx, s.d.sql.version).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	version := 1
	for _, match := range versionText.FindAllStringSubmatch(text, -1) {
		n, err := strconv.Atoi(match[1])
		if err != nil {
			return 0, err
		}
		version = max(version, n)
	}
	return version, nil
}

// probe reads as a lookup does, so that a missing column shows now.
func (s *Store) probe(ctx context.Context) error {
	if _, _, err := s.Lookup(ctx, server.ID{}); err != nil {
		return fmt.Errorf("sqlstore: migrate: table oncemore_keys is not as Schema makes it: %w", err)
	}
	return nil
}

func (s *Store) checkPostgres(ctx context.Context) error {
	value, err := s.setting(ctx, s.db, `SELECT current_setting('transaction_read_only')`)
	if err == nil && value != "off" {
		return fmt.Errorf("%w (transaction_read_only is %s)", errReadOnly, value)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	var zero []byte
	err = s.db.QueryRowContext(ctx, `SELECT decode('00', 'hex')`).Scan(&zero)
	if err != nil && ctx.Err() == nil && s.d.classify(err) == other {
		return fmt.Errorf("the driver can't read bytea as the server sends it, set bytea_output to hex: %w", err)
	}
	return err
}

func (s *Store) checkMySQL(ctx context.Context) error {
	value, err := s.setting(ctx, s.db, `SELECT @@GLOBAL.read_only`)
	if err == nil && value != "0" && !strings.EqualFold(value, "OFF") {
		return fmt.Errorf("%w (read_only is %s)", errReadOnly, value)
	}
	if err != nil {
		return err
	}
	value, err = s.setting(ctx, s.db, `SELECT @@SESSION.autocommit + 0`)
	if err != nil {
		return err
	}
	if value != "1" {
		return errors.New("autocommit is off, and nothing that the store writes would last: remove autocommit from the DSN")
	}
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	var name string // tx_isolation or transaction_isolation: versions differ
	err = s.db.QueryRowContext(ctx, `SHOW VARIABLES LIKE 't%isolation'`).Scan(&name, &value)
	if err == nil && value == "READ-UNCOMMITTED" {
		return fmt.Errorf("%s is %s, and a result that is rolled back could be replayed: make it READ-COMMITTED or higher", name, value)
	}
	return err
}

// setting reads one value.
func (s *Store) setting(ctx context.Context, q querier, query string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	var value string
	err := q.QueryRowContext(ctx, query).Scan(&value)
	return value, err
}

// fits says whether data can be sent. A statement over max_allowed_packet would
// cost MySQL's client the connection, and look like a lost one.
func (s *Store) fits(ctx context.Context, q querier, data []byte) error {
	const always = 256 << 10 // less than any max_allowed_packet in use
	switch {
	case len(data) > s.d.maxData:
		return errTooMany
	case len(data) <= always || s.d != MySQL.dialect:
		return nil
	}
	value, err := s.setting(ctx, q, `SELECT @@SESSION.max_allowed_packet`)
	if err != nil {
		return err
	}
	packet, err := strconv.Atoi(value)
	if err != nil {
		return err
	}
	if escapedLen(data)+4096 > packet {
		return errTooMany
	}
	return nil
}

// escapedLen is the length of data in the text of a statement.
func escapedLen(data []byte) int {
	n := len(data)
	for _, b := range data {
		switch b {
		case 0, '\n', '\r', 0x1a, '\'', '"', '\\':
			n++
		}
	}
	return n
}
