package storetest_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/storetest"
)

// database stands for the one that a store is written for. What a store asks of
// it is a single step: read a record, decide by the database's own clock, write
// or delete, with nobody in between, and durable before it returns. In a real
// one that is a transaction, a script, or a compare-and-swap in a loop.
type database struct {
	mu      sync.Mutex
	records map[server.ID][]byte
}

// step gives decide the record, nil if there is none, and keeps what it returns.
func (d *database) step(ctx context.Context, id server.ID, decide func(rec *record, now time.Time) *record) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	var rec *record
	if data := d.records[id]; data != nil {
		if err := json.Unmarshal(data, &rec); err != nil {
			return err
		}
	}
	if rec = decide(rec, time.Now()); rec == nil {
		delete(d.records, id)
		return nil
	}
	data, err := json.Marshal(rec)
	if err == nil {
		d.records[id] = data
	}
	return err
}

// record is a row, and what only the store needs of it.
type record struct {
	server.Row
	Lease time.Time // when it ends; zero: nobody holds the row
	Keep  time.Time // until then no purge takes it
}

func (r *record) live(now time.Time) bool    { return r.Lease.After(now) }
func (r *record) expired(now time.Time) bool { return !r.ExpiresAt.After(now) }
func (r *record) heldBy(h server.Hold) bool {
	return r != nil && r.Owner == h.Owner && r.Generation == h.Generation
}

// lapsed is true of what a claim with Lapses may replace.
func (r *record) lapsed(now time.Time) bool {
	return r.expired(now) && (r.State != server.Running || !r.live(now))
}

func (r *record) read(now time.Time) server.Row {
	row := r.Row
	row.Live, row.Expired = r.live(now), r.expired(now)
	return row
}

// finish gives the record its result, and its lease back.
func (r *record) finish(res server.Result) {
	r.State, r.Status, r.Lease = res.State, res.Status, time.Time{}
	r.Data, r.ExecutedAt = nil, time.Time{}
	if res.State == server.Done {
		r.Data, r.ExecutedAt = res.Data, res.ExecutedAt
	}
}

// ownStore is a server.Store over that database: eight decisions about one
// record. Each is right also when it is asked a second time, because its first
// answer was lost.
type ownStore struct{ db *database }

var _ server.Store = (*ownStore)(nil)

func (s *ownStore) Claim(ctx context.Context, c server.Claim) (row server.Row, found bool, err error) {
	err = s.db.step(ctx, c.ID, func(rec *record, now time.Time) *record {
		there := rec
		if rec != nil && c.Lapses && rec.lapsed(now) {
			there = nil
		}
		if there == nil && !c.MustExist {
			there = &record{
				Row: server.Row{
					State: server.Running, Owner: c.Owner, Origin: c.Owner, Generation: 1, Attempt: 1,
					Fingerprint: c.Fingerprint, CreatedAt: now, ExpiresAt: now.Add(c.TTL),
				},
				Lease: now.Add(c.Lease), Keep: now.Add(c.Keep),
			}
			rec = there
		}
		if found = there != nil; found {
			row = there.read(now)
		}
		return rec
	})
	return row, found && err == nil, err
}

func (s *ownStore) Lookup(ctx context.Context, id server.ID) (server.Row, bool, error) {
	return s.Claim(ctx, server.Claim{ID: id, MustExist: true})
}

func (s *ownStore) Takeover(ctx context.Context, t server.Takeover) (ok bool, err error) {
	err = s.db.step(ctx, t.ID, func(rec *record, now time.Time) *record {
		switch {
		case rec == nil || rec.State == server.Done:
		case rec.Owner == t.Owner && rec.Generation == t.Generation+1: // sent again
			ok = t.Ask || rec.State == server.Running
		case rec.Owner != t.Owner && !t.Ask && rec.State != server.Running: // it is to be asked about first
		case rec.Owner == t.From && rec.Generation == t.Generation && (rec.Owner == t.Owner || !rec.live(now)):
			ok = true
			rec.Owner, rec.Lease = t.Owner, now.Add(t.Lease)
			rec.Generation++
			if !t.Ask {
				rec.State, rec.Status = server.Running, 0
				rec.Attempt++
			}
		}
		return rec
	})
	return ok && err == nil, err
}

func (s *ownStore) Renew(ctx context.Context, h server.Hold, lease time.Duration) (ok bool, err error) {
	err = s.db.step(ctx, h.ID, func(rec *record, now time.Time) *record {
		if ok = rec.heldBy(h) && !rec.Lease.IsZero(); ok {
			rec.Lease = now.Add(lease)
		}
		return rec
	})
	return ok && err == nil, err
}

func (s *ownStore) Complete(ctx context.Context, h server.Hold, r server.Result) (ok bool, err error) {
	if err := isResult(r); err != nil {
		return false, err
	}
	err = s.db.step(ctx, h.ID, func(rec *record, _ time.Time) *record {
		switch {
		case !rec.heldBy(h):
		case rec.State == server.Done: // sent again
			ok = r.State == server.Done
		default:
			ok = true
			rec.finish(r)
		}
		return rec
	})
	return ok && err == nil, err
}

func (s *ownStore) Release(ctx context.Context, h server.Hold) (ok bool, err error) {
	err = s.db.step(ctx, h.ID, func(rec *record, _ time.Time) *record {
		if ok = rec == nil || rec.heldBy(h) && !rec.Lease.IsZero(); ok {
			return nil
		}
		return rec
	})
	return ok && err == nil, err
}

func (s *ownStore) Settle(ctx context.Context, id server.ID, generation int64, r server.Result) (ok bool, err error) {
	if err := isResult(r); err != nil {
		return false, err
	}
	err = s.db.step(ctx, id, func(rec *record, now time.Time) *record {
		switch {
		case rec == nil:
		case rec.Generation == generation+1 && rec.State == r.State && rec.Status == r.Status &&
			(r.State != server.Done || string(rec.Data) == string(r.Data)): // sent again
			ok = true
		case rec.Generation == generation && (rec.State != server.Running || !rec.live(now)):
			ok = true
			rec.Generation++
			rec.finish(r)
		}
		return rec
	})
	return ok && err == nil, err
}

func (s *ownStore) Forget(ctx context.Context, id server.ID) (ok bool, err error) {
	err = s.db.step(ctx, id, func(rec *record, now time.Time) *record {
		if ok = rec == nil || rec.State == server.Done || !rec.live(now); ok {
			return nil
		}
		return rec
	})
	return ok && err == nil, err
}

func isResult(r server.Result) error {
	if r.State != server.Done && r.State != server.Unknown {
		return errors.New("own: a result is Done or Unknown")
	}
	return nil
}

// A store over a database that has one atomic step, whole but for the database,
// and the test that proves it.
func ExampleRun() {
	testOwnStore := func(t *testing.T) {
		db := &database{records: map[server.ID][]byte{}} // a real one is started here, and closed with t.Cleanup
		storetest.Run(t, func(testing.TB) server.Store { return &ownStore{db: db} })
	}
	_ = testOwnStore // go test runs it where it is a function of its own: TestOwnStore
}
