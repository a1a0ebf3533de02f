package integration_test

import (
	"context"
	"database/sql"
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

// galera is a cluster of two nodes.
type galera struct {
	servers []*dbtest.Server
	direct  [2]*sql.DB // to ask each for what only it knows
	causal  *sql.DB    // of the second node, which answers when it has all that the first had
}

// causal has a node of Galera answer when it has what others had committed.
const causal = "wsrep_sync_wait=1"

func newGalera(t *testing.T) *galera {
	t.Helper()
	servers.mariadb.get(t)
	cluster, err := dbtest.NewGalera(2)
	installed(t, "Galera", err)
	g := &galera{servers: cluster}
	for i, s := range cluster {
		t.Cleanup(func() { require.NoError(t, s.Remove()) })
		require.NoError(t, s.Start())
		g.direct[i] = open(t, "mysql", s.MySQLDSN("test"))
		g.ready(t, i, i+1)
	}
	g.causal = open(t, "mysql", cluster[1].MySQLDSN("test", causal))
	return g
}

// ready waits until a node works, in a cluster of so many: it listens before.
func (g *galera) ready(t *testing.T, node, size int) {
	t.Helper()
	g.status(t, node, "wsrep_ready", "ON")
	g.status(t, node, "wsrep_cluster_size", strconv.Itoa(size))
}

// status waits for what a node says of itself.
func (g *galera) status(t *testing.T, node int, status, want string) {
	t.Helper()
	require.Eventually(t, func() bool {
		var name, value string
		err := g.direct[node].QueryRowContext(t.Context(), "SHOW STATUS LIKE '"+status+"'").Scan(&name, &value)
		return err == nil && value == want
	}, time.Minute, 20*time.Millisecond, status)
}

// create makes a database of its own, and returns its DSN at each node.
func (g *galera) create(t *testing.T) func(node int, options ...string) string {
	t.Helper()
	name := fmt.Sprintf("db%d", databases.Add(1))
	run(t, g.direct[0], "CREATE DATABASE "+name)
	run(t, g.causal, "SELECT 1")
	return func(node int, options ...string) string {
		return g.servers[node].MySQLDSN(name, append(options, "interpolateParams=true")...)
	}
}

// Two nodes are written to at once. Certification undoes one of two commits
// that collide, and the store must not take that one's word for a win.
func TestGalera(t *testing.T) {
	g := newGalera(t)
	dsn := g.create(t)
	var nodes [2]*sqlstore.Store
	for i := range nodes {
		nodes[i] = migrated(t, open(t, "mysql", dsn(i)), sqlstore.MySQL)
	}
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
	t.Run("both purge", func(t *testing.T) {
		db := open(t, "mysql", dsn(0))
		rowsDue(t, db, sqlstore.MySQL, 5000, server.Done, time.Hour)
		run(t, open(t, "mysql", dsn(1, "wsrep_sync_wait=7")), "SELECT 1")
		all(t, 4, func(i int) error { _, err := nodes[i%2].Purge(t.Context()); return err })
		_, err := nodes[0].Purge(t.Context())
		require.NoError(t, err)
		var due int
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM oncemore_keys WHERE purge_at <= UTC_TIMESTAMP(6) AND state = 2").Scan(&due))
		assert.Zero(t, due)
	})
	t.Run("a node is not ready", func(t *testing.T) { notReady(t, g) })
	for _, form := range pairForms[1:] { // those in a transaction
		t.Run("the pair over both, "+form.name, func(t *testing.T) { pairOverBoth(t, g, form.claimFirst, form.wrap) })
	}
	t.Run("an upgrade at one, while a program of before is at the other", func(t *testing.T) { upgradeOfBoth(t, g) })
	t.Run("a node is lost", func(t *testing.T) { nodeIsLost(t, g) }) // last: the cluster is told to notice soon
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
