package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"time"

	"github.com/oncemore-go/oncemore/server"
)

var _ server.TxStore = (*Store)(nil)

// Store is a [server.TxStore] over a SQL database. All methods are safe for
// concurrent use, by any number of processes over one database. It starts no
// goroutine, and never closes the *sql.DB.
//
// Every method's error wraps the driver's own. An error of a missing table says
// to run [Store.Migrate]; a result that the database can't take is an error
// that matches [server.ErrTooLarge]; and that of a call which waited as long as it
// may for the transaction that has the key, or on SQLite the writer, matches
// [server.ErrBusy]: elsewhere than on SQLite this is for BeginTx and Migrate, and
// any other call may just run out of time.
type Store struct {
	db     *sql.DB
	pool   querier // db, for what is run again and again
	d      *dialect
	batch  batcher      // of claims and completions that come together
	streak atomic.Int32 // how many claims in a row found a row (as a negative number) or did not
	writer gate         // nil where the database has many writers
	busy   atomic.Int64 // SQLite's busy timeout in nanoseconds, once Migrate has read it
}

// New returns a store that keeps its records in table oncemore_keys of db. It
// sends nothing: [Store.Migrate] creates or checks the table.
//
// The store needs few connections: one at a time for each call, and one for
// each transaction of WrapTx. 16 to 32 are plenty for a process. One is enough,
// but not with [server.Config].ClaimFirst.
func New(db *sql.DB, d Dialect) (*Store, error) {
	if db == nil {
		return nil, errors.New("sqlstore: no database")
	}
	if d.dialect == nil {
		return nil, errors.New("sqlstore: no dialect: want SQLite, Postgres or MySQL")
	}
	s := &Store{db: db, pool: db, d: d.dialect}
	if s.d.prepares {
		s.pool = &prepared{db: db, statements: map[string]*sql.Stmt{}}
	}
	if s.d.oneWriter {
		s.writer = make(gate, 1)
	}
	s.batch.slots, s.batch.few, s.batch.alike = s.d.slots, s.d.few, s.d.alike
	return s, nil
}

// busyTimeout is how long a write waits for the only writer.
func (s *Store) busyTimeout() time.Duration {
	if d := time.Duration(s.busy.Load()); d > 0 {
		return d
	}
	return busyTimeout
}

// sure is the streak that lets the next claim expect the same: new keys and
// replays both come in storms. To be wrong costs one round trip.
const sure = 8

// learn notes what a claim has found.
func (s *Store) learn(hit bool) {
	n := s.streak.Load()
	switch {
	case hit && n > -sure:
		s.streak.CompareAndSwap(n, min(n, 0)-1)
	case !hit && n < sure:
		s.streak.CompareAndSwap(n, max(n, 0)+1)
	}
}

// Claim implements [server.Store]. A claim that finds a row writes nothing.
func (s *Store) Claim(ctx context.Context, c server.Claim) (row server.Row, found bool, err error) {
	defer func() {
		if err == nil && found {
			s.learn(row.Owner != c.Owner)
		}
	}()
	if streak := s.streak.Load(); c.MustExist || streak <= -sure || s.d.readFirst && streak < sure {
		row, found, err = s.peek(ctx, c)
		if err != nil || found || c.MustExist {
			return row, found, err
		}
	}
	var turn *slot
	if !c.Lapses {
		var v verdict
		v, turn = s.share(ctx, &op{id: c.ID, owner: c.Owner, claim: &c})
		defer turn.leave()
		if v == settled {
			return created(c), true, nil
		}
		if v == refused {
			if row, found, err = s.peek(ctx, c); err != nil || found {
				return row, found, err
			}
		}
	}
	err = s.run(ctx, "claim", writes, func(ctx context.Context) error {
		defer turn.leave()
		row, found, err = s.claim(ctx, c)
		if err == nil && !found {
			return errAgain
		}
		return err
	})
	return row, found && err == nil, err
}

// claim creates the row or reads it. Not found: somebody else was quicker, in
// one direction or the other.
func (s *Store) claim(ctx context.Context, c server.Claim) (server.Row, bool, error) {
	if s.d.oneStatement && s.streak.Load() < sure {
		text := s.d.sql.claimOrRead
		if c.Lapses {
			text = s.d.sql.lapseOrRead
		}
		r, found, err := query(ctx, s.pool, text, append([]any{c.ID[:]}, insertArgs(&c)...)...)
		if err != nil || !found {
			return server.Row{}, false, err
		}
		return r.Row, true, nil
	}
	won, err := s.create(ctx, s.pool, &c)
	switch {
	case err != nil:
		return server.Row{}, false, err
	case won:
		return created(c), true, nil
	}
	return s.read(ctx, c)
}

// create inserts the row, or begins a lapsed one anew. It decides by the number
// of affected rows.
func (s *Store) create(ctx context.Context, q querier, c *server.Claim) (bool, error) {
	text, args := s.d.sql.insert, insertArgs(c)
	if c.Lapses && s.d.upserts {
		text = s.d.sql.replace
	}
	n, err := exec(ctx, q, text, args...)
	if err != nil || n > 0 || !c.Lapses || s.d.upserts {
		return n > 0, err
	}
	n, err = exec(ctx, q, s.d.sql.replace, append(args[1:], args[0])...)
	return n > 0, err
}

// peek reads the row that a claim asks for, unless it counts as absent.
func (s *Store) peek(ctx context.Context, c server.Claim) (row server.Row, found bool, err error) {
	err = s.run(ctx, "claim", reads, func(ctx context.Context) error {
		row, found, err = s.read(ctx, c)
		return err
	})
	return row, found && err == nil, err
}

