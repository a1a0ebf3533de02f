package integration_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// lossy is a database that is reached through a proxy which loses replies.
type lossy struct {
	name, driver string
	dialect      sqlstore.Dialect
	options      string
	commit       string // how the driver spells it
}

// The drivers send the text of their statements, so that the proxy knows them.
var lossyDrivers = []lossy{
	{"pgx", "pgx", sqlstore.Postgres, "default_query_exec_mode=simple_protocol", "commit"},
	{"lib/pq", "postgres", sqlstore.Postgres, "binary_parameters=yes", "COMMIT"},
	{"mysql", "mysql", sqlstore.MySQL, "interpolateParams=true", "COMMIT"},
}

// connect returns the DSN of a new database, and that of the way to it that goes
// through the proxy.
func (l lossy) connect(t *testing.T) (p *proxy, direct, dsn string) {
	t.Helper()
	if l.dialect == sqlstore.Postgres {
		p, direct = newProxy(t, servers.postgres.get(t).Addr()), newPostgres(t)(l.options)
	} else {
		p, direct = newProxy(t, servers.mariadb.get(t).Addr()), newMariaDB(t)(l.options)
	}
	return p, direct, through(direct, p.port())
}

// B237, F2, F16: the database does what it was asked, and its reply is lost on
// the way. The call is sent again, and knows its own work.
func TestLostReplyOverTheNetwork(t *testing.T) {
	t.Parallel()
	for _, tt := range lossyDrivers {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, dsn, lossy := tt.connect(t)
			direct := migrated(t, open(t, tt.driver, dsn), tt.dialect)
			s := migrated(t, open(t, tt.driver, lossy), tt.dialect)
			ctx := t.Context()
			lose := func(text string) context.Context { p.lose.Store(&text); return ctx }
			yes := func(ok bool, err error) {
				t.Helper()
				require.NoError(t, err)
				require.True(t, ok)
			}
			rounds := twenty()
			for range rounds {
				c := newClaim()
				row, _, err := s.Claim(lose("INSERT"), c)
				require.NoError(t, err)
				require.Equal(t, c.Owner, row.Owner, "the claim is its own")
				yes(s.Renew(lose("UPDATE"), holdOf(c), time.Millisecond))
				time.Sleep(2 * time.Millisecond)
				next := server.Takeover{ID: c.ID, Owner: rival(c).Owner, From: c.Owner, Generation: 1, Lease: time.Minute}
				yes(s.Takeover(lose("UPDATE"), next))
				yes(s.Complete(lose("UPDATE"), server.Hold{ID: c.ID, Owner: next.Owner, Generation: 2}, result(c)))
				yes(s.Settle(lose("UPDATE"), c.ID, 2, result(rival(c))))
				row, _, err = direct.Lookup(ctx, c.ID)
				require.NoError(t, err)
				require.EqualValues(t, 3, row.Generation, "each was counted once")
				require.Equal(t, 2, row.Attempt, "each was counted once")
				yes(s.Forget(lose("DELETE"), c.ID))
				_, _, err = direct.Claim(ctx, c)
				require.NoError(t, err)
				yes(s.Release(lose("DELETE"), holdOf(c)))
				_, found, err := direct.Lookup(ctx, c.ID)
				require.NoError(t, err)
				require.False(t, found)

				// A transaction whose claim was lost is undone, and begun again.
				inTx := newClaim()
				tx, row, _, err := s.BeginTx(lose("INSERT"), &inTx)
				require.NoError(t, err)
				require.NotNil(t, tx)
				require.Equal(t, inTx.Owner, row.Owner)
				yes(tx.Complete(ctx, holdOf(inTx), result(inTx)))
				// A lost commit is an error, and the key says that it was done.
				require.Error(t, tx.Commit(lose(tt.commit)))
				require.NoError(t, tx.Rollback())
				require.Eventually(t, func() bool { // the server may still be at it
					row, found, err = s.Lookup(ctx, inTx.ID)
					return err == nil && found && row.State == server.Done && row.Owner == inTx.Owner
				}, 5*time.Second, 5*time.Millisecond)
			}
			assert.EqualValues(t, 9*rounds, p.lost.Load(), "all were lost")
		})
	}
}

// The reply to the COMMIT of a whole application is lost: the client gets its
// answer all the same, at once or when it asks again, and there is one effect.
// Also where the application asks what became of it while the server is still at
// it. (pgx then has the server cancel the commit, if that comes in time.)
func TestLostCommitOfAnApplication(t *testing.T) {
	t.Parallel()
	for _, tt := range lossyDrivers {
		for _, m := range []mode{wrapTx, claimFirst} {
			for _, hasty := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %s, hasty %t", tt.name, m, hasty), func(t *testing.T) {
					t.Parallel()
					lostCommits(t, tt, m, hasty)
				})
			}
		}
	}
}

func lostCommits(t *testing.T, tt lossy, m mode, hasty bool) {
	t.Helper()
	p, dsn, lossy := tt.connect(t)
	direct := open(t, tt.driver, dsn)
	prepare(t, direct, tt.dialect)
	if p.hasty.Store(hasty); hasty && tt.dialect == sqlstore.Postgres {
		run(t, direct, `CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
 PERFORM pg_sleep(0.02); RETURN NULL; END $$`,
			`CREATE CONSTRAINT TRIGGER linger AFTER INSERT ON ledger
 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION linger()`)
	}
	var first bool
	a := &application{Driver: tt.driver, Mode: m, Lease: time.Minute, reached: func(at point) {
		if at == toCommit && first {
			first = false
			p.lose.Store(&tt.commit)
		}
	}}
	h, _, err := a.handler(open(t, tt.driver, lossy))
	require.NoError(t, err)
	rounds, atOnce := twenty(), 0
	for round := range rounds {
		key := fmt.Sprint(round)
		var got answer
		first = true
		for asked := 0; got.status != http.StatusCreated; asked++ {
			require.Less(t, asked, 5, "%+v", got)
			if got = ask(t.Context(), h, key); got.word == "executed" {
				atOnce++
			}
		}
		require.Equal(t, answer{http.StatusCreated, "replayed", got.body}, ask(t.Context(), h, key))
		runs, _, err := a.ledger(t.Context(), direct, key)
		require.NoError(t, err)
		require.Equal(t, map[string]int{got.body: 1}, runs)
	}
	assert.EqualValues(t, rounds, p.lost.Load(), "all were lost")
	t.Logf("%d of %d were answered at once", atOnce, rounds)
	if !hasty { // it was done when the application asked
		assert.Equal(t, rounds, atOnce)
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
			var others [3]server.Tx
			left, leave := context.WithCancel(t.Context())
			for i := range others {
				c, ctx := newClaim(), t.Context()
				if i == 2 {
					ctx = left
				}
				others[i], _, _, err = s.BeginTx(ctx, &c)
				require.NoError(t, err)
			}
			p.frozen.Store(true)
			begin := time.Now()
			all(t, 7, func(i int) error {
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
				case 4:
					return wanted(others[0].Commit(t.Context()))
				case 5:
					_ = others[1].Rollback()
				case 6:
					leave() // and then it is rolled back by itself
					_ = others[2].Rollback()
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
			allReturned(t, db)
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
