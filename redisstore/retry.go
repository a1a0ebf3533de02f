package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemore-go/oncemore/server"
)

const (
	// tryTimeout bounds each try of a call, the client's own retries included.
	tryTimeout = 5 * time.Second
	// maxRetries is how often a call is sent again after a transient error.
	maxRetries = 5
	// patience ends the retries of a call that had to wait for each of its tries.
	patience = 10 * time.Second
	// The first retry comes after this long, each further one after four times as
	// long, up to maxPause, and all up to half earlier. Together they outlast the
	// second for which the client believes that a server is down which it could
	// not reach before.
	firstPause, maxPause = 20 * time.Millisecond, 1200 * time.Millisecond
)

// run runs a script on the record of id: again after a transient error, each
// time under a deadline. It may be run again at any point, also after it took
// effect without the store learning of it: the scripts are guarded by the
// caller's token and generation, and find their own effect. data is how many
// bytes it sends.
func (s *Store) run(ctx context.Context, sc script, id server.ID, data int, args ...any) (any, error) {
	begin := time.Now()
	for try := 0; ; try++ {
		reply, err := s.try(ctx, sc, id, data, args)
		if err == nil {
			return reply, nil
		}
		again := transient(err) && try < maxRetries && time.Since(begin) < patience
		if !again || ctx.Err() != nil || !pause(ctx, try) {
			return nil, fail(ctx, sc.call, err)
		}
	}
}

// try runs the script once, with a second more for every MiB.
func (s *Store) try(ctx context.Context, sc script, id server.ID, data int, args []any) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, tryTimeout+time.Duration(data)*time.Second>>20)
	defer cancel()
	return sc.Run(bounded, s.client, []string{s.key(id)}, args...).Result()
}

// passing are the codes of replies of a server that will soon do better: it is
// starting, or a failover or a move of slots is under way. Of all of them it is
// sure that nothing was done.
var passing = []string{
	"LOADING", "BUSY", "READONLY", "MASTERDOWN", "NOREPLICAS",
	"CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "max number of clients reached",
}

// transient reports whether it is worth sending the script again. What is no
// reply of the server is a connection that broke, could not be had or was
// waited for in vain.
func transient(err error) bool {
	if _, ok := errors.AsType[redis.Error](err); ok {
		return slices.ContainsFunc(passing, func(code string) bool { return redis.HasErrorPrefix(err, code) })
	}
	return !errors.Is(err, redis.ErrClosed)
}

// pause waits before the next try. False: ctx has ended.
func pause(ctx context.Context, try int) bool {
	d := min(firstPause<<(2*try), maxPause)
	timer := time.NewTimer(d - rand.N(d/2))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// fail is the error that the caller of the store gets.
func fail(ctx context.Context, call string, err error) error {
	if ended := ctx.Err(); ended != nil && !errors.Is(err, ended) {
		err = fmt.Errorf("%w: %w", ended, err)
	}
	return fmt.Errorf("redisstore: %s: %w", call, err)
}
