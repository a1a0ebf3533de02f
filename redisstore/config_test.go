package redisstore_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/redisstore"
	"github.com/oncemore-go/oncemore/server"
)

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	heeds := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true})
	for name, tt := range map[string]struct {
		client redis.UniversalClient
		cfg    redisstore.Config
		want   string
	}{
		"no client":       {nil, redisstore.Config{}, "no client"},
		"no deadlines":    {redis.NewClient(&redis.Options{}), redisstore.Config{}, "ContextTimeoutEnabled"},
		"nor in clusters": {redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}}), redisstore.Config{}, "ContextTimeoutEnabled"},
		"a ring":          {redis.NewRing(&redis.RingOptions{ContextTimeoutEnabled: true}), redisstore.Config{}, "Ring"},
		"a hash tag":      {heeds, redisstore.Config{Prefix: "a{b}"}, "brace"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tt.client != nil {
				t.Cleanup(func() { _ = tt.client.Close() })
			}
			_, err := redisstore.New(tt.client, tt.cfg)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	client := connect(t, startRedis(t).addr())
	s := newStore(t, client)
	ctx := t.Context()
	require.NoError(t, s.Check(ctx))
	set := func(name, value string) {
		t.Helper()
		require.NoError(t, client.ConfigSet(ctx, name, value).Err())
	}
	set("maxmemory-policy", "allkeys-lru")
	err := s.Check(ctx)
	require.ErrorIs(t, err, redisstore.ErrEvicts)
	require.NotErrorIs(t, err, redisstore.ErrForgets)
	set("appendfsync", "everysec")
	err = s.Check(ctx)
	require.ErrorIs(t, err, redisstore.ErrEvicts)
	require.ErrorIs(t, err, redisstore.ErrForgets)
	set("maxmemory-policy", "noeviction")
	require.NotErrorIs(t, s.Check(ctx), redisstore.ErrEvicts)

	// Who may not read the configuration is told what INFO tells.
	require.NoError(t, client.Do(ctx, "ACL", "SETUSER", "app", "on", "nopass", "~*", "+@all", "-config").Err())
	app := redis.NewClient(&redis.Options{Addr: client.Options().Addr, Username: "app", Password: "any", ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = app.Close() })
	require.NoError(t, newStore(t, app).Check(ctx))
	set("appendonly", "no")
	require.ErrorIs(t, newStore(t, app).Check(ctx), redisstore.ErrForgets)
	set("maxmemory-policy", "volatile-ttl")
	require.ErrorIs(t, newStore(t, app).Check(ctx), redisstore.ErrEvicts)
}

func TestTooLargeIsSaidBefore(t *testing.T) {
	t.Parallel()
	require.NoError(t, redisstore.Fits(512<<20))
	assert.ErrorIs(t, redisstore.Fits(512<<20+1), server.ErrTooLarge)
}
