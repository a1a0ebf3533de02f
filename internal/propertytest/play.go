package propertytest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemore-go/oncemore/server"
)

// identities that careless hashing or comparing would take for one another.
var identities = []identity{
	{"a", "bc"},
	{"ab", "c"},
	{"a\x00", "b"},
	{"a", "\\x00b"},
	{"a ", "k"},
	{"a", "k"},
	{"A", "k"},
	{"a", "K"},
	{"ä", "k"},
	{"a\u0308", "k"},
	{"a", "1"},
	{"a", "10"},
	{"a/b", "c"},
	{"a", "b/c"},
}

// newWorld draws a schedule. In real time leases are short, and all else with
// them.
func newWorld(seed uint64, store Store, realTime bool) *world {
	rng := rand.New(rand.NewPCG(seed, 0))
	w := &world{
		seed: seed, rng: rng, realTime: realTime, over: make(chan struct{}), nonces: make(map[int]*result),
		forgotten: make(map[identity]bool), expired: make(map[identity]time.Time), start: time.Now(),
	}
	w.journal = newJournal(w, store)
	lease := pick(rng, 200*time.Millisecond, time.Second, 30*time.Second)
	if realTime {
		lease, w.slack = 200*time.Millisecond, 2*time.Second
	}
	w.unit = lease / 10
	w.longest = pick(rng, 0, w.unit, 5*w.unit, 25*w.unit)
	w.trouble = pick(rng, 0, 0.05, 0.2, 0.5)
	w.cfg = server.Config{
		Scope:         func(r *http.Request) (string, error) { return requestOf(r.Context()).id.scope, nil },
		Lease:         lease,
		Wait:          pick(rng, -1, 3*w.unit, 20*w.unit, 200*w.unit),
		MaxWaiters:    pick(rng, 1, 3, 64, 64),
		MaxRun:        pick(rng, 8*w.unit, 30*w.unit, 5*time.Minute),
		TTL:           pick(rng, 15*w.unit, time.Hour, time.Hour),
		Retention:     pick(rng, time.Hour, 2*time.Hour),
		MaxStoredBody: pick[int64](rng, 0, stored, stored),
		Abandoned:     pick(rng, server.RefuseAbandoned, server.RerunAbandoned),
		Observer:      w.observe,
		Keyless:       server.Keyless{Mode: server.BodyHashKeyless, Window: 12 * w.unit},
	}
	if rng.IntN(2) == 0 {
		w.cfg.Recover = w.recover
	}
	for i := range 1 + rng.IntN(3) {
		w.addProcess(string(rune('A' + i)))
	}
	return w
}

func pick[T any](rng *rand.Rand, from ...T) T { return from[rng.IntN(len(from))] }

// addProcess starts one more process over the store.
func (w *world) addProcess(name string) *process {
	p := &process{w: w, name: name, dead: make(chan struct{})}
	mw, err := server.New(p, w.cfg)
	if err != nil {
		panic(err)
	}
	p.mw = mw
	w.mu.Lock()
	defer w.mu.Unlock()
	w.procs = append(w.procs, p)
	return p
}

// living is p, or another one if that is dead.
func (w *world) living(p *process) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := 0; !p.alive(); i++ {
		p = w.procs[i]
	}
	return p
}

// drawRequest is one that somebody may send.
func (w *world) drawRequest(n int, ids []identity) *request {
	rng, u := w.rng, w.unit
	req := &request{
		n: n, proc: pick(rng, w.procs...), id: pick(rng, ids...), body: "main",
		keyless: rng.IntN(8) == 0,
		script: script{
			before: pick(rng, 0, u, 5*u, 15*u, 40*u), after: pick(rng, 0, 0, u, 5*u),
			effect: rng.IntN(4) == 0, obeys: rng.IntN(3) == 0, panics: rng.IntN(8) == 0,
			status:  pick(rng, 200, 201, 201, 201, 204, 302, 404, 422, 401, 408, 429, 500, 503),
			flushes: rng.IntN(10) == 0, large: rng.IntN(10) == 0, noLocation: rng.IntN(3) == 0, resource: rng.IntN(6) == 0,
		},
		asks: w.drawAsks(),
	}
	if rng.IntN(8) == 0 {
		req.body = "other"
	}
	if req.script.status == 204 {
		req.script.status = 202 // a body tells whose result it is
	}
	if rng.IntN(5) == 0 {
		req.leaves = upTo(rng, 20*u) + 1
	}
	return req
}

func (w *world) drawAsks() recoverScript {
	return recoverScript{
		takes: upTo(w.rng, 15*w.unit), action: pick(w.rng, server.LeaveUnknown, server.RunAgain, server.SettleAs, server.SettleAs),
		fails: w.rng.IntN(6) == 0, panics: w.rng.IntN(12) == 0,
	}
}

