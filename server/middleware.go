package server

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"net/http"
	"slices"
	"time"
)

// Middleware runs keyed requests once. Make one with [New] for each store and
// configuration; [Middleware.Wrap] and [Middleware.WrapTx] put it around
// handlers. It is safe for concurrent use, starts no goroutine of its own, and
// has nothing to close but what [Middleware.Shutdown] settles.
type Middleware struct {
	store   Store
	cfg     Config // with its defaults in place
	flights flights
	runs    runs
}

// New checks the configuration and returns the middleware over store. Every
// invalid setting is an error here, none later.
func New(store Store, cfg Config) (*Middleware, error) {
	cfg, err := cfg.filled()
	if store == nil {
		err = errors.Join(errors.New("server: the store is nil"), err)
	}
	if err != nil {
		return nil, err
	}
	return &Middleware{store: store, cfg: cfg, flights: flights{byID: make(map[ID]*flight)}, runs: newRuns()}, nil
}

// Wrap guards a handler. A keyed request is run once: its response is recorded,
// then sent, and handed back to whoever sends the same request again.
//
// The handler's context is detached from the client's connection, so that a
// client which leaves does not undo the run; it ends when the handler ran for
// MaxRun, when the key was lost to another process ([ErrLeaseLost]), and at the
// end of a Shutdown. A handler that then returns without a word has no result:
// its key is free again, or unknown after [Operation.EffectStarted].
func (m *Middleware) Wrap(next http.Handler) http.Handler {
	if next == nil {
		panic("server: Wrap of a nil handler")
	}
	return &guard{m: m, next: next}
}

// TxHandlerFunc is a handler that writes through a transaction. It must not end
// the transaction. An error rolls it back, and is answered 500.
type TxHandlerFunc func(http.ResponseWriter, *http.Request, *sql.Tx) error

// WrapTx guards a handler whose writes commit together with the record, in one
// transaction: either there are both or neither. An error, a panic and a
// response that is no result (see [Config.Final]) roll everything back. The
// response is sent after the commit, so it can't be streamed.
//
// A request that is not guarded (another method, or PassKeyless) gets a
// transaction of its own by the same rule, and no record.
//
// WrapTx panics if the store is no [TxStore], as http.ServeMux does for a bad
// pattern.
func (m *Middleware) WrapTx(next TxHandlerFunc) http.Handler {
	if next == nil {
		panic("server: WrapTx of a nil handler")
	}
	store, ok := m.store.(TxStore)
	if !ok {
		panic("server: WrapTx needs a store with transactions, a TxStore such as sqlstore's")
	}
	return &guard{m: m, tx: next, txStore: store}
}

// guard is one wrapped handler: next, or tx.
type guard struct {
	m       *Middleware
	next    http.Handler
	tx      TxHandlerFunc
	txStore TxStore
}

// ServeHTTP takes a request through its steps: key and scope, body and
// fingerprint, claim; then it runs, or waits, or is replayed or refused.
//
//nolint:contextcheck // a call carries the context of its request
func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !slices.Contains(g.m.cfg.Methods, r.Method) {
		g.unguarded(w, r)
		return
	}
	c := newCall(g, w, r)
	if !c.identify() || !c.take() {
		return
	}
	c.start = time.Now()
	for !c.lead() {
		if c.wait() {
			return
		}
	}
}

// call is one guarded request on its way.
type call struct {
	m  *Middleware
	g  *guard
	w  http.ResponseWriter
	r  *http.Request
	op Operation

	body    []byte
	fp      Fingerprint
	owner   Token // made when the call first leads
	attempt int   // of the row that it is answered from

	flight  *flight // the one it leads, or waits on
	arrived time.Time
	start   time.Time // when the key was first asked for
	waited  time.Duration
	ran     time.Duration

	// What most requests need once is part of them, so that they take few
	// allocations.
	own    flight
	first  run
	result stored
	reader requestBody
	ctx    runContext
	values [3][1]string
}

func newCall(g *guard, w http.ResponseWriter, r *http.Request) *call {
	c := &call{m: g.m, g: g, w: w, r: r, arrived: time.Now()}
	c.ctx = runContext{r.Context(), &c.op}
	return c
}

// identify reads scope and key. It reports whether the request goes on.
func (c *call) identify() bool {
	scope, err := c.m.cfg.Scope(c.r)
	if err != nil {
		status := http.StatusInternalServerError
		var se *StatusError
		if errors.As(err, &se) && se.Status >= 400 && se.Status <= 599 {
			status = se.Status
		}
		c.refuseScope(err, status)
		return false
	}
	c.op.scope = scope
	if scope == "" {
		c.refuseMalformed("the caller could not be told: its scope is empty", nil)
		return false
	}
	lines := c.r.Header[keyHeader]
	if len(lines) == 0 {
		return c.identifyKeyless()
	}
	key, err := parseKey(lines)
	if err != nil {
		c.refuseMalformed(err.Error(), nil)
		return false
	}
	if made, ok := keyTime(key); ok && time.Until(made) > maxKeyAhead {
		c.refuseMalformed("the time in the key lies in the future; check the clock of the client", nil)
		return false
	}
	c.op.key = key
	c.op.id = keyID(scope, key)
	return true
}

