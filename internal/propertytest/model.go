package propertytest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/oncemore-go/oncemore/server"
)

// journal is the truth of a schedule: a store that no fault reaches, and a model
// beside it. It writes down every change that the store accepts, and
// says where the model does not allow it.
//
// In the model a row lives from the claim that creates it to its removal. In
// its life it has one grant a generation: the right of one request to run, or
// to ask what became of a run. One grant, or an operator, gives it its result.
type journal struct {
	w     *world
	store Store

	mu     sync.Mutex
	lives  map[server.ID]*life // of the rows that are there
	ids    map[identity]server.ID
	owners map[server.ID]identity
	past   map[identity][]*life // all of them, also the present one
	failed map[identity]bool    // Recover said an error once
}

// life is one life of a row.
type life struct {
	who       identity
	body      string // what the key was first used for
	born      time.Time
	expires   time.Time
	purge     time.Time
	until     time.Time // the lease goes on at least so long
	grant     *grant    // the newest
	state     server.State
	unknown   bool      // it was Unknown once
	uncertain time.Time // since when
	unkept    bool      // it had a result without a body once

	result  *result // accepted; nil until Done
	settled time.Time
	end     string // what removed it; "" while it is there
}

// grant is a generation of a row, in the hands of a request.
type grant struct {
	life       *life
	generation int64
	attempt    int
	req        *request // nil: an operator's
	asks       bool
	lost       time.Time // when a newer generation began, or the row was removed
	run        *run
}

// result is what a run or an operator says became of an operation.
type result struct {
	nonce    int
	run      *run // nil: it was settled
	status   int
	body     string
	accepted bool // it is the result on record
	early    bool // it is recorded as its first bytes leave, before the handler has ended
	kept     bool // with its body, so that nobody may settle it
}

func newJournal(w *world, store Store) *journal {
	return &journal{
		w: w, store: store, lives: make(map[server.ID]*life),
		ids: make(map[identity]server.ID), owners: make(map[server.ID]identity), past: make(map[identity][]*life),
		failed: make(map[identity]bool),
	}
}

// row reads the truth.
func (b *journal) row(ctx context.Context, id server.ID) (server.Row, bool) {
	row, found, err := b.store.Lookup(context.WithoutCancel(ctx), id)
	if err != nil {
		panic(err)
	}
	return row, found
}

// never expects no error: faults are this side of the store, and a call that has
// begun is not broken off, since nobody would know whether it was done.
func (b *journal) never(err error) {
	if err != nil {
		b.w.fault("the store: %v", err)
	}
}

// Where calls take time, a lease or a TTL may end between a look at the row and
// the call. So the model has ends of its own, which are early rather than late:
// the store counts from a later instant, but may cut off less than this.
const cutOff = time.Millisecond

func (b *journal) notYet(end time.Time) bool {
	return !b.w.realTime || time.Now().Before(end.Add(-cutOff))
}

// held reports whether the lease goes on.
func (b *journal) held(id server.ID, before server.Row) bool {
	l := b.lives[id]
	return before.Live && (l == nil || b.notYet(l.until))
}