// play runs the schedule, then lets all come to rest, and looks at what is left.
func (w *world) play(t *testing.T) {
	t.Helper()
	rng := w.rng
	ids := make([]identity, 1+rng.IntN(3))
	for i := range ids {
		ids[i] = pick(rng, identities...)
		if rng.IntN(3) == 0 {
			ids[i].key = newV7(rng)
		}
	}
	horizon := pick(rng, 5*w.unit, 30*w.unit, 80*w.unit)
	reqs := make([]*request, 2+rng.IntN(12))
	for i := range reqs {
		reqs[i] = w.drawRequest(i, ids)
		reqs[i].at = upTo(rng, horizon)
	}
	type incident struct {
		at time.Duration
		do func()
	}
	var incidents []incident
	if w.trouble > 0 {
		for range rng.IntN(6) {
			incidents = append(incidents, incident{upTo(rng, 2*horizon), w.drawIncident(ids)})
		}
	}

	ended := make([]chan struct{}, len(reqs))
	for i, req := range reqs {
		ended[i] = make(chan struct{})
		go func() {
			defer close(ended[i])
			time.Sleep(req.at)
			req.proc = w.living(req.proc)
			w.send(req)
		}()
	}
	for _, in := range incidents {
		w.late.Go(func() {
			time.Sleep(in.at)
			in.do()
		})
	}
	time.Sleep(2*horizon + w.cut())
	w.becomeCalm()
	w.drain(reqs, ended)
	time.Sleep(w.longest + w.cfg.Lease + w.slack/8 + time.Millisecond) // what is late has come, and leases end
	w.checkRest(ids)
	close(w.over)
	for _, dead := range ended {
		<-dead
	}
	w.late.Wait()
	if !w.realTime {
		synctest.Wait()
	}
	w.report(t)
}

// drawIncident is what may befall a process or a key.
func (w *world) drawIncident(ids []identity) func() {
	p, id, d := pick(w.rng, w.procs...), pick(w.rng, ids...), upTo(w.rng, w.cut())
	switch w.rng.IntN(8) {
	case 0, 1:
		return func() {
			w.upset("%s is killed", p.name)
			w.addProcess(p.name + "'") // first: somebody is always there
			p.kill()
		}
	case 2, 3:
		return func() {
			w.upset("%s is cut off for %v", p.name, d)
			p.freeze(d)
		}
	case 4:
		return func() {
			w.upset("%s shuts down within %v", p.name, d)
			_ = p.shutdown(d)
		}
	case 5:
		return func() { w.forget(p, id) }
	default:
		return func() { w.settle(p, id) }
	}
}

func (w *world) upset(format string, args ...any) {
	w.note(format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.troubled = true
}

func (w *world) forget(p *process, id identity) {
	if p.alive() {
		w.journal.change(func() { w.forgotten[id] = true })
		err := p.mw.Forget(context.Background(), id.scope, id.key)
		w.note("an operator forgets %v: %v", id, err)
	}
}

func (w *world) settle(p *process, id identity) {
	if p.alive() {
		res, response := w.settlement("main")
		ctx := context.WithValue(context.Background(), settlementKey{}, res)
		err := p.mw.Settle(ctx, id.scope, id.key, response)
		w.note("an operator settles %v: %v", id, err)
	}
}

// becomeCalm ends all faults; the dead stay dead.
func (w *world) becomeCalm() {
	w.note("calm")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calm = true
}

// drain waits for all requests that a living process has.
func (w *world) drain(reqs []*request, ended []chan struct{}) {
	patience := time.After(time.Hour)
	if w.realTime {
		patience = time.After(time.Minute)
	}
	for i, req := range reqs {
		select {
		case <-ended[i]:
		case <-req.proc.dead:
		case <-patience:
			w.fault("%v: never ends", req)
			return
		}
	}
}

// checkRest: when faults have stopped and leases have ended, one request tells
// how each key stands, and no key is in progress.
func (w *world) checkRest(ids []identity) {
	w.mu.Lock()
	w.troubled = false
	w.mu.Unlock()
	fresh := w.addProcess("fresh")
	slices.SortFunc(ids, func(a, b identity) int { return strings.Compare(a.String(), b.String()) })
	ids = slices.Compact(ids)
	for _, id := range ids {
		if row, found := w.journal.rowOf(id); found && row.Live {
			w.fault("%v: held by nobody, and its lease goes on: %v", id, row.State)
		}
		first := w.probe(fresh, id)
		w.checkState(first)
		second := w.probe(fresh, id)
		w.checkSame(first, second)
	}
	if w.rng.IntN(3) == 0 && !w.realTime {
		w.grow(fresh, ids)
	}
	for _, p := range w.procs {
		if !p.alive() {
			continue
		}
		if w.busy != nil {
			if n := w.busy(p.mw); n != 0 {
				w.fault("%s: busy with %d keys, and nobody asks", p.name, n)
			}
		}
		if err := p.shutdown(time.Nanosecond); err != nil {
			w.fault("%s: a run has not left: %v", p.name, err)
		}
	}
}

// next numbers the probes.
func (w *world) next() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.probes++
	return 1000 + w.probes
}

