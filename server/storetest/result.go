package storetest

import (
	"github.com/oncemore-go/oncemore/server"
)

var resultSpecs = []spec{
	{"complete/the result is there for everybody", func(f *fixture) {
		c, result := newClaim(), done("result")
		f.yes(f.store.Complete(f.Context(), f.win(c), result))
		row := f.stands(c.ID, server.Done, 1, 1)
		f.holds(row, result)
		if row.ExecutedAt.UnixMilli() != result.ExecutedAt.UnixMilli() {
			f.Errorf("executed at %v, stored as %v", result.ExecutedAt, row.ExecutedAt)
		}
	}},
	{"complete/sent again it is done", func(f *fixture) {
		h := f.win(newClaim())
		f.yes(f.store.Complete(f.Context(), h, done("result")))
		before := f.row(h.ID)
		f.yes(f.store.Complete(f.Context(), h, done("result")))
		f.same(before, h.ID)
		f.no(f.store.Complete(f.Context(), h, unknown()))
		f.same(before, h.ID)
	}},
	{"complete/unknown, and sent again", func(f *fixture) {
		h := f.win(newClaim())
		r := unknown()
		r.Data = []byte("not kept")
		f.yes(f.store.Complete(f.Context(), h, r))
		f.yes(f.store.Complete(f.Context(), h, r))
		row := f.stands(h.ID, server.Unknown, 1, 1)
		if row.Live || row.Data != nil || !row.ExecutedAt.IsZero() || row.Status != 500 {
			f.Errorf("an unknown row has a status, and no data: %s", show(row))
		}
	}},
	{"complete/after the lease, if nobody took over", func(f *fixture) {
		c := f.dead()
		f.yes(f.store.Complete(f.Context(), holdOf(c), done("late")))
		f.holds(f.row(c.ID), done("late"))
	}},
	{"complete/a missing row stays missing", func(f *fixture) {
		c := newClaim()
		f.no(f.store.Complete(f.Context(), holdOf(c), done("result")))
		f.absent(c.ID)
		h := f.win(c)
		f.yes(f.store.Release(f.Context(), h))
		f.no(f.store.Complete(f.Context(), h, done("result")))
		f.absent(c.ID)
	}},
	{"complete/a result is done or unknown", func(f *fixture) {
		h := f.win(newClaim())
		before := f.row(h.ID)
		for _, state := range []server.State{0, server.Running, server.Expired} {
			if ok, err := f.store.Complete(f.Context(), h, server.Result{State: state}); ok || err == nil {
				f.Errorf("completed as %v: %t, %v", state, ok, err)
			}
		}
		f.same(before, h.ID)
	}},

	{"release/the key is free", func(f *fixture) {
		c := newClaim()
		h := f.win(c)
		f.yes(f.store.Release(f.Context(), h))
		f.absent(c.ID)
		f.yes(f.store.Release(f.Context(), h))
		f.win(rival(c))
	}},
	{"release/a lease that has ended can be released", func(f *fixture) {
		c := f.dead()
		f.yes(f.store.Release(f.Context(), holdOf(c)))
		f.absent(c.ID)
	}},
	{"release/never what is done or unknown", func(f *fixture) {
		h := f.win(newClaim())
		f.yes(f.store.Complete(f.Context(), h, unknown()))
		f.no(f.store.Release(f.Context(), h))
		f.stands(h.ID, server.Unknown, 1, 1)
		f.yes(f.store.Complete(f.Context(), h, done("result")))
		f.no(f.store.Release(f.Context(), h))
		f.holds(f.row(h.ID), done("result"))
	}},
}

var settleSpecs = []spec{
	{"settle/an unknown row gets its result", func(f *fixture) {
		h := f.win(newClaim())
		f.yes(f.store.Complete(f.Context(), h, unknown()))
		f.yes(f.store.Settle(f.Context(), h.ID, 1, done("settled")))
		f.holds(f.stands(h.ID, server.Done, 2, 1), done("settled"))
		f.stale(h)
	}},
	{"settle/an abandoned run gets its result", func(f *fixture) {
		c := f.dead()
		f.yes(f.store.Settle(f.Context(), c.ID, 1, done("settled")))
		f.holds(f.stands(c.ID, server.Done, 2, 1), done("settled"))
		f.stale(holdOf(c))
	}},
	{"settle/a row that is being asked about gets its result", func(f *fixture) {
		h := f.win(newClaim())
		f.yes(f.store.Complete(f.Context(), h, unknown()))
		ask := takeover(h)
		ask.Ask = true
		f.yes(f.store.Takeover(f.Context(), ask))
		f.yes(f.store.Settle(f.Context(), h.ID, 2, done("settled")))
		f.stale(taken(ask))
		f.holds(f.stands(h.ID, server.Done, 3, 1), done("settled"))
	}},
	{"settle/a done row gets another", func(f *fixture) {
		h := f.win(newClaim())
		f.yes(f.store.Complete(f.Context(), h, done("")))
		f.yes(f.store.Settle(f.Context(), h.ID, 1, done("with its body")))
		f.holds(f.stands(h.ID, server.Done, 2, 1), done("with its body"))
	}},
	{"settle/a live run is left alone", func(f *fixture) {
		h := f.win(newClaim())
		before := f.row(h.ID)
		f.no(f.store.Settle(f.Context(), h.ID, 1, done("settled")))
		f.same(before, h.ID)
	}},
	{"settle/a row that has moved on, or is not there", func(f *fixture) {
		h := f.win(newClaim())
		f.no(f.store.Settle(f.Context(), newClaim().ID, 1, done("settled")))
		f.yes(f.store.Complete(f.Context(), h, unknown()))
		before := f.row(h.ID)
		f.no(f.store.Settle(f.Context(), h.ID, 0, done("settled")))
		f.no(f.store.Settle(f.Context(), h.ID, 2, done("settled")))
		f.same(before, h.ID)
		f.yes(f.store.Settle(f.Context(), h.ID, 1, done("settled")))
		f.no(f.store.Settle(f.Context(), h.ID, 1, done("otherwise")))
		f.yes(f.store.Settle(f.Context(), h.ID, 1, done("settled"))) // sent again after a lost reply
		f.holds(f.row(h.ID), done("settled"))
	}},

	{"forget/what is over can be removed", func(f *fixture) {
		f.yes(f.store.Forget(f.Context(), newClaim().ID))
		for _, r := range []server.Result{done("result"), unknown()} {
			h := f.win(newClaim())
			f.yes(f.store.Complete(f.Context(), h, r))
			f.yes(f.store.Forget(f.Context(), h.ID))
			f.absent(h.ID)
			f.yes(f.store.Forget(f.Context(), h.ID))
		}
	}},
	{"forget/an abandoned run can be removed", func(f *fixture) {
		c := f.dead()
		f.yes(f.store.Forget(f.Context(), c.ID))
		f.absent(c.ID)
		f.win(rival(c))
	}},
	{"forget/what somebody holds is kept", func(f *fixture) {
		h := f.win(newClaim())
		before := f.row(h.ID)
		f.no(f.store.Forget(f.Context(), h.ID))
		f.same(before, h.ID)

		f.yes(f.store.Complete(f.Context(), h, unknown()))
		ask := takeover(h)
		ask.Ask = true
		f.yes(f.store.Takeover(f.Context(), ask))
		before = f.row(h.ID)
		f.no(f.store.Forget(f.Context(), h.ID))
		f.same(before, h.ID)
	}},
}
