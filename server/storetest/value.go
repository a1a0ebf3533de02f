package storetest

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/oncemore-go/oncemore/server"
)

var valueSpecs = []spec{
	{"value/times", func(f *fixture) {
		c := newClaim()
		f.win(c)
		row := f.row(c.ID)
		if off := time.Since(row.CreatedAt); off.Abs() > 5*time.Minute {
			f.Errorf("created at %v, %v from now: a time zone?", row.CreatedAt, off)
		}
		if ttl := row.ExpiresAt.Sub(row.CreatedAt); (ttl - c.TTL).Abs() > 2*time.Millisecond {
			f.Errorf("expires %v after its creation, not %v", ttl, c.TTL)
		}
		f.yes(f.store.Complete(f.Context(), holdOf(c), done("result")))
		after := f.row(c.ID)
		if !after.CreatedAt.Equal(row.CreatedAt) || !after.ExpiresAt.Equal(row.ExpiresAt) {
			f.Errorf("the completion moved the times of the claim: %s", show(after))
		}
	}},
	{"value/a result without a time", func(f *fixture) {
		h := f.win(newClaim())
		f.yes(f.store.Complete(f.Context(), h, server.Result{State: server.Done, Status: 204}))
		if row := f.row(h.ID); !row.ExecutedAt.IsZero() {
			f.Errorf("executed at %v", row.ExecutedAt)
		}
	}},
	{"value/a running row can be past its TTL", func(f *fixture) {
		c := brief()
		f.win(c)
		f.expired(c.ID)
		if row := f.stands(c.ID, server.Running, 1, 1); !row.Live {
			f.Errorf("the lease is not the TTL: %s", show(row))
		}
	}},
	{"value/identities differ by any bit", func(f *fixture) {
		c := newClaim()
		copy(c.ID[:], "\x00 aA\xff\\'\"\x1a%_")
		h := f.win(c)
		f.yes(f.store.Complete(f.Context(), h, done("the first")))
		for i := range len(c.ID) {
			other := rival(c)
			other.ID[i] ^= 1 << (i % 8)
			f.win(other)
		}
		upper := rival(c)
		upper.ID[2] ^= 'a' ^ 'A'
		f.win(upper)
		f.holds(f.row(c.ID), done("the first"))
	}},
	{"value/identities of one byte", func(f *fixture) {
		for _, b := range []byte{0x00, 0x20, 0x7f, 0x80, 0xff} {
			c := newClaim()
			copy(c.ID[16:], bytes.Repeat([]byte{b}, 16))
			f.yes(f.store.Complete(f.Context(), f.win(c), done(string(b))))
			f.holds(f.row(c.ID), done(string(b)))
		}
	}},
	{"value/data of every byte", func(f *fixture) {
		data := make([]byte, 0, 256<<10)
		for i := range cap(data) {
			data = append(data, byte(i+i>>8))
		}
		h := f.win(newClaim())
		r := done("")
		r.Data = data
		f.yes(f.store.Complete(f.Context(), h, r))
		f.holds(f.row(h.ID), r)
	}},
	{"value/no data", func(f *fixture) {
		for _, data := range [][]byte{nil, {}} {
			h := f.win(newClaim())
			r := done("")
			r.Data = data
			f.yes(f.store.Complete(f.Context(), h, r))
			f.holds(f.row(h.ID), r)
		}
	}},
	{"value/data is the store's own", func(f *fixture) {
		h := f.win(newClaim())
		r := done("result")
		f.yes(f.store.Complete(f.Context(), h, r))
		clear(r.Data)
		f.holds(f.row(h.ID), done("result"))
	}},
	{"value/data that may not fit", func(f *fixture) {
		h := f.win(newClaim())
		r := done("")
		r.Data = bytes.Repeat([]byte("0123456789abcde\x00"), 5<<20/16)
		ok, err := f.store.Complete(f.Context(), h, r)
		if err == nil {
			f.yes(ok, err)
			f.holds(f.row(h.ID), r)
			return
		}
		if !errors.Is(err, server.ErrTooLarge) {
			f.Fatalf("an error that does not say that the result is too large: %v", err)
		}
		f.stands(h.ID, server.Running, 1, 1)
		f.yes(f.store.Complete(f.Context(), h, done("less")))
		f.holds(f.row(h.ID), done("less"))
	}},
	{"value/labels of any length and kind", func(f *fixture) {
		labels := []string{
			"", "\x00", "a\x00b", "\xff\xfe", "Grüße, 世界 🎉", "'; drop table oncemore_keys; --", "trailing  ",
			strings.Repeat("a", 255), strings.Repeat("ü", 255), strings.Repeat("🎉", 4000), strings.Repeat("\x00", 256),
		}
		for _, label := range labels {
			c := newClaim()
			c.Scope, c.Route = label, label
			f.yes(f.store.Complete(f.Context(), f.win(c), done("result")))
			c = newClaim()
			c.Method = label
			f.win(c)
			c = newClaim()
			c.Scope, c.Route, c.Method, c.TTL = label, label, label, time.Millisecond
			f.yes(f.store.Complete(f.Context(), f.win(c), done("result")))
			f.expired(c.ID)
			again := lapsing(c)
			f.win(again)
		}
	}},
	{"value/lookup changes nothing", func(f *fixture) {
		c := newClaim()
		f.absent(c.ID)
		f.absent(c.ID)
		f.win(c)
		before := f.row(c.ID)
		f.same(before, c.ID)
	}},
	{"value/a cancelled context does nothing", func(f *fixture) {
		ctx, cancel := context.WithCancel(f.Context())
		cancel()
		c, free := newClaim(), newClaim()
		h := f.win(c)
		before := f.row(c.ID)
		errs := map[string]error{}
		_, _, errs["claim"] = f.store.Claim(ctx, free)
		_, errs["takeover"] = f.store.Takeover(ctx, takeover(holdOf(c)))
		_, errs["renew"] = f.store.Renew(ctx, h, time.Minute)
		_, errs["complete"] = f.store.Complete(ctx, h, done("result"))
		_, errs["release"] = f.store.Release(ctx, h)
		_, _, errs["lookup"] = f.store.Lookup(ctx, c.ID)
		_, errs["settle"] = f.store.Settle(ctx, c.ID, 1, done("result"))
		_, errs["forget"] = f.store.Forget(ctx, c.ID)
		for name, err := range errs {
			if !errors.Is(err, context.Canceled) {
				f.Errorf("%s: want an error that is context.Canceled, got %v", name, err)
			}
		}
		f.absent(free.ID)
		f.same(before, c.ID)
	}},
}
