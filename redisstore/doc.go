// Package redisstore keeps the records of package server in Redis: one server,
// a primary with replicas behind Sentinel, or a cluster. It is a [server.Store]
// and no [server.TxStore], so [server.Middleware.WrapTx] panics over it.
//
//	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", ContextTimeoutEnabled: true})
//	store, err := redisstore.New(client, redisstore.Config{})
//	if err != nil { ... }
//	if err := store.Check(ctx); err != nil { ... }
//	m, err := server.New(store, server.Config{Scope: tenantOf})
//
// # What is promised
//
// Each call is one Lua script on one key, so it is one atomic step. Leases and
// expiry are set and compared by the server's clock, read inside of the script.
// Every change names the token and the generation that it belongs to: a script
// can be sent again after a lost connection, and a process that was taken over
// changes nothing. A replay writes nothing. Lost connections, and a server that
// is loading, failing over or moving slots, are met with up to five retries
// within ten seconds, and every try has a deadline of five seconds.
//
// # What Redis can't promise
//
// The record and the data of the business are never one transaction. A process
// that dies between its effect and its record leaves a run whose outcome is
// unknown; where both could be in one SQL database, package sqlstore with
// WrapTx has no such moment.
//
// An acknowledged claim, or an acknowledged result, can be forgotten, and then
// the operation runs a second time:
//
//   - by a crash, unless the server has "appendonly yes" and "appendfsync
//     always": with "everysec", which is the default, up to about two seconds of
//     writes are lost with the machine, and without appendonly much more;
//   - by a failover, whatever the settings: replication is asynchronous, and a
//     replica that is promoted may lack the last writes. As long as a primary
//     that was replaced has not noticed, both give the same key away.
//     "min-replicas-to-write 1" with a short "min-replicas-max-lag" bounds how
//     long that can be, and no setting makes it nothing. The store sends no
//     WAIT: it would report a missing copy, and not undo the claim;
//   - by eviction, unless the server has "maxmemory-policy noeviction". With it a
//     full server refuses claims, renewals and results with an error, so watch
//     the memory.
//
// [Store.Check] looks at these settings. Where they can't be had, and a charge
// that is made twice is worse than a slower claim, use a SQL database.
//
// Across a failover the clock is another machine's. Keep them in step, and the
// lease much longer than they may differ.
//
// # The client
//
// Redis 7 or later; tested on 7.0. The client needs ContextTimeoutEnabled, or it
// would not heed the deadlines, and New says so. A cancelled context is noticed
// before each try; a reply that is being waited for is given up at a deadline
// only, the client's ReadTimeout (3 seconds) at the latest. redis.Ring is
// refused: it sends a key to another server when its own is down, and there the
// key is free.
//
// # Keys
//
// A record is a hash under PREFIX:{ID}, where ID is the hex of the operation's
// identity, as it is in the KeyHash of events and log records. Its fields are
// those of the SQL table (docs/schema.md), with times in microseconds since 1970:
//
//	redis-cli HGETALL 'oncemore:{<key hash>}'
//
// Nothing has to be purged. A record that is done is given its end, as a Redis
// expiry, when it is completed; one that runs, or whose outcome is unknown, has
// none, and stays until it is completed, settled or forgotten. "Expired" is no
// state of Redis: a record past its TTL is there, and refused, until its end.
package redisstore
