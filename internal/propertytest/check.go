package propertytest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oncemore-go/oncemore/server"
)

// answer is what a client sees of the response: what was written while the
// process lived.
type answer struct {
	w   *world
	req *request

	header   http.Header
	returned bool

	mu     sync.Mutex
	status int
	snap   http.Header
	body   strings.Builder
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.status != 0 || !a.req.proc.alive() {
		return
	}
	a.status, a.snap = status, a.header.Clone()
	a.w.checkFirstByte(a)
}

func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if a.req.proc.alive() {
		a.body.Write(p)
	}
	return len(p), nil
}

func (a *answer) Flush() { a.WriteHeader(http.StatusOK) }

func (a *answer) word() string { return a.snap.Get("Idempotency-Status") }

// success reports whether the answer says that the operation has this result.
func (a *answer) success() bool {
	return final(a.status) && (a.word() == "executed" || a.word() == "replayed")
}

// nonce finds out whose result it is; 0: nothing tells.
func (a *answer) nonce() (n int) {
	for _, from := range []struct{ text, format string }{
		{a.snap.Get("Etag"), `"%d"`},
		{a.snap.Get("Location"), "/results/%d"},
		{a.snap.Get("Link"), "</things/%d>"},
		{a.body.String(), "nonce=%d;"},
	} {
		if _, err := fmt.Sscanf(from.text, from.format, &n); err == nil {
			return n
		}
	}
	return 0
}

// checkFirstByte: no success leaves that is not on record.
func (w *world) checkFirstByte(a *answer) {
	w.note("%v: answered %d %s", a.req, a.status, a.word())
	if !a.success() || a.nonce() == 0 {
		return
	}
	if res := w.journal.read(w.byNonce(a.nonce())); !res.accepted {
		w.fault("%v: a success left that is not on record", a.req)
	}
}

// read copies a result.
func (b *journal) read(res *result) (out result) {
	b.change(func() {
		if res != nil {
			out = *res
		}
	})
	return out
}

// checkAnswer holds the whole answer to what was asked and what is on record.
func (w *world) checkAnswer(req *request) {
	a := req.writer
	if !req.proc.alive() {
		return
	}
	w.checkEvents(req)
	w.checkDuration(req)
	w.checkHaste(req)
	if a.status == 0 {
		if left := req.leaves > 0 && req.end.Sub(req.start) >= req.leaves; a.returned && !left {
			w.fault("%v: no answer", req)
		}
		return
	}
	for _, name := range []string{"Idempotency-Executed-At", "Idempotency-Replayed"} {
		if has := a.snap.Get(name) != ""; has != (a.word() == "replayed") {
			w.fault("%v: %s with %s", req, a.word(), name)
		}
	}
	retry := a.status == http.StatusServiceUnavailable && a.word() != "executed" && a.word() != "unknown" || a.word() == "in-progress"
	if has := a.snap.Get("Retry-After") != ""; has != retry {
		w.fault("%v: %d %s, Retry-After %t", req, a.status, a.word(), has)
	}
	if a.success() {
		w.checkSuccess(a)
		return
	}
	w.checkRefusal(a)
}

// checkSuccess: it is the one result of this operation, whole, and not too old.
func (w *world) checkSuccess(a *answer) {
	req := a.req
	res := w.byNonce(a.nonce())
	if res == nil {
		w.fault("%v: a success from nowhere: %d %q", req, a.status, a.body.String())
		return
	}
	is := w.journal.read(res)
	own := req.run != nil && req.run.result == res
	replayed := a.word() == "replayed"
	switch {
	case !is.accepted:
		w.fault("%v: a success that is not on record", req)
	case own == replayed && (!replayed || !is.early):
		w.fault("%v: %s with the result of %v", req, a.word(), res.run)
	case a.status != is.status:
		w.fault("%v: status %d, on record %d", req, a.status, is.status)
	case a.body.String() != is.body && (!replayed || is.kept || a.body.Len() > 0):
		w.fault("%v: body %.80q, on record %.80q", req, a.body.String(), is.body)
	case replayed && a.snap.Get("Set-Cookie") != "":
		w.fault("%v: a cookie was replayed", req)
	case a.snap.Get("Content-Type") != "text/plain":
		w.fault("%v: content type %q", req, a.snap.Get("Content-Type"))
	case replayed && is.early && a.snap.Get("Etag") != "":
		w.fault("%v: the ETag of a body that is not there", req)
	}
	w.journal.mu.Lock()
	defer w.journal.mu.Unlock()
	l := w.journal.lifeOf(res)
	switch {
	case l == nil || l.who != req.who():
		w.fault("%v: the result of another operation", req)
	case l.body != req.body:
		w.fault("%v: the result of another request: %.80q", req, is.body)
	case req.start.After(l.expires) && req.start.After(l.settled.Add(w.lag())):
		w.fault("%v: a result that had expired", req)
	}
	if at, told := w.expired[req.who()]; told && req.start.After(at.Add(w.lag())) && !w.forgotten[req.who()] {
		w.fault("%v: an answer from a key that was refused as expired", req)
	}
}

// lifeOf finds the life that a result ended.
func (b *journal) lifeOf(res *result) *life {
	for _, lives := range b.past {
		for _, l := range lives {
			if l.result == res || (res.run != nil && res.run.grant != nil && res.run.grant.life == l) {
				return l
			}
		}
	}
	return nil
}

