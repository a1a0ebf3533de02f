package redisstore_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/redisstore"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/storetest"
)

// newClaim is a claim of an identity of its own, for long.
func newClaim() server.Claim {
	c := server.Claim{
		Scope: "tenant", Method: "POST", Route: "POST /payments",
		Lease: time.Minute, TTL: time.Hour, Keep: 24 * time.Hour,
	}
	_, _ = rand.Read(c.ID[:])
	_, _ = rand.Read(c.Fingerprint[:])
	_, _ = rand.Read(c.Owner[:])
	return c
}

// rival is the same operation from another arrival.
func rival(c server.Claim) server.Claim {
	_, _ = rand.Read(c.Owner[:])
	return c
}

func holdOf(c server.Claim) server.Hold {
	return server.Hold{ID: c.ID, Owner: c.Owner, Generation: 1}
}

// result names its run, so that everybody can tell whose it is.
func result(c server.Claim) server.Result {
	return server.Result{State: server.Done, Status: 201, Data: fmt.Appendf(nil, "%x", c.Owner), ExecutedAt: time.Now()}
}

func keyOf(id server.ID) string { return "oncemore:{" + hex.EncodeToString(id[:]) + "}" }

// all runs n calls at once, and fails if one of them did.
func all(t *testing.T, n int, call func(i int) error) {
	t.Helper()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = call(i) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
}

// yes fails unless the store said so.
func yes(t *testing.T, ok bool, err error) {
	t.Helper()
	require.NoError(t, err)
	require.True(t, ok)
}

func TestRedisIsAStore(t *testing.T) {
	t.Parallel()
	addr := startRedis(t).addr()
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			client := redis.NewClient(&redis.Options{Addr: addr, Protocol: protocol, ContextTimeoutEnabled: true})
			t.Cleanup(func() { _ = client.Close() })
			store := newStore(t, client)
			storetest.Run(t, func(testing.TB) server.Store { return store })
		})
	}
}

func TestClusterIsAStore(t *testing.T) {
	t.Parallel()
	addrs := startCluster(t, 3)
	store := newStore(t, connectCluster(t, addrs))
	storetest.Run(t, func(testing.TB) server.Store { return store })
	require.NoError(t, store.Check(t.Context()))
	for _, addr := range addrs {
		keys, err := connect(t, addr).DBSize(t.Context()).Result()
		require.NoError(t, err)
		assert.Positive(t, keys, "records on %s", addr)
	}
}

// once runs c to its end, as the middleware does, and returns what its client
// would get: from its own run, or from the one that won.
func once(ctx context.Context, s *redisstore.Store, c server.Claim) (data string, won bool, err error) {
	row, found, err := s.Claim(ctx, c)
	if err != nil || !found {
		return "", false, fmt.Errorf("claim: %t, %w", found, err)
	}
	if row.Owner == c.Owner {
		ok, err := s.Complete(ctx, holdOf(c), result(c))
		if !ok || err != nil {
			return "", false, fmt.Errorf("complete: %t, %w", ok, err)
		}
		return string(result(c).Data), true, nil
	}
	for row.State != server.Done {
		if err := wait(ctx, 5*time.Millisecond); err != nil {
			return "", false, err
		}
		if row, _, err = s.Lookup(ctx, c.ID); err != nil {
			return "", false, fmt.Errorf("lookup: %w", err)
		}
	}
	return string(row.Data), false, nil
}

// 64 arrivals a key at once, through two clients: one of them runs, nobody sees
// an error, and all get its bytes.
func TestOneWinnerAKey(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) [2]*redisstore.Store{
		"one server": func(t *testing.T) [2]*redisstore.Store {
			addr := startRedis(t, "--appendfsync", "no").addr()
			return [2]*redisstore.Store{newStore(t, connect(t, addr)), newStore(t, connect(t, addr))}
		},
		"a cluster": func(t *testing.T) [2]*redisstore.Store {
			addrs := startCluster(t, 3)
			return [2]*redisstore.Store{newStore(t, connectCluster(t, addrs)), newStore(t, connectCluster(t, addrs[:1]))}
		},
	} {
		t.Run(name, func(t *testing.T) {
			stores := open(t)
			const keys, arrivals = 100, 64
			ops := make([]server.Claim, keys)
			winners := make([]atomic.Int32, keys)
			var mu sync.Mutex
			answers := make([]map[string]bool, keys)
			for i := range ops {
				ops[i], answers[i] = newClaim(), map[string]bool{}
			}
			// Every worker goes through all keys, so that all meet at each.
			all(t, arrivals, func(worker int) error {
				for i := range keys {
					data, won, err := once(t.Context(), stores[worker%2], rival(ops[i]))
					if err != nil {
						return err
					}
					if won {
						winners[i].Add(1)
					}
					mu.Lock()
					answers[i][data] = true
					mu.Unlock()
				}
				return nil
			})
			for i := range keys {
				assert.EqualValues(t, 1, winners[i].Load(), "winners of key %d", i)
				assert.Len(t, answers[i], 1, "answers of key %d", i)
			}
		})
	}
}

