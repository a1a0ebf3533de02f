package storetest

import (
	"context"
	"sync"
	"time"

	"github.com/oncemore-go/oncemore/server"
)

// purger is a store that can remove what it no longer has to keep.
type purger interface {
	Purge(ctx context.Context) (int64, error)
}

var purgeSpecs = []spec{
	{"purge/only what is done and was kept long enough", func(f *fixture) {
		short := newClaim()
		short.TTL, short.Keep = time.Millisecond, 2*time.Millisecond
		var gone, kept []server.ID
		start := func(lease time.Duration, keep bool) server.Hold {
			c := rival(short)
			fill(c.ID[:])
			c.Lease = lease
			if keep {
				c.Keep = time.Hour
			}
			return f.win(c)
		}
		for range 3 {
			h := start(time.Minute, false)
			f.yes(f.store.Complete(f.Context(), h, done("old")))
			gone = append(gone, h.ID)
		}
		running, abandoned := start(time.Minute, false), start(time.Millisecond, false)
		kept = append(kept, running.ID, abandoned.ID)
		uncertain := start(time.Minute, false)
		f.yes(f.store.Complete(f.Context(), uncertain, unknown()))
		expired := start(time.Minute, true)
		f.yes(f.store.Complete(f.Context(), expired, done("expired, and still kept")))
		kept = append(kept, uncertain.ID, expired.ID)
		for _, id := range append(gone, kept...) {
			f.expired(id)
		}
		pause(f.Context(), 20*time.Millisecond)

		n, err := f.purger.Purge(f.Context())
		if err != nil {
			f.Fatal(err)
		}
		if n < int64(len(gone)) {
			f.Errorf("%d rows were purged, at least %d were due", n, len(gone))
		}
		for _, id := range gone {
			f.absent(id)
		}
		for _, id := range kept {
			f.row(id)
		}
		f.yes(f.store.Complete(f.Context(), running, done("result")))
	}},
	// Ids that are read first and deleted later would take a newborn with them.
	{"purge/never a row that was claimed again", func(f *fixture) {
		c := newClaim()
		c.TTL, c.Keep = 0, 0
		ctx, cancel := context.WithCancel(f.Context())
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for ctx.Err() == nil {
					if _, err := f.purger.Purge(ctx); err != nil && ctx.Err() == nil {
						f.Errorf("purge: %v", err)
						return
					}
				}
			})
		}
		defer wg.Wait()
		defer cancel()
		for range 100 {
			mine := rival(c)
			mine.Lapses = true
			f.win(mine)
			f.yes(f.store.Complete(f.Context(), holdOf(mine), done("result")))
		}
	}},
	{"purge/a cancelled context ends it", func(f *fixture) {
		ctx, cancel := context.WithCancel(f.Context())
		cancel()
		if _, err := f.purger.Purge(ctx); err == nil {
			f.Error("want an error")
		}
	}},
}
