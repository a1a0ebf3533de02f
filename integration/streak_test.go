package integration_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

const short = time.Millisecond

// found is a row that a claim finds.
type found struct {
	name       string
	lease, ttl time.Duration
	result     server.State // 0: it runs; there is no row without a lease
}

// make makes the row, and returns a claim that finds it.
func (f found) make(t *testing.T, s *sqlstore.Store) server.Claim {
	t.Helper()
	c := newClaim()
	c.Lease, c.TTL = f.lease, f.ttl
	if f.lease > 0 {
		_, _, err := s.Claim(t.Context(), c)
		require.NoError(t, err)
	}
	if f.result != 0 {
		r := result(c)
		r.State = f.result
		_, err := s.Complete(t.Context(), holdOf(c), r)
		require.NoError(t, err)
	}
	time.Sleep(2 * short)
	c = rival(c)
	c.Lease, c.TTL = time.Minute, time.Hour
	return c
}

var (
	founds = []found{
		{"absent", 0, 0, 0},
		{"running", time.Minute, time.Hour, 0},
		{"abandoned", short, time.Hour, 0},
		{"running, expired", time.Minute, short, 0},
		{"abandoned, expired", short, short, 0},
		{"done", time.Minute, time.Hour, server.Done},
		{"done, expired", time.Minute, short, server.Done},
		{"unknown", time.Minute, time.Hour, server.Unknown},
		{"unknown, expired", time.Minute, short, server.Unknown},
	}
	streakDrivers = []struct {
		driver  string
		dialect sqlstore.Dialect
	}{{"pgx", sqlstore.Postgres}, {"postgres", sqlstore.Postgres}, {"mysql", sqlstore.MySQL}}
)

// Who expects a replay, after many of them, looks before it opens a transaction:
// it gets the same answers as who does not, whatever the row is.
func TestBeginAfterReplaysAnswersTheSame(t *testing.T) {
	t.Parallel()
	for _, tt := range streakDrivers {
		t.Run(tt.driver, func(t *testing.T) {
			t.Parallel()
			db := open(t, tt.driver, newDatabase(t, tt.dialect, ""))
			plain, replaying := migrated(t, db, tt.dialect), migrated(t, db, tt.dialect)
			old := newClaim()
			_, _, err := once(t.Context(), plain, old, false)
			require.NoError(t, err)
			// answer is what one BeginTx of a new store, or of one after a streak, leads to.
			answer := func(s *sqlstore.Store, c server.Claim) string {
				tx, row, found, err := s.BeginTx(t.Context(), &c)
				require.NoError(t, err)
				if tx != nil {
					require.NoError(t, tx.Rollback())
				}
				return fmt.Sprint(tx != nil, found, row.Owner == c.Owner, row.State, row.Live, row.Expired, row.Generation, row.Attempt, string(row.Data))
			}
			for _, state := range founds {
				for _, lapses := range []bool{false, true} {
					for _, mustExist := range []bool{false, true} {
						c := state.make(t, plain)
						c.Lapses, c.MustExist = lapses, mustExist
						for range 20 {
							_, _, _, err := replaying.BeginTx(t.Context(), new(rival(old)))
							require.NoError(t, err)
						}
						fresh, err := sqlstore.New(db, tt.dialect)
						require.NoError(t, err)
						assert.Equal(t, answer(fresh, c), answer(replaying, rival(c)), "%s, lapses %t, must exist %t", state.name, lapses, mustExist)
					}
				}
			}
		})
	}
}

// A claim asks in another way after many replays, and after many new keys. It is
// answered the same, whatever the row is, and so is whoever comes next.
func TestClaimAfterAStreakAnswersTheSame(t *testing.T) {
	t.Parallel()
	for _, tt := range streakDrivers {
		t.Run(tt.driver, func(t *testing.T) {
			t.Parallel()
			db := open(t, tt.driver, newDatabase(t, tt.dialect, ""))
			plain := migrated(t, db, tt.dialect)
			old := newClaim()
			_, _, err := once(t.Context(), plain, old, false)
			require.NoError(t, err)
			// answer is that to one claim of a row of its own after a streak.
			answer := func(state found, lapses, mustExist bool, before func() server.Claim) string {
				c := state.make(t, plain)
				c.Lapses, c.MustExist = lapses, mustExist
				s, err := sqlstore.New(db, tt.dialect)
				require.NoError(t, err)
				if before != nil {
					for range 10 {
						_, _, err := s.Claim(t.Context(), before())
						require.NoError(t, err)
					}
				}
				row, found, err := s.Claim(t.Context(), c)
				require.NoError(t, err)
				next, nextFound, err := plain.Lookup(t.Context(), c.ID)
				require.NoError(t, err)
				return fmt.Sprint(found, row.Owner == c.Owner, row.Origin == c.Owner, row.Fingerprint == c.Fingerprint, row.State, row.Live,
					row.Expired, row.Generation, row.Attempt, row.Status, len(row.Data), row.ExecutedAt.IsZero(),
					"; ", nextFound, next.Owner == c.Owner, next.State, next.Live, next.Expired, next.Generation, next.Attempt, len(next.Data))
			}
			for _, state := range founds {
				for _, lapses := range []bool{false, true} {
					for _, mustExist := range []bool{false, true} {
						fresh := answer(state, lapses, mustExist, nil)
						assert.Equal(t, fresh, answer(state, lapses, mustExist, func() server.Claim { return rival(old) }),
							"%s after replays, lapses %t, must exist %t", state.name, lapses, mustExist)
						assert.Equal(t, fresh, answer(state, lapses, mustExist, newClaim),
							"%s after new keys, lapses %t, must exist %t", state.name, lapses, mustExist)
					}
				}
			}
		})
	}
}
