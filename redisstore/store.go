package redisstore

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemore-go/oncemore/server"
)

var _ server.Store = (*Store)(nil)

// Config is for [New]. Its zero value is useful.
type Config struct {
	// Prefix begins the name of every key, before a colon. Services that share
	// a Redis, and not their operations, each have their own. It has no braces:
	// those belong to the hash tag of a cluster. Default: "oncemore".
	Prefix string
}

// Store is a [server.Store] over Redis. All methods are safe for concurrent use,
// by any number of processes over one Redis. It starts no goroutine, and never
// closes the client.
//
// Every method's error wraps the client's own. A result of more than 512 MiB,
// the most that a value of Redis can be, is an error that matches
// [server.ErrTooLarge].
type Store struct {
	client redis.UniversalClient
	prefix string
}

// New returns a store over client: a *redis.Client, also one of
// redis.NewFailoverClient, or a *redis.ClusterClient, with ContextTimeoutEnabled
// in its options. It sends nothing; [Store.Check] looks at the server.
func New(client redis.UniversalClient, cfg Config) (*Store, error) {
	heeds := true // of a client of another kind this can't be known
	switch c := client.(type) {
	case nil:
		return nil, errors.New("redisstore: no client")
	case *redis.Client:
		heeds = c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		heeds = c.Options().ContextTimeoutEnabled
	case *redis.Ring:
		return nil, errors.New("redisstore: a redis.Ring lets a key begin anew on another server: want a cluster")
	}
	if !heeds {
		return nil, errors.New("redisstore: the client does not heed the deadline of a context: set ContextTimeoutEnabled in its options")
	}
	if cfg.Prefix == "" {
		cfg.Prefix = "oncemore"
	}
	if strings.ContainsAny(cfg.Prefix, "{}") {
		return nil, fmt.Errorf("redisstore: prefix %q has a brace", cfg.Prefix)
	}
	return &Store{client: client, prefix: cfg.Prefix + ":"}, nil
}

// key is the name of the record. What is in braces decides where in a cluster
// it is, so that whatever joins it under its tag is on the same server.
func (s *Store) key(id server.ID) string {
	return s.prefix + "{" + hex.EncodeToString(id[:]) + "}"
}

// Claim implements [server.Store]. A claim that finds a row writes nothing.
func (s *Store) Claim(ctx context.Context, c server.Claim) (server.Row, bool, error) {
	reply, err := s.run(ctx, claimScript, c.ID, 0, c.Owner[:], c.Fingerprint[:], micros(c.Lease), micros(c.TTL), micros(c.Keep),
		label(c.Scope), label(c.Method), label(c.Route), c.MustExist, c.Lapses)
	if err != nil {
		return server.Row{}, false, err
	}
	if reply == yes {
		return created(c), true, nil
	}
	return s.row(claimScript, reply)
}

// Lookup implements [server.Store].
func (s *Store) Lookup(ctx context.Context, id server.ID) (server.Row, bool, error) {
	reply, err := s.run(ctx, lookupScript, id, 0)
	if err != nil {
		return server.Row{}, false, err
	}
	return s.row(lookupScript, reply)
}

// Takeover implements [server.Store].
func (s *Store) Takeover(ctx context.Context, t server.Takeover) (bool, error) {
	return s.change(ctx, takeoverScript, t.ID, 0, t.Owner[:], t.Generation, t.Generation+1, micros(t.Lease), t.Ask, t.From[:])
}

// Renew implements [server.Store].
func (s *Store) Renew(ctx context.Context, h server.Hold, lease time.Duration) (bool, error) {
	return s.change(ctx, renewScript, h.ID, 0, h.Owner[:], h.Generation, micros(lease))
}

// Complete implements [server.Store].
func (s *Store) Complete(ctx context.Context, h server.Hold, r server.Result) (bool, error) {
	args, err := resultArgs(completeScript, r)
	if err != nil {
		return false, err
	}
	return s.change(ctx, completeScript, h.ID, len(r.Data), append(args, h.Owner[:], h.Generation)...)
}

// Release implements [server.Store].
func (s *Store) Release(ctx context.Context, h server.Hold) (bool, error) {
	return s.change(ctx, releaseScript, h.ID, 0, h.Owner[:], h.Generation)
}

// Settle implements [server.Store].
func (s *Store) Settle(ctx context.Context, id server.ID, generation int64, r server.Result) (bool, error) {
	args, err := resultArgs(settleScript, r)
	if err != nil {
		return false, err
	}
	return s.change(ctx, settleScript, id, len(r.Data), append(args, generation, generation+1)...)
}

// Forget implements [server.Store].
func (s *Store) Forget(ctx context.Context, id server.ID) (bool, error) {
	return s.change(ctx, forgetScript, id, 0)
}

// yes is what a script answers that did what it was asked.
const yes = int64(1)

// change runs a script that says whether it did what it was asked.
func (s *Store) change(ctx context.Context, sc script, id server.ID, data int, args ...any) (bool, error) {
	reply, err := s.run(ctx, sc, id, data, args...)
	return err == nil && reply == yes, err
}
