package integration_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/integration/dbtest"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// The database is killed under load. What was acknowledged is there when it is
// back, and whatever was not is decided by asking again.
func TestDatabaseKilledUnderLoad(t *testing.T) {
	for _, tt := range []struct {
		name, driver string
		dialect      sqlstore.Dialect
		shared       *shared
		make         func() (*dbtest.Server, error)
		dsn          func(*dbtest.Server) string
	}{
		{
			"PostgreSQL", "pgx", sqlstore.Postgres, &servers.postgres, dbtest.NewPostgres,
			func(s *dbtest.Server) string { return s.PostgresURL("postgres") },
		},
		{
			"MariaDB", "mysql", sqlstore.MySQL, &servers.mariadb,
			func() (*dbtest.Server, error) { return dbtest.NewMariaDB("--innodb-flush-log-at-trx-commit=1") },
			func(s *dbtest.Server) string { return s.MySQLDSN("test") },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.shared.get(t)
			own, err := tt.make()
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, own.Remove()) })
			require.NoError(t, own.Start())
			db := open(t, tt.driver, tt.dsn(own))
			s := migrated(t, db, tt.dialect)
			rounds := 3
			if testing.Short() {
				rounds = 1
			}
			for range rounds {
				killRound(t, s, own)
			}
			assert.Zero(t, db.Stats().InUse)
		})
	}
}

// killRound kills the server while workers claim and complete, half of them in
// transactions.
func killRound(t *testing.T, s *sqlstore.Store, own *dbtest.Server) {
	t.Helper()
	type acked struct {
		c    server.Claim
		done bool
	}
	var mu sync.Mutex
	var records []acked
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for worker := range 16 {
		wg.Go(func() {
			for ctx.Err() == nil {
				c := newClaim()
				_, won, err := once(ctx, s, c, worker%2 == 0)
				mu.Lock()
				records = append(records, acked{c, won && err == nil})
				mu.Unlock()
			}
		})
	}
	time.Sleep(500 * time.Millisecond)
	own.Kill()
	time.Sleep(200 * time.Millisecond)
	cancel()
	wg.Wait()
	require.NoError(t, own.Start())

	var done, open, none int
	for _, r := range records {
		row, found, err := s.Lookup(t.Context(), r.c.ID)
		require.NoError(t, err)
		switch {
		case found && row.State == server.Done:
			require.Equal(t, result(r.c).Data, row.Data)
			done++
		case r.done:
			require.Fail(t, "an acknowledged record is lost")
		case found: // claimed, and not completed: its owner can go on
			require.Equal(t, r.c.Owner, row.Owner)
			ok, err := s.Complete(t.Context(), holdOf(r.c), result(r.c))
			require.NoError(t, err)
			require.True(t, ok)
			open++
		default:
			none++
		}
	}
	require.Positive(t, done)
	t.Logf("%d done, %d claimed, %d never there", done, open, none)
}
