package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"
)

// The causes of a claim that is given up while another transaction has the key.
var (
	errClientLeft = errors.New("server: the client left")
	errWaited     = errors.New("server: waited as long as it may")
	errTxEnded    = errors.New("server: the database ended the transaction under the handler")
)

// leadTx claims the key in the transaction that the handler will write through.
// Where another process's transaction has it, this waits for that one's end.
// It reports whether the request is answered.
func (c *call) leadTx() bool {
	r := c.newRun(Hold{}, false)
	defer r.cancel(nil)
	tx, row, found, err := r.claimTx()
	switch {
	case errors.Is(err, errClientLeft), errors.Is(err, errWaited), errors.Is(err, ErrBusy):
		c.noteWait()
		c.refuseInProgress(err)
		return true
	case err != nil:
		c.storeFailed(err)
		return true
	case tx == nil:
		return c.meet(&row, found)
	}
	c.won(&row)
	c.flight.decide(&c.fp)
	r.tx = tx
	r.hold = Hold{ID: c.op.id, Owner: c.owner, Generation: row.Generation}
	if !c.m.runs.enter(r) {
		r.letGo()
		c.unavailableInShutdown()
		return true
	}
	defer c.m.runs.leave(r)
	r.lease.start(time.Now())
	r.serve()
	return true
}

// claimTx begins the transaction with the claim, for as long as the request may
// wait and its client is there.
func (r *run) claimTx() (Tx, Row, bool, error) {
	c := r.c
	limit := c.waitLimit()
	patience := time.AfterFunc(max(limit-time.Since(c.start), undecided), func() { r.cancel(errWaited) })
	stay := context.AfterFunc(c.r.Context(), func() { r.cancel(errClientLeft) })
	claim := c.claim()
	for {
		tx, row, found, err := c.g.txStore.BeginTx(r.ctx, &claim)
		again := errors.Is(err, ErrBusy) && r.ctx.Err() == nil && time.Since(c.start) < limit
		if again {
			continue
		}
		stopped := patience.Stop()
		if !stay() || !stopped { // the context of the transaction has ended, or is about to
			if tx != nil {
				_ = tx.Rollback()
			}
			if cause := context.Cause(r.ctx); cause != nil {
				return nil, row, found, cause
			}
			return nil, row, found, errWaited
		}
		return tx, row, found, err
	}
}

// commit completes the record in the transaction, and commits both. Where it is
// not known whether that worked, the key tells.
func (r *run) commit(res Result) error {
	c := r.c
	ctx := c.detached()
	ok, err := r.tx.Complete(ctx, r.hold, res)
	switch {
	case errors.Is(err, ErrTooLarge):
		return err
	case err == nil && !ok:
		err = errTxEnded
	case err == nil:
		if err = r.tx.Commit(ctx); err == nil {
			return nil
		}
	}
	_ = r.tx.Rollback() // without an effect after a commit that worked
	var row Row
	found, lookupErr := c.insist(time.Now().Add(commitTimeout), func(ctx context.Context) (found bool, err error) {
		row, found, err = c.m.store.Lookup(ctx, c.op.id)
		return found, err
	})
	switch {
	case lookupErr != nil:
		return errors.Join(err, lookupErr)
	case found && row.State == Done && row.Owner == c.owner:
		return nil
	case found && (row.State == Done || r.fenced && row.Owner != c.owner):
		return errLost
	}
	return fmt.Errorf("transaction not committed: %w", err)
}

// commitTimeout bounds the end of a transaction, and the question of how it
// ended.
const commitTimeout = 10 * time.Second

// claimUnknown writes down that the outcome is unknown after the claim itself
// went with the transaction: by a new claim, which another process may win.
func (c *call) claimUnknown() error {
	claim := c.claim()
	claim.MustExist = false
	var row Row
	_, err := c.insist(time.Now().Add(commitTimeout), func(ctx context.Context) (found bool, err error) {
		row, found, err = c.m.store.Claim(ctx, claim)
		return found, err
	})
	switch {
	case err != nil:
		return err
	case row.Owner != c.owner:
		return errors.New("server: the effect may have run twice: another request has the key already")
	case row.State != Running:
		return nil
	}
	hold := Hold{ID: c.op.id, Owner: c.owner, Generation: row.Generation}
	_, err = c.insist(time.Now().Add(commitTimeout), func(ctx context.Context) (bool, error) {
		return c.m.store.Complete(ctx, hold, Result{State: Unknown})
	})
	return err
}

// plainTx runs a request that is not guarded in a transaction of its own.
//
//nolint:contextcheck // a call carries the context of its request
func (g *guard) plainTx(w http.ResponseWriter, r *http.Request) {
	c := newCall(g, w, r)
	tx, _, _, err := g.txStore.BeginTx(r.Context(), nil)
	if err != nil {
		c.emit(EventStoreFailure, 0, err)
		c.write(Problem{Code: codeUnavailable, Status: http.StatusServiceUnavailable, Detail: "the database can't be reached; nothing was done"})
		return
	}
	defer tx.Rollback() //nolint:errcheck // a panic, or without an effect after the commit
	rec := &recorder{w: w, holdAll: true, head: r.Method == http.MethodHead, implied: http.StatusOK, before: w.Header().Clone()}
	err = g.tx(rec, r, tx.SQL())
	rec.close()
	switch {
	case err != nil:
		rec.discard()
		c.log(slog.LevelError, "a transaction without a key failed", slog.Any("error", err))
		c.write(Problem{Code: codeFailed, Status: http.StatusInternalServerError, Detail: "nothing was done"})
		return
	case !g.m.cfg.Final(rec.status):
		_ = tx.Rollback()
	default:
		if err = tx.Commit(r.Context()); err != nil {
			rec.discard()
			c.emit(EventStoreFailure, 0, err)
			c.write(Problem{Code: codeUnavailable, Status: http.StatusServiceUnavailable, Detail: "it is not known whether the transaction was committed"})
			return
		}
	}
	rec.send(rec.before.Get(headerStatus)) // unprotected, or nothing
}
