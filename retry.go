package oncemore

import (
	"net/http"
	"time"
)

// hop is one request of a call: all of it, or one step of a redirect.
type hop struct {
	*call
	req      *http.Request // ours, with the call's context
	policy   *Policy
	withBody bool
	paid     int // tokens that its retries took
	host     string
	cut      int // uploads in a row that were cut off
}

// A server that refuses an upload before it has read it often closes the
// connection with its answer, and then the answer is lost (RFC 9112 section
// 9.6). To the client that is a connection that breaks while it writes a body,
// and sending it all again comes to the same: after maxCut such uploads in a
// row the call ends. One that broke before it had taken minCut is not counted.
const (
	maxCut = 2
	minCut = 64 << 10
)

// send sends one hop, as often as it takes, and returns its last outcome.
func (c *call) send(req *http.Request, withBody bool) (*http.Response, error) {
	h := hop{call: c, req: req, policy: c.policy.forRequest(req), withBody: withBody}
	c.req, c.stop = req, 0
	c.aim(req)
	for {
		a, err := h.attempt()
		if err != nil {
			h.settle(ReasonCanceled)
			return nil, err
		}
		wait, stop := h.next(a)
		if stop != 0 {
			return h.finish(a, stop)
		}
		next := time.Now().Add(wait)
		h.announce(wait)
		a.discard() // takes its time out of the wait: it was asked whether that fits the deadline
		if err := c.sleep(req, time.Until(next)); err != nil {
			h.settle(ReasonCanceled)
			return nil, err
		}
	}
}

// next decides what follows an attempt: a wait and another one, or a reason to
// stop.
func (h *hop) next(a *attempt) (time.Duration, StopReason) {
	if stop := h.mayRetry(a); stop != 0 {
		return 0, stop
	}
	wait, tooLong := waitAfter(a.resp, shake(h.delay(h.policy), h.policy.Jitter), h.policy)
	if tooLong {
		return 0, StopRetryAfter
	}
	if end, ok := h.end(); ok && !time.Now().Add(wait).Before(end) {
		return 0, StopDeadline
	}
	cost := h.cost(a)
	if h.host == "" {
		h.host = hostPort(h.req.URL)
	}
	if !h.client.budget.take(h.host, cost) {
		return 0, StopBudget
	}
	if veto := h.client.stopRetry; veto != nil && veto(h.req, h.latest()) {
		h.client.budget.give(h.host, cost)
		return 0, StopVeto
	}
	h.paid += cost
	return wait, 0
}

// mayRetry returns the reason to stop that lies in the attempt and the
// request.
func (h *hop) mayRetry(a *attempt) StopReason {
	switch {
	case a.late && a.reason != ReasonCanceled:
		return StopDeadline
	case !a.retry:
		return h.stopOf(a.reason)
	case h.cutOff(a):
		return StopFinal
	case h.single || int(h.retries)+1 >= h.policy.MaxAttempts:
		return StopMaxAttempts
	case h.withBody && !h.body.replayable():
		return StopBody
	}
	return 0
}

// cutOff reports whether the server has shown that it does not take the body.
func (h *hop) cutOff(a *attempt) bool {
	if !h.withBody || !isWriteError(a.err) || h.body.taken() < minCut {
		h.cut = 0
		return false
	}
	h.cut++
	return h.cut == maxCut
}

// stopOf returns the reason to stop after an outcome that is not retried.
func (h *hop) stopOf(reason Reason) StopReason {
	switch reason {
	case ReasonOK:
		return StopSuccess
	case ReasonCanceled:
		_ = h.ended(h.req) // tells which end it was
		return h.stop
	default:
		return StopFinal
	}
}

// cost is what a retry after this attempt takes from the budget, by the policy
// that the call began with.
func (h *hop) cost(a *attempt) int {
	costs := h.policy.Budget
	if !h.client.ownBudget {
		costs = h.client.budget.costs()
	}
	if a.err != nil && (a.timedOut || isTimeout(a.err)) {
		return costs.TimeoutCost
	}
	return costs.RetryCost
}

// settle gives tokens back when the hop is over: all that its retries took,
// where one of them got an answer that is not retryable, or the caller has
// given up; and one where the first attempt was a success. ReasonCanceled is
// looked into: only a cancel of the caller's gives back.
func (h *hop) settle(reason Reason) {
	budget := h.client.budget
	switch reason {
	case ReasonOK, ReasonFinalStatus:
	case ReasonCanceled:
		if h.stop != StopCanceled {
			return
		}
	default:
		return
	}
	switch {
	case h.paid > 0:
		budget.give(h.host, h.paid)
	case reason == ReasonOK && budget.used.Load() > 0: // else it is full
		budget.give(hostPort(h.req.URL), 1)
	}
}

// announce records a retry before its wait.
func (h *hop) announce(wait time.Duration) {
	h.attempts[len(h.attempts)-1].Wait = wait
	h.retries++
	h.observe(EventRetry, h.req, nil, wait)
	h.logRetry(h.req, wait)
}

// finish ends the hop with the outcome of its last attempt.
func (h *hop) finish(a *attempt, stop StopReason) (*http.Response, error) {
	h.stop = stop
	h.settle(a.reason)
	if a.resp == nil {
		return nil, a.err
	}
	return a.hand(), nil
}

// sleep waits, unless the caller gives up first.
func (c *call) sleep(req *http.Request, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.Done():
	case <-req.Cancel: //nolint:staticcheck // net/http still uses it for Client.Timeout
	}
	return c.ended(req)
}
