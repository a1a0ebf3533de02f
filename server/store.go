package server

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// ID names one operation: the SHA-256 of its scope and key, each preceded by
// its length, so that no two pairs share one. It is compared as bytes.
type ID [32]byte

// Fingerprint is the SHA-256 of a request: what the key was first used for.
type Fingerprint [32]byte

// Token names one arrival of a request. It is random, made once, and the same
// on every re-send of a statement, so that a claim whose reply was lost is
// decided by "is the row mine".
type Token [16]byte

// Claim asks for the right to run an operation.
type Claim struct {
	ID          ID
	Fingerprint Fingerprint
	Owner       Token

	// Scope, Method and Route are kept in the row for whoever supports the
	// service. The store may cut them to the size of its columns; nothing is
	// decided by them.
	Scope, Method, Route string

	Lease time.Duration // the claim is held this long, unless it is renewed
	TTL   time.Duration // from the row's creation: past it, the row is expired
	Keep  time.Duration // from the row's creation: past it, a purge may take the row; at least TTL

	// MustExist reads only: a row that is not there is not created.
	MustExist bool
	// Lapses lets an expired row count as absent, whatever its state, unless
	// it runs under a live lease: the claim then replaces it in one step.
	Lapses bool
}

// Takeover asks for a row whose owner is gone.
type Takeover struct {
	ID         ID
	Owner      Token // of the one who takes over
	From       Token // that was read as the row's owner; another one there means
	Generation int64 // that somebody was quicker, as another generation does
	Lease      time.Duration
	// Ask keeps state and attempt as they are: the row is held while the
	// application is asked what became of the run. Otherwise the row is made
	// Running, and its attempt counts one more.
	Ask bool
}

// Hold is the right to a row: what Claim or Takeover gave. Whoever holds an
// older generation, or another token, changes nothing.
type Hold struct {
	ID         ID
	Owner      Token
	Generation int64
}

// Result is what a row is completed with.
type Result struct {
	State      State     // Done or Unknown
	Status     int       // HTTP status; 0 if there is none
	Data       []byte    // opaque to the store: at most MaxStoredBody and some headers
	ExecutedAt time.Time // when the run ended, by the application's clock; informational
}

// Row is a record as the store has it.
type Row struct {
	State       State // Running, Done or Unknown, never Expired
	Owner       Token // who holds it, or held it last
	Origin      Token // whose claim created it; a takeover keeps it
	Generation  int64 // 1 at the claim, one more at every takeover and settlement
	Attempt     int   // 1 at the claim, one more at every takeover that runs
	Fingerprint Fingerprint
	Live        bool // the lease had not ended, by the store's clock, when the row was read
	Expired     bool // it was past its TTL, by the store's clock, when the row was read
	Status      int
	Data        []byte // nil unless Done
	CreatedAt   time.Time
	ExecutedAt  time.Time // zero unless Done
	ExpiresAt   time.Time
}

