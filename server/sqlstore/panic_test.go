package sqlstore_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
)

// panicsOnce panics before the next statement that begins so.
func (f *faults) panicsOnce(statement string) {
	var panicked atomic.Bool
	f.set(func(s string) error {
		if strings.HasPrefix(s, statement) && panicked.CompareAndSwap(false, true) {
			panic("the driver's")
		}
		return nil
	}, nil)
}

// A driver that panics under one request (its tracing may) costs the others
// nothing: net/http recovers, the process lives on, and so does the store. Not
// so in a COMMIT or in a prepared statement: database/sql never gives back a
// transaction in which that happened, and on SQLite it has the only writer.
func TestDriverPanicsInATransaction(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"BEGIN", "INSERT", "UPDATE"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			f := &faults{}
			s := migrated(t, openFaulty(t, f))
			f.panicsOnce(when)
			assert.PanicsWithValue(t, "the driver's", func() {
				c := newClaim()
				tx, _, _, err := s.BeginTx(t.Context(), &c)
				require.NoError(t, err)
				defer func() { _ = tx.Rollback() }() // as the middleware does
				_, err = tx.Complete(t.Context(), holdOf(c), done())
				require.NoError(t, err)
				require.NoError(t, tx.Commit(t.Context()))
			})
			require.NoError(t, once(t.Context(), s, newClaim()))
		})
	}
}

// A batch too. Where the writer is lost, all who wait are told so.
func TestDriverPanicsInABatch(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"BEGIN", "INSERT", "COMMIT"} {
		for _, prepared := range []bool{false, true} {
			t.Run(when, func(t *testing.T) {
				t.Parallel()
				f := &faults{}
				s := migrated(t, openFaulty(t, f))
				if prepared {
					require.NoError(t, once(t.Context(), s, newClaim()))
				}
				f.panicsOnce(when)
				lost := when == "COMMIT" || when == "INSERT" && prepared
				ctx := t.Context()
				if lost {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, time.Second)
					defer cancel()
				}
				var leader any
				calls := []func(){func() {
					defer func() { leader = recover() }()
					_, _, _ = s.Claim(ctx, newClaim())
				}}
				for range 9 {
					calls = append(calls, func() {
						c := newClaim()
						row, _, err := s.Claim(ctx, c)
						if lost {
							assert.ErrorIs(t, err, server.ErrBusy)
							return
						}
						noError(t, err)
						assert.Equal(t, c.Owner, row.Owner)
					})
				}
				together(t, s, calls...)
				assert.Equal(t, "the driver's", leader)
			})
		}
	}
}
