package integration_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// B237, F2, F16: the database does what it was asked, and its reply is lost on
// the way. The call is sent again, and knows its own work.
func TestLostReplyOverTheNetwork(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, driver string
		dialect      sqlstore.Dialect
	}{
		{"pgx", "pgx", sqlstore.Postgres},
		{"lib/pq", "postgres", sqlstore.Postgres},
		{"mysql", "mysql", sqlstore.MySQL},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var p *proxy
			var dsn string
			if tt.dialect == sqlstore.Postgres {
				p = newProxy(t, servers.postgres.get(t).Addr())
				dsn = newPostgres(t)("default_query_exec_mode=simple_protocol")
				if tt.driver == "postgres" {
					dsn = newPostgres(t)("binary_parameters=yes")
				}
			} else {
				p = newProxy(t, servers.mariadb.get(t).Addr())
				dsn = newMariaDB(t)("interpolateParams=true")
			}
			direct := migrated(t, open(t, tt.driver, dsn), tt.dialect)
			s := migrated(t, open(t, tt.driver, through(dsn, p.port())), tt.dialect)
			ctx := t.Context()
			for range 20 {
				c := newClaim()
				lose := func(text string) { p.lose.Store(&text) }
				lose("INSERT")
				row, found, err := s.Claim(ctx, c)
				require.NoError(t, err)
				require.True(t, found)
				require.Equal(t, c.Owner, row.Owner, "the claim is its own")
				lose("UPDATE")
				ok, err := s.Renew(ctx, holdOf(c), time.Minute)
				require.NoError(t, err)
				require.True(t, ok)
				lose("UPDATE")
				ok, err = s.Complete(ctx, holdOf(c), result(c))
				require.NoError(t, err)
				require.True(t, ok)
				lose("UPDATE")
				ok, err = s.Settle(ctx, c.ID, 1, result(rival(c)))
				require.NoError(t, err)
				require.True(t, ok)
				row, _, err = direct.Lookup(ctx, c.ID)
				require.NoError(t, err)
				require.EqualValues(t, 2, row.Generation)
				lose("DELETE")
				ok, err = s.Forget(ctx, c.ID)
				require.NoError(t, err)
				require.True(t, ok)

				// A lost commit is an error, and the key says that it was done.
				inTx := newClaim()
				tx, _, _, err := s.BeginTx(ctx, &inTx)
				require.NoError(t, err)
				ok, err = tx.Complete(ctx, holdOf(inTx), result(inTx))
				require.NoError(t, err)
				require.True(t, ok)
				lose(map[string]string{"pgx": "commit", "postgres": "COMMIT", "mysql": "COMMIT"}[tt.driver])
				require.Error(t, tx.Commit(ctx))
				require.NoError(t, tx.Rollback())
				require.Eventually(t, func() bool { // the server may still be at it
					row, found, err = s.Lookup(ctx, inTx.ID)
					return err == nil && found && row.State == server.Done && row.Owner == inTx.Owner
				}, 5*time.Second, 5*time.Millisecond)
			}
			assert.EqualValues(t, 6*20, p.lost.Load(), "all were lost")
		})
	}
}

// A server that hangs holds up nobody for long: every statement has a deadline.
func TestFrozenDatabaseIsGivenUp(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		driver  string
		dialect sqlstore.Dialect
	}{{"pgx", sqlstore.Postgres}, {"mysql", sqlstore.MySQL}} {
		t.Run(tt.driver, func(t *testing.T) {
			t.Parallel()
			var p *proxy
			var dsn string
			if tt.dialect == sqlstore.Postgres {
				p, dsn = newProxy(t, servers.postgres.get(t).Addr()), newPostgres(t)()
			} else {
				p, dsn = newProxy(t, servers.mariadb.get(t).Addr()), newMariaDB(t)()
			}
			db := open(t, tt.driver, through(dsn, p.port()))
			s := migrated(t, db, tt.dialect)
			inTx := newClaim()
			tx, _, _, err := s.BeginTx(t.Context(), &inTx)
			require.NoError(t, err)
			p.frozen.Store(true)
			begin := time.Now()
			all(t, 4, func(i int) error {
				c := newClaim()
				switch i {
				case 0:
					_, _, err := s.Claim(t.Context(), c)
					return wanted(err)
				case 1:
					_, _, _, err := s.BeginTx(t.Context(), &c)
					return wanted(err)
				case 2:
					_, err := tx.Complete(t.Context(), holdOf(inTx), result(inTx))
					defer func() { _ = tx.Rollback() }()
					return wanted(err)
				case 3:
					ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
					defer cancel()
					_, _, err := s.Lookup(ctx, c.ID)
					if since := time.Since(begin); since > 3*time.Second {
						return fmt.Errorf("the caller's deadline came after %v", since)
					}
					return wanted(err)
				}
				return nil
			})
			assert.Less(t, time.Since(begin), 30*time.Second)
			p.frozen.Store(false)
			_, won, err := once(t.Context(), s, newClaim(), false)
			require.NoError(t, err, "and it goes on when the server does")
			assert.True(t, won)
			require.Eventually(t, func() bool { return db.Stats().InUse == 0 }, 10*time.Second, 10*time.Millisecond)
		})
	}
}

// wanted turns the error that there should have been around.
func wanted(err error) error {
	if err == nil {
		return errors.New("want an error")
	}
	return nil
}
