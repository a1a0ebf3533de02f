// Package sqlitetest opens real SQLite files for tests, as package sqlstore
// says they are to be opened.
package sqlitetest

import (
	"database/sql"
	"net/url"
	"path/filepath"
	"testing"

	_ "modernc.org/sqlite" // the driver
)

// Open opens a new database file, which is gone with the test.
func Open(tb testing.TB) *sql.DB {
	tb.Helper()
	return OpenFile(tb, filepath.Join(tb.TempDir(), "oncemore.db"))
}

// OpenFile opens the database file at path, and makes it if it is not there.
// The pool is closed with the test.
func OpenFile(tb testing.TB, path string) *sql.DB {
	tb.Helper()
	return OpenDSN(tb, DSN(path))
}

// OpenDSN is OpenFile with other settings.
func OpenDSN(tb testing.TB, dsn string) *sql.DB {
	tb.Helper()
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := db.Close(); err != nil {
			tb.Error(err)
		}
	})
	return db
}

// DSN is how the file at path is opened.
func DSN(path string) string {
	return "file:" + (&url.URL{Path: path}).EscapedPath() +
		"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate"
}
