package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
)

// identity checks what a person typed in.
func identity(scope, key string) (ID, error) {
	if scope == "" {
		return ID{}, errors.New("server: the scope is empty")
	}
	key, err := parseKey([]string{key})
	if err != nil {
		return ID{}, fmt.Errorf("server: %w", err)
	}
	return keyID(scope, key), nil
}

// Lookup says what happened under a key: for support and settlement. ok is
// false if there is no record. A run whose lease has ended is Unknown, though
// its owner may still complete it.
func (m *Middleware) Lookup(ctx context.Context, scope, key string) (rec Record, ok bool, err error) {
	id, err := identity(scope, key)
	if err != nil {
		return Record{}, false, err
	}
	row, found, err := m.store.Lookup(ctx, id)
	if err != nil || !found {
		return Record{}, false, err
	}
	rec, err = row.record()
	return rec, true, err
}

// Settle gives an operation of unknown outcome its result: what later arrivals
// of the key are answered. The error matches [ErrNotFound] if there is no
// record, [ErrRunning] while it runs or Config.Recover is asked about it, and
// [ErrSettled] if it has its result and a body; one whose body was not kept is
// given this one.
func (m *Middleware) Settle(ctx context.Context, scope, key string, r Response) error {
	id, err := identity(scope, key)
	if err != nil {
		return err
	}
	s, err := m.settlement(r)
	if err != nil {
		return err
	}
	const tries = 3 // the row moves on when somebody asks or takes over
	for range tries {
		row, found, err := m.store.Lookup(ctx, id)
		switch {
		case err != nil:
			return err
		case !found:
			return ErrNotFound
		case row.State == Running && row.Live:
			return ErrRunning
		case row.State == Done:
			var old stored
			if err := old.decode(&row); err != nil {
				return err
			}
			if old.kept {
				return ErrSettled
			}
			s.ref, s.executedAt = old.ref, old.executedAt
		}
		ok, err := m.settle(ctx, id, &row, Result{State: Done, Status: s.status, Data: s.encode(), ExecutedAt: s.executedAt})
		if err != nil {
			return err
		}
		if ok {
			m.emit(ctx, Event{Kind: EventSettled, Scope: scope, KeyHash: hexID(id), Attempt: row.Attempt, Status: s.status})
			return nil
		}
	}
	return ErrRunning
}

// settle gives a row its result. One that has none is taken over first: the run
// itself, or somebody who asks, may be about to end it, and only one may.
func (m *Middleware) settle(ctx context.Context, id ID, row *Row, res Result) (bool, error) {
	if row.State == Done {
		return m.store.Settle(ctx, id, row.Generation, res)
	}
	hold := Hold{ID: id, Generation: row.Generation + 1}
	_, _ = rand.Read(hold.Owner[:]) // never fails
	t := Takeover{ID: id, Owner: hold.Owner, From: row.Owner, Generation: row.Generation, Lease: m.cfg.Lease, Ask: true}
	if ok, err := m.store.Takeover(ctx, t); err != nil || !ok {
		return false, err
	}
	return m.store.Complete(ctx, hold, res)
}

// settlement makes a result of what the application says.
func (m *Middleware) settlement(r Response) (*stored, error) {
	switch {
	case r.Status < 200 || r.Status > 999 || !m.cfg.Final(r.Status):
		return nil, fmt.Errorf("server: Response.Status %d is no result to keep; see Config.Final", r.Status)
	case int64(len(r.Body)) > m.cfg.MaxStoredBody:
		return nil, fmt.Errorf("server: Response.Body has %d bytes, over Config.MaxStoredBody %d", len(r.Body), m.cfg.MaxStoredBody)
	case len(r.Body) > 0 && !hasBody(r.Status):
		return nil, fmt.Errorf("server: Response.Body is not empty, and a response with status %d has none", r.Status)
	}
	s := &stored{status: r.Status, body: r.Body, kept: true, executedAt: time.Now().UTC()}
	for name, values := range canonical(r.Header) {
		s.keep(name, values, m.cfg.ReplayHeaders)
	}
	return s, nil
}

// Forget removes what is known under a key, so that it runs again when it
// arrives again. The error matches [ErrRunning] while it runs. Forgetting what
// is not there is no error.
func (m *Middleware) Forget(ctx context.Context, scope, key string) error {
	id, err := identity(scope, key)
	if err != nil {
		return err
	}
	ok, err := m.store.Forget(ctx, id)
	switch {
	case err != nil:
		return err
	case !ok:
		return ErrRunning
	}
	m.emit(ctx, Event{Kind: EventForgotten, Scope: scope, KeyHash: hexID(id)})
	return nil
}
