package storetest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncemore-go/oncemore/server"
)

// begun is what a BeginTx gave.
type begun struct {
	tx    server.Tx
	row   server.Row
	found bool
	err   error
}

// begin begins a transaction with a claim.
func (f *fixture) begin(ctx context.Context, c server.Claim) begun {
	var b begun
	b.tx, b.row, b.found, b.err = f.txs.BeginTx(ctx, &c)
	return b
}

// open begins a transaction, and fails unless its claim won.
func (f *fixture) open(c server.Claim) server.Tx {
	f.Helper()
	b := f.begin(f.Context(), c)
	switch {
	case b.err != nil:
		f.Fatalf("begin: %v", b.err)
	case b.tx == nil || !b.found:
		f.Fatalf("begin: the claim did not win: %s", show(b.row))
	case b.tx.SQL() == nil:
		f.Fatal("begin: no *sql.Tx")
	}
	f.Cleanup(func() { _ = b.tx.Rollback() })
	f.wins(b.row, c)
	return b.tx
}

// loses fails unless the claim found a row, and holds nothing.
func (f *fixture) loses(b begun) server.Row {
	f.Helper()
	if b.err != nil {
		f.Fatalf("begin: %v", b.err)
	}
	if b.tx != nil {
		_ = b.tx.Rollback()
		f.Fatal("begin: a transaction for a claim that should have lost")
	}
	if !b.found {
		f.Fatal("begin: no row, although the claim creates one")
	}
	return b.row
}

// commit completes and commits.
func (f *fixture) commit(tx server.Tx, c server.Claim, r server.Result) {
	f.Helper()
	f.yes(tx.Complete(f.Context(), holdOf(c), r))
	if err := tx.Commit(f.Context()); err != nil {
		f.Fatalf("commit: %v", err)
	}
}

// other begins the same operation in another goroutine.
func (f *fixture) other(c server.Claim) <-chan begun {
	ch := make(chan begun, 1)
	go func() { ch <- f.begin(f.Context(), c) }()
	return ch
}

// get waits for the other goroutine.
func (f *fixture) get(ch <-chan begun) begun {
	f.Helper()
	select {
	case b := <-ch:
		return b
	case <-time.After(patience):
		f.Fatal("a claim waits for ever")
		return begun{}
	}
}

// waits fails if the other goroutine has its answer already.
func (f *fixture) waits(ch <-chan begun) {
	f.Helper()
	select {
	case b := <-ch:
		f.Fatalf("a claim did not wait for the transaction that has the key: %v, %s", b.err, show(b.row))
	case <-time.After(100 * time.Millisecond):
	}
}

