package sqlstore_test

import (
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/sqlitetest"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
	"github.com/oncemore-go/oncemore/server/storetest"
)

// migrated is a store over db, ready for use.
func migrated(tb testing.TB, db *sql.DB) *sqlstore.Store {
	tb.Helper()
	s, err := sqlstore.New(db, sqlstore.SQLite)
	require.NoError(tb, err)
	require.NoError(tb, s.Migrate(tb.Context()))
	return s
}

func TestSQLiteIsAStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(tb testing.TB) server.Store {
		tb.Helper()
		return migrated(tb, sqlitetest.Open(tb))
	})
}

func TestSQLiteIsAStoreWithOneConnection(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(tb testing.TB) server.Store {
		tb.Helper()
		db := sqlitetest.Open(tb)
		db.SetMaxOpenConns(1)
		return migrated(tb, db)
	})
}
