package oncemore

import (
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// budgetIdle is how long a host that is not called is remembered. A storm
	// is not idle; a host that is called this rarely may have its retries.
	budgetIdle = 5 * time.Minute

	// budgetHosts bounds the hosts that are remembered.
	budgetHosts = 10_000
)

// Budget bounds the retries of all calls to one host, so that clients of a
// host that is down do not multiply the load on it. A client has one of its
// own unless Config.Budget gives it one; several clients share a budget by
// being given the same one. It may be used by many goroutines at once. The
// zero Budget is ready to use, with the defaults.
type Budget struct {
	policy atomic.Pointer[BudgetPolicy] // nil: the default

	// used is how many hosts there are in hosts: where it is 0, which is
	// nearly always, a success has nothing to give back to.
	used  atomic.Int64
	mu    sync.Mutex
	hosts map[string]tokens // those below capacity; any other is full
	sweep int               // look for idle hosts when there are this many
}

// tokens is what a host has left.
type tokens struct {
	left   int
	called time.Time
}

// NewBudget returns a budget to share between clients, as Config.Budget; all
// of them draw from the same tokens, host by host. Zero fields of b mean the
// defaults. A negative cost is an error of New, which checks the budget that
// it is given.
func NewBudget(b BudgetPolicy) *Budget {
	budget := &Budget{}
	budget.resize(b)
	return budget
}

// costs returns the policy of the budget, defaults filled in.
func (b *Budget) costs() BudgetPolicy {
	if p := b.policy.Load(); p != nil {
		return *p
	}
	return DefaultPolicy().Budget
}

// off reports whether the budget is switched off.
func (b *Budget) off() bool {
	p := b.policy.Load()
	return p != nil && p.Capacity < 0
}

// check returns what is wrong with the budget's policy.
func (b *Budget) check() error {
	var ps problems
	ps.checkFields("", budgetFields, &Policy{Budget: b.costs()})
	return ps.err("budget")
}

// resize changes the policy. Hosts keep their tokens, cut to the capacity.
func (b *Budget) resize(p BudgetPolicy) {
	p = p.over(DefaultPolicy().Budget)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.policy.Store(&p)
	if p.Capacity < 0 {
		return
	}
	for host, t := range b.hosts {
		if t.left >= p.Capacity {
			b.forget(host)
		}
	}
}

// take takes the cost of a retry, and reports whether the host had that much.
// The host is in lower case, with its port.
func (b *Budget) take(host string, cost int) bool {
	if b.off() {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	t, below := b.find(host, now)
	if !below {
		capacity := b.costs().Capacity
		if cost > capacity {
			return false
		}
		if cost > 0 {
			b.remember(host, tokens{capacity - cost, now})
		}
		return true
	}
	enough := t.left >= cost
	if enough {
		t.left -= cost
	}
	b.hosts[host] = tokens{t.left, now}
	return enough
}

// give gives n tokens back: the cost of a retry that helped, or 1 for a
// success at the first try.
func (b *Budget) give(host string, n int) {
	if b.used.Load() == 0 || b.off() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	t, below := b.find(host, now)
	if !below {
		return
	}
	if n >= b.costs().Capacity-t.left {
		b.forget(host) // full again
		return
	}
	b.hosts[host] = tokens{t.left + n, now}
}

// Level returns how many tokens are left for the host of u, the capacity for one
// that has met no trouble, and -1 if the budget is off: for a gauge, and for
// whoever wonders why calls end with [StopBudget].
func (b *Budget) Level(u *url.URL) int { return b.level(hostPort(u)) }

// level returns how many tokens the host has, -1 if the budget is off.
func (b *Budget) level(host string) int {
	if b.off() {
		return off
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if t, below := b.find(host, time.Now()); below {
		return t.left
	}
	return b.costs().Capacity
}

// find returns the tokens of a host that is not full. The caller holds mu, as
// it does for forget and remember.
func (b *Budget) find(host string, now time.Time) (tokens, bool) {
	t, ok := b.hosts[host]
	if ok && now.Sub(t.called) >= budgetIdle {
		b.forget(host)
		return tokens{}, false
	}
	return t, ok
}

func (b *Budget) forget(host string) {
	delete(b.hosts, host)
	b.used.Store(int64(len(b.hosts)))
}

// remember keeps the tokens of a host that was full. When the hosts have
// doubled it forgets the idle ones first, and if that leaves too many, a part
// of the others: whose they are does not matter much, they get a full budget.
// The host must not be a part of a longer string, which it would keep alive.
func (b *Budget) remember(host string, t tokens) {
	if b.hosts == nil {
		b.hosts = map[string]tokens{}
	}
	if len(b.hosts) >= b.sweep {
		for h := range b.hosts {
			b.find(h, t.called)
		}
		for h := range b.hosts {
			if len(b.hosts) <= budgetHosts*3/4 {
				break
			}
			b.forget(h)
		}
		b.sweep = min(max(2*len(b.hosts), 64), budgetHosts)
	}
	b.hosts[host] = t
	b.used.Store(int64(len(b.hosts)))
}
