package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/sqlitetest"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// fill inserts n rows of a state whose purge time is seconds from now.
func fill(t *testing.T, db *sql.DB, n, state, seconds int) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), `WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < ?)
INSERT INTO oncemore_keys (id, fingerprint, owner, origin, generation, attempt, state, status, lease_until, created_at, expires_at, purge_at, scope, method, route)
SELECT randomblob(32), zeroblob(32), zeroblob(16), zeroblob(16), 1, 1, ?, 0, 0, 0, 0, (unixepoch() + ?) * 1000000, '', '', '' FROM n`, n, state, seconds)
	require.NoError(t, err)
}

func count(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM oncemore_keys").Scan(&n))
	return n
}

func TestPurgeTakesAllInBatches(t *testing.T) {
	t.Parallel()
	db := sqlitetest.Open(t)
	s := migrated(t, db)
	fill(t, db, 600, 2, -1)
	fill(t, db, 20, 1, -1)
	fill(t, db, 30, 3, -1)
	fill(t, db, 40, 2, 3600)
	fill(t, db, 50, 3, 3600)
	n, err := s.Purge(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 600, n)
	assert.Equal(t, 140, count(t, db))
	n, err = s.Unsettled(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 50, n, "running and unknown rows that are past their time")
}

// timeDeletes makes each DELETE take ten milliseconds more than the one before,
// and notes when it begins.
func (f *faults) timeDeletes() (begun *[]time.Time) {
	begun = new([]time.Time)
	f.set(func(statement string) error {
		if strings.HasPrefix(statement, "DELETE") {
			*begun = append(*begun, time.Now())
			time.Sleep(time.Duration(len(*begun)) * 10 * time.Millisecond)
		}
		return nil
	}, nil)
	return begun
}

// Each batch is paid for by four times of what it took, and by nothing that it
// waited for. In the bubble only what is slept takes time.
func TestPurgePausesFourTimesABatch(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{0, 3 * time.Second} {
		t.Run(fmt.Sprintf("after %v for the writer", wait), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := &faults{}
				db := openFaulty(t, f)
				s := migrated(t, db)
				fill(t, db, 4*int(sqlstore.PurgeBatch(sqlstore.SQLite))+1, 2, -1)
				deletes := f.timeDeletes()
				start := time.Now()
				if wait > 0 {
					tx, _, _, err := s.BeginTx(t.Context(), nil)
					require.NoError(t, err)
					time.AfterFunc(wait, func() { noError(t, tx.Rollback()) })
				}
				_, err := s.Purge(t.Context())
				require.NoError(t, err)
				var since []time.Duration
				for _, begun := range *deletes {
					since = append(since, begun.Sub(start)-wait)
				}
				const ms = time.Millisecond
				assert.Equal(t, []time.Duration{0, 50 * ms, 150 * ms, 300 * ms, 500 * ms}, since)
				assert.Equal(t, wait+550*ms, time.Since(start), "nobody pauses after the last one")
			})
		})
	}
}

func TestPurgeUsesItsIndex(t *testing.T) {
	t.Parallel()
	db := sqlitetest.Open(t)
	migrated(t, db)
	rows, err := db.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+sqlstore.PurgeText(sqlstore.SQLite), 0, sqlstore.PurgeBatch(sqlstore.SQLite))
	require.NoError(t, err)
	defer func() { _ = rows.Close() }()
	var plan strings.Builder
	for rows.Next() {
		var a, b, c int
		var detail string
		require.NoError(t, rows.Scan(&a, &b, &c, &detail))
		plan.WriteString(detail + "\n")
	}
	require.NoError(t, rows.Err())
	assert.Contains(t, plan.String(), "USING INDEX oncemore_keys_purge_at")
	assert.NotContains(t, plan.String(), "TEMP B-TREE")
	assert.NotContains(t, plan.String(), "SCAN")
}

func TestRunPurgerRunsUntilTheContextEnds(t *testing.T) {
	t.Parallel()
	db := sqlitetest.Open(t)
	s := migrated(t, db)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	for range 2 { // several processes may
		go func() { ended <- s.RunPurger(ctx, 10*time.Millisecond) }()
	}
	for range 3 {
		fill(t, db, 300, 2, -1)
		require.Eventually(t, func() bool { return count(t, db) == 0 }, 10*time.Second, 10*time.Millisecond)
	}
	cancel()
	for range 2 {
		require.ErrorIs(t, <-ended, context.Canceled)
	}
	require.EqualError(t, s.RunPurger(t.Context(), 0), "sqlstore: purge every 0s: want a positive interval")
}

// B201, B204: what has to do with time again, with the process in zones that have caught others out.
func TestInOtherTimeZones(t *testing.T) {
	t.Parallel()
	if os.Getenv("ONCEMORE_TEST_ZONE") != "" {
		return // this is the other process
	}
	for _, zone := range []string{"Asia/Kathmandu", "America/Los_Angeles"} {
		cmd := exec.CommandContext(t.Context(), os.Args[0],
			"-test.run=^(TestSQLiteIsAStore|TestTimesAreIntegers|TestPurgeTakesAllInBatches)$/^(lapse|purge|renew|value)$/^(a_|an_|only|the_lease|times)")
		cmd.Env = append(os.Environ(), "TZ="+zone, "ONCEMORE_TEST_ZONE=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", zone, out)
		assert.Contains(t, string(out), "PASS")
	}
}

// B166, B201: the times are integers, and the database's.
func TestTimesAreIntegers(t *testing.T) {
	t.Parallel()
	db := sqlitetest.Open(t)
	s := migrated(t, db)
	c := newClaim()
	require.NoError(t, once(t.Context(), s, c))
	for _, column := range []string{"lease_until", "created_at", "executed_at", "expires_at", "purge_at"} {
		var kind string
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT typeof("+column+") FROM oncemore_keys").Scan(&kind))
		assert.Equal(t, "integer", kind, column)
	}
	var created, executed, expires, purge int64
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT created_at, executed_at, expires_at, purge_at FROM oncemore_keys").
		Scan(&created, &executed, &expires, &purge))
	assert.WithinDuration(t, time.Now(), time.UnixMicro(created), time.Minute)
	assert.WithinDuration(t, time.Now(), time.UnixMicro(executed), time.Minute)
	assert.Equal(t, c.TTL.Microseconds(), expires-created)
	assert.Equal(t, c.Keep.Microseconds(), purge-created)
}
