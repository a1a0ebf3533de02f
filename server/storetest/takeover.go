package storetest

import (
	"sync/atomic"
	"time"

	"github.com/oncemore-go/oncemore/server"
)

// takeover is the wish of somebody new for a row that somebody has, or had.
func takeover(h server.Hold) server.Takeover {
	return server.Takeover{ID: h.ID, Owner: newToken(), From: h.Owner, Generation: h.Generation, Lease: time.Minute}
}

// taken is the hold that a takeover gives.
func taken(t server.Takeover) server.Hold {
	return server.Hold{ID: t.ID, Owner: t.Owner, Generation: t.Generation + 1}
}

var takeoverSpecs = []spec{
	{"takeover/a live run is left alone", func(f *fixture) {
		c := newClaim()
		f.win(c)
		before := f.row(c.ID)
		f.no(f.store.Takeover(f.Context(), takeover(holdOf(c))))
		ask := takeover(holdOf(c))
		ask.Ask = true
		f.no(f.store.Takeover(f.Context(), ask))
		f.same(before, c.ID)
	}},
	{"takeover/an ended lease can be taken", func(f *fixture) {
		c := f.dead()
		t := takeover(holdOf(c))
		f.yes(f.store.Takeover(f.Context(), t))
		row := f.stands(c.ID, server.Running, 2, 2)
		if row.Owner != t.Owner || row.Origin != c.Owner || !row.Live || row.Fingerprint != c.Fingerprint {
			f.Errorf("after the takeover: %s", show(row))
		}
		f.yes(f.store.Complete(f.Context(), taken(t), done("second run")))
		f.holds(f.stands(c.ID, server.Done, 2, 2), done("second run"))
	}},
	{"takeover/one of many gets it", func(f *fixture) {
		c := f.dead()
		var winners atomic.Int32
		race(32, func(int) {
			ok, err := f.store.Takeover(f.Context(), takeover(holdOf(c)))
			if err != nil {
				f.Error(err)
			}
			if ok {
				winners.Add(1)
			}
		})
		if n := winners.Load(); n != 1 {
			f.Errorf("%d took the row over", n)
		}
		f.stands(c.ID, server.Running, 2, 2)
	}},
	{"takeover/sent again it finds its own row", func(f *fixture) {
		c := f.dead()
		t := takeover(holdOf(c))
		f.yes(f.store.Takeover(f.Context(), t))
		f.yes(f.store.Takeover(f.Context(), t))
		f.stands(c.ID, server.Running, 2, 2)
	}},
	{"takeover/an older generation gets nothing", func(f *fixture) {
		c := f.dead()
		t := takeover(holdOf(c))
		t.Lease = time.Millisecond
		f.yes(f.store.Takeover(f.Context(), t))
		f.until("the second lease has ended", func() bool { return !f.row(c.ID).Live })
		f.no(f.store.Takeover(f.Context(), takeover(holdOf(c))))
		third := takeover(taken(t))
		f.yes(f.store.Takeover(f.Context(), third))
		f.stands(c.ID, server.Running, 3, 3)
	}},
	// Who slept between reading an abandoned row and asking for it must not get a
	// later life of the key.
	{"takeover/a later life of the row is another one", func(f *fixture) {
		c := f.dead()
		f.yes(f.store.Release(f.Context(), holdOf(c)))
		next := rival(c)
		next.Lease = time.Millisecond
		f.win(next)
		f.until("its lease has ended", func() bool { return !f.row(c.ID).Live })
		before := f.row(c.ID)
		f.no(f.store.Takeover(f.Context(), takeover(holdOf(c))))
		ask := takeover(holdOf(c))
		ask.Ask = true
		f.no(f.store.Takeover(f.Context(), ask))
		f.same(before, c.ID)
		f.yes(f.store.Takeover(f.Context(), takeover(holdOf(next))))
	}},
	{"takeover/a done row and a missing one are not taken", func(f *fixture) {
		c := newClaim()
		f.no(f.store.Takeover(f.Context(), takeover(holdOf(c))))
		f.absent(c.ID)
		f.yes(f.store.Complete(f.Context(), f.win(c), done("result")))
		before := f.row(c.ID)
		f.no(f.store.Takeover(f.Context(), takeover(holdOf(c))))
		own := takeover(holdOf(c))
		own.Owner = c.Owner
		f.no(f.store.Takeover(f.Context(), own))
		f.same(before, c.ID)
	}},
	{"takeover/asking keeps state and attempt", func(f *fixture) {
		c := f.dead()
		ask := takeover(holdOf(c))
		ask.Ask = true
		f.yes(f.store.Takeover(f.Context(), ask))
		f.yes(f.store.Takeover(f.Context(), ask))
		if row := f.stands(c.ID, server.Running, 2, 1); !row.Live || row.Owner != ask.Owner {
			f.Errorf("whoever asks holds the row: %s", show(row))
		}
		other := takeover(taken(ask))
		f.no(f.store.Takeover(f.Context(), other))

		runs := takeover(taken(ask))
		runs.Owner = ask.Owner
		f.yes(f.store.Takeover(f.Context(), runs))
		f.stands(c.ID, server.Running, 3, 2)
		f.no(f.store.Complete(f.Context(), taken(ask), done("of the one who asked")))
		f.yes(f.store.Complete(f.Context(), taken(runs), done("of the run")))
	}},
	{"takeover/an unknown outcome is asked about, and run again", func(f *fixture) {
		c := newClaim()
		f.yes(f.store.Complete(f.Context(), f.win(c), unknown()))
		ask := takeover(holdOf(c))
		ask.Ask = true
		f.yes(f.store.Takeover(f.Context(), ask))
		if row := f.stands(c.ID, server.Unknown, 2, 1); !row.Live {
			f.Errorf("whoever asks holds the row: %s", show(row))
		}
		other := takeover(taken(ask))
		f.no(f.store.Takeover(f.Context(), other))
		f.yes(f.store.Renew(f.Context(), taken(ask), time.Minute))

		runs := takeover(taken(ask))
		runs.Owner = ask.Owner
		f.yes(f.store.Takeover(f.Context(), runs))
		f.stands(c.ID, server.Running, 3, 2)
		f.yes(f.store.Release(f.Context(), taken(runs)))
		f.absent(c.ID)
	}},
	// Who read a run whose lease had ended must not run what its owner has called
	// unknown since.
	{"takeover/an unknown outcome is not run again unasked", func(f *fixture) {
		c := f.dead()
		f.yes(f.store.Complete(f.Context(), holdOf(c), unknown()))
		before := f.row(c.ID)
		f.no(f.store.Takeover(f.Context(), takeover(holdOf(c))))
		f.same(before, c.ID)
	}},
	{"takeover/an unknown outcome is asked about, and settled", func(f *fixture) {
		c := newClaim()
		f.yes(f.store.Complete(f.Context(), f.win(c), unknown()))
		ask := takeover(holdOf(c))
		ask.Ask = true
		f.yes(f.store.Takeover(f.Context(), ask))
		f.yes(f.store.Complete(f.Context(), taken(ask), done("it had been done")))
		f.holds(f.stands(c.ID, server.Done, 2, 1), done("it had been done"))
	}},
	{"takeover/an unknown outcome can stay unknown", func(f *fixture) {
		c := newClaim()
		f.yes(f.store.Complete(f.Context(), f.win(c), unknown()))
		ask := takeover(holdOf(c))
		ask.Ask = true
		f.yes(f.store.Takeover(f.Context(), ask))
		f.yes(f.store.Complete(f.Context(), taken(ask), unknown()))
		f.stands(c.ID, server.Unknown, 2, 1)
		again := takeover(taken(ask))
		again.Ask = true
		f.yes(f.store.Takeover(f.Context(), again))
	}},

	{"fence/who was taken over changes nothing", func(f *fixture) {
		c := f.dead()
		t := takeover(holdOf(c))
		f.yes(f.store.Takeover(f.Context(), t))
		before := f.row(c.ID)
		f.stale(holdOf(c))
		f.same(before, c.ID)
		f.yes(f.store.Complete(f.Context(), taken(t), done("the second")))
		before = f.row(c.ID)
		f.stale(holdOf(c))
		f.same(before, c.ID)
	}},
	{"fence/another token or generation changes nothing", func(f *fixture) {
		c := newClaim()
		h := f.win(c)
		before := f.row(c.ID)
		stranger, early, ahead := h, h, h
		stranger.Owner, early.Generation, ahead.Generation = newToken(), 0, 2
		for _, h := range []server.Hold{stranger, early, ahead} {
			f.stale(h)
		}
		f.same(before, c.ID)
	}},
	{"fence/a late release leaves the next owner's row", func(f *fixture) {
		c := newClaim()
		h := f.win(c)
		f.yes(f.store.Release(f.Context(), h))
		next := rival(c)
		f.win(next)
		before := f.row(c.ID)
		f.stale(h)
		f.same(before, c.ID)
	}},

	{"renew/the lease goes on", func(f *fixture) {
		c := newClaim()
		c.Lease = time.Millisecond
		h := f.win(c)
		f.until("the lease has ended", func() bool { return !f.row(c.ID).Live })
		f.yes(f.store.Renew(f.Context(), h, time.Minute))
		if row := f.stands(c.ID, server.Running, 1, 1); !row.Live {
			f.Errorf("the lease was renewed: %s", show(row))
		}
		f.no(f.store.Takeover(f.Context(), takeover(holdOf(c))))
	}},
	{"renew/as often as one likes", func(f *fixture) {
		h := f.win(newClaim())
		for range 20 {
			f.yes(f.store.Renew(f.Context(), h, time.Minute))
		}
	}},
	{"renew/a lease can be made shorter", func(f *fixture) {
		h := f.win(newClaim())
		f.yes(f.store.Renew(f.Context(), h, time.Millisecond))
		f.until("the lease has ended", func() bool { return !f.row(h.ID).Live })
		f.yes(f.store.Takeover(f.Context(), takeover(h)))
	}},
	{"renew/what is over is not held", func(f *fixture) {
		c := newClaim()
		f.no(f.store.Renew(f.Context(), holdOf(c), time.Minute))
		h := f.win(c)
		f.yes(f.store.Complete(f.Context(), h, unknown()))
		f.no(f.store.Renew(f.Context(), h, time.Minute))
		f.yes(f.store.Complete(f.Context(), h, done("known after all")))
		f.no(f.store.Renew(f.Context(), h, time.Minute))
		if row := f.row(c.ID); row.Live {
			f.Errorf("a renewal brought a lease back: %s", show(row))
		}
	}},
}

// stale fails if a hold that is none changes anything.
func (f *fixture) stale(h server.Hold) {
	f.Helper()
	f.no(f.store.Renew(f.Context(), h, time.Minute))
	f.no(f.store.Complete(f.Context(), h, done("stale")))
	f.no(f.store.Complete(f.Context(), h, unknown()))
	f.no(f.store.Release(f.Context(), h))
}
