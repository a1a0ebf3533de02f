package oncemore

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"time"
)

// Attempt is one send of a call.
type Attempt struct {
	Number   int           // from 1, over all hops of a redirect
	Status   int           // 0 if there was no response
	Err      error         // nil if there was a response
	Reason   Reason        // what kind of outcome it was
	Duration time.Duration // until the response headers, and the buffered body, were in
	Wait     time.Duration // how long the call then waited for the next attempt; 0 after the last one
	Sends    int           // request headers written on the wire, re-sends by net/http included; 0: not counted
}

// StopReason says why a call ended.
type StopReason int

// The stop reasons. The zero StopReason is none.
const (
	StopSuccess     StopReason = iota + 1 // an answer below 400
	StopFinal                             // an outcome that is not retried
	StopMaxAttempts                       // Policy.MaxAttempts, or WithoutRetry
	StopDeadline                          // the deadline has passed, or comes before the next attempt
	StopCanceled                          // the caller cancelled
	StopRetryAfter                        // the server asks for a longer wait than Policy.MaxRetryAfter
	StopBudget                            // the retry budget of the host is used up
	StopBody                              // the request body can't be sent again
	StopVeto                              // Config.StopRetry
	StopHook                              // Config.BeforeAttempt or Config.NewKey returned an error
)

var stopNames = [...]string{
	StopSuccess:     "success",
	StopFinal:       "final",
	StopMaxAttempts: "max attempts",
	StopDeadline:    "deadline",
	StopCanceled:    "canceled",
	StopRetryAfter:  "retry-after",
	StopBudget:      "budget",
	StopBody:        "body",
	StopVeto:        "veto",
	StopHook:        "hook",
}

// String returns the stop reason in words.
func (s StopReason) String() string { return nameOf(stopNames[:], int(s)) }

// EventKind says what an [Event] reports.
type EventKind int

// The kinds of event. Each call ends with one EventDone or one EventGiveUp.
const (
	EventAttempt EventKind = iota + 1 // an attempt has ended
	EventRetry                        // a wait begins, and an attempt follows it
	EventDone                         // the call ended with a response that is not retryable
	EventGiveUp                       // the call ended with an error, or with a retryable response
)

var eventNames = [...]string{
	EventAttempt: "attempt",
	EventRetry:   "retry",
	EventDone:    "done",
	EventGiveUp:  "give up",
}

// String returns the kind in words.
func (k EventKind) String() string { return nameOf(eventNames[:], int(k)) }

// Event is what Config.Observer is told.
type Event struct {
	Kind     EventKind
	Request  *http.Request // a private copy of the hop's request; its body is not to be read
	Attempt  Attempt       // the latest one; zero if nothing was sent
	Wait     time.Duration // EventRetry: the wait that begins
	Elapsed  time.Duration // since the call began
	Stop     StopReason    // EventDone and EventGiveUp: why the call ended
	Replayed bool          // the response was a stored one
	Policy   string        // the hash of the policy that the call uses
}

// Attempts returns the attempts of the call that resp answers, over all its
// hops; nil if resp does not come from this package.
func Attempts(resp *http.Response) []Attempt {
	if c := callOf(resp); c != nil {
		return slices.Clone(c.attempts)
	}
	return nil
}

// StopOf returns why the call ended with this response: StopSuccess, or why it
// was not tried again. It is 0 if resp does not come from this package.
func StopOf(resp *http.Response) StopReason {
	if c := callOf(resp); c != nil {
		return c.stop
	}
	return 0
}

type callKey struct{}

// callOf returns the call that resp answers, nil if there is none.
func callOf(resp *http.Response) *call {
	if resp == nil || resp.Request == nil {
		return nil
	}
	c, _ := resp.Request.Context().Value(callKey{}).(*call)
	return c
}

// observe tells the observer, if there is one. The event is about the latest
// attempt.
func (c *call) observe(kind EventKind, req *http.Request, resp *http.Response, wait time.Duration) {
	if c.client.observer == nil {
		return
	}
	c.client.observer(c, Event{
		Kind: kind, Request: req, Attempt: c.latest(), Wait: wait, Elapsed: time.Since(c.began),
		Stop: c.stop, Replayed: Replayed(resp), Policy: c.policy.hash,
	})
}

// latest returns the latest attempt, or a zero one.
func (c *call) latest() Attempt {
	if len(c.attempts) == 0 {
		return Attempt{}
	}
	return c.attempts[len(c.attempts)-1]
}

// logRetry writes the one record of a retry.
func (c *call) logRetry(req *http.Request, wait time.Duration) {
	if c.client.logger == nil {
		return
	}
	attrs := append(c.logAttrs(req), slog.Duration("wait", wait))
	c.client.logger.LogAttrs(c, slog.LevelWarn, "retry", attrs...)
}

// logGiveUp writes the one record of a call that came to nothing, unless that
// is what the caller wanted.
func (c *call) logGiveUp(req *http.Request, err error) {
	if c.client.logger == nil || c.stop == StopCanceled {
		return
	}
	attrs := append(c.logAttrs(req), slog.String("stop", c.stop.String()), slog.Duration("elapsed", time.Since(c.began)))
	if len(c.attempts) == 0 && err != nil {
		attrs = append(attrs, slog.String("error", redactText(err, c.key)))
	}
	c.client.logger.LogAttrs(context.WithoutCancel(c), slog.LevelError, "give up", attrs...)
}

// logAttrs describes the call and its latest attempt. There is no secret in
// it: the key is hashed, the URL redacted.
func (c *call) logAttrs(req *http.Request) []slog.Attr {
	a := c.latest()
	attrs := []slog.Attr{
		slog.String("method", methodOf(req)),
		slog.Int("attempt", a.Number),
	}
	if req.URL != nil {
		attrs = append(attrs, slog.String("url", redactUser(req.URL)))
	}
	if a.Number > 0 {
		attrs = append(attrs, slog.String("reason", a.Reason.String()))
	}
	if a.Status != 0 {
		attrs = append(attrs, slog.Int("status", a.Status))
	}
	if a.Err != nil {
		attrs = append(attrs, slog.String("error", redactText(a.Err, c.key)))
	}
	if c.key != "" {
		attrs = append(attrs, slog.String("key_hash", keyHash(c.key)))
	}
	return append(attrs, slog.String("policy", c.policy.hash))
}