// What is done ends by itself when it has been kept long enough; what runs or is
// unknown never does, whatever it was before.
func TestOnlyWhatIsDoneEnds(t *testing.T) {
	t.Parallel()
	client := connect(t, startRedis(t).addr())
	s := newStore(t, client)
	ctx := t.Context()
	unknown := server.Result{State: server.Unknown, Status: 500}
	left := func(id server.ID) time.Duration {
		t.Helper()
		d, err := client.PTTL(ctx, keyOf(id)).Result()
		require.NoError(t, err)
		return d
	}
	const never = time.Duration(-1)

	c := newClaim()
	c.TTL, c.Lease = time.Millisecond, time.Millisecond
	_, _, err := s.Claim(ctx, c)
	require.NoError(t, err)
	assert.Equal(t, never, left(c.ID), "running")
	require.NoError(t, wait(ctx, 5*time.Millisecond))
	taken := server.Hold{ID: c.ID, Owner: rival(c).Owner, Generation: 2}
	ok, err := s.Takeover(ctx, server.Takeover{ID: c.ID, Owner: taken.Owner, From: c.Owner, Generation: 1, Lease: time.Minute})
	yes(t, ok, err)
	assert.Equal(t, never, left(c.ID), "taken over")
	ok, err = s.Complete(ctx, taken, unknown)
	yes(t, ok, err)
	assert.Equal(t, never, left(c.ID), "unknown")
	ok, err = s.Settle(ctx, c.ID, 2, result(c))
	yes(t, ok, err)
	assert.InDelta(t, c.Keep, left(c.ID), float64(time.Minute), "settled")
	ok, err = s.Settle(ctx, c.ID, 3, unknown)
	yes(t, ok, err)
	assert.Equal(t, never, left(c.ID), "settled as unknown")
	ok, err = s.Settle(ctx, c.ID, 4, result(c))
	yes(t, ok, err)
	again := rival(c)
	again.Lapses = true
	row, _, err := s.Claim(ctx, again)
	require.NoError(t, err)
	require.Equal(t, again.Owner, row.Owner, "it has lapsed")
	assert.Equal(t, never, left(c.ID), "running anew")

	short := newClaim()
	short.TTL, short.Keep = time.Millisecond, 300*time.Millisecond
	_, _, err = s.Claim(ctx, short)
	require.NoError(t, err)
	require.NoError(t, wait(ctx, 400*time.Millisecond))
	row, found, err := s.Lookup(ctx, short.ID)
	require.NoError(t, err)
	require.True(t, found, "a run outlives its end")
	assert.True(t, row.Expired)
	ok, err = s.Complete(ctx, holdOf(short), result(short))
	yes(t, ok, err)
	_, found, err = s.Lookup(ctx, short.ID)
	require.NoError(t, err)
	assert.False(t, found, "done, and past its end")
}

// A replay writes nothing: neither to memory nor to the append-only file.
func TestReplayWritesNothing(t *testing.T) {
	t.Parallel()
	client := connect(t, startRedis(t).addr())
	s := newStore(t, client)
	c := newClaim()
	_, _, err := once(t.Context(), s, c)
	require.NoError(t, err)
	require.NoError(t, client.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err()) // there is none: every write is refused
	row, found, err := s.Claim(t.Context(), rival(c))
	require.NoError(t, err)
	require.True(t, found)
	assert.Equal(t, result(c).Data, row.Data)
	_, _, err = s.Claim(t.Context(), newClaim())
	assert.True(t, redis.HasErrorPrefix(err, "NOREPLICAS"), "%v", err)
}

// A server without memory refuses, and a result that it refused is no half of one.
func TestFullServerChangesNothing(t *testing.T) {
	t.Parallel()
	client := connect(t, startRedis(t).addr())
	s := newStore(t, client)
	c := newClaim()
	_, _, err := s.Claim(t.Context(), c)
	require.NoError(t, err)
	before := client.HGetAll(t.Context(), keyOf(c.ID)).Val()
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	ok, err := s.Complete(t.Context(), holdOf(c), result(c))
	require.False(t, ok)
	require.True(t, redis.HasErrorPrefix(err, "OOM"), "%v", err)
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "0").Err())
	assert.Equal(t, before, client.HGetAll(t.Context(), keyOf(c.ID)).Val())
	ok, err = s.Complete(t.Context(), holdOf(c), result(c))
	yes(t, ok, err)
}

// Keys that somebody else wrote are an error, not a row, and are left alone.
func TestForeignKeys(t *testing.T) {
	t.Parallel()
	client := connect(t, startRedis(t).addr())
	s := newStore(t, client)
	ctx := t.Context()
	text, hash := newClaim(), newClaim()
	require.NoError(t, client.Set(ctx, keyOf(text.ID), "hello", 0).Err())
	require.NoError(t, client.HSet(ctx, keyOf(hash.ID), "state", "2", "expires_at", "0", "lease_until", "0").Err())
	for _, c := range []server.Claim{text, hash} {
		_, _, err := s.Claim(ctx, c)
		require.Error(t, err)
		_, _, err = s.Lookup(ctx, c.ID)
		require.Error(t, err)
		ok, err := s.Complete(ctx, holdOf(c), result(c))
		assert.False(t, ok, "%v", err)
	}
	assert.Equal(t, "hello", client.Get(ctx, keyOf(text.ID)).Val())
}

// Two services over one Redis, each with its prefix, do not see each other.
func TestPrefix(t *testing.T) {
	t.Parallel()
	client := connect(t, startRedis(t).addr())
	other, err := redisstore.New(client, redisstore.Config{Prefix: "billing"})
	require.NoError(t, err)
	c := newClaim()
	_, won, err := once(t.Context(), newStore(t, client), c)
	require.NoError(t, err)
	require.True(t, won)
	_, won, err = once(t.Context(), other, rival(c))
	require.NoError(t, err)
	assert.True(t, won)
}