// Claim is allowed to create a row where there is none, or where a claim that
// lapses finds one that has lapsed.
func (b *journal) Claim(ctx context.Context, c server.Claim) (server.Row, bool, error) {
	if err := ctx.Err(); err != nil {
		return server.Row{}, false, err
	}
	ctx = context.WithoutCancel(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	req := requestOf(ctx)
	b.identify(req, c.ID)
	before, had := b.row(ctx, c.ID)
	now := time.Now()
	row, found, err := b.store.Claim(ctx, c)
	b.never(err)
	if err != nil || !found || row.Owner != c.Owner || (had && before.Owner == c.Owner) {
		return row, found, err
	}
	if c.MustExist {
		b.w.fault("%v: a claim that must exist created a row", req)
	}
	if had {
		early := !before.Expired && b.notYet(b.lives[c.ID].expires)
		if !c.Lapses || early || (before.State == server.Running && b.held(c.ID, before)) {
			b.w.fault("%v: a claim replaced a row that has not lapsed", req)
		}
		b.remove(c.ID, "lapsed")
	}
	l := &life{
		who: req.who(), body: req.body, born: now, expires: now.Add(c.TTL), purge: now.Add(c.Keep),
		until: now.Add(c.Lease), state: server.Running,
	}
	b.lives[c.ID] = l
	b.past[l.who] = append(b.past[l.who], l)
	b.give(l, &grant{generation: 1, attempt: 1, req: req})
	b.w.note("%v: claimed", req)
	return row, found, err
}

// identify holds the names of rows to the identities of requests: one each.
func (b *journal) identify(req *request, id server.ID) {
	who := req.who()
	if have, ok := b.ids[who]; ok && have != id {
		b.w.fault("%v: one identity, two rows", req)
	}
	if other, ok := b.owners[id]; ok && other != who {
		b.w.fault("%v: shares its row with %v", req, other)
	}
	b.ids[who], b.owners[id] = id, who
}

func (b *journal) give(l *life, g *grant) {
	g.life = l
	if l.grant != nil {
		l.grant.lost = time.Now()
	}
	l.grant = g
	if g.req != nil {
		g.req.grant = g
	}
}

func (b *journal) remove(id server.ID, how string) {
	l := b.lives[id]
	l.end = how
	l.grant.lost = time.Now()
	delete(b.lives, id)
}

// Takeover is allowed for a row without a result that nobody else holds: to ask,
// or to run again where configuration or application say so.
func (b *journal) Takeover(ctx context.Context, t server.Takeover) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	ctx = context.WithoutCancel(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	before, had := b.row(ctx, t.ID)
	now := time.Now()
	ok, err := b.store.Takeover(ctx, t)
	b.never(err)
	after, _ := b.row(ctx, t.ID)
	if err != nil || !ok || after.Generation == before.Generation {
		return ok, err
	}
	req, l := requestOf(ctx), b.lives[t.ID]
	cfg := &b.w.cfg
	switch {
	case !had || before.State == server.Done || before.Generation != t.Generation || before.Owner != t.From || (b.held(t.ID, before) && before.Owner != t.Owner):
		b.w.fault("%v: took over a row that was not to be had", req)
	case req == nil && t.Ask && settlementOf(ctx) != nil:
	case req == nil:
		b.w.fault("%v: taken over by nobody", l.who)
	case t.Ask && (cfg.Recover == nil || req.keyless):
		b.w.fault("%v: asks, and there is nobody to ask", req)
	case t.Ask || req.decision == server.RunAgain:
	case cfg.Recover != nil && !req.keyless:
		b.w.fault("%v: runs again without having asked", req)
	case cfg.Abandoned == server.RerunAbandoned && before.State == server.Unknown && !l.uncertain.Before(req.start):
		// Its owner, without a lease, gave it up while it was being taken over.
	case cfg.Abandoned != server.RerunAbandoned || before.State != server.Running:
		b.w.fault("%v: runs again what is not to be run again", req)
	}
	l.until = now.Add(t.Lease)
	g := &grant{generation: after.Generation, attempt: after.Attempt, req: req, asks: t.Ask}
	b.give(l, g)
	if !t.Ask {
		l.state = server.Running
	}
	b.w.note("%v: took over, generation %d, ask %t", req, after.Generation, t.Ask)
	return ok, err
}

// Renew is allowed for the newest grant.
func (b *journal) Renew(ctx context.Context, h server.Hold, lease time.Duration) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	ctx = context.WithoutCancel(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	before, had := b.row(ctx, h.ID)
	now := time.Now()
	ok, err := b.store.Renew(ctx, h, lease)
	b.never(err)
	if ok && had {
		b.lives[h.ID].until = now.Add(lease)
	}
	if ok && err == nil && (!had || before.Owner != h.Owner || before.Generation != h.Generation || before.State == server.Done) {
		b.w.fault("a stale hold was renewed")
	}
	return ok, err
}

// Complete is allowed once a life, for the newest grant: with the result of its
// run, if that is one to keep, or as Unknown if there is none and an effect was
// declared, or as the application decided.
func (b *journal) Complete(ctx context.Context, h server.Hold, r server.Result) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	ctx = context.WithoutCancel(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	before, had := b.row(ctx, h.ID)
	ok, err := b.store.Complete(ctx, h, r)
	b.never(err)
	req := requestOf(ctx)
	b.w.note("%v: complete %v of generation %d: %t %v", req, r.State, h.Generation, ok, err)
	if err != nil || !ok || before.State == server.Done {
		return ok, err
	}
	if !had || before.Owner != h.Owner || before.Generation != h.Generation {
		b.w.fault("%v: completed under a stale hold", req)
		return ok, err
	}
	l := b.lives[h.ID]
	l.state = r.State
	switch g := l.grant; {
	case g.req != req:
		b.w.fault("%v: completed the grant of %v", req, g.req)
	case r.State == server.Unknown:
		l.unknown, l.uncertain = true, time.Now()
		b.mayBeUnknown(g)
	case req == nil:
		b.record(l, settlementOf(ctx), r.Status)
	default:
		b.record(l, req.resultOf(), r.Status)
	}
	return ok, err
}

func (b *journal) mayBeUnknown(g *grant) {
	switch r := g.run; {
	case g.asks:
		if d := g.req.decision; d != server.LeaveUnknown && g.req.asked {
			b.w.fault("%v: left unknown what was decided: %v", g.req, d)
		}
	case r == nil:
		b.w.fault("%v: unknown, and never ran", g.req)
	case !r.ended || !r.effect || (!r.panicked && final(r.status)):
		b.w.fault("%v: unknown after %v", g.req, r)
	}
}

// record takes down the one result of a life.
func (b *journal) record(l *life, res *result, status int) {
	switch {
	case res == nil:
		b.w.fault("%v: a result that nobody gave", l.who)
		return
	case l.result != nil && l.result.kept:
		b.w.fault("%v: a second result", l.who)
	case res.status != status:
		b.w.fault("%v: status %d recorded as %d", l.who, res.status, status)
	case !final(res.status):
		b.w.fault("%v: recorded a response that is no result: %d", l.who, res.status)
	case res.run != nil && !res.run.ended && !res.early:
		b.w.fault("%v: recorded before %v had ended", l.who, res.run)
	}
	res.accepted = true
	l.unkept = l.unkept || !res.kept
	l.result, l.settled = res, time.Now()
}

// Release is allowed for a run that had no result and declared no effect, and
// for one that never began because its claim seemed to fail or in a shutdown.
func (b *journal) Release(ctx context.Context, h server.Hold) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	ctx = context.WithoutCancel(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	before, had := b.row(ctx, h.ID)
	ok, err := b.store.Release(ctx, h)
	b.never(err)
	_, has := b.row(ctx, h.ID)
	if err != nil || !ok || !had || has {
		return ok, err
	}
	req, l := requestOf(ctx), b.lives[h.ID]
	b.w.note("%v: released generation %d", req, h.Generation)
	switch g := l.grant; {
	case before.Owner != h.Owner || before.Generation != h.Generation || before.State == server.Done:
		b.w.fault("%v: released what it did not hold", req)
	case g.asks:
		b.w.fault("%v: released a run that it only asked about", req)
	case g.run == nil:
		if !req.proc.isClosing() && !b.w.isTroubled() { // a claim whose reply was lost is undone
			b.w.fault("%v: released without having run", req)
		}
	case !g.run.ended || g.run.effect || (!g.run.panicked && final(g.run.status)):
		b.w.fault("%v: released after %v", req, g.run)
	}
	b.remove(h.ID, "released")
	return ok, err
}

// Lookup reads.
func (b *journal) Lookup(ctx context.Context, id server.ID) (server.Row, bool, error) {
	return b.store.Lookup(ctx, id)
}

// Settle is an operator's, never over a live run.
func (b *journal) Settle(ctx context.Context, id server.ID, generation int64, r server.Result) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	ctx = context.WithoutCancel(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	before, _ := b.row(ctx, id)
	ok, err := b.store.Settle(ctx, id, generation, r)
	b.never(err)
	after, _ := b.row(ctx, id)
	if err != nil || !ok || before.Generation == after.Generation {
		return ok, err
	}
	l := b.lives[id]
	b.w.note("%v: settled", l.who)
	if before.State == server.Running && b.held(id, before) {
		b.w.fault("%v: settled while it runs", l.who)
	}
	l.state = server.Done
	b.give(l, &grant{generation: after.Generation})
	b.record(l, settlementOf(ctx), r.Status)
	return ok, err
}

// Forget is an operator's, never over a live hold.
func (b *journal) Forget(ctx context.Context, id server.ID) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	ctx = context.WithoutCancel(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	before, had := b.row(ctx, id)
	ok, err := b.store.Forget(ctx, id)
	b.never(err)
	if err != nil || !ok || !had {
		return ok, err
	}
	if before.State != server.Done && b.held(id, before) {
		b.w.fault("%v: forgotten while it runs", b.lives[id].who)
	}
	b.w.note("%v: forgotten", b.lives[id].who)
	b.remove(id, "forgotten")
	return ok, err
}

// purge may take what is done and was kept long enough.
func (b *journal) purge() {
	ctx := context.Background()
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, err := b.store.Purge(ctx); err != nil {
		b.w.fault("purge: %v", err)
	}
	for id, l := range b.lives {
		if _, found := b.row(ctx, id); found {
			continue
		}
		if l.state != server.Done || time.Now().Before(l.purge) {
			b.w.fault("%v: purged too early, state %v", l.who, l.state)
		}
		b.remove(id, "purged")
	}
}

// began notes that a handler runs: once a grant, once a request, and never
// without the right to.
func (b *journal) began(r *run, attempt int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	req := r.req
	b.w.note("%v: runs, attempt %d", req, attempt)
	g := req.grant
	switch {
	case g == nil || g.asks:
		b.w.fault("%v: runs without a claim", req)
		return
	case g.run != nil:
		b.w.fault("%v: runs a second time in generation %d", req, g.generation)
	case g.attempt != attempt:
		b.w.fault("%v: attempt %d, and the row says %d", req, attempt, g.attempt)
	case g.life.body != req.body:
		b.w.fault("%v: runs another request than the key was first used for", req)
	case g.life.result != nil && g.lost.IsZero():
		b.w.fault("%v: runs, and the key has its result", req)
	}
	r.grant, g.run = g, r
}

// lostSince is when the grant of a run was lost; zero if it was not.
func (b *journal) lostSince(r *run) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.grant == nil {
		return time.Time{}
	}
	return r.grant.lost
}

// change edits a run under the lock of the model.
func (b *journal) change(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

// final is the default of Config.Final, in the words of the contract.
func final(status int) bool {
	switch status {
	case 401, 403, 408, 425, 429:
		return false
	}
	return status >= 200 && status < 500
}

// identity is what a key belongs to: as the client knows it.
type identity struct{ scope, key string }

func (i identity) String() string { return fmt.Sprintf("%q/%q", i.scope, i.key) }