// checkRefusal: there is a reason for it.
func (w *world) checkRefusal(a *answer) {
	req := a.req
	w.journal.mu.Lock()
	defer w.journal.mu.Unlock()
	lives := w.journal.past[req.who()]
	some := func(is func(*life) bool) bool { return slices.ContainsFunc(lives, is) }
	justified := false
	switch a.word() {
	case "executed": // not final
		justified = req.run != nil && req.run.ended && req.run.status == a.status && !req.run.accepted
	case "unknown":
		justified = some(func(l *life) bool { return l.unknown || l.state != server.Done || !l.settled.Before(req.start) })
		if req.run != nil && a.status == req.run.status && !req.run.effect {
			justified = false
		}
	case "mismatch":
		justified = some(func(l *life) bool { return l.body != req.body })
	case "expired":
		w.expired[req.who()] = time.Now()
		justified = !req.keyless && w.tooOld(req) || !req.keyless && some(func(l *life) bool { return l.result != nil && !time.Now().Before(l.expires) })
	case "in-progress":
		justified = len(lives) > 0 || w.isTroubled() || w.cfg.MaxWaiters < 64
	case "not-kept":
		justified = some(func(l *life) bool { return l.unkept })
	case "unavailable":
		justified = w.isTroubled() || req.proc.isClosing() || w.journal.failed[req.who()]
	}
	if !justified {
		w.fault("%v: refused without a reason: %d %s", req, a.status, a.word())
	}
}

func (w *world) isTroubled() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.troubled || w.realTime // a machine with much else to do is trouble enough
}

// tooOld reports whether the time in the key says that it was used long ago.
func (w *world) tooOld(req *request) bool {
	return isV7(req.id.key) && time.Since(w.start) > w.cfg.Retention
}

// checkEvents: exactly one names the outcome.
func (w *world) checkEvents(req *request) {
	var outcomes []server.EventKind
	w.journal.change(func() {
		for _, kind := range req.events {
			if kind <= server.EventUnavailable {
				outcomes = append(outcomes, kind)
			}
		}
	})
	if len(outcomes) != 1 {
		w.fault("%v: %d outcomes: %v", req, len(outcomes), outcomes)
		return
	}
	want := map[string]server.EventKind{
		"replayed": server.EventReplayed, "in-progress": server.EventInProgress, "not-kept": server.EventNotKept,
		"mismatch": server.EventMismatch, "expired": server.EventExpired, "unknown": server.EventUnknown,
		"unavailable": server.EventUnavailable, "executed": server.EventReleased,
	}[req.writer.word()]
	if req.writer.word() == "executed" && final(req.writer.status) {
		want = server.EventExecuted
	}
	if req.run != nil && req.run.panicked { // what had left says less than how it ended
		return
	}
	if req.writer.status != 0 && outcomes[0] != want && (req.run == nil || !req.run.early) {
		w.fault("%v: answered %s, event %v", req, req.writer.word(), outcomes[0])
	}
}

// checkDuration: who neither runs nor asks ends within Wait, and what the store
// takes.
func (w *world) checkDuration(req *request) {
	var held bool
	w.journal.change(func() { held = req.grant != nil || req.run != nil })
	took := req.end.Sub(req.start)
	limit := max(w.cfg.Wait, 0) + 4*w.longest + w.cut() + 100*time.Millisecond + w.slack
	if !held && took > limit {
		w.fault("%v: waited %v, and Wait is %v", req, took, w.cfg.Wait)
	}
}

// checkHaste: a mismatch is told at once, and a result is not given up before
// its lease.
func (w *world) checkHaste(req *request) {
	took, word := req.end.Sub(req.start), req.writer.word()
	switch {
	case word == "mismatch" && req.differs && !w.isTroubled() && took > w.lag():
		w.fault("%v: told after %v that it is another request", req, took)
	case word == "unavailable" && req.run != nil && took < w.cfg.Lease-1300*time.Millisecond:
		w.fault("%v: its result was given up after %v", req, took)
	}
}

// lag is how late another process may learn that a run has ended: who joins
// those that wait there gets what they get.
func (w *world) lag() time.Duration { return 400*time.Millisecond + 4*w.longest + w.cut() + w.slack }

// cut is the longest that a process was cut off from the store.
func (w *world) cut() time.Duration { return 20 * w.unit }

// checkContext holds the context of a handler to its promises.
func (w *world) checkContext(ctx context.Context, r *run) {
	if w.journal.read(r.result).early { // streamed: it is the client's now
		return
	}
	lease := w.cfg.Lease
	renewal := max(lease/3, 100*time.Millisecond)
	lost, ran := w.journal.lostSince(r), time.Since(r.began)
	if ctx.Err() == nil {
		switch {
		case !lost.IsZero() && time.Since(lost) > lease+2*renewal+w.slack && ran > lease+2*renewal:
			w.fault("%v: lost its key %v ago, and was not told", r.req, time.Since(lost))
		case ran > w.cfg.MaxRun+renewal+w.slack+time.Millisecond:
			w.fault("%v: runs for %v, and MaxRun is %v", r.req, ran, w.cfg.MaxRun)
		}
		return
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, server.ErrLeaseLost):
		if lost.IsZero() && !w.isTroubled() {
			w.fault("%v: told that it lost its key, and did not", r.req)
		}
	case errors.Is(cause, server.ErrMaxRun):
		if time.Since(r.req.start) < w.cfg.MaxRun {
			w.fault("%v: ended by MaxRun after %v", r.req, ran)
		}
	case errors.Is(cause, server.ErrShutdown):
		if !r.req.proc.isClosing() {
			w.fault("%v: ended by a shutdown that was not", r.req)
		}
	default:
		w.fault("%v: its context ended: %v", r.req, cause)
	}
}
