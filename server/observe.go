package server

import (
	"context"
	"encoding/hex"
	"log/slog"
	"net/http"
	"time"
)

// EventKind says what happened.
type EventKind int8

// Each guarded request ends in exactly one event of the first group. Those of
// the second report what happened on its way, and those of the last what
// somebody did by hand.
const (
	// EventExecuted: the handler ran, and its result is recorded.
	EventExecuted EventKind = iota + 1
	// EventReplayed: the stored result was handed back.
	EventReplayed
	// EventReleased: the handler ran and had no result to keep; the key is
	// free.
	EventReleased
	// EventInProgress: the first is still running, and the request would wait
	// no longer, or was one too many.
	EventInProgress
	// EventNotKept: it is done, and there is nothing to hand back.
	EventNotKept
	// EventMismatch: the key belongs to another request.
	EventMismatch
	// EventExpired: the key is past its TTL.
	EventExpired
	// EventUnknown: nobody knows whether the run had its effect.
	EventUnknown
	// EventUnprotected: a request without a key was let through.
	EventUnprotected
	// EventMissing: a request without a key was refused.
	EventMissing
	// EventMalformed: key, scope or body could not be read.
	EventMalformed
	// EventTooLarge: the request body is over MaxRequestBody.
	EventTooLarge
	// EventUnavailable: the store, the scope or the server's own state let
	// nothing be decided, or a result could not be recorded.
	EventUnavailable

	// EventWaited: a duplicate waited for the first.
	EventWaited
	// EventTakeover: a run whose owner was lost is run again, or asked about.
	EventTakeover
	// EventRecovered: Config.Recover settled a run.
	EventRecovered
	// EventLeaseLost: a run lost its key to somebody else.
	EventLeaseLost
	// EventStoreFailure: a call of the store failed.
	EventStoreFailure

	// EventSettled: Settle gave a key its result.
	EventSettled
	// EventForgotten: Forget freed a key.
	EventForgotten
)

var eventNames = [...]string{
	EventExecuted: "executed", EventReplayed: "replayed", EventReleased: "released", EventInProgress: "in progress",
	EventNotKept: "not kept", EventMismatch: "mismatch", EventExpired: "expired", EventUnknown: "unknown",
	EventUnprotected: "unprotected", EventMissing: "missing", EventMalformed: "malformed", EventTooLarge: "too large",
	EventUnavailable: "unavailable", EventWaited: "waited", EventTakeover: "takeover", EventRecovered: "recovered",
	EventLeaseLost: "lease lost", EventStoreFailure: "store failure", EventSettled: "settled", EventForgotten: "forgotten",
}

// String returns the kind in words.
func (k EventKind) String() string {
	if k < EventExecuted || int(k) >= len(eventNames) {
		return "invalid"
	}
	return eventNames[k]
}

// level is how loud the log record of an event is.
func (k EventKind) level() slog.Level {
	switch k {
	case EventMismatch, EventExpired, EventUnknown, EventTakeover, EventRecovered, EventTooLarge, EventMalformed, EventMissing,
		EventSettled, EventForgotten:
		return slog.LevelWarn
	case EventLeaseLost, EventStoreFailure, EventUnavailable:
		return slog.LevelError
	case EventExecuted, EventReplayed, EventReleased, EventInProgress, EventNotKept, EventUnprotected, EventWaited:
	}
	return slog.LevelInfo
}

// Event tells [Config.Observer] what happened to a guarded request.
type Event struct {
	Kind    EventKind
	Request *http.Request // nil for what was done by hand
	Scope   string
	KeyHash string // hex of the row's identity, so that a log line leads to the record; "" without one
	Attempt int    // of the run, where one is concerned
	Status  int    // of the answer, where there is one
	Wait    time.Duration
	Run     time.Duration // of the handler
	Err     error         // why, where there is a reason
}

// emit tells observer and log.
func (m *Middleware) emit(ctx context.Context, e Event) {
	if m.cfg.Observer != nil {
		m.cfg.Observer(ctx, e)
	}
	if m.cfg.Logger == nil {
		return
	}
	level := e.Kind.level()
	if !m.cfg.Logger.Enabled(ctx, level) {
		return
	}
	attrs := make([]slog.Attr, 0, 10)
	attrs = append(attrs, slog.String("event", e.Kind.String()), slog.String("scope", e.Scope), slog.String("key_hash", e.KeyHash))
	if e.Request != nil {
		attrs = append(attrs, slog.String("method", e.Request.Method), slog.String("path", e.Request.URL.Path))
	}
	if e.Attempt > 0 {
		attrs = append(attrs, slog.Int("attempt", e.Attempt))
	}
	if e.Status > 0 {
		attrs = append(attrs, slog.Int("status", e.Status))
	}
	if e.Wait > 0 {
		attrs = append(attrs, slog.Duration("wait", e.Wait))
	}
	if e.Run > 0 {
		attrs = append(attrs, slog.Duration("run", e.Run))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.Any("error", e.Err))
	}
	m.cfg.Logger.LogAttrs(ctx, level, "idempotency", attrs...)
}

// observed reports whether anybody listens.
func (m *Middleware) observed() bool { return m.cfg.Observer != nil || m.cfg.Logger != nil }

// emit tells what happened to this request.
func (c *call) emit(kind EventKind, status int, err error) {
	if !c.m.observed() {
		return
	}
	e := Event{Kind: kind, Request: c.r, Scope: c.op.scope, Attempt: max(c.attempt, c.op.attempt), Status: status, Wait: c.waited, Run: c.ran, Err: err}
	if c.op.id != (ID{}) {
		e.KeyHash = hexID(c.op.id)
	}
	c.m.emit(c.r.Context(), e)
}

// hexID is how a row is named in events and logs.
func hexID(id ID) string { return hex.EncodeToString(id[:]) }
