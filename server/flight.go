package server

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// A flight is one key that requests of this process are busy with. The first to
// arrive leads: it alone asks the store. Those who come meanwhile wait in
// memory, and are handed what the leader learned.
//
// A flight passes through: claiming, until the key's fingerprint is decided;
// then either the leader runs the operation, or, where another process has it,
// one watcher reads the row for all; then it ends with an outcome.
type flight struct {
	all *flights
	id  ID

	// Guarded by all.mu.
	fp        Fingerprint
	isDecided bool
	isEnded   bool
	out       outcome
	waiters   int
	decided   chan struct{} // closed when fp is known; made by the first who waits
	ended     chan struct{} // closed when out is known; likewise
	unwatch   context.CancelFunc
}

// outcome is what those who wait are told.
type outcome struct {
	kind outcomeKind
	row  Row     // of outRow: what all but its result is judged by
	res  *stored // of outRow, if it is Done and its result could be read
	err  error   // of outUnavailable; of outRow, if it could not be read
}

type outcomeKind int8

const (
	outRetry       outcomeKind = iota // the key is free or without an owner: one of them leads anew
	outRow                            // this is how things stand
	outTooOld                         // no row, and the key is too old for a new one
	outUnavailable                    // nothing can be decided now
)

// flights are the keys that this process is busy with.
type flights struct {
	mu   sync.Mutex
	byID map[ID]*flight
}

// join returns the key's flight. lead: it is new, fresh if that was not used
// yet, and the caller leads it. Otherwise the caller is one of at most limit
// waiters; full says that they are enough.
func (fs *flights) join(id ID, limit int, fresh *flight) (f *flight, lead, full bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f = fs.byID[id]; f == nil {
		if f = fresh; f.all != nil {
			f = new(flight)
		}
		f.all, f.id = fs, id
		fs.byID[id] = f
		return f, true, false
	}
	if f.waiters >= limit {
		return f, false, true
	}
	f.waiters++
	return f, false, false
}

// isFor reports whether the key may be that of a request with this fingerprint.
func (f *flight) isFor(fp *Fingerprint) bool {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	return !f.isDecided || f.fp.equal(fp)
}

// decide makes known what the key is used for.
func (f *flight) decide(fp *Fingerprint) {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	f.decideLocked(fp)
}

func (f *flight) decideLocked(fp *Fingerprint) {
	if f.isDecided {
		return
	}
	f.fp, f.isDecided = *fp, true
	if f.decided != nil {
		close(f.decided)
	}
}

// end hands out the outcome. Only the first end counts.
func (f *flight) end(out outcome) {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	f.endLocked(out)
}

func (f *flight) endLocked(out outcome) {
	if f.isEnded {
		return
	}
	f.out, f.isEnded = out, true
	delete(f.all.byID, f.id)
	if f.ended != nil {
		close(f.ended)
	}
	if f.unwatch != nil {
		f.unwatch()
	}
}

// abandon ends a flight that its leader leaves without having said how it
// ended.
func (f *flight) abandon() {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	if f.unwatch == nil {
		f.endLocked(outcome{kind: outRetry})
	}
}

// signals returns the channels to wait on.
func (f *flight) signals() (decided, ended <-chan struct{}) {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	if f.ended == nil {
		f.decided, f.ended = make(chan struct{}), make(chan struct{})
		if f.isDecided {
			close(f.decided)
		}
		if f.isEnded {
			close(f.ended)
		}
	}
	return f.decided, f.ended
}

// fingerprint is what was decided.
func (f *flight) fingerprint() (fp Fingerprint) {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	return f.fp
}

// over reports whether the flight has ended.
func (f *flight) over() bool {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	return f.isEnded
}

// leave is for a waiter who waits no longer. A watch that nobody waits for
// ends.
func (f *flight) leave() {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	f.waiters--
	if f.waiters == 0 && f.unwatch != nil {
		f.endLocked(outcome{kind: outRetry})
	}
}

// How often a watcher reads the row: soon at first, as most operations are
// short, and never more than some thirty times a second.
const (
	watchFirst   = 5 * time.Millisecond
	watchMost    = 50 * time.Millisecond
	watchLate    = 250 * time.Millisecond
	watchLateAt  = 5 * time.Second
	watchTimeout = 5 * time.Second
)

// watch makes the leader of a key that another process has into a waiter, and
// starts the one watcher of this process. It holds no connection between reads.
func (m *Middleware) watch(f *flight) {
	ctx, cancel := context.WithCancel(context.Background())
	f.all.mu.Lock()
	f.waiters++
	f.unwatch = cancel
	f.all.mu.Unlock()
	go m.poll(ctx, f)
}

// poll reads the row until there is something to tell.
func (m *Middleware) poll(ctx context.Context, f *flight) {
	start := time.Now()
	delay := watchFirst
	reported := false
	timer := time.NewTimer(jitter(delay))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		row, found, err := m.lookup(ctx, f.id)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if !reported {
				reported = true
				m.emit(ctx, Event{Kind: EventStoreFailure, KeyHash: hexID(f.id), Err: err})
			}
		case found && row.State == Done:
			// Who waited for a run gets its result, however late it is.
			row.Expired = false
			f.end(outcomeOf(row, new(stored)))
			return
		case !found || !row.Live || row.Fingerprint != f.fingerprint():
			// Also where another request has the key by now: not what the
			// waiters were compared with.
			f.end(outcome{kind: outRetry})
			return
		}
		most := watchMost
		if time.Since(start) > watchLateAt {
			most = watchLate
		}
		delay = min(2*delay, most)
		timer.Reset(jitter(delay))
	}
}

func (m *Middleware) lookup(ctx context.Context, id ID) (Row, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	return m.store.Lookup(ctx, id)
}

// jitter keeps the watchers of many processes apart.
func jitter(d time.Duration) time.Duration {
	return d*3/4 + rand.N(d/2)
}

// outcomeOf reads a row that is Done into res, for all who want it.
func outcomeOf(row Row, res *stored) outcome {
	return outcome{kind: outRow, row: row, res: res, err: res.decode(&row)}
}
