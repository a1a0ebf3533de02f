package sqlstore_test

import (
	"bytes"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// Two batches that lock rows in one order can't wait for each other: the order
// is that of the ids, whoever came first and whoever leads.
func TestBatchIsInTheOrderOfItsIDs(t *testing.T) {
	t.Parallel()
	q := sqlstore.NewQueue(0, 0)
	ids := make([]server.ID, sqlstore.MaxBatch+10)
	for i := range ids {
		ids[i] = newClaim().ID
	}
	batch := q.Take(ids[0], slices.Concat(ids[1:3], ids[1:])...)
	assert.Len(t, batch, sqlstore.MaxBatch)
	assert.Equal(t, 12, q.Waiting(), "ten too many, and two whose ids are in it")
	assert.True(t, slices.IsSortedFunc(batch, func(x, y server.ID) int { return bytes.Compare(x[:], y[:]) }))
	assert.ElementsMatch(t, ids[:sqlstore.MaxBatch], batch, "who came first is in the first batch")
}

// A few go straight through, whatever the slots. Whoever comes while others wait
// waits too: nobody is overtaken for ever.
func TestAFewGoStraightThrough(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := sqlstore.NewQueue(2, 4)
		var leave []func()
		for range 4 {
			end, straight := q.Enter()
			require.True(t, straight)
			leave = append(leave, end)
		}
		_, straight := q.Enter()
		assert.False(t, straight, "the fifth")
		leave[0]()
		leave[1]()
		assert.Equal(t, 1, q.Waiting(), "two are still under way, and there are two slots")
		_, straight = q.Enter()
		assert.False(t, straight, "others wait")
		leave[2]()
		assert.Equal(t, 1, q.Waiting())
		leave[3]()
		assert.Zero(t, q.Waiting())
		_, straight = q.Enter()
		assert.True(t, straight, "the third")
	})
}

// Where many are under way, the first whom the end of a batch lets through looks
// for those who come right behind, and leads them. Where there are a few it does
// not.
func TestTheFirstOfManyLeadsThem(t *testing.T) { //nolint:paralleltest // one processor, so that who is behind does not run yet
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	leads := func(present, few int) (n int) {
		for range 100 {
			q := sqlstore.NewQueue(present, few)
			for range present {
				_, straight := q.Enter()
				require.True(t, straight)
			}
			go func() { _, _ = q.Enter() }()
			if q.Company() {
				n++
			}
		}
		return n
	}
	assert.Greater(t, leads(3, 0), 50, "the scheduler has other orders too")
	assert.Greater(t, leads(3, 2), 50)
	assert.Less(t, leads(3, 3), 10, "a few")
	assert.Less(t, leads(1, 0), 10, "alone")
}

// A process that stalls (a virtual machine that is moved, a SIGSTOP) finds both:
// its time in the queue is over, and it was given a slot before. The slot counts,
// or nobody would ever hand it on.
func TestASlotIsNotLostInAStall(t *testing.T) {
	t.Parallel()
	for range 100 {
		require.True(t, sqlstore.Answer())
	}
}
