package server

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// RecoveryAction is what becomes of a run that ended without a result.
type RecoveryAction int8

const (
	// LeaveUnknown answers 409 unknown, and the next arrival asks again.
	LeaveUnknown RecoveryAction = iota
	// RunAgain runs it again: it had no effect, or can have it twice.
	RunAgain
	// SettleAs stores the response as its result: it had its effect.
	SettleAs
)

// String returns the action in words.
func (a RecoveryAction) String() string {
	switch a {
	case LeaveUnknown:
		return "leave unknown"
	case RunAgain:
		return "run again"
	case SettleAs:
		return "settle as"
	}
	return "invalid"
}

// Recovery is what [Config.Recover] found out.
type Recovery struct {
	Action   RecoveryAction
	Response Response // of SettleAs
}

// recover asks the application about a run, under a hold of our own: one asks at
// a time. It reports whether the request is answered; if not, it waits on its
// flight.
func (c *call) recover(hold Hold, asked time.Time) bool {
	c.flight.decide(&c.fp)
	r := c.newRun(hold, true)
	defer r.cancel(nil)
	if !c.m.runs.enter(r) {
		r.leaveUnknown(outcome{kind: outUnavailable})
		c.unavailableInShutdown()
		return true
	}
	left := false
	defer func() {
		if !left {
			c.m.runs.leave(r)
		}
	}()
	r.lease.start(asked)
	found, s, err := r.ask()
	switch {
	case err != nil:
		r.leaveUnknown(outcome{kind: outUnavailable, err: err})
		c.refuseUnavailable("it could not be found out what became of the first request", err)
	case found.Action == SettleAs:
		if err := r.record(s); err != nil {
			r.failed(err)
			return true
		}
		c.emit(EventRecovered, s.status, nil)
		c.replay(s, &Row{}) // its body is kept
	case found.Action == RunAgain:
		r.lease.stop()
		c.m.runs.leave(r)
		left = true
		return c.runAgain(hold)
	default:
		r.leaveUnknown(outcome{kind: outRetry})
		c.refuseUnknown(nil)
	}
	return true
}

// ask calls Recover, and checks what it says.
func (r *run) ask() (found Recovery, s *stored, err error) {
	returned := false
	defer func() {
		if !returned { // it panicked, and that goes on
			r.leaveUnknown(outcome{kind: outRetry})
			r.c.emit(EventUnknown, 0, errRecoverPanicked)
		}
	}()
	found, err = r.c.m.cfg.Recover(r.ctx, &r.c.op)
	returned = true
	switch {
	case err != nil:
	case found.Action == SettleAs:
		s, err = r.c.m.settlement(found.Response)
	case found.Action != LeaveUnknown && found.Action != RunAgain:
		err = fmt.Errorf("server: Recovery.Action %d is none of LeaveUnknown, RunAgain, SettleAs", found.Action)
	}
	return found, s, err
}

var errRecoverPanicked = errors.New("server: Recover panicked")

// leaveUnknown ends the hold of one that asked, without an answer. out is for
// those who wait.
func (r *run) leaveUnknown(out outcome) {
	deadline := r.lease.stop()
	_, _ = r.c.insist(deadline, func(ctx context.Context) (bool, error) {
		return r.c.m.store.Complete(ctx, r.hold, Result{State: Unknown})
	}) // else the lease ends it
	r.c.flight.end(out)
}

// runAgain makes the hold of one that asked into that of a new run.
func (c *call) runAgain(hold Hold) bool {
	asked := time.Now()
	hold, ok, err := c.takeRow(hold, false)
	switch {
	case err != nil:
		c.storeFailed(err)
		return true
	case !ok:
		c.flight.end(outcome{kind: outRetry})
		return false
	}
	c.op.attempt++
	c.emit(EventRecovered, 0, nil)
	c.execute(hold, asked)
	return true
}
