package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

var (
	// ErrEvicts is matched by the error of a [Store.Check] that found a server
	// that may drop records to make room: each could then run once more.
	ErrEvicts = errors.New("maxmemory-policy is not noeviction")

	// ErrForgets is matched by the error of a [Store.Check] that found a server
	// that may forget what it has acknowledged when it dies: it has no
	// append-only file, or does not sync it with every write.
	ErrForgets = errors.New("not appendonly yes with appendfsync always")
)

// Check looks at the settings that decide what the server may lose, in a cluster
// at those of every primary. It is for the start of a program, which knows what
// it can live with: nil, or an error that matches [ErrEvicts], [ErrForgets] or
// both; any other error says that they could not be read.
//
// maxmemory-policy and appendonly are read by INFO. Where CONFIG GET is not
// allowed, as on most managed services, nothing is said about appendfsync. Check
// can't see a failover coming: see the package comment.
func (s *Store) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	var err error
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			return check(ctx, node)
		})
	} else {
		err = check(ctx, s.client)
	}
	if err != nil {
		return fmt.Errorf("redisstore: check: %w", err)
	}
	return nil
}

// check looks at one server.
func check(ctx context.Context, node redis.Cmdable) error {
	info, err := node.Info(ctx).Result()
	if err != nil {
		return err
	}
	found := map[string]string{}
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			found[name] = value
		}
	}
	var evicts, forgets error
	if policy := found["maxmemory_policy"]; policy != "noeviction" {
		evicts = fmt.Errorf("%w, but %q", ErrEvicts, policy)
	}
	if found["aof_enabled"] != "1" {
		forgets = fmt.Errorf("%w: appendonly is off", ErrForgets)
	} else if forgets, err = checkSync(ctx, node); err != nil {
		return err
	}
	return errors.Join(evicts, forgets)
}

// checkSync looks at appendfsync, where it may.
func checkSync(ctx context.Context, node redis.Cmdable) (forgets, err error) {
	config, err := node.ConfigGet(ctx, "appendfsync").Result()
	if _, refused := errors.AsType[redis.Error](err); refused {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if sync := config["appendfsync"]; sync != "always" {
		return fmt.Errorf("%w: appendfsync is %q", ErrForgets, sync), nil
	}
	return nil, nil
}
