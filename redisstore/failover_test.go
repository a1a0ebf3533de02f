package redisstore_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
)

// A replica that had everything takes over: what was claimed is completed there,
// what was done is replayed, and the server that was replaced gives no key away.
func TestFailoverToAReplicaThatFollowed(t *testing.T) {
	t.Parallel()
	first, second := startRedis(t, "--repl-diskless-sync-delay", "0"), startRedis(t, "--repl-diskless-sync-delay", "0")
	old, promoted := connect(t, first.addr()), connect(t, second.addr())
	ctx := t.Context()
	require.NoError(t, promoted.SlaveOf(ctx, "127.0.0.1", strconv.Itoa(first.port)).Err())
	s := newStore(t, old)
	open, done := newClaim(), newClaim()
	_, _, err := s.Claim(ctx, open)
	require.NoError(t, err)
	_, _, err = once(ctx, s, done)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return promoted.Exists(ctx, keyOf(open.ID), keyOf(done.ID)).Val() == 2 &&
			promoted.HGet(ctx, keyOf(done.ID), "state").Val() == "2"
	}, startTimeout, 20*time.Millisecond, "the replica follows")

	require.NoError(t, promoted.SlaveOf(ctx, "NO", "ONE").Err())
	require.NoError(t, old.SlaveOf(ctx, "127.0.0.1", strconv.Itoa(second.port)).Err())

	_, _, err = s.Claim(ctx, newClaim())
	require.True(t, redis.HasErrorPrefix(err, "READONLY") || redis.HasErrorPrefix(err, "MASTERDOWN"), "%v", err)
	s = newStore(t, promoted)
	row, found, err := s.Claim(ctx, rival(open))
	yes(t, found, err)
	assert.Equal(t, open.Owner, row.Owner)
	assert.True(t, row.Live)
	ok, err := s.Complete(ctx, holdOf(open), result(open))
	yes(t, ok, err)
	row, found, err = s.Claim(ctx, rival(done))
	yes(t, found, err)
	assert.Equal(t, server.Done, row.State)
	assert.Equal(t, result(done).Data, row.Data)
	assert.InDelta(t, done.Keep, promoted.PTTL(ctx, keyOf(done.ID)).Val(), float64(time.Minute), "its end came along")
}
