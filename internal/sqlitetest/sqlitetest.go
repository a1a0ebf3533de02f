// Package sqlitetest opens real SQLite files for tests, as package sqlstore
// says they are to be opened.
package sqlitetest

import (
	"database/sql"
	"net/url"
	"path/filepath"
	"strings"
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
	return open(tb, DSN(path))
}

// OpenPatient is OpenFile with [PatientDSN].
func OpenPatient(tb testing.TB, path string) *sql.DB {
	tb.Helper()
	return open(tb, PatientDSN(path))
}

func open(tb testing.TB, dsn string) *sql.DB {
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

// PatientDSN is DSN for tests in which so many write at once that some wait for
// longer than five seconds if the disk is slow.
func PatientDSN(path string) string {
	return strings.Replace(DSN(path), "busy_timeout(5000)", "busy_timeout(60000)", 1)
}