var txSpecs = []spec{
	{"tx/claim, result and commit", func(f *fixture) {
		c := newClaim()
		tx := f.open(c)
		f.commit(tx, c, done("result"))
		if err := tx.Rollback(); err != nil {
			f.Errorf("a rollback after the commit does nothing: %v", err)
		}
		f.holds(f.stands(c.ID, server.Done, 1, 1), done("result"))
		f.holds(f.loses(f.begin(f.Context(), rival(c))), done("result"))
	}},
	{"tx/a rollback leaves nothing", func(f *fixture) {
		c := newClaim()
		tx := f.open(c)
		f.yes(tx.Complete(f.Context(), holdOf(c), done("result")))
		if err := tx.Rollback(); err != nil {
			f.Errorf("rollback: %v", err)
		}
		_ = tx.Rollback()
		f.absent(c.ID)
		next := rival(c)
		f.commit(f.open(next), next, done("the second"))
		f.holds(f.row(c.ID), done("the second"))
	}},
	{"tx/the end of the context rolls back", func(f *fixture) {
		c := newClaim()
		ctx, cancel := context.WithCancel(f.Context())
		b := f.begin(ctx, c)
		if b.err != nil || b.tx == nil {
			f.Fatalf("begin: %v", b.err)
		}
		cancel()
		if ok, err := b.tx.Complete(f.Context(), holdOf(c), done("result")); ok && err == nil {
			if err := b.tx.Commit(f.Context()); err == nil {
				f.Error("committed after the end of the context")
			}
		}
		_ = b.tx.Rollback()
		f.absent(c.ID)
		next := rival(c)
		f.commit(f.open(next), next, done("the second"))
	}},
	{"tx/a claim that has lost leaves nothing open", func(f *fixture) {
		c := newClaim()
		h := f.win(c)
		for range 20 {
			if row := f.loses(f.begin(f.Context(), rival(c))); row.Owner != c.Owner || row.State != server.Running {
				f.Errorf("not the row that is there: %s", show(row))
			}
		}
		f.yes(f.store.Complete(f.Context(), h, done("result")))
	}},
	{"tx/the second waits, and reads what was committed", func(f *fixture) {
		c := newClaim()
		tx := f.open(c)
		second := f.other(rival(c))
		f.waits(second)
		f.commit(tx, c, done("of the first"))
		f.holds(f.loses(f.get(second)), done("of the first"))
	}},
	{"tx/the second waits, and wins after a rollback", func(f *fixture) {
		c, next := newClaim(), rival(newClaim())
		next.ID = c.ID
		tx := f.open(c)
		second := f.other(next)
		f.waits(second)
		if err := tx.Rollback(); err != nil {
			f.Fatal(err)
		}
		b := f.get(second)
		if b.err != nil || b.tx == nil {
			f.Fatalf("the second did not win: %v, %s", b.err, show(b.row))
		}
		f.wins(b.row, next)
		f.commit(b.tx, next, done("of the second"))
		f.holds(f.row(c.ID), done("of the second"))
	}},
	{"tx/one of many wins after a rollback", func(f *fixture) {
		c := newClaim()
		tx := f.open(c)
		var winners atomic.Int32
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				mine := rival(c)
				b := f.begin(f.Context(), mine)
				switch {
				case b.err != nil:
					f.Errorf("begin: %v", b.err)
				case b.tx == nil:
					if b.row.State != server.Done || b.row.Owner == mine.Owner {
						f.Errorf("a loser read %s", show(b.row))
					}
				default:
					winners.Add(1)
					ok, err := b.tx.Complete(f.Context(), holdOf(mine), done("result"))
					if !ok || err != nil {
						f.Errorf("complete: %t, %v", ok, err)
					}
					if err := b.tx.Commit(f.Context()); err != nil {
						f.Errorf("commit: %v", err)
					}
				}
			})
		}
		pause(f.Context(), 50*time.Millisecond)
		if err := tx.Rollback(); err != nil {
			f.Error(err)
		}
		wg.Wait()
		if n := winners.Load(); n != 1 {
			f.Errorf("%d claims won", n)
		}
		f.stands(c.ID, server.Done, 1, 1)
	}},
	{"tx/the wait is bounded", func(f *fixture) {
		c := newClaim()
		tx := f.open(c)
		if b := f.get(f.other(rival(c))); !errors.Is(b.err, server.ErrBusy) {
			f.Errorf("want an error that is ErrBusy, got %v", b.err)
		}
		f.commit(tx, c, done("result"))
		f.holds(f.loses(f.begin(f.Context(), rival(c))), done("result"))
	}},
	{"tx/whoever waits can leave", func(f *fixture) {
		c := newClaim()
		tx := f.open(c)
		ctx, cancel := context.WithTimeout(f.Context(), 50*time.Millisecond)
		defer cancel()
		if b := f.begin(ctx, rival(c)); b.err == nil {
			f.Errorf("want an error: %s", show(b.row))
		}
		f.commit(tx, c, done("result"))
	}},
	{"tx/one of many wins, and the others read its result", func(f *fixture) {
		const claimers = 16
		c := newClaim()
		var winners atomic.Int32
		race(claimers, func(int) {
			mine := rival(c)
			b := f.begin(f.Context(), mine)
			switch {
			case b.err != nil:
				f.Errorf("begin: %v", b.err)
			case b.tx == nil:
				if !b.found || b.row.State != server.Done || string(b.row.Data) != "result" {
					f.Errorf("a loser read %s", show(b.row))
				}
			default:
				winners.Add(1)
				if ok, err := b.tx.Complete(f.Context(), holdOf(mine), done("result")); !ok || err != nil {
					f.Errorf("complete: %t, %v", ok, err)
				}
				if err := b.tx.Commit(f.Context()); err != nil {
					f.Errorf("commit: %v", err)
				}
			}
		})
		if n := winners.Load(); n != 1 {
			f.Errorf("%d of %d claims won", n, claimers)
		}
	}},
	{"tx/complete needs the hold", func(f *fixture) {
		c := newClaim()
		tx := f.open(c)
		lost := holdOf(rival(c))
		f.no(tx.Complete(f.Context(), lost, done("stranger")))
		lost = holdOf(c)
		lost.Generation = 2
		f.no(tx.Complete(f.Context(), lost, done("another generation")))
		f.commit(tx, c, done("result"))
		f.holds(f.row(c.ID), done("result"))
	}},
	{"tx/complete sent again is done", func(f *fixture) {
		c := newClaim()
		tx := f.open(c)
		f.yes(tx.Complete(f.Context(), holdOf(c), done("result")))
		f.commit(tx, c, done("result"))
		f.holds(f.row(c.ID), done("result"))
	}},
	{"tx/an unknown outcome can be recorded", func(f *fixture) {
		c := newClaim()
		f.commit(f.open(c), c, unknown())
		f.stands(c.ID, server.Unknown, 1, 1)
	}},
	{"tx/a handler that ends the transaction is found out", func(f *fixture) {
		c := newClaim()
		tx := f.open(c)
		if err := tx.SQL().Rollback(); err != nil {
			f.Fatal(err)
		}
		f.no(tx.Complete(f.Context(), holdOf(c), done("result")))
		_ = tx.Rollback()
		f.absent(c.ID)
	}},
	{"tx/a claim that must exist begins nothing", func(f *fixture) {
		c := newClaim()
		c.MustExist = true
		if b := f.begin(f.Context(), c); b.err != nil || b.tx != nil || b.found {
			f.Fatalf("found %t, %v", b.found, b.err)
		}
		f.absent(c.ID)
		first := rival(c)
		first.MustExist = false
		f.win(first)
		if row := f.loses(f.begin(f.Context(), c)); row.Owner != first.Owner {
			f.Errorf("not the row that is there: %s", show(row))
		}
	}},
	{"tx/an expired row is kept, or replaced by a claim that lapses", func(f *fixture) {
		c := brief()
		f.yes(f.store.Complete(f.Context(), f.win(c), done("old")))
		f.expired(c.ID)
		if row := f.loses(f.begin(f.Context(), rival(c))); !row.Expired {
			f.Errorf("the row is past its TTL: %s", show(row))
		}
		mine := lapsing(c)
		if err := f.open(mine).Rollback(); err != nil {
			f.Fatal(err)
		}
		f.holds(f.row(c.ID), done("old"))
		f.commit(f.open(mine), mine, done("new"))
		f.holds(f.stands(c.ID, server.Done, 1, 1), done("new"))
		f.holds(f.loses(f.begin(f.Context(), lapsing(c))), done("new"))
	}},

	{"tx/without a claim it is a plain transaction", func(f *fixture) {
		tx, _, _, err := f.txs.BeginTx(f.Context(), nil)
		if err != nil {
			f.Fatal(err)
		}
		if tx == nil || tx.SQL() == nil {
			f.Fatal("no transaction")
		}
		if err := tx.Commit(f.Context()); err != nil {
			f.Error(err)
		}
		if err := tx.Rollback(); err != nil {
			f.Errorf("a rollback after the commit does nothing: %v", err)
		}
	}},
	{"tx/a claim made before is completed in a plain transaction", func(f *fixture) {
		for _, commit := range []bool{false, true} {
			c := newClaim()
			h := f.win(c)
			tx, _, _, err := f.txs.BeginTx(f.Context(), nil)
			if err != nil {
				f.Fatal(err)
			}
			f.yes(tx.Complete(f.Context(), h, done("result")))
			if commit {
				err = tx.Commit(f.Context())
			} else {
				err = tx.Rollback()
			}
			if err != nil {
				f.Fatal(err)
			}
			if commit {
				f.holds(f.row(c.ID), done("result"))
			} else {
				f.stands(c.ID, server.Running, 1, 1)
			}
		}
	}},
	{"tx/a claim that was taken over is not completed in a plain transaction", func(f *fixture) {
		c := f.dead()
		f.yes(f.store.Takeover(f.Context(), takeover(holdOf(c))))
		tx, _, _, err := f.txs.BeginTx(f.Context(), nil)
		if err != nil {
			f.Fatal(err)
		}
		f.no(tx.Complete(f.Context(), holdOf(c), done("stale")))
		if err := tx.Rollback(); err != nil {
			f.Error(err)
		}
		f.stands(c.ID, server.Running, 2, 2)
	}},
	{"tx/one with a cancelled context is not begun", func(f *fixture) {
		ctx, cancel := context.WithCancel(f.Context())
		cancel()
		c := newClaim()
		if b := f.begin(ctx, c); !errors.Is(b.err, context.Canceled) || b.tx != nil {
			f.Errorf("want an error that is context.Canceled, got %v", b.err)
		}
		f.absent(c.ID)
	}},
}
