package integration_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/integration/dbtest"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// servers are started when the first test asks for them, and shared.
var servers = struct {
	postgres, mariadb shared
}{
	postgres: shared{name: "PostgreSQL", make: dbtest.NewPostgres},
	mariadb:  shared{name: "MariaDB", make: func() (*dbtest.Server, error) { return dbtest.NewMariaDB() }},
}

type shared struct {
	name   string
	make   func() (*dbtest.Server, error)
	once   sync.Once
	server *dbtest.Server
	err    error
}

// get returns the running server.
func (s *shared) get(tb testing.TB) *dbtest.Server {
	tb.Helper()
	s.once.Do(func() {
		if s.server, s.err = s.make(); s.err == nil {
			s.err = s.server.Start()
		}
	})
	installed(tb, s.name, s.err)
	return s.server
}

// installed takes the error of making a server. Without its binary the test is
// skipped, unless ONCEMORE_REQUIRE_DATABASES is 1; after any other error it fails.
func installed(tb testing.TB, name string, err error) {
	tb.Helper()
	if errors.Is(err, dbtest.ErrNoBinary) && os.Getenv("ONCEMORE_REQUIRE_DATABASES") != "1" {
		tb.Skipf("%s is not installed", name)
	}
	require.NoError(tb, err)
}

func TestMain(m *testing.M) {
	if text := os.Getenv(applicationEnv); text != "" {
		runApplication(text)
	}
	_ = mysql.SetLogger(&mysql.NopLogger{}) // it reports each connection that the tests break
	code := m.Run()
	for _, s := range []*shared{&servers.postgres, &servers.mariadb} {
		if s.server == nil {
			continue
		}
		if err := s.server.Remove(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

var databases atomic.Int64

// newPostgres makes a database of its own, and returns its URL as options
// have it.
func newPostgres(tb testing.TB) func(options ...string) string {
	tb.Helper()
	server := servers.postgres.get(tb)
	name := fmt.Sprintf("db%d", databases.Add(1))
	run(tb, open(tb, "pgx", server.PostgresURL("postgres")), "CREATE DATABASE "+name)
	return func(options ...string) string { return server.PostgresURL(name, options...) }
}

// newMariaDB is newPostgres for MariaDB.
func newMariaDB(tb testing.TB) func(options ...string) string {
	tb.Helper()
	server := servers.mariadb.get(tb)
	name := fmt.Sprintf("db%d", databases.Add(1))
	run(tb, open(tb, "mysql", server.MySQLDSN("")), "CREATE DATABASE "+name)
	return func(options ...string) string { return server.MySQLDSN(name, options...) }
}

// open opens a pool, which is closed with the test.
func open(tb testing.TB, driver, dsn string) *sql.DB {
	tb.Helper()
	db, err := sql.Open(driver, dsn)
	require.NoError(tb, err)
	db.SetMaxOpenConns(32)
	db.SetMaxIdleConns(32)
	tb.Cleanup(func() { require.NoError(tb, db.Close()) })
	return db
}

// allReturned waits until the pool has its connections back. A new one that is on
// its way counts as in use, though whoever asked for it has got another.
func allReturned(tb testing.TB, db *sql.DB) {
	tb.Helper()
	assert.Eventually(tb, func() bool { return db.Stats().InUse == 0 }, 10*time.Second, time.Millisecond)
}

// run runs statements.
func run(tb testing.TB, db *sql.DB, statements ...string) {
	tb.Helper()
	for _, s := range statements {
		_, err := db.ExecContext(tb.Context(), s)
		require.NoError(tb, err, s)
	}
}

// migrated is a store over db, ready for use.
func migrated(tb testing.TB, db *sql.DB, d sqlstore.Dialect) *sqlstore.Store {
	tb.Helper()
	s, err := sqlstore.New(db, d)
	require.NoError(tb, err)
	require.NoError(tb, s.Migrate(tb.Context()))
	return s
}