// Store keeps the records. Package sqlstore has one for SQL databases, and
// package storetest a suite that says whether another one is right.
//
// To the implementer: every method may be called by any number of goroutines
// and processes at once, and each is one atomic step. Every deadline is set and
// compared by one clock, the store's own, inside that step. A success is
// reported only when it is durable. An error means that the outcome is not
// known or that nothing was done; the caller may send the same call again, with
// the same token, and must then get the answer of the first if that one took
// effect. "Not there" and "not yours" are results, never errors. The store
// retries what is sure to be transient by itself, a few times, and bounds each
// statement in time; ctx bounds the whole call.
type Store interface {
	// Claim creates the row if there is none, and returns the row that is there
	// then. Exactly one of any number of concurrent claims creates it: that one
	// gets a row with its own Owner. found is false only for a claim that
	// MustExist, or to say so of a row that does not.
	//
	// The row of a claim that won needs State, Owner, Origin, Generation and
	// Attempt only.
	Claim(ctx context.Context, c Claim) (row Row, found bool, err error)

	// Takeover gives the row to t.Owner if it is still t.From's, its generation
	// is still t.Generation, it is Running or Unknown, and its lease has ended or
	// is t.Owner's own. (Both: a row that was released and claimed anew has the
	// first generation again, and another owner.) Without Ask a row that is
	// Unknown must be t.Owner's own: it may have become so since it was read, and
	// only who has asked about it may run it again. The generation grows by one,
	// and t.Owner has a new lease. Sent again after a lost reply it finds its own
	// row, and is true.
	Takeover(ctx context.Context, t Takeover) (bool, error)

	// Renew makes the lease end lease from now. False: the hold is lost. A
	// lease that has ended but was not taken over is renewed.
	Renew(ctx context.Context, h Hold, lease time.Duration) (bool, error)

	// Complete gives a held row its result and ends its lease. False: the hold
	// is lost, and nothing was changed. Sent again after a lost reply it finds
	// its own row in that state, and is true. A state other than Done or Unknown
	// is an error. A result that can never fit is one that matches [ErrTooLarge].
	// The caller may use r.Data again afterwards.
	Complete(ctx context.Context, h Hold, r Result) (bool, error)

	// Release removes a held row that is not Done, so that the key is free. It
	// is true also if there is no such row (any more), false if it is
	// somebody else's or Done.
	Release(ctx context.Context, h Hold) (bool, error)

	// Lookup reads the row, and changes nothing.
	Lookup(ctx context.Context, id ID) (row Row, found bool, err error)

	// Settle gives a row of that generation its result, whoever held it, unless
	// it is Running under a live lease. The generation grows by one. False:
	// there is no such row, or it has moved on. Sent again after a lost reply it
	// finds its own result, and is true.
	Settle(ctx context.Context, id ID, generation int64, r Result) (bool, error)

	// Forget removes the row, whatever its state, unless it is Running or
	// Unknown under a live lease. False: there is a row, and it may not be
	// removed.
	Forget(ctx context.Context, id ID) (bool, error)
}

// TxStore is a [Store] that can keep its record in the transaction of the
// handler's own writes. [Middleware.WrapTx] needs one.
type TxStore interface {
	Store

	// BeginTx starts a transaction. With a claim, its first statement is that
	// claim: if it won, tx is the open transaction, and row as Claim returns
	// it. If not, tx is nil, nothing is held any more, and row is what is
	// there. Where another transaction has the key, BeginTx waits for its end,
	// for a bounded time; then the error matches [ErrBusy].
	//
	// Without a claim (nil) tx is a plain transaction.
	//
	// The transaction is rolled back when ctx ends.
	BeginTx(ctx context.Context, c *Claim) (tx Tx, row Row, found bool, err error)
}

// Tx is a transaction with a record in it. Its methods are for one goroutine at
// a time.
type Tx interface {
	// SQL is what the handler writes through. The handler must not end it.
	SQL() *sql.Tx

	// Complete is [Store.Complete] inside of the transaction. False: the
	// database has ended the transaction under the handler, or the hold is
	// lost; then only Rollback is left to do.
	Complete(ctx context.Context, h Hold, r Result) (bool, error)

	// Commit makes it durable. After an error the outcome is not known: the
	// caller looks the key up.
	Commit(ctx context.Context) error

	// Rollback undoes it all. After a Commit it does nothing.
	Rollback() error
}

var (
	// ErrBusy is matched by the error of a call that waited as long as it may
	// for another transaction: a [TxStore.BeginTx], and any other where the
	// database has one writer. A [Store.Renew] that ends so is no lost hold.
	ErrBusy = errors.New("another transaction has the key")

	// ErrTooLarge is matched by the error of a [Store.Complete] whose result
	// the store can never keep, however often it is sent.
	ErrTooLarge = errors.New("result too large for the store")
)
