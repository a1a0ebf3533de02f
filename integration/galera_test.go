package integration_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/integration/dbtest"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
	"github.com/oncemore-go/oncemore/server/storetest"
)

// newGalera starts two nodes, and returns a store over each.
func newGalera(t *testing.T, options ...string) [2]*sqlstore.Store {
	t.Helper()
	servers.mariadb.get(t)
	cluster, err := dbtest.NewGalera(2)
	if errors.Is(err, dbtest.ErrNoBinary) {
		t.Skip("Galera is not installed")
	}
	require.NoError(t, err)
	var stores [2]*sqlstore.Store
	for i, s := range cluster {
		t.Cleanup(func() { require.NoError(t, s.Remove()) })
		require.NoError(t, s.Start())
		db := open(t, "mysql", s.MySQLDSN("test", options...))
		for status, want := range map[string]string{"wsrep_ready": "ON", "wsrep_cluster_size": strconv.Itoa(i + 1)} {
			require.Eventually(t, func() bool { // a node that joins listens before it is one
				var name, value string
				err := db.QueryRowContext(t.Context(), "SHOW STATUS LIKE '"+status+"'").Scan(&name, &value)
				return err == nil && value == want
			}, time.Minute, 100*time.Millisecond, status)
		}
		stores[i] = migrated(t, db, sqlstore.MySQL)
	}
	return stores
}

// Two nodes are written to at once. Certification undoes one of two commits
// that collide, and the store must not take that one's word for a win.
func TestGalera(t *testing.T) {
	nodes := newGalera(t, "interpolateParams=true")
	t.Run("a node is a store", func(t *testing.T) {
		storetest.Run(t, func(testing.TB) server.Store { return nodes[0] })
	})
	for _, inTx := range []bool{false, true} {
		t.Run(fmt.Sprintf("one winner a key over both, in a transaction %t", inTx), func(t *testing.T) {
			race(t, raced(), func(worker int, c server.Claim) (string, bool, error) {
				return settled(t.Context(), nodes[worker%2], c, inTx)
			})
		})
	}
	t.Run("batches collide over both", func(t *testing.T) {
		const keys = 64
		for range twenty() {
			ops := make([]server.Claim, keys)
			var winners [keys]atomic.Int32
			for i := range ops {
				ops[i] = newClaim()
			}
			all(t, 2*keys, func(i int) error {
				c := rival(ops[i/2])
				row, _, err := nodes[i%2].Claim(t.Context(), c)
				if row.Owner == c.Owner {
					winners[i/2].Add(1)
				}
				return err
			})
			for i := range winners {
				assert.EqualValues(t, 1, winners[i].Load())
			}
		}
	})
	t.Run("one takes over, over both", func(t *testing.T) {
		for range 30 {
			c := newClaim()
			c.Lease = time.Millisecond
			_, _, err := nodes[0].Claim(t.Context(), c)
			require.NoError(t, err)
			for _, node := range nodes {
				require.Eventually(t, func() bool {
					row, found, err := node.Lookup(t.Context(), c.ID)
					return err == nil && found && !row.Live
				}, 10*time.Second, time.Millisecond)
			}
			var winners atomic.Int32
			all(t, 8, func(i int) error {
				ok, err := nodes[i%2].Takeover(t.Context(), server.Takeover{
					ID: c.ID, Owner: rival(c).Owner, From: c.Owner, Generation: 1, Lease: time.Minute,
				})
				if ok {
					winners.Add(1)
				}
				return err
			})
			assert.EqualValues(t, 1, winners.Load())
		}
	})
}

// settled is once for an arrival whose transaction may be undone: the key is
// read, and if nobody has done it, its client comes again.
func settled(ctx context.Context, s *sqlstore.Store, op server.Claim, inTx bool) (data string, won bool, err error) {
	for range 50 {
		c := rival(op)
		if data, won, err = once(ctx, s, c, inTx); err == nil || !inTx {
			return data, won, err
		}
		row, found, err := s.Lookup(ctx, c.ID)
		if err == nil && found && row.State == server.Done && row.Owner == c.Owner {
			return string(row.Data), true, nil
		}
	}
	return "", false, err
}
