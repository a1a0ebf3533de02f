package server

import (
	"context"
	"sync"
)

// runs are the handlers that run under a key now.
type runs struct {
	mu      sync.Mutex
	active  map[*run]struct{}
	closing bool
	idle    chan struct{} // closed when closing and none is active
}

func newRuns() runs { return runs{active: make(map[*run]struct{}), idle: make(chan struct{})} }

// enter is false once a shutdown has begun.
func (rs *runs) enter(r *run) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.closing {
		return false
	}
	rs.active[r] = struct{}{}
	return true
}

// leave may be called more than once.
func (rs *runs) leave(r *run) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if _, active := rs.active[r]; !active {
		return
	}
	delete(rs.active, r)
	if rs.closing && len(rs.active) == 0 {
		close(rs.idle)
	}
}

func (rs *runs) closed() bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.closing
}

// close lets no more enter.
func (rs *runs) close() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if !rs.closing {
		rs.closing = true
		if len(rs.active) == 0 {
			close(rs.idle)
		}
	}
}

// cancel ends the context of all that run, and lets their leases end.
func (rs *runs) cancel(cause error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for r := range rs.active {
		r.lease.end()
		r.cancel(cause)
	}
}

// Shutdown stops claiming: a request that would run is answered 503, replays go
// on, and who waits waits on. It returns when the handlers that run have ended
// and their keys are settled. At the end of ctx it cancels those that still run
// (the cause is [ErrShutdown]), leaves their keys to the end of their leases,
// and returns ctx.Err().
//
// Call it beside http.Server.Shutdown, which waits for connections.
func (m *Middleware) Shutdown(ctx context.Context) error {
	m.runs.close()
	select {
	case <-m.runs.idle:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-m.runs.idle: // both, and this is the better news
		return nil
	default:
	}
	m.runs.cancel(ErrShutdown)
	return ctx.Err()
}
