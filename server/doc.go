/*
Package server is net/http middleware that runs a keyed request once and hands
its result to whoever sends the same request again.

A caller whose answer did not arrive can't tell "never got there" from "done,
answer lost", so it sends the request again with the same Idempotency-Key. The
middleware knows the key when it comes back:

	m, err := server.New(store, server.Config{Scope: tenantOf})
	if err != nil { ... }
	mux.Handle("POST /charges", authenticate(m.Wrap(charges)))

Authentication belongs outside of the middleware: a replay does not run the
handler, so what the handler checks is not checked again. What reads the body
(ParseForm) or decompresses it belongs inside, or two bodies may look alike.

# The way of a request

Scope and key are read; together, hashed, they name the operation. The body is
read, and the request's fingerprint made of method, path, query, media type and
body. Then the key is claimed in the store. Of any number of requests at once,
in any number of processes, the database's unique constraint lets one win:

  - The winner runs the handler, records the response, and only then sends it.
  - Those that come meanwhile wait, and are answered with its result: in the
    same process from memory, elsewhere by one poller a key and process.
  - Those that come later are replayed the stored status, headers and body, with
    Idempotency-Replayed: true and Idempotency-Executed-At.
  - The same key with another request is refused with 422, an expired key
    with 412, each as a problem document (RFC 9457) whose codes docs/problems.md
    explains.

Header Idempotency-Status says in one word what became of a request.

# What is a result

A response whose status is final (see [Config.Final]) is kept. Any other one is
sent and frees the key, so that the caller's retry runs again: a 503 that was
stored would be a 503 for a day. A panic frees the key as well. A handler that
is about to do what can't be undone says so by [Operation.EffectStarted]; from
there such an end leaves the outcome unknown, and the key is refused with 409
until [Config.Recover] or [Middleware.Settle] says what happened.

Status, the headers that describe the body or say where things are, and the
body up to [Config.MaxStoredBody] are stored, or a reference in its place
([Operation.SetResource]). A response that is flushed, hijacked or longer is
recorded without its body, and then sent.

# Processes that die

A claim is a lease, renewed while the handler runs, with a generation that grows
when somebody takes it over. A process that was away and comes back changes
nothing: its writes name a generation that is no longer there. What a run did
whose process died, nobody knows; [Config.Abandoned] says whether the key is
then refused or run again, and [Config.Recover] may ask the application first.

# What is guaranteed, and what is not

At most one recorded execution for each key, and no success that nobody has on
record. With [Middleware.WrapTx] the handler's writes and the record commit in
one transaction, so its effects in that database happen exactly once, whatever
dies.

With [Middleware.Wrap] the effect and the record are two commits. A process that
dies between them leaves an effect without a record: that is the hole which no
middleware can close. Give the effect's own system a key
([Operation.DownstreamKey]), or use WrapTx.

A store that forgets (a replica promoted without the last commits, a row removed
by hand) takes a key for new.
*/
package server
