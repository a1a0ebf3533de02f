package server_test

import (
	"context"
	"database/sql/driver"
	"path/filepath"
	"testing"

	"modernc.org/sqlite"

	"github.com/oncemore-go/oncemore/internal/propertytest"
	"github.com/oncemore-go/oncemore/internal/sqlitetest"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// TestPropertySchedules lets several processes over one store meet random
// requests, faults, deaths and operators, and holds everything that clients,
// handlers and the store see to a model of the keys.
func TestPropertySchedules(t *testing.T) {
	t.Parallel()
	propertytest.Schedules(t, 3000, func(t *testing.T, seed uint64) {
		propertytest.PlayInMemory(t, seed, server.Busy)
	})
}

// TestPropertyTransactions lets several processes over one SQLite file run
// handlers of WrapTx while statements fail, connections break, commits are lost
// and processes die: what is charged and what is on record are the same.
func TestPropertyTransactions(t *testing.T) {
	t.Parallel()
	propertytest.SchedulesAtOnce(t, 64, 8, func(t *testing.T, seed uint64, _ int) {
		file := filepath.Join(t.TempDir(), "shop.db")
		propertytest.PlayInTransactions(t, seed, propertytest.Database{
			Dialect: sqlstore.SQLite, Truth: sqlitetest.OpenFile(t, file), Connector: sqliteFile(file), Busy: server.Busy,
		})
	})
}

// sqliteFile is the driver's way to a file.
type sqliteFile string

func (f sqliteFile) Driver() driver.Driver { return &sqlite.Driver{} }

func (f sqliteFile) Connect(context.Context) (driver.Conn, error) {
	return f.Driver().Open(sqlitetest.DSN(string(f)))
}
