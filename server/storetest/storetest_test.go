package storetest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/storetest"
)

func TestMemoryIsAStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(testing.TB) server.Store { return storetest.NewMemory() })
}

func TestMemoryFollowsTheClockOfABubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := storetest.NewMemory()
		c := server.Claim{Lease: 30 * time.Second, TTL: 24 * time.Hour, Keep: 7 * 24 * time.Hour}
		_, _, err := m.Claim(t.Context(), c)
		require.NoError(t, err)
		for _, step := range []struct {
			sleep         time.Duration
			live, expired bool
		}{
			{30*time.Second - 1, true, false},
			{1, false, false},
			{24*time.Hour - 30*time.Second - 1, false, false},
			{1, false, true},
		} {
			time.Sleep(step.sleep)
			row, found, err := m.Lookup(t.Context(), c.ID)
			require.NoError(t, err)
			require.True(t, found)
			assert.Equal(t, step.live, row.Live)
			assert.Equal(t, step.expired, row.Expired)
		}
	})
}

// The allocation targets of the middleware are measured over this store.
func TestMemoryIsCheap(t *testing.T) {
	m := storetest.NewMemory()
	ctx := t.Context()
	c := server.Claim{Lease: time.Minute, TTL: time.Hour, Keep: time.Hour}
	h := server.Hold{ID: c.ID, Owner: c.Owner, Generation: 1}
	r := server.Result{State: server.Done, Status: 201, Data: []byte("result")}
	run := testing.AllocsPerRun(100, func() {
		_, _, _ = m.Claim(ctx, c)
		_, _ = m.Complete(ctx, h, r)
		_, _ = m.Forget(ctx, c.ID)
	})
	assert.LessOrEqual(t, run, 3.0, "claim and complete")

	_, _, err := m.Claim(ctx, c)
	require.NoError(t, err)
	read := testing.AllocsPerRun(100, func() {
		_, _, _ = m.Claim(ctx, c)
		_, _, _ = m.Lookup(ctx, c.ID)
	})
	assert.Zero(t, read, "reads")
}