// probe sends a request that does what the key was first used for, without ado.
func (w *world) probe(p *process, id identity) *request {
	req := &request{
		n: w.next(), proc: p, id: id, body: "main", probe: true,
		script: script{status: 201},
		asks:   recoverScript{action: pick(w.rng, server.LeaveUnknown, server.RunAgain, server.SettleAs)},
	}
	w.journal.change(func() {
		if l := w.journal.lives[w.journal.ids[id]]; l != nil {
			req.body = l.body
		}
	})
	w.send(req)
	return req
}

func (b *journal) rowOf(id identity) (server.Row, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	row, ok := b.ids[id]
	if !ok {
		return server.Row{}, false
	}
	return b.row(context.Background(), row)
}

// checkState: the key is done, unknown, or refused as expired.
func (w *world) checkState(req *request) {
	row, found := w.journal.rowOf(req.id)
	switch word := req.writer.word(); word {
	case "executed", "replayed", "not-kept":
		if !found || row.State != server.Done {
			w.fault("%v: %s, and the row is %v", req, word, row.State)
		}
	case "unknown":
		if !found || row.State == server.Done || row.Live {
			w.fault("%v: unknown, and the row is %v, live %t", req, row.State, row.Live)
		}
	case "expired":
	default:
		w.fault("%v: after all came to rest: %d %s", req, req.writer.status, word)
	}
}

// checkSame: what is at rest stays so.
func (w *world) checkSame(first, second *request) {
	a, b := first.writer, second.writer
	switch {
	case a.success() && b.word() == "expired" && w.cfg.TTL < time.Hour:
	case a.success() && (b.word() != "replayed" || a.nonce() != b.nonce()):
		w.fault("%v: first %s %d, then %s %d", first, a.word(), a.nonce(), b.word(), b.nonce())
	case !a.success() && w.cfg.Recover == nil && a.word() != b.word():
		w.fault("%v: first %s, then %s", first, a.word(), b.word())
	}
}

// grow lets the keys expire, and be purged.
func (w *world) grow(p *process, ids []identity) {
	time.Sleep(w.cfg.TTL + time.Second)
	for _, id := range ids {
		row, found := w.journal.rowOf(id)
		word := w.probe(p, id).writer.word()
		if found && row.State == server.Done && time.Now().After(row.ExpiresAt) && word != "expired" {
			w.fault("%v: %s, and it has expired", id, word)
		}
	}
	w.journal.purge()
	time.Sleep(w.cfg.Retention + 11*time.Minute)
	w.journal.purge()
	for _, id := range ids {
		w.journal.change(func() {
			if w.journal.lives[w.journal.ids[id]] == nil && !isV7(id.key) {
				delete(w.expired, id) // nothing tells any more
			}
		})
		row, found := w.journal.rowOf(id)
		word := w.probe(p, id).writer.word()
		if isV7(id.key) && !found && word != "expired" {
			w.fault("%v: %s, and the time in it is long past", id, word)
		}
		if found && row.State == server.Done && word != "expired" {
			w.fault("%v: %s, and its row is there", id, word)
		}
	}
}

// report fails where an invariant did not hold.
func (w *world) report(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.faults) == 0 {
		return
	}
	cfg := w.cfg
	t.Errorf("seed %d: %s\n\nlease %v, wait %v, max waiters %d, max run %v, TTL %v, retention %v, body %d, abandoned %v, recover %t, trouble %v, calls up to %v\n%s",
		w.seed, strings.Join(w.faults, "\n"), cfg.Lease, cfg.Wait, cfg.MaxWaiters, cfg.MaxRun, cfg.TTL, cfg.Retention, cfg.MaxStoredBody,
		cfg.Abandoned, cfg.Recover != nil, w.trouble, w.longest, strings.Join(w.history, "\n"))
}

// newV7 is a key with the time in it.
func newV7(rng *rand.Rand) string {
	ms := time.Now().UnixMilli()
	return fmt.Sprintf("%08x-%04x-7%03x-%04x-%012x", ms>>16, ms&0xffff, rng.IntN(1<<12), 0x8000|rng.IntN(1<<14), rng.Int64N(1<<48))
}

func isV7(key string) bool { return len(key) == 36 }
