package integration_test

import (
	"database/sql"
	"database/sql/driver"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/propertytest"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// lanes are databases in which schedules run beside each other.
const lanes = 16

// propertyCount is how many schedules there are to be.
func propertyCount() int {
	if testing.Short() || raceDetector {
		return lanes
	}
	return 6 * lanes
}

// laneOf makes a database for each lane, and a pool over it.
func laneOf(t *testing.T, dialect sqlstore.Dialect) (dsns []string, pools []*sql.DB) {
	t.Helper()
	for range lanes {
		if dialect == sqlstore.Postgres {
			dsns = append(dsns, newPostgres(t)())
			pools = append(pools, open(t, "pgx", dsns[len(dsns)-1]))
		} else {
			dsns = append(dsns, newMariaDB(t)(interpolated))
			pools = append(pools, open(t, "mysql", dsns[len(dsns)-1]))
		}
	}
	return dsns, pools
}

var propertyDialects = map[string]sqlstore.Dialect{"PostgreSQL": sqlstore.Postgres, "MariaDB": sqlstore.MySQL}

// The schedules of package server, over databases whose time is real.
func TestPropertySchedules(t *testing.T) {
	t.Parallel()
	for name, dialect := range propertyDialects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, pools := laneOf(t, dialect)
			propertytest.SchedulesAtOnce(t, propertyCount(), lanes, func(t *testing.T, seed uint64, lane int) {
				store := migrated(t, pools[lane], dialect)
				run(t, pools[lane], "DELETE FROM oncemore_keys")
				propertytest.Play(t, seed, store)
			})
		})
	}
}

// The schedules of transactions, with faults on the way to real servers.
func TestPropertyTransactions(t *testing.T) {
	t.Parallel()
	for name, dialect := range propertyDialects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsns, pools := laneOf(t, dialect)
			propertytest.SchedulesAtOnce(t, propertyCount(), lanes, func(t *testing.T, seed uint64, lane int) {
				propertytest.PlayInTransactions(t, seed, propertytest.Database{
					Dialect: dialect, Truth: pools[lane], Connector: connector(t, pools[lane], dsns[lane]),
				})
			})
		})
	}
}

// connector makes connections as those of a pool.
func connector(t *testing.T, pool *sql.DB, dsn string) driver.Connector {
	t.Helper()
	d, ok := pool.Driver().(driver.DriverContext)
	require.True(t, ok)
	c, err := d.OpenConnector(dsn)
	require.NoError(t, err)
	return c
}