// read is one try of peek.
func (s *Store) read(ctx context.Context, c server.Claim) (server.Row, bool, error) {
	r, found, err := query(ctx, s.pool, s.d.sql.lookup, c.ID[:])
	if err != nil || !found || c.Lapses && r.lapsed() {
		return server.Row{}, false, err
	}
	return r.Row, true, nil
}

// Lookup implements [server.Store].
func (s *Store) Lookup(ctx context.Context, id server.ID) (row server.Row, found bool, err error) {
	err = s.run(ctx, "lookup", reads, func(ctx context.Context) error {
		row, found, err = s.read(ctx, server.Claim{ID: id})
		return err
	})
	return row, found && err == nil, err
}

// Takeover implements [server.Store].
func (s *Store) Takeover(ctx context.Context, t server.Takeover) (bool, error) {
	text := s.d.sql.takeover
	if t.Ask {
		text = s.d.sql.ask
	}
	return s.change(ctx, "takeover", writes, t.ID, func(r *record) bool {
		return r != nil && r.Owner == t.Owner && r.Generation == t.Generation+1 &&
			r.State != server.Done && (t.Ask || r.State == server.Running)
	}, text, t.Owner[:], micros(t.Lease), t.ID[:], t.From[:], t.Generation, t.Owner[:])
}

// Renew implements [server.Store].
func (s *Store) Renew(ctx context.Context, h server.Hold, lease time.Duration) (bool, error) {
	return s.change(ctx, "renew", writes, h.ID, func(r *record) bool {
		return r != nil && r.heldBy(h) && r.State != server.Done && r.held
	}, s.d.sql.renew, micros(lease), h.ID[:], h.Owner[:], h.Generation)
}

// Complete implements [server.Store].
func (s *Store) Complete(ctx context.Context, h server.Hold, r server.Result) (ok bool, err error) {
	args, err := s.resultArgs(ctx, s.pool, r)
	if err != nil {
		return false, s.fail(ctx, "complete", err)
	}
	o := &op{id: h.ID, owner: h.Owner, generation: h.Generation, result: args}
	var turn *slot
	if len(r.Data) <= maxShared {
		var v verdict
		if v, turn = s.share(ctx, o); v == settled {
			return true, nil
		}
		defer turn.leave()
	}
	err = s.run(ctx, "complete", access{writes: true, data: len(r.Data)}, func(ctx context.Context) error {
		defer turn.leave()
		ok, err = s.changeIn(ctx, s.pool, h.ID, completed(h, r), s.d.sql.complete, o.completeArgs()...)
		return err
	})
	return ok && err == nil, err
}

// completed is true of a row that h has completed with r.
func completed(h server.Hold, r server.Result) func(*record) bool {
	return func(rec *record) bool {
		return rec != nil && rec.heldBy(h) && rec.State == r.State
	}
}

// Release implements [server.Store].
func (s *Store) Release(ctx context.Context, h server.Hold) (bool, error) {
	return s.change(ctx, "release", writes, h.ID, isGone, s.d.sql.release, h.ID[:], h.Owner[:], h.Generation)
}

// Settle implements [server.Store].
func (s *Store) Settle(ctx context.Context, id server.ID, generation int64, r server.Result) (bool, error) {
	args, err := s.resultArgs(ctx, s.pool, r)
	if err != nil {
		return false, s.fail(ctx, "settle", err)
	}
	return s.change(ctx, "settle", access{writes: true, data: len(r.Data)}, id, func(rec *record) bool {
		return rec != nil && rec.Generation == generation+1 && rec.has(r)
	}, s.d.sql.settle, append(args, id[:], generation)...)
}

// Forget implements [server.Store].
func (s *Store) Forget(ctx context.Context, id server.ID) (bool, error) {
	return s.change(ctx, "forget", writes, id, isGone, s.d.sql.forget, id[:])
}

func isGone(r *record) bool { return r == nil }

// change runs a guarded statement. Where it changes nothing the row is read:
// the statement may have taken effect before, and its reply been lost, or the
// row may have been so already, which some drivers count as no change. effect
// says whether the row, nil if there is none, is as the statement leaves it.
func (s *Store) change(ctx context.Context, call string, a access, id server.ID, effect func(*record) bool, text string, args ...any) (ok bool, err error) {
	err = s.run(ctx, call, a, func(ctx context.Context) error {
		ok, err = s.changeIn(ctx, s.pool, id, effect, text, args...)
		return err
	})
	return ok && err == nil, err
}

// changeIn is one try of change, in the pool or in a transaction.
func (s *Store) changeIn(ctx context.Context, q querier, id server.ID, effect func(*record) bool, text string, args ...any) (bool, error) {
	n, err := exec(ctx, q, text, args...)
	if err != nil || n > 0 {
		return n > 0, err
	}
	r, _, err := query(ctx, q, s.d.sql.lookup, id[:])
	return err == nil && effect(r), err
}

// resultArgs are the arguments that set a result, if it can be one and fits.
func (s *Store) resultArgs(ctx context.Context, q querier, r server.Result) ([]any, error) {
	if r.State != server.Done && r.State != server.Unknown {
		return nil, errors.New("a result is Done or Unknown, not " + r.State.String())
	}
	if err := s.fits(ctx, q, r.Data); err != nil {
		return nil, err
	}
	return resultArgs(r), nil
}
