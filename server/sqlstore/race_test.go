package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/sqlitetest"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// 64 goroutines send each of many keys, in a transaction and without: one of
// them runs, nobody sees an error, and all get the winner's bytes.
func TestOneWinnerAKey(t *testing.T) {
	keys := 1000
	switch {
	case testing.Short():
		keys = 20
	case raceDetector:
		keys = 10
	}
	const arrivals = 64
	for _, inTx := range []bool{false, true} {
		t.Run(fmt.Sprintf("in a transaction %t", inTx), func(t *testing.T) {
			t.Parallel()
			db := sqlitetest.OpenPatient(t, filepath.Join(t.TempDir(), "oncemore.db"))
			db.SetMaxOpenConns(16)
			s := migrated(t, db)
			ops := make([]server.Claim, keys)
			for i := range ops {
				ops[i] = newClaim()
			}
			got := make([][]string, arrivals)
			won := make([]atomic.Pointer[string], keys)
			all(t, arrivals, func(worker int) error {
				got[worker] = make([]string, keys)
				for i := range ops {
					c := newClaim()
					c.ID, c.Fingerprint = ops[i].ID, ops[i].Fingerprint
					data, mine, err := arrive(t.Context(), s, c, inTx)
					if err != nil {
						return fmt.Errorf("key %d: %w", i, err)
					}
					got[worker][i] = data
					if mine && !won[i].CompareAndSwap(nil, &data) {
						return fmt.Errorf("key %d has two winners", i)
					}
				}
				return nil
			})
			for i := range ops {
				winner := won[i].Load()
				require.NotNil(t, winner, "key %d has no winner", i)
				for worker := range got {
					require.Equal(t, *winner, got[worker][i], "key %d", i)
				}
			}
			assert.Equal(t, keys, count(t, db))
			allReturned(t, db)
		})
	}
}

// arrive runs c to its end, and returns what its client would get: the bytes of
// its own run, or those of the one that won.
func arrive(ctx context.Context, s *sqlstore.Store, c server.Claim, inTx bool) (data string, won bool, err error) {
	r := done()
	r.Data = fmt.Appendf(nil, "%x", c.Owner)
	row, ok := server.Row{}, false
	if inTx {
		var tx server.Tx
		if tx, row, _, err = s.BeginTx(ctx, &c); tx != nil {
			defer func() { _ = tx.Rollback() }()
			if ok, err = tx.Complete(ctx, holdOf(c), r); err == nil && ok {
				err = tx.Commit(ctx)
			}
		}
	} else if row, _, err = s.Claim(ctx, c); err == nil && row.Owner == c.Owner {
		ok, err = s.Complete(ctx, holdOf(c), r)
	}
	switch {
	case err != nil:
		return "", false, err
	case row.Owner == c.Owner && !ok:
		return "", false, errors.New("the key is somebody else's")
	case row.Owner == c.Owner:
		return string(r.Data), true, nil
	}
	end := time.Now().Add(time.Minute)
	for pause := 5 * time.Millisecond; row.State != server.Done; pause = min(2*pause, 20*time.Millisecond) {
		if time.Now().After(end) {
			return "", false, errors.New("nobody ends it")
		}
		time.Sleep(pause)
		if row, _, err = s.Lookup(ctx, c.ID); err != nil {
			return "", false, err
		}
	}
	return string(row.Data), false, nil
}
