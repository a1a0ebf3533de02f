package server

import (
	"context"
	"errors"
	"sync"
	"time"
)

// lease keeps a hold alive while its handler runs: it renews it every third of
// its length. The same timer ends a handler that runs for MaxRun.
type lease struct {
	run    *run
	renews bool // false: the claim is an open transaction, which needs no lease

	mu       sync.Mutex
	timer    *time.Timer // nil: not started
	deadline time.Time   // of the lease, by our own monotonic clock
	last     time.Time   // when the handler has run for MaxRun
	stopped  bool
	lost     bool // and that was told
}

func (l *lease) cfg() *Config { return &l.run.c.m.cfg }

// start is called once the hold is ours. asked is an instant before the store
// was asked for it: the lease can't end before asked plus its length.
func (l *lease) start(asked time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deadline = asked.Add(l.cfg().Lease)
	l.last = time.Now().Add(l.cfg().MaxRun)
	first := l.cfg().MaxRun
	if l.renews {
		first = min(first, l.cfg().Lease/3)
	}
	l.timer = time.AfterFunc(first, l.beat)
}

// beat renews once, or ends the run.
func (l *lease) beat() {
	l.mu.Lock()
	deadline, last, stopped := l.deadline, l.last, l.stopped
	l.mu.Unlock()
	asked := time.Now()
	switch {
	case stopped:
		return
	case !asked.Before(last):
		if l.end() {
			l.run.cancel(ErrMaxRun)
		}
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), max(l.cfg().Lease/3, minLease))
	held, err := l.run.c.m.store.Renew(ctx, l.run.hold, l.cfg().Lease)
	cancel()

	lost := err == nil && !held
	// A store that is busy with somebody else's transaction lets nobody take
	// the key either. One that only we can't reach may.
	silent := err != nil && !errors.Is(err, ErrBusy) && time.Now().After(deadline)
	switch {
	case lost || silent:
		if l.end() && l.lose() {
			l.run.cancel(ErrLeaseLost)
			l.run.report(EventLeaseLost, err)
		}
	case err != nil:
		l.run.report(EventStoreFailure, err)
		l.again(l.cfg().Lease/10, deadline)
	default:
		l.again(l.cfg().Lease/3, asked.Add(l.cfg().Lease))
	}
}

// again sets the next beat.
func (l *lease) again(in time.Duration, deadline time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.stopped {
		l.deadline = deadline
		l.timer.Reset(max(0, min(in, time.Until(l.last))))
	}
}

// end stops the beats, and reports whether they went on until now.
func (l *lease) end() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := !l.stopped
	l.stopped = true
	if l.timer != nil {
		l.timer.Stop()
	}
	return was
}

// lose notes that the lease is lost, and reports whether that is news.
func (l *lease) lose() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := !l.lost
	l.lost = true
	return was
}

// stop ends the beats, and returns when the lease ends by our clock.
func (l *lease) stop() time.Time {
	l.end()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline
}
