package server_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
)

// purgeable is a store with a purge, as those of this module are.
type purgeable interface {
	server.Store
	Purge(ctx context.Context) (int64, error)
}

// A row that has just been claimed anew must not fall to a purge that began when
// the old one was there.
func TestB168_APurgeTakesNoNewborn(t *testing.T) {
	t.Parallel()
	sqlite, _ := newSQLite(t)
	for name, tt := range map[string]struct {
		store  purgeable
		rounds int
	}{"memory": {newMemory(), 2000}, "sqlite": {sqlite, 40}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			var purges sync.WaitGroup
			for range 2 {
				purges.Go(func() {
					for ctx.Err() == nil {
						time.Sleep(time.Millisecond)
						_, err := tt.store.Purge(ctx)
						if ctx.Err() == nil {
							assert.NoError(t, err)
						}
					}
				})
			}
			claim := server.Claim{Scope: "a", Method: "POST", Route: "/", Lease: time.Minute, TTL: time.Hour, Keep: time.Hour}
			for range tt.rounds {
				_, _ = rand.Read(claim.ID[:])
				_, _ = rand.Read(claim.Owner[:])
				old := claim
				old.TTL, old.Keep = 0, 0 // to be purged at once
				_, _, err := tt.store.Claim(t.Context(), old)
				require.NoError(t, err)
				hold := server.Hold{ID: old.ID, Owner: old.Owner, Generation: 1}
				ok, err := tt.store.Complete(t.Context(), hold, server.Result{State: server.Done, Status: 200, Data: []byte{1, 0, 0, 0, 0}})
				require.NoError(t, err)
				require.True(t, ok)
				fresh := claim
				_, _ = rand.Read(fresh.Owner[:])
				fresh.Lapses = true // takes the place of the expired row, or of none
				row, found, err := tt.store.Claim(t.Context(), fresh)
				require.NoError(t, err)
				require.True(t, found)
				require.Equal(t, fresh.Owner, row.Owner)
				held, err := tt.store.Renew(t.Context(), server.Hold{ID: fresh.ID, Owner: fresh.Owner, Generation: row.Generation}, time.Minute)
				require.NoError(t, err)
				require.True(t, held, "a purge took a row that runs")
			}
			cancel()
			purges.Wait()
		})
	}
}

// Between the rollback and the unknown record the key is free for another
// process. Losing that race must be said.
func TestTxEffectThatMayHaveRunTwice(t *testing.T) {
	t.Parallel()
	store, l := newSQLite(t)
	var log logBuffer
	_, two := wrapTx(t, newFaulty(store), func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
		w.WriteHeader(http.StatusAccepted)
		return book(r.Context(), tx, "k")
	})
	f := newFaulty(store)
	f.fail(func(call string) error {
		if call == "Claim" { // the unknown record is about to be written
			wantExecuted(t, post(two, "k", "{}", to("/effect/error")), 202)
		}
		return nil
	}, nil)
	var n atomic.Int64
	_, one := wrapTx(t, f, booking(&n), func(c *server.Config) { c.Logger = log.logger() })
	assert.Equal(t, 500, post(one, "k", "{}", to("/effect/error")).Code)
	assert.Contains(t, log.String(), "effect may have run twice")
	assert.Equal(t, 1, l.count(t, "k"))
	assert.Equal(t, 202, post(one, "k", "{}", to("/effect/error")).Code)
}

// A Wait that is longer than the client's patience is of no use to it, but does
// no harm: it comes again.
func TestAClientThatRetriesAllTheTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		g := newMiddleware(t, nil).Wrap(slow(h, 5*time.Second))
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			go post(g, "k", "{}", within(ctx))
			<-ctx.Done()
			cancel()
		}
		w := post(g, "k", "{}")
		assert.Equal(t, "replayed", status(w))
		assert.EqualValues(t, 1, h.runs.Load())
		time.Sleep(time.Minute)
	})
}
