package oncemore

import (
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const host = "pay.example.com:443"

func TestBudget(t *testing.T) {
	t.Parallel()
	b := NewBudget(BudgetPolicy{Capacity: 10, RetryCost: 4, TimeoutCost: 9})
	assert.Equal(t, BudgetPolicy{10, 4, 9}, b.costs())
	assert.Equal(t, 10, b.level(host))

	assert.True(t, b.take(host, 4))
	assert.True(t, b.take(host, 4))
	assert.Equal(t, 2, b.level(host))
	assert.False(t, b.take(host, 4), "fewer tokens than the cost")
	assert.Equal(t, 2, b.level(host), "a refusal costs nothing")
	for _, u := range []string{"https://pay.example.com/v1", "https://PAY.example.com:443"} {
		parsed, err := url.Parse(u)
		require.NoError(t, err)
		assert.Equal(t, 2, b.Level(parsed), u)
	}
	assert.True(t, b.take(host, 2), "exactly the cost")
	assert.False(t, b.take(host, 1))
	assert.Equal(t, 10, b.level("pay.example.com:8443"), "another port is another host")

	b.give(host, 1)
	assert.Equal(t, 1, b.level(host))
	b.give(host, 8)
	assert.Equal(t, 9, b.level(host))
	b.give(host, 8)
	assert.Equal(t, 10, b.level(host), "never over capacity")
	b.take(host, 4)
	b.give(host, 4)
	assert.Empty(t, b.hosts, "full hosts are not kept")
	b.give("unknown:80", 8)
	assert.Equal(t, 10, b.level("unknown:80"))
	assert.Empty(t, b.hosts)

	assert.False(t, b.take(host, 11), "more than there ever is")
	assert.True(t, b.take(host, 0))
	assert.Empty(t, b.hosts)
}

func TestBudgetDefaults(t *testing.T) {
	t.Parallel()
	want := BudgetPolicy{Capacity: 500, RetryCost: 5, TimeoutCost: 10}
	for _, b := range []*Budget{{}, NewBudget(BudgetPolicy{})} {
		assert.Equal(t, want, b.costs())
		assert.False(t, b.off())
		require.NoError(t, b.check())
		assert.True(t, b.take(host, 5))
		assert.Equal(t, 495, b.level(host))
	}
	assert.Equal(t, BudgetPolicy{Capacity: 500, RetryCost: 1, TimeoutCost: 10}, NewBudget(BudgetPolicy{RetryCost: 1}).costs())
}

func TestBudgetOff(t *testing.T) {
	t.Parallel()
	b := NewBudget(BudgetPolicy{Capacity: -3})
	assert.True(t, b.off())
	require.NoError(t, b.check())
	for range 1000 {
		assert.True(t, b.take(host, 1000))
	}
	assert.Equal(t, -1, b.level(host))
	b.give(host, 1)
	assert.Empty(t, b.hosts)
}

func TestBudgetCheck(t *testing.T) {
	t.Parallel()
	assert.EqualError(t, NewBudget(BudgetPolicy{RetryCost: -1, TimeoutCost: -2}).check(),
		"oncemore: budget: retry_cost: must not be negative; timeout_cost: must not be negative")
}

func TestBudgetResize(t *testing.T) {
	t.Parallel()
	b := NewBudget(BudgetPolicy{Capacity: 100})
	b.take("low:80", 70)
	b.take("high:80", 10)

	b.resize(BudgetPolicy{Capacity: 50})
	assert.Equal(t, 30, b.level("low:80"), "kept")
	assert.Equal(t, 50, b.level("high:80"), "cut")
	assert.Equal(t, 50, b.level("full:80"))
	b.give("low:80", 100)
	assert.Equal(t, 50, b.level("low:80"))

	b.take("low:80", 45)
	b.resize(BudgetPolicy{Capacity: -1})
	assert.True(t, b.take("low:80", 1000))
	b.give("low:80", 1000)
	b.resize(BudgetPolicy{Capacity: 200, RetryCost: 7})
	assert.Equal(t, 5, b.level("low:80"), "kept while it was off")
	assert.Equal(t, 200, b.level("full:80"))
	assert.Equal(t, BudgetPolicy{200, 7, 10}, b.costs())
}

func TestBudgetForgetsIdleHosts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(BudgetPolicy{Capacity: 10})
		b.take(host, 10)
		for range 5 { // a host that is still called is not idle
			time.Sleep(budgetIdle - 1)
			assert.False(t, b.take(host, 1))
		}
		time.Sleep(budgetIdle - 1)
		b.give(host, 1)
		time.Sleep(budgetIdle - 1)
		assert.Equal(t, 1, b.level(host))
		time.Sleep(time.Nanosecond)
		assert.Equal(t, 10, b.level(host))
		assert.Empty(t, b.hosts)
	})
}

func TestBudgetMemoryIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(BudgetPolicy{})
		for i := range 3 * budgetHosts {
			b.take(fmt.Sprintf("host%d:80", i), 5)
			assert.LessOrEqual(t, len(b.hosts), budgetHosts)
		}
		assert.GreaterOrEqual(t, len(b.hosts), budgetHosts*3/4)

		// Idle ones go without being asked for.
		time.Sleep(budgetIdle)
		for i := range budgetHosts {
			b.take(fmt.Sprintf("new%d:80", i), 5)
		}
		for h := range b.hosts {
			assert.True(t, strings.HasPrefix(h, "new"), h)
		}
	})
}

// However many share it, tokens are neither made nor lost.
func TestBudgetConcurrently(t *testing.T) {
	t.Parallel()
	b := NewBudget(BudgetPolicy{Capacity: 1000})
	var taken atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			n := 0
			for i := range 1000 {
				if b.take(host, 3) {
					n += 3
				}
				if i%2 == 0 && n >= 2 {
					b.give(host, 2)
					n -= 2
				}
				b.level(host)
				b.take(fmt.Sprintf("other%d:80", i%50), 1)
				b.give(fmt.Sprintf("other%d:80", i%50), 1)
			}
			taken.Add(int64(n))
		})
	}
	wg.Wait()
	assert.EqualValues(t, 1000-taken.Load(), b.level(host))

	for range 4 {
		wg.Go(func() {
			for i := range 100 {
				b.resize(BudgetPolicy{Capacity: 500 + i})
				b.take(host, 1)
				b.give(host, 1)
				_, _ = b.costs(), b.off()
			}
		})
	}
	wg.Wait()
}

// Nearly every call is a first-try success.
func TestBudgetSuccessAllocatesNothing(t *testing.T) {
	b := NewBudget(BudgetPolicy{})
	assert.Zero(t, testing.AllocsPerRun(100, func() { b.give(host, 1) }))
	b.take("other:80", 5)
	b.take(host, 400)
	assert.Zero(t, testing.AllocsPerRun(100, func() { b.give(host, 1) }))
}
