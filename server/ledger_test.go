package server_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"
)

// ledger is a table that handlers write to: what they did, as the business
// sees it.
type ledger struct{ db *sql.DB }

func newLedger(tb testing.TB, db *sql.DB) *ledger {
	tb.Helper()
	_, err := db.ExecContext(tb.Context(), "CREATE TABLE IF NOT EXISTS ledger (key TEXT NOT NULL)")
	require.NoError(tb, err)
	return &ledger{db}
}

// execer is a *sql.DB or a *sql.Tx.
type execer interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}

func book(ctx context.Context, e execer, key string) error {
	_, err := e.ExecContext(ctx, "INSERT INTO ledger (key) VALUES (?)", key)
	return err
}

// count is how many lines a key has.
func (l *ledger) count(tb testing.TB, key string) (n int) {
	tb.Helper()
	require.NoError(tb, l.db.QueryRowContext(context.Background(), "SELECT count(*) FROM ledger WHERE key = ?", key).Scan(&n))
	return n
}

// records is how many rows the store has.
func (l *ledger) records(tb testing.TB) (n int) {
	tb.Helper()
	require.NoError(tb, l.db.QueryRowContext(context.Background(), "SELECT count(*) FROM oncemore_keys").Scan(&n))
	return n
}