// identifyKeyless treats a request without a key by the policy for those.
func (c *call) identifyKeyless() bool {
	switch c.m.cfg.Keyless.mode(time.Now()) {
	case PassKeyless:
		c.w.Header().Set(headerStatus, statusUnprotected)
		c.emit(EventUnprotected, 0, nil)
		c.g.unguarded(c.w, c.r)
		return false
	case BodyHashKeyless:
		c.op.bodyHash = true // take finishes its identity
		return true
	case RejectKeyless:
	}
	c.refuseMissing()
	return false
}

// take reads the body, and makes the fingerprint of the request. It reports
// whether the request goes on.
func (c *call) take() bool {
	body, err := readBody(c.w, c.r, c.m.cfg.MaxRequestBody)
	if err != nil {
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			c.refuseTooLarge(err)
		} else {
			c.refuseMalformed("the request body could not be read", err)
		}
		return false
	}
	c.body = body
	fingerprint(&c.fp, c.r, body)
	if c.op.bodyHash {
		c.op.id = bodyHashID(c.op.scope, c.fp)
	}
	return true
}

// lead joins the key's flight. As its leader it asks the store, and takes the
// key as far as it goes. It reports whether the request is answered; if not, it
// is to wait on the flight.
func (c *call) lead() bool {
	f, lead, full := c.m.flights.join(c.op.id, c.m.cfg.MaxWaiters, &c.own)
	c.flight = f
	switch {
	case full && !f.isFor(&c.fp):
		c.refuseMismatch()
		return true
	case full:
		c.refuseBusy()
		return true
	case !lead:
		return false
	}
	defer f.abandon()
	if c.owner == (Token{}) {
		_, _ = rand.Read(c.owner[:]) // never fails
	}
	if c.g.tx != nil && !c.m.cfg.ClaimFirst {
		return c.leadTx()
	}
	asked := time.Now()
	row, found, err := c.m.store.Claim(c.detached(), c.claim())
	if err != nil {
		c.unclaim()
		c.storeFailed(err)
		return true
	}
	if found && row.Owner == c.owner {
		c.won(&row)
		c.execute(Hold{ID: c.op.id, Owner: c.owner, Generation: row.Generation}, asked)
		return true
	}
	return c.meet(&row, found)
}

// unclaim undoes a claim that failed and may have taken effect all the same. As
// nothing was run, the key must not wait for the end of a lease, to be unknown
// from then on. It is tried once: the client waits for its answer.
func (c *call) unclaim() {
	ctx, cancel := context.WithTimeout(c.detached(), time.Second)
	defer cancel()
	_, _ = c.m.store.Release(ctx, Hold{ID: c.op.id, Owner: c.owner, Generation: 1})
}

// claim says what is asked for. In a shutdown nothing new is begun, but what is
// there is handed back.
func (c *call) claim() Claim {
	cfg := &c.m.cfg
	claim := Claim{
		ID: c.op.id, Fingerprint: c.fp, Owner: c.owner,
		Scope: c.op.scope, Method: c.r.Method, Route: c.r.Pattern,
		Lease: cfg.Lease, TTL: c.ttl(), Keep: cfg.Retention + purgeMargin,
		MustExist: c.m.runs.closed(),
	}
	if claim.Route == "" {
		claim.Route = c.r.URL.Path
	}
	if c.op.bodyHash {
		claim.Lapses = true
		claim.Keep = cfg.Keyless.Window + purgeMargin
		return claim
	}
	if made, ok := keyTime(c.op.key); ok {
		age := time.Since(made)
		claim.MustExist = claim.MustExist || age > cfg.Retention
		claim.Keep += max(0, -age)
	}
	return claim
}

// ttl is how long the result replays.
func (c *call) ttl() time.Duration {
	if c.op.bodyHash {
		return c.m.cfg.Keyless.Window
	}
	return c.m.cfg.TTL
}

// purgeMargin keeps a row a little longer than its key is judged by the time in
// it: the purge goes by the database's clock, the judgement by ours.
const purgeMargin = 10 * time.Minute

// won notes the run that a row stands for.
func (c *call) won(row *Row) {
	c.op.attempt, c.op.origin = row.Attempt, row.Origin
}

// detached is a context with the values of the request that the client's
// leaving does not end.
func (c *call) detached() context.Context { return &c.ctx }

// storeFailed answers when the store could not be asked.
func (c *call) storeFailed(err error) {
	c.flight.end(outcome{kind: outUnavailable, err: err})
	c.emit(EventStoreFailure, 0, err)
	c.refuseUnavailable("the store of the keys can't be reached; nothing was run", err)
}

// unguarded runs the handler as it is, or in a transaction without a record.
func (g *guard) unguarded(w http.ResponseWriter, r *http.Request) {
	if g.tx == nil {
		g.next.ServeHTTP(w, r)
		return
	}
	g.plainTx(w, r)
}
