package redisstore_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
)

// A slot moves to another server while its records are in use: before, between
// and after, the same record answers, and a key can't be won on both.
func TestRecordMovesWithItsSlot(t *testing.T) {
	t.Parallel()
	addrs := startCluster(t, 3)
	client := connectCluster(t, addrs)
	s := newStore(t, client)
	ctx := t.Context()
	c := newClaim()
	_, _, err := s.Claim(ctx, c)
	require.NoError(t, err)

	slot := client.ClusterKeySlot(ctx, keyOf(c.ID)).Val()
	from, err := client.MasterForKey(ctx, keyOf(c.ID))
	require.NoError(t, err)
	var to *redis.Client
	for _, addr := range addrs {
		if addr != from.Options().Addr {
			to = connect(t, addr)
		}
	}
	do := func(node *redis.Client, args ...any) string {
		t.Helper()
		text, err := node.Do(ctx, args...).Text()
		require.NoError(t, err)
		return text
	}
	fromID, toID := do(from, "CLUSTER", "MYID"), do(to, "CLUSTER", "MYID")
	do(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID)
	do(from, "CLUSTER", "SETSLOT", slot, "MIGRATING", toID)
	reads := func(c server.Claim, state server.State) {
		t.Helper()
		row, found, err := s.Claim(ctx, rival(c))
		yes(t, found, err)
		assert.Equal(t, c.Owner, row.Owner)
		assert.Equal(t, state, row.State)
	}
	reads(c, server.Running) // the slot is moving, the record has not yet

	host, port := splitAddr(t, to.Options().Addr)
	do(from, "MIGRATE", host, port, "", 0, 5000, "KEYS", keyOf(c.ID))
	reads(c, server.Running) // the record has moved, the slot is still moving
	ok, err := s.Complete(ctx, holdOf(c), result(c))
	yes(t, ok, err)

	for _, addr := range addrs {
		do(connect(t, addr), "CLUSTER", "SETSLOT", slot, "NODE", toID)
	}
	reads(c, server.Done)
	assert.EqualValues(t, 1, to.Exists(ctx, keyOf(c.ID)).Val())
	_, _, err = once(ctx, newStore(t, connectCluster(t, addrs)), rival(c))
	require.NoError(t, err)
}
