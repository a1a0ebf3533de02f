package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/oncemore-go/oncemore/server"
)

const (
	// statementTimeout bounds each try of a call: one statement, or a claim's
	// two or three.
	statementTimeout = 5 * time.Second
	// maxRetries is how often a call is sent again after a transient error.
	maxRetries = 5
	// patience ends the retries of a call that had to wait for each of its tries.
	patience = 10 * time.Second
	// A retry comes after this long, so that those who collided don't again.
	minPause, maxPause = 2 * time.Millisecond, 50 * time.Millisecond

	// lockWait bounds how long the claim of a transaction waits for another
	// transaction that has the key. It is much shorter than any sensible lease:
	// a time that a statement writes after its wait is from before it.
	lockWait = 3 * time.Second
)

// access is what a call does to the table.
type access struct {
	writes bool
	data   int // bytes that it sends
}

var (
	reads  = access{}
	writes = access{writes: true}
)

// timeout is the deadline of a try, with a second for every MiB.
func (a access) timeout() time.Duration {
	return statementTimeout + time.Duration(a.data)*time.Second>>20
}

// run runs one call of the store: step, again after a transient error, each
// time under a deadline. A step may be run again at any point, also after it
// took effect without the store learning of it: the statements are guarded by
// the caller's token and generation, and step then finds its own effect.
//
// All that is written outside of transactions passes here.
func (s *Store) run(ctx context.Context, call string, a access, step func(context.Context) error) error {
	begin := time.Now()
	for try := 0; ; try++ {
		err := s.try(ctx, a, step)
		if err == nil {
			return nil
		}
		k := s.d.classify(err)
		again := (k == transient || k == locked) && try < maxRetries && time.Since(begin) < patience
		if !again || ctx.Err() != nil || !pause(ctx, err, try) {
			return s.fail(ctx, call, err)
		}
	}
}

// try runs step once.
func (s *Store) try(ctx context.Context, a access, step func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if a.writes && s.writer != nil {
		if err := s.writer.lock(ctx, s.busyTimeout()); err != nil {
			return err
		}
		defer s.writer.unlock()
	}
	bounded, cancel := context.WithTimeout(ctx, a.timeout())
	defer cancel()
	err := step(bounded)
	if err != nil && bounded.Err() != nil && !errors.Is(err, bounded.Err()) {
		err = fmt.Errorf("%w: %w", bounded.Err(), err) // some drivers say "interrupted"
	}
	return err
}

// pause waits before the next try. False: ctx has ended.
func pause(ctx context.Context, err error, try int) bool {
	if try == 0 && errors.Is(err, errAgain) {
		return true // most likely the row is there now
	}
	timer := time.NewTimer(minPause + rand.N(maxPause-minPause))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// fail is the error that the caller of the store gets.
func (s *Store) fail(ctx context.Context, call string, err error) error {
	k := s.d.classify(err)
	if ended := ctx.Err(); ended != nil && !errors.Is(err, ended) {
		err = fmt.Errorf("%w: %w", ended, err)
	}
	switch k {
	case locked:
		return fmt.Errorf("sqlstore: %s: %w: %w", call, server.ErrBusy, err)
	case missing:
		return fmt.Errorf("sqlstore: %s: table oncemore_keys is missing: run Migrate, or the statements of Schema: %w", call, err)
	case tooLarge:
		return fmt.Errorf("sqlstore: %s: %w: %w", call, server.ErrTooLarge, err)
	default:
		return fmt.Errorf("sqlstore: %s: %w", call, err)
	}
}

// gate lets one in at a time. Who waits holds no connection.
type gate chan struct{}

// lock waits for its turn, but not for longer than wait.
func (g gate) lock(ctx context.Context, wait time.Duration) error {
	select {
	case g <- struct{}{}:
		return nil
	default:
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case g <- struct{}{}:
		return nil
	case <-timer.C:
		return errWriterBusy
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g gate) unlock() { <-g }
