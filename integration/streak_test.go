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

// Who expects a replay, after many of them, looks before it opens a transaction:
// it gets the same answers as who does not, whatever the row is.
func TestBeginAfterReplaysAnswersTheSame(t *testing.T) {
	t.Parallel()
	const short = time.Millisecond
	states := []struct {
		name       string
		lease, ttl time.Duration
		result     server.State // 0: it runs; there is no row without a lease
	}{
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
	for _, tt := range []struct {
		driver  string
		dialect sqlstore.Dialect
	}{{"pgx", sqlstore.Postgres}, {"postgres", sqlstore.Postgres}, {"mysql", sqlstore.MySQL}} {
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
			for _, state := range states {
				for _, lapses := range []bool{false, true} {
					for _, mustExist := range []bool{false, true} {
						c := newClaim()
						c.Lease, c.TTL = state.lease, state.ttl
						if state.lease > 0 {
							_, _, err := plain.Claim(t.Context(), c)
							require.NoError(t, err)
						}
						if state.result != 0 {
							r := result(c)
							r.State = state.result
							_, err := plain.Complete(t.Context(), holdOf(c), r)
							require.NoError(t, err)
						}
						time.Sleep(2 * short)
						c = rival(c)
						c.Lease, c.TTL, c.Lapses, c.MustExist = time.Minute, time.Hour, lapses, mustExist
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
