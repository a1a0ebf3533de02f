package storetest

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/oncemore-go/oncemore/server"
)

var _ server.Store = (*Memory)(nil)

// Memory is a [server.Store] in the memory of one process: the reference for
// those who write a store, and what tests of handlers run over.
//
// It is no production store. It forgets everything on a restart, a second
// process never knows what the first one did, and it grows until Purge is
// called. Package sqlstore has the real one.
//
// It reads the time with [time.Now], so it works in a testing/synctest bubble.
// All methods are safe for concurrent use. The Data of a row that it returns
// is shared and must not be changed. It is no [server.TxStore].
type Memory struct {
	mu   sync.Mutex
	rows map[server.ID]*record
}

// record is a row and what only the store needs of it.
type record struct {
	row     server.Row // Live and Expired are filled in when it is read
	lease   time.Time  // zero: held by nobody
	purgeAt time.Time
}

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{rows: make(map[server.ID]*record)}
}

// Claim implements [server.Store].
func (m *Memory) Claim(ctx context.Context, c server.Claim) (server.Row, bool, error) {
	if err := ctx.Err(); err != nil {
		return server.Row{}, false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	rec := m.rows[c.ID]
	if rec != nil && c.Lapses && rec.lapsed(now) {
		rec = nil
	}
	switch {
	case rec != nil:
		return rec.read(now), true, nil
	case c.MustExist:
		return server.Row{}, false, nil
	}
	rec = &record{
		row: server.Row{
			State:       server.Running,
			Owner:       c.Owner,
			Origin:      c.Owner,
			Generation:  1,
			Attempt:     1,
			Fingerprint: c.Fingerprint,
			CreatedAt:   now,
			ExpiresAt:   now.Add(c.TTL),
		},
		lease:   now.Add(c.Lease),
		purgeAt: now.Add(c.Keep),
	}
	m.rows[c.ID] = rec
	return rec.read(now), true, nil
}

// Takeover implements [server.Store].
func (m *Memory) Takeover(ctx context.Context, t server.Takeover) (bool, error) {
	return m.change(ctx, t.ID, func(rec *record, now time.Time) bool {
		row := &rec.row
		switch {
		case row.State == server.Done:
			return false
		case row.Owner == t.Owner && row.Generation == t.Generation+1:
			return t.Ask || row.State == server.Running // sent again
		case row.Generation != t.Generation || row.Owner != t.From:
			return false
		case row.Owner != t.Owner && (rec.live(now) || !t.Ask && row.State != server.Running):
			return false
		}
		row.Owner = t.Owner
		row.Generation++
		if !t.Ask {
			row.State = server.Running
			row.Status = 0
			row.Attempt++
		}
		rec.lease = now.Add(t.Lease)
		return true
	})
}

// Renew implements [server.Store].
func (m *Memory) Renew(ctx context.Context, h server.Hold, lease time.Duration) (bool, error) {
	return m.change(ctx, h.ID, func(rec *record, now time.Time) bool {
		if !rec.heldBy(h) || rec.lease.IsZero() {
			return false
		}
		rec.lease = now.Add(lease)
		return true
	})
}

// Complete implements [server.Store].
func (m *Memory) Complete(ctx context.Context, h server.Hold, r server.Result) (bool, error) {
	if err := checkResult(r); err != nil {
		return false, err
	}
	return m.change(ctx, h.ID, func(rec *record, _ time.Time) bool {
		switch {
		case !rec.heldBy(h):
			return false
		case rec.row.State == server.Done:
			return r.State == server.Done // sent again
		}
		rec.finish(r)
		return true
	})
}

// Release implements [server.Store].
func (m *Memory) Release(ctx context.Context, h server.Hold) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	rec := m.rows[h.ID]
	if rec == nil {
		return true, nil
	}
	if !rec.heldBy(h) || rec.lease.IsZero() {
		return false, nil
	}
	delete(m.rows, h.ID)
	return true, nil
}

// Lookup implements [server.Store].
func (m *Memory) Lookup(ctx context.Context, id server.ID) (server.Row, bool, error) {
	if err := ctx.Err(); err != nil {
		return server.Row{}, false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	rec := m.rows[id]
	if rec == nil {
		return server.Row{}, false, nil
	}
	return rec.read(time.Now()), true, nil
}

// Settle implements [server.Store].
func (m *Memory) Settle(ctx context.Context, id server.ID, generation int64, r server.Result) (bool, error) {
	if err := checkResult(r); err != nil {
		return false, err
	}
	return m.change(ctx, id, func(rec *record, now time.Time) bool {
		if rec.row.Generation == generation+1 && rec.has(r) {
			return true // sent again
		}
		if rec.row.Generation != generation || rec.row.State == server.Running && rec.live(now) {
			return false
		}
		rec.row.Generation++
		rec.finish(r)
		return true
	})
}

// Forget implements [server.Store].
func (m *Memory) Forget(ctx context.Context, id server.ID) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	rec := m.rows[id]
	if rec != nil && rec.row.State != server.Done && rec.live(time.Now()) {
		return false, nil
	}
	delete(m.rows, id)
	return true, nil
}

// Purge removes the rows that are Done and were kept as long as their claim
// asked for, and returns how many there were.
func (m *Memory) Purge(ctx context.Context) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	var n int64
	for id, rec := range m.rows {
		if rec.row.State == server.Done && !rec.purgeAt.After(now) {
			delete(m.rows, id)
			n++
		}
	}
	return n, nil
}

// change runs f over the row of id, if there is one.
func (m *Memory) change(ctx context.Context, id server.ID, f func(*record, time.Time) bool) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	rec := m.rows[id]
	return rec != nil && f(rec, time.Now()), nil
}

// live reports whether somebody holds the row.
func (r *record) live(now time.Time) bool { return r.lease.After(now) }

// expired reports whether the row is past its TTL.
func (r *record) expired(now time.Time) bool { return !r.row.ExpiresAt.After(now) }

// lapsed reports whether a claim that lapses may replace the row.
func (r *record) lapsed(now time.Time) bool {
	return r.expired(now) && (r.row.State != server.Running || !r.live(now))
}

// heldBy reports whether h is the newest hold of the row.
func (r *record) heldBy(h server.Hold) bool {
	return r.row.Owner == h.Owner && r.row.Generation == h.Generation
}

// has reports whether the row was given this result.
func (r *record) has(res server.Result) bool {
	return r.row.State == res.State && r.row.Status == res.Status &&
		(res.State != server.Done || bytes.Equal(r.row.Data, res.Data))
}

// read returns the row as it is now.
func (r *record) read(now time.Time) server.Row {
	row := r.row
	row.Live = r.live(now)
	row.Expired = r.expired(now)
	return row
}

// finish gives the row its result, and its lease back.
func (r *record) finish(res server.Result) {
	r.lease = time.Time{}
	r.row.State = res.State
	r.row.Status = res.Status
	r.row.Data = nil
	r.row.ExecutedAt = time.Time{}
	if res.State == server.Done {
		r.row.Data = bytes.Clone(res.Data)
		r.row.ExecutedAt = res.ExecutedAt
	}
}

func checkResult(r server.Result) error {
	if r.State != server.Done && r.State != server.Unknown {
		return errors.New("storetest: a result is Done or Unknown")
	}
	return nil
}
