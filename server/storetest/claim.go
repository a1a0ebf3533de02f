package storetest

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/oncemore-go/oncemore/server"
)

// show is a row without its data, for messages and comparisons.
func show(r server.Row) string {
	return fmt.Sprintf("%v owner=%x origin=%x generation=%d attempt=%d fingerprint=%x live=%t expired=%t status=%d data=%d bytes created=%d executed=%d expires=%d",
		r.State, r.Owner[:4], r.Origin[:4], r.Generation, r.Attempt, r.Fingerprint[:4], r.Live, r.Expired, r.Status, len(r.Data),
		r.CreatedAt.UnixMicro(), r.ExecutedAt.UnixMicro(), r.ExpiresAt.UnixMicro())
}

var claimSpecs = []spec{
	{"claim/the first creates the row", func(f *fixture) {
		c := newClaim()
		f.absent(c.ID)
		f.win(c)
		row := f.stands(c.ID, server.Running, 1, 1)
		if row.Owner != c.Owner || row.Origin != c.Owner || row.Fingerprint != c.Fingerprint {
			f.Errorf("not what was claimed: %s", show(row))
		}
		if !row.Live || row.Expired || row.Status != 0 || row.Data != nil || !row.ExecutedAt.IsZero() {
			f.Errorf("not a row that has just begun: %s", show(row))
		}
	}},
	{"claim/the second reads the row of the first", func(f *fixture) {
		c := newClaim()
		f.win(c)
		before := f.row(c.ID)
		if got := f.claim(rival(c)); show(got) != show(before) {
			f.Errorf("the loser got\n %s\nthe row is\n %s", show(got), show(before))
		}
		f.same(before, c.ID)
	}},
	{"claim/one of many wins", func(f *fixture) {
		const keys, claimers = 4, 64
		for range keys {
			c := newClaim()
			rows := make([]server.Row, claimers)
			claims := make([]server.Claim, claimers)
			errs := make([]error, claimers)
			race(claimers, func(i int) {
				claims[i] = rival(c)
				var found bool
				rows[i], found, errs[i] = f.store.Claim(f.Context(), claims[i])
				if errs[i] == nil && !found {
					errs[i] = fmt.Errorf("claimer %d found no row", i)
				}
			})
			winners := 0
			stored := f.row(c.ID)
			for i := range claimers {
				if errs[i] != nil {
					f.Fatal(errs[i])
				}
				if rows[i].Owner == claims[i].Owner {
					winners++
					f.wins(rows[i], claims[i])
				} else if rows[i].Fingerprint != stored.Fingerprint {
					f.Errorf("claimer %d was given %s", i, show(rows[i]))
				}
				if rows[i].Owner != stored.Owner {
					f.Errorf("claimer %d saw another winner than the one stored", i)
				}
			}
			if winners != 1 {
				f.Errorf("%d of %d claims won", winners, claimers)
			}
		}
	}},
	{"claim/sent again it is its own", func(f *fixture) {
		c := newClaim()
		f.win(c)
		f.claim(rival(c))
		f.win(c)
		f.yes(f.store.Complete(f.Context(), holdOf(c), done("result")))
		if row := f.claim(c); row.Origin != c.Owner || row.State != server.Done {
			f.Errorf("after its completion: %s", show(row))
		}
	}},
	{"claim/a done row is handed back whole", func(f *fixture) {
		c, result := newClaim(), done("result")
		f.yes(f.store.Complete(f.Context(), f.win(c), result))
		row := f.claim(rival(c))
		f.holds(row, result)
		if row.Fingerprint != c.Fingerprint || row.Owner != c.Owner {
			f.Errorf("not the winner's row: %s", show(row))
		}
	}},
	{"claim/one that must exist creates nothing", func(f *fixture) {
		c := newClaim()
		c.MustExist = true
		if row, found, err := f.store.Claim(f.Context(), c); err != nil || found {
			f.Fatalf("found %t, %v: %s", found, err, show(row))
		}
		f.absent(c.ID)
		first := c
		first.MustExist = false
		f.win(first)
		if row := f.claim(rival(c)); row.Owner != c.Owner {
			f.Errorf("not the row that is there: %s", show(row))
		}
	}},
}

// brief is a claim whose row expires at once, but is kept.
func brief() server.Claim {
	c := newClaim()
	c.TTL = time.Millisecond
	return c
}

