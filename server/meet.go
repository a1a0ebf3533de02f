package server

import (
	"context"
	"net/http"
	"time"
)

// meet treats a key that somebody else had first: the leader's way when its
// claim did not win. It reports whether the request is answered; if not, it
// waits on its flight.
func (c *call) meet(row *Row, found bool) bool {
	f := c.flight
	switch {
	case !found && c.m.runs.closed():
		c.unavailableInShutdown()
		return true
	case !found:
		f.end(outcome{kind: outTooOld})
		c.refuseExpired()
		return true
	case row.State == Done:
		out := outcomeOf(*row, &c.result)
		f.end(out)
		c.answer(&out)
		return true
	case row.Live:
		f.decide(&row.Fingerprint)
		c.m.watch(f)
		return false
	case !row.Fingerprint.equal(&c.fp):
		c.refuseMismatch()
		return true
	}
	return c.takeOver(row)
}

func (c *call) unavailableInShutdown() {
	c.flight.end(outcome{kind: outUnavailable})
	c.w.Header().Set("Connection", "close")
	c.refuseUnavailable("the server is shutting down; nothing was run", nil)
}

// takeOver treats a run whose owner is gone, or whose outcome is unknown.
func (c *call) takeOver(row *Row) bool {
	rerun := row.State == Running && (c.m.cfg.Abandoned == RerunAbandoned || (c.g.tx != nil && c.m.cfg.ClaimFirst))
	ask := c.m.cfg.Recover != nil && !c.op.bodyHash
	switch {
	case !rerun && !ask:
		c.attempt = row.Attempt
		c.flight.end(outcome{kind: outRow, row: *row})
		c.refuseUnknown(nil)
		return true
	case c.m.runs.closed():
		c.unavailableInShutdown()
		return true
	}
	asked := time.Now()
	hold, ok, err := c.takeRow(Hold{Owner: row.Owner, Generation: row.Generation}, ask)
	switch {
	case err != nil:
		c.storeFailed(err)
		return true
	case !ok: // somebody was quicker
		c.flight.end(outcome{kind: outRetry})
		return false
	}
	c.won(row)
	c.emit(EventTakeover, 0, nil)
	if ask {
		return c.recover(hold, asked)
	}
	c.op.attempt++
	c.execute(hold, asked)
	return true
}

// takeRow asks for the row of this operation, as it was read.
func (c *call) takeRow(from Hold, ask bool) (Hold, bool, error) {
	t := Takeover{
		ID: c.op.id, Owner: c.owner, Lease: c.m.cfg.Lease, Ask: ask,
		From: from.Owner, Generation: from.Generation,
	}
	ok, err := c.m.store.Takeover(c.detached(), t)
	return Hold{ID: c.op.id, Owner: c.owner, Generation: from.Generation + 1}, ok, err
}

// undecided bounds how long also those are kept who do not wait, until it is
// known who has the key.
const undecided = time.Second

// wait waits on the flight, and reports whether the request is answered; if not,
// it starts anew.
func (c *call) wait() bool {
	f := c.flight
	decided, ended := f.signals()
	limit, patience := c.waitLimit(), undecided
	if limit >= 0 {
		patience = limit
	}
	timer := time.NewTimer(time.Until(c.start.Add(patience)))
	defer timer.Stop()
	for {
		select {
		case <-ended:
			f.leave()
			return c.told(&f.out)
		case <-decided:
			decided = nil
			switch fp := f.fingerprint(); {
			case f.over():
			case !fp.equal(&c.fp):
				f.leave()
				c.refuseMismatch()
				return true
			case limit < 0:
				f.leave()
				c.refuseInProgress(nil)
				return true
			}
		case <-timer.C:
			f.leave()
			c.noteWait()
			c.refuseInProgress(nil)
			return true
		case <-c.r.Context().Done():
			f.leave()
			c.noteWait()
			// Most often the client has left. Where it has not, an empty answer
			// would say 200.
			c.refuseInProgress(context.Cause(c.r.Context()))
			return true
		}
	}
}

// told treats the outcome of a flight that the request waited on.
func (c *call) told(out *outcome) bool {
	c.noteWait()
	switch out.kind {
	case outRetry:
		return false
	case outTooOld:
		c.refuseExpired()
	case outUnavailable:
		c.refuseUnavailable("the request that this one waited for could not be taken; send it again later, with the same key", out.err)
	case outRow:
		c.answer(out)
	}
	return true
}

// noteWait keeps how long the request waited, and tells of it once.
func (c *call) noteWait() {
	first := c.waited == 0
	c.waited = max(time.Since(c.start), 1)
	if first {
		c.emit(EventWaited, 0, nil)
	}
}

// waitLimit is Wait, cut so that the answer still fits into what the upload has
// left of the http.Server's WriteTimeout: less a second, or half of it.
// Negative: do not wait.
func (c *call) waitLimit() time.Duration {
	limit := c.m.cfg.Wait
	srv, ok := c.r.Context().Value(http.ServerContextKey).(*http.Server)
	if ok && srv.WriteTimeout > 0 {
		left := max(srv.WriteTimeout-time.Second, srv.WriteTimeout/2) - c.start.Sub(c.arrived)
		limit = min(limit, max(left, 0))
	}
	return limit
}

// answer answers from a row that is Done, Unknown, or whose owner is gone.
func (c *call) answer(out *outcome) {
	row := &out.row
	same := row.Fingerprint.equal(&c.fp)
	c.attempt = row.Attempt
	switch {
	case row.State == Done && row.Expired:
		c.refuseExpired()
	case !same:
		c.refuseMismatch()
	case row.State != Done:
		c.refuseUnknown(nil)
	case out.err != nil:
		c.emit(EventStoreFailure, 0, out.err)
		c.refuseFailed("the stored result can't be read; the request will not run again", EventUnavailable, out.err)
	default:
		c.replay(out.res, row)
	}
}
