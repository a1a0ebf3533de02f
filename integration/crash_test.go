package integration_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/integration/dbtest"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// proxy stands between a program and its database, and can lose the reply to
// what it has forwarded.
type proxy struct {
	net.Listener
	upstream string
	// lose makes the next reply to a request that holds this text get lost, and
	// with it the connection.
	lose atomic.Pointer[string]
	lost atomic.Int64
	// frozen: nothing passes any more, and no connection is closed.
	frozen atomic.Bool
}

func newProxy(t *testing.T, upstream string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{Listener: l, upstream: upstream}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(conn)
		}
	}()
	return p
}

func (p *proxy) port() int {
	_, port, _ := net.SplitHostPort(p.Addr().String())
	n, _ := strconv.Atoi(port)
	return n
}

func (p *proxy) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", p.upstream)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	var cut atomic.Bool
	go func() {
		defer func() { _ = client.Close() }()
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			if err != nil || cut.Load() { // it has done what was asked, and says so in vain
				return
			}
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		if p.frozen.Load() {
			continue
		}
		if text := p.lose.Load(); text != nil && bytes.Contains(buf[:n], []byte(*text)) && p.lose.CompareAndSwap(text, nil) {
			p.lost.Add(1)
			cut.Store(true)
		}
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
		if cut.Load() {
			_, _ = io.Copy(io.Discard, client)
			return
		}
	}
}

// through is the DSN of the same database by way of another port.
func through(dsn string, port int) string {
	return onPort.ReplaceAllString(dsn, "127.0.0.1:"+strconv.Itoa(port))
}

var onPort = regexp.MustCompile(`127\.0\.0\.1:\d+`)

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

// B227, B229: PgBouncer hands every transaction to another session.
func TestPgBouncerInTransactionMode(t *testing.T) {
	t.Parallel()
	upstream := servers.postgres.get(t)
	bouncer, err := dbtest.NewPgBouncer(upstream)
	if err != nil {
		t.Skipf("PgBouncer is not installed: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, bouncer.Remove()) })
	require.NoError(t, bouncer.Start())
	for _, tt := range []struct{ driver, options string }{
		{"pgx", "default_query_exec_mode=exec"},
		{"pgx", "default_query_exec_mode=simple_protocol"},
		{"postgres", "binary_parameters=yes"},
	} {
		t.Run(tt.driver+" "+tt.options, func(t *testing.T) {
			url := newPostgres(t)
			s := migrated(t, open(t, tt.driver, through(url(tt.options), bouncer.Port)), sqlstore.Postgres)
			var total atomic.Int64
			keys := make([]server.Claim, 10)
			for i := range keys {
				keys[i] = newClaim()
			}
			all(t, 24, func(worker int) error {
				for _, c := range keys {
					data, won, err := once(t.Context(), s, rival(c), worker%2 == 0)
					if err != nil {
						return err
					}
					if won {
						total.Add(1)
					}
					if data == "" {
						return errors.New("no answer")
					}
				}
				return nil
			})
			assert.EqualValues(t, len(keys), total.Load())
			_, err := s.Purge(t.Context())
			require.NoError(t, err)
		})
	}
}