// lapsing is the claim of a rival that lets an expired row count as absent.
func lapsing(c server.Claim) server.Claim {
	c = rival(c)
	c.Lapses = true
	c.TTL, c.Lease = time.Hour, time.Minute
	return c
}

var lapseSpecs = []spec{
	{"lapse/an expired row is kept for a claim that does not lapse", func(f *fixture) {
		c := brief()
		f.yes(f.store.Complete(f.Context(), f.win(c), done("old")))
		f.expired(c.ID)
		row := f.claim(rival(c))
		f.holds(row, done("old"))
		if !row.Expired {
			f.Errorf("the row is past its TTL: %s", show(row))
		}
	}},
	{"lapse/a row within its TTL is kept", func(f *fixture) {
		c := newClaim()
		f.yes(f.store.Complete(f.Context(), f.win(c), done("fresh")))
		f.holds(f.claim(lapsing(c)), done("fresh"))
	}},
	{"lapse/a done row is replaced", func(f *fixture) {
		c := brief()
		f.yes(f.store.Complete(f.Context(), f.win(c), done("old")))
		f.replaced(c)
	}},
	{"lapse/an unknown row is replaced", func(f *fixture) {
		c := brief()
		f.yes(f.store.Complete(f.Context(), f.win(c), unknown()))
		f.replaced(c)
	}},
	{"lapse/an unknown row is replaced, also while it is asked about", func(f *fixture) {
		c := brief()
		f.yes(f.store.Complete(f.Context(), f.win(c), unknown()))
		ask := takeover(holdOf(c))
		ask.Ask = true
		f.yes(f.store.Takeover(f.Context(), ask))
		f.replaced(c)
		f.stale(taken(ask))
	}},
	{"lapse/a run with an ended lease is replaced", func(f *fixture) {
		c := brief()
		c.Lease = time.Millisecond
		f.win(c)
		f.until("the lease has ended", func() bool { return !f.row(c.ID).Live })
		f.replaced(c)
	}},
	{"lapse/a live run is never replaced", func(f *fixture) {
		c := brief()
		h := f.win(c)
		f.expired(c.ID)
		before := f.row(c.ID)
		if row := f.claim(lapsing(c)); row.Owner != c.Owner {
			f.Errorf("a live run was replaced: %s", show(row))
		}
		f.same(before, c.ID)
		f.yes(f.store.Complete(f.Context(), h, done("in the end")))
	}},
	{"lapse/one of many replaces the row", func(f *fixture) {
		c := brief()
		f.yes(f.store.Complete(f.Context(), f.win(c), done("old")))
		f.expired(c.ID)
		var winners atomic.Int32
		race(32, func(int) {
			mine := lapsing(c)
			row, found, err := f.store.Claim(f.Context(), mine)
			switch {
			case err != nil || !found:
				f.Errorf("found %t, %v", found, err)
			case row.State != server.Running:
				f.Errorf("an expired row was handed back: %s", show(row))
			case row.Owner == mine.Owner:
				winners.Add(1)
			}
		})
		if n := winners.Load(); n != 1 {
			f.Errorf("%d claims replaced the row", n)
		}
		f.stands(c.ID, server.Running, 1, 1)
	}},
	{"lapse/one that must exist does not find a lapsed row", func(f *fixture) {
		c := brief()
		f.yes(f.store.Complete(f.Context(), f.win(c), done("old")))
		f.expired(c.ID)
		before := f.row(c.ID)
		mine := lapsing(c)
		mine.MustExist = true
		if row, found, err := f.store.Claim(f.Context(), mine); err != nil || found {
			f.Errorf("found %t, %v: %s", found, err, show(row))
		}
		f.same(before, c.ID)
	}},
}

// replaced fails unless a claim that lapses begins the expired row of c anew.
func (f *fixture) replaced(c server.Claim) {
	f.Helper()
	f.expired(c.ID)
	mine := lapsing(c)
	f.win(mine)
	row := f.stands(c.ID, server.Running, 1, 1)
	if row.Fingerprint != mine.Fingerprint || row.Expired || !row.Live || row.Status != 0 || row.Data != nil || !row.ExecutedAt.IsZero() {
		f.Errorf("the row is not as new: %s", show(row))
	}
	f.no(f.store.Complete(f.Context(), holdOf(c), done("late")))
	f.yes(f.store.Complete(f.Context(), holdOf(mine), done("new")))
	f.holds(f.row(c.ID), done("new"))
}
