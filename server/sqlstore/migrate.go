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

	"github.com/oncemore-go/oncemore/server"
)

// schemaVersion is that of the tables which this package makes. It is kept in
// the comment of the table, which is part of the one statement that makes it.
const schemaVersion = 1

var errReadOnly = errors.New("the database is read-only, and a claim has to be written: use the primary")

var versionText = regexp.MustCompile(`oncemore schema (\d+)`)

// Migrate makes the table oncemore_keys where it is missing, and otherwise
// checks that this package can work with the one that is there. Several
// processes may call it at once. Where the table is there, it needs no right to
// create anything.
//
// A table of a newer schema, a database that takes no writes, and on SQLite a
// DSN that lacks one of the settings of the package comment, are errors that
// say so.
func (s *Store) Migrate(ctx context.Context) error {
	// Of several processes that open a new SQLite file at once one makes it
	// WAL, and the others may be told that it is busy without any wait.
	begin := time.Now()
	for try := 0; ; try++ {
		err := s.migrate(ctx)
		again := s.d.classify(err) == locked && try < maxRetries && time.Since(begin) < patience
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
	version, err := s.version(ctx, s.db)
	if err == nil && version == 0 {
		if err = s.makeTable(ctx); s.d.classify(err) == exists {
			err = nil // somebody who doesn't take our lock was quicker
		}
		if err == nil {
			version, err = s.version(ctx, s.db)
		}
	}
	switch {
	case err != nil:
		return s.failMigrate(ctx, err)
	case version > schemaVersion:
		return fmt.Errorf("sqlstore: migrate: table oncemore_keys has schema %d, and this version knows %d at most: upgrade the program before it runs on this database",
			version, schemaVersion)
	}
	return s.probe(ctx)
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

// makeTable runs the schema in one transaction, which on MySQL is the statement
// itself. "IF NOT EXISTS" is not atomic on PostgreSQL: there a lock lines up
// those who come at once.
func (s *Store) makeTable(ctx context.Context) error {
	return s.run(ctx, "migrate", writes, func(ctx context.Context) error {
		tx, err := s.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if s.d == Postgres.dialect {
			if _, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock(hashtext('oncemore_keys'))`); err != nil {
				return err
			}
		}
		for statement := range strings.SplitSeq(s.d.schema, ";\n") {
			if strings.TrimSpace(statement) == "" {
				continue
			}
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		return tx.Commit()
	})
}

func (s *Store) checkPostgres(ctx context.Context) error {
	value, err := s.setting(ctx, s.db, `SELECT current_setting('transaction_read_only')`)
	if err == nil && value != "off" {
		return fmt.Errorf("%w (transaction_read_only is %s)", errReadOnly, value)
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
	if err == nil && value != "1" {
		return errors.New("autocommit is off, and nothing that the store writes would last: remove autocommit from the DSN")
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
