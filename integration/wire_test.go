package integration_test

import (
	"context"
	"database/sql"
	"encoding/binary"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// tally is when a program asked its database for something.
type tally struct {
	mu    sync.Mutex
	times []time.Time
}

// counter makes what counts on one connection.
func (t *tally) counter(d sqlstore.Dialect) func() io.Writer {
	frame := postgresFrame
	if d == sqlstore.MySQL {
		frame = mysqlFrame
	}
	return func() io.Writer { return &wire{t: t, frame: frame, first: true} }
}

func (t *tally) taken() []time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.times)
}

// wire finds the messages in what a client sends.
type wire struct {
	t     *tally
	frame func(data []byte, first bool) (length int, asks bool)
	first bool
	rest  []byte
}

func (w *wire) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		length, asks := w.frame(w.rest, w.first)
		if length == 0 || length > len(w.rest) {
			return len(p), nil
		}
		w.first, w.rest = false, w.rest[length:]
		if asks {
			w.t.mu.Lock()
			w.t.times = append(w.t.times, time.Now())
			w.t.mu.Unlock()
		}
	}
}

// postgresFrame is the length of the message that data begins with, and whether
// it is a Query, a Parse or an Execute. 0: it is not all there.
func postgresFrame(data []byte, first bool) (length int, asks bool) {
	if first { // it has no type
		if len(data) < 4 {
			return 0, false
		}
		return int(binary.BigEndian.Uint32(data)), false
	}
	if len(data) < 5 {
		return 0, false
	}
	return 1 + int(binary.BigEndian.Uint32(data[1:])), slices.Contains([]byte("QPE"), data[0])
}

// mysqlFrame is postgresFrame for COM_QUERY, COM_STMT_PREPARE and
// COM_STMT_EXECUTE. Without interpolateParams in the DSN each query is the last
// two.
func mysqlFrame(data []byte, _ bool) (length int, asks bool) {
	if len(data) < 5 {
		return 0, false
	}
	length = 4 + (int(data[0]) | int(data[1])<<8 | int(data[2])<<16)
	return length, data[3] == 0 && slices.Contains([]byte{0x03, 0x16, 0x17}, data[4])
}

// What is counted is what the programs send.
func TestTally(t *testing.T) {
	t.Parallel()
	for _, e := range engines {
		var queries tally
		p, dsn := newCountingProxy(t, e.server.get(t).Addr(), queries.counter(e.dialect)), e.create(t)
		// One connection, as a pool may ask whether it is still there.
		conn, err := open(t, e.driver, through(dsn, p.port())).Conn(t.Context())
		require.NoError(t, err)
		for n := range 3 {
			_, err := conn.ExecContext(t.Context(), "SELECT 1")
			require.NoError(t, err)
			assert.Len(t, queries.taken(), n+1, e.name)
		}
		require.NoError(t, conn.Close())
	}
}

// openOne opens a pool of one connection, which asks for nothing by itself.
func openOne(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	if driver != "pgx" {
		db := open(t, driver, dsn)
		db.SetMaxOpenConns(1)
		return db
	}
	config, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	// It would ask whether a connection that was idle is still there.
	db := stdlib.OpenDB(*config, stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool { return false }))
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// trips is how often the database is asked for the claim of a new key, and for
// that of one that is done.
type trips struct{ claim, replay int }

// One round trip claims a new key, one completes it, and one replays it. Who has
// met one kind alone expects it to come again, and asks once more when it does not;
// on MySQL only who expects a replay has one in a single trip.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	want := map[string]map[string]trips{
		"PostgreSQL": {"at first": {1, 1}, "after replays": {2, 1}, "after new keys": {1, 2}},
		"MariaDB":    {"at first": {1, 2}, "after replays": {2, 1}, "after new keys": {1, 2}},
	}
	for _, e := range engines {
		var queries tally
		p, dsn := newCountingProxy(t, e.server.get(t).Addr(), queries.counter(e.dialect)), e.create(t)
		db := openOne(t, e.driver, through(dsn, p.port()))
		done := newClaim()
		_, _, err := once(t.Context(), migrated(t, db, e.dialect), done, false)
		require.NoError(t, err)
		asked := func(call func()) int {
			before := len(queries.taken())
			call()
			return len(queries.taken()) - before
		}
		for _, warm := range []bool{false, true} { // pgx prepares each statement once
			for name, before := range map[string]func() server.Claim{
				"at first": nil, "after replays": func() server.Claim { return rival(done) }, "after new keys": newClaim,
			} {
				claim := func(c server.Claim, want bool) (s *sqlstore.Store, n int) {
					s, err := sqlstore.New(db, e.dialect)
					require.NoError(t, err)
					for range 10 {
						if before != nil {
							_, _, err := s.Claim(t.Context(), before())
							require.NoError(t, err)
						}
					}
					n = asked(func() {
						row, _, err := s.Claim(t.Context(), c)
						require.NoError(t, err)
						assert.Equal(t, want, row.Owner == c.Owner)
					})
					return s, n
				}
				var got trips
				c := newClaim()
				s, n := claim(c, true)
				got.claim = n
				completion := asked(func() {
					ok, err := s.Complete(t.Context(), holdOf(c), result(c))
					require.NoError(t, err)
					assert.True(t, ok)
				})
				_, got.replay = claim(rival(c), false)
				if warm {
					assert.Equal(t, want[e.name][name], got, "%s, %s", e.name, name)
					assert.Equal(t, 1, completion, e.name)
				}
			}
		}
	}
}
