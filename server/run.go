package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"
)

// run is one execution of a handler under a key that is ours.
type run struct {
	c       *call
	hold    Hold
	attempt int
	// fenced: the claim is committed and leased. Otherwise it is part of tx,
	// and goes with it.
	fenced bool
	tx     Tx // nil in Wrap

	ctx    context.Context
	cancel context.CancelCauseFunc
	lease  lease
	rec    recorder

	recorded bool  // before the handler returned: streamed, hijacked, too long
	failure  error // why that did not work
}

// runContext is the context that a handler's is made from: the values of the
// request and the operation, without the client's leaving.
type runContext struct {
	context.Context
	op *Operation
}

// Deadline is none.
func (*runContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done never is.
func (*runContext) Done() <-chan struct{} { return nil }

// Err is none.
func (*runContext) Err() error { return nil }

// Value is that of the request, or the operation.
func (rc *runContext) Value(key any) any {
	if key == (operationKey{}) {
		return rc.op
	}
	return rc.Context.Value(key)
}

// newRun prepares an execution.
func (c *call) newRun(hold Hold, fenced bool) *run {
	r := &c.first
	if r.c != nil { // there was one already: it asked Recover
		r = new(run)
	}
	r.c, r.hold, r.attempt, r.fenced = c, hold, c.op.attempt, fenced
	r.ctx, r.cancel = context.WithCancelCause(&c.ctx)
	r.lease.run, r.lease.renews = r, fenced
	r.rec = recorder{
		w: c.w, run: r, before: c.w.Header(), limit: c.m.cfg.MaxStoredBody,
		holdAll: c.g.tx != nil, head: c.r.Method == http.MethodHead, implied: http.StatusOK,
	}
	if len(r.rec.before) > 0 {
		r.rec.before = r.rec.before.Clone()
	} else {
		r.rec.before = nil
	}
	return r
}

// report tells of a lease, from its timer.
func (r *run) report(kind EventKind, err error) {
	r.c.m.emit(r.ctx, Event{
		Kind: kind, Request: r.c.r, Scope: r.c.op.scope, KeyHash: hexID(r.hold.ID), Attempt: r.attempt, Err: err,
	})
}

// execute runs the handler under a claim that is committed.
func (c *call) execute(hold Hold, asked time.Time) {
	c.flight.decide(&c.fp)
	r := c.newRun(hold, true)
	defer r.cancel(nil)
	if !c.m.runs.enter(r) {
		r.letGo()
		c.unavailableInShutdown()
		return
	}
	defer c.m.runs.leave(r)
	r.lease.start(asked)
	if c.g.tx != nil {
		tx, _, _, err := c.g.txStore.BeginTx(r.ctx, nil)
		if err != nil {
			r.letGo()
			c.storeFailed(err)
			return
		}
		r.tx = tx
	}
	r.serve()
}

// serve calls the handler, and treats how it ended.
func (r *run) serve() {
	c := r.c
	began := time.Now()
	returned := false
	defer func() {
		if !returned { // it panicked, or ended its goroutine; that goes on
			c.ran = time.Since(began)
			r.abort()
		}
	}()
	req := c.again(r.ctx)
	var err error
	if r.tx != nil {
		err = c.g.tx(&r.rec, req, r.tx.SQL())
	} else {
		c.g.next.ServeHTTP(&r.rec, req)
	}
	returned = true
	c.ran = time.Since(began)
	r.rec.close()
	r.finish(err)
}

// again is the request with its body to be read once more.
func (c *call) again(ctx context.Context) *http.Request {
	req := c.r.WithContext(ctx)
	req.Body = http.NoBody
	if len(c.body) > 0 {
		c.reader = requestBody{data: c.body}
		req.Body = &c.reader
	}
	return req
}

func (r *run) final(status int) bool { return r.c.m.cfg.Final(status) }

// finish treats a handler that has returned: record, then send.
func (r *run) finish(err error) {
	c := r.c
	switch {
	case r.recorded:
		if !r.rec.left() { // a Hijack that failed after it was recorded
			r.rec.send(statusExecuted)
		}
		c.emit(EventExecuted, r.rec.status, nil)
	case r.failure != nil:
		r.failed(r.failure)
	case err != nil:
		r.handlerFailed(err)
	case r.rec.silent && r.ctx.Err() != nil:
		r.gaveUp(context.Cause(r.ctx))
	case !r.final(r.rec.status):
		word, kind := statusExecuted, r.letGo()
		switch {
		case r.rec.left():
		case kind == EventInProgress:
			r.lost()
			return
		case kind == EventUnknown:
			word = codeUnknown
			fallthrough
		default:
			r.rec.send(word)
		}
		c.emit(kind, r.rec.status, nil)
	default:
		if err := r.record(r.rec.result(true)); err != nil {
			r.failed(err)
			return
		}
		r.rec.send(statusExecuted)
		c.emit(EventExecuted, r.rec.status, nil)
	}
}

// gaveUp treats a handler that returned without a word when its context had
// ended: an implied 200 would be a success that nobody had.
func (r *run) gaveUp(cause error) {
	kind := r.letGo()
	switch kind {
	case EventInProgress:
		r.lost()
	case EventUnknown:
		r.rec.discard()
		r.c.refuseUnknown(cause)
	default:
		r.rec.discard()
		r.c.refuse(kind, Problem{
			Code: codeUnavailable, Status: http.StatusServiceUnavailable,
			Detail: "the run was ended before it had a result; send the request again, with the same key",
		}, cause)
	}
}

// abort treats a handler that did not return.
func (r *run) abort() {
	r.rec.close()
	kind := EventExecuted
	if !r.recorded {
		kind = r.letGo()
	}
	r.c.emit(kind, 0, errPanicked)
}

var errPanicked = errors.New("server: the handler panicked")

// handlerFailed treats the error of a WrapTx handler.
func (r *run) handlerFailed(err error) {
	kind, p := r.letGo(), Problem{Code: codeFailed, Status: http.StatusInternalServerError, Detail: "nothing was done"}
	switch kind {
	case EventInProgress:
		r.lost()
		return
	case EventUnknown:
		p.Code, p.Detail = codeUnknown, "what was written is undone; an effect elsewhere may have happened"
	default:
	}
	r.rec.discard()
	r.c.refuse(kind, p, err)
}

// recordEarly records a response whose bytes are about to leave. From there on
// the run is done, and its context follows the client's connection again.
func (r *run) recordEarly(s *stored) error {
	if r.failure = r.record(s); r.failure != nil {
		return errNotRecorded
	}
	r.recorded = true
	r.c.m.runs.leave(r)
	context.AfterFunc(r.c.r.Context(), func() { r.cancel(context.Cause(r.c.r.Context())) })
	return nil
}

// record makes the result durable, and hands it to those who wait. The error is
// errLost if the key is somebody else's by now.
func (r *run) record(s *stored) error {
	c := r.c
	if _, rejected := c.op.reference(); rejected {
		c.log(slog.LevelWarn, "a part of SetResource was dropped: too long, or the URL has a line break or >")
	}
	s.executedAt = time.Now().UTC()
	err := r.store(s)
	if errors.Is(err, ErrTooLarge) {
		s = s.tombstone()
		err = r.store(s)
	}
	if err != nil {
		return err
	}
	c.flight.end(outcome{kind: outRow, res: s, row: Row{
		State: Done, Fingerprint: c.fp, Attempt: c.op.attempt,
		CreatedAt: c.start, ExpiresAt: c.start.Add(c.ttl()), // by our clock, which differs little
	}})
	return nil
}

// store completes the record: in the transaction, or for as long as the lease
// lasts.
func (r *run) store(s *stored) error {
	deadline := r.lease.stop()
	res := Result{State: Done, Status: s.status, Data: s.encode(), ExecutedAt: s.executedAt}
	if r.tx != nil {
		return r.commit(res)
	}
	ok, err := r.c.insist(deadline, func(ctx context.Context) (bool, error) {
		return r.c.m.store.Complete(ctx, r.hold, res)
	})
	if err == nil && !ok {
		return errLost
	}
	return err
}

// failed answers for a run whose result was not recorded. Its client must not
// see a success that nobody has on record.
func (r *run) failed(err error) {
	c := r.c
	if r.tx != nil {
		r.letGo() // nothing was committed, so the key may be free
	}
	c.flight.end(outcome{kind: outRetry})
	if errors.Is(err, errLost) {
		r.lost()
		return
	}
	r.rec.discard()
	// Whoever settles it needs to know what the handler said.
	ref, _ := c.op.reference()
	err = fmt.Errorf("result with status %d of resource %q was not recorded: %w", r.rec.status, ref.ID, err)
	c.emit(EventStoreFailure, r.rec.status, err)
	c.refuseUnavailable("the result could not be recorded; send the request again, with the same key", err)
}

// lost answers for a run whose key is somebody else's: as that one does, if it
// is done.
func (r *run) lost() {
	c := r.c
	if r.fenced && r.lease.lose() {
		r.report(EventLeaseLost, nil)
	}
	r.rec.discard()
	row, found, err := c.m.lookup(c.detached(), c.op.id)
	if err == nil && found && row.State == Done {
		row.Expired = false // its client was there before
		out := outcomeOf(row, new(stored))
		c.answer(&out)
		return
	}
	c.refuseInProgress(ErrLeaseLost)
}

// letGo ends a run that has no result, and returns how: as a rule the key is
// free again (EventReleased). Where an effect may have happened its outcome is
// unknown (EventUnknown). Where it is somebody else's by now, nothing is changed
// (EventInProgress).
func (r *run) letGo() EventKind {
	c := r.c
	unknown, held := c.op.effect.Load(), true
	deadline := r.lease.stop()
	if r.tx != nil {
		_ = r.tx.Rollback() // what can't be rolled back was not committed either
	}
	var err error
	switch {
	case unknown && r.fenced:
		held, err = c.insist(deadline, func(ctx context.Context) (bool, error) {
			return c.m.store.Complete(ctx, r.hold, Result{State: Unknown})
		})
	case unknown:
		err = c.claimUnknown()
	case r.fenced:
		held, err = c.insist(deadline, func(ctx context.Context) (bool, error) {
			return c.m.store.Release(ctx, r.hold)
		})
	}
	switch {
	case err == nil:
	case r.fenced:
		c.log(slog.LevelError, "the key stays claimed until its lease ends", slog.Any("error", err))
	default:
		c.log(slog.LevelError, "that the outcome is unknown could not be recorded", slog.Any("error", err))
	}
	c.flight.end(outcome{kind: outRetry})
	switch {
	case err == nil && !held:
		return EventInProgress
	case unknown:
		return EventUnknown
	}
	return EventReleased
}

// insist repeats a step until it is answered or the lease ends. A step is sent
// at least once.
func (c *call) insist(deadline time.Time, step func(context.Context) (bool, error)) (bool, error) {
	const shortest = 10 * time.Millisecond
	for delay := shortest; ; delay = min(2*delay, time.Second) {
		ok, err := step(c.detached()) // the store bounds it
		if err == nil || errors.Is(err, ErrTooLarge) {
			return ok, err
		}
		c.emit(EventStoreFailure, 0, err)
		left := time.Until(deadline)
		if left < shortest {
			return false, err
		}
		<-time.After(min(jitter(delay), left/2)) // more often towards the end, not less
	}
}

// log is for what is no event.
func (c *call) log(level slog.Level, msg string, attrs ...slog.Attr) {
	if c.m.cfg.Logger == nil {
		return
	}
	attrs = append(attrs, slog.String("scope", c.op.scope), slog.String("key_hash", hexID(c.op.id)))
	c.m.cfg.Logger.LogAttrs(c.r.Context(), level, msg, attrs...)
}
