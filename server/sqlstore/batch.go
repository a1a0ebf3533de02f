package sqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/oncemore-go/oncemore/server"
)

// A commit costs a database about the same for one row as for a hundred. So the
// claims and completions that a process makes at the same time share
// transactions:
//
//   - A call that finds a slot free, or few others, goes straight through, alone,
//     by the statements that it would have without all this, and hands its slot
//     on. A database commits for a few at a time by itself.
//   - Any other call waits in the queue. Whoever hands on a slot gives it to the
//     first in the queue: that one leads. So does one that finds a slot free where
//     many are under way, and others come right behind it. It waits for its
//     connection, and only then takes the others that have come in the meantime.
//     It runs the batch in its own goroutine, commits, tells each what became of
//     it, and hands the slot on in its turn. So batches are as large as the
//     database is slow, and nobody waits for a batch to fill. Who leads nobody
//     goes alone.
//   - A success is told after the COMMIT has returned nil. After anything else
//     nothing is known, and each call goes on alone: its token and generation
//     find out what took effect.
//
// Transactions of WrapTx don't come here. Where one has a key that a batch
// wants, the batch gives up after batchWait (on MariaDB a second, on MySQL its
// deadline), and only the call that wants that key waits on.
const (
	// maxBatch bounds a transaction, and what fails with it.
	maxBatch = 128
	// maxShared is the largest result, in bytes, that shares a transaction:
	// where writing the data is most of the work there is nothing to gain.
	maxShared = 16 << 10
	// maxTogether bounds the results of a batch in bytes: where they are all in
	// one statement, it is smaller than any max_allowed_packet in use.
	maxTogether = 256 << 10
	// batchWait bounds how long a batch waits for a lock, where the database can
	// be told in less than seconds.
	batchWait = 100 * time.Millisecond
	// overstay is how long a slot is one's own. Then it is handed on, so that
	// those who wait for a lock or a connection hold up nobody else.
	overstay = 100 * time.Millisecond
	// grace is how long a call whose context has ended still waits for the
	// batch that it is in. Its leader gives the batch up then.
	grace = 250 * time.Millisecond
)

// verdict is what a call learns from the queue.
type verdict int8

const (
	alone   verdict = iota // nothing is known: the call goes on by itself
	leads                  // it got the slot
	settled                // it took effect, and is committed
	refused                // a claim found a row
)

// op is a claim or a completion that may share a transaction.
type op struct {
	id         server.ID
	owner      server.Token
	claim      *server.Claim // nil for a completion, which has the next two
	generation int64
	result     []any // see resultArgs
	told       chan verdict
}

// batcher has the slots and the queue. While there is a queue, no slot is free.
type batcher struct {
	mu      sync.Mutex
	slots   int  // that are free; less than none where a few more went straight through
	few     int  // how many calls may be here before one has to queue
	present int  // how many are
	alike   bool // a batch has claims or completions, not both
	queue   []*op
}

// slot is the right to be under way. Nil is none.
type slot struct {
	b     *batcher
	once  sync.Once
	timer *time.Timer
}

func (b *batcher) newSlot() *slot {
	t := &slot{b: b}
	t.timer = time.AfterFunc(overstay, t.handOn)
	return t
}

// leave hands the slot on, if that has not been done yet.
func (t *slot) leave() {
	if t != nil {
		t.timer.Stop()
		t.handOn()
	}
}

// handOn gives the slot to the first in the queue, if there is one.
func (t *slot) handOn() {
	t.once.Do(func() {
		t.b.mu.Lock()
		defer t.b.mu.Unlock()
		t.b.present--
		t.b.slots++
		if t.b.slots <= 0 || len(t.b.queue) == 0 {
			return
		}
		t.b.slots--
		first := t.b.queue[0]
		t.b.queue = slices.Delete(t.b.queue, 0, 1)
		first.told <- leads
	})
}

// enter returns a slot, or puts o into the queue.
func (b *batcher) enter(o *op) *slot {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.present++
	if b.slots > 0 || b.present <= b.few && len(b.queue) == 0 {
		b.slots--
		return b.newSlot()
	}
	o.told = make(chan verdict, 1) // it is told once
	if o.result != nil {
		// The batch may have it for longer than the caller waits.
		o.result[dataArg] = slices.Clone(o.data())
	}
	b.queue = append(b.queue, o)
	return nil
}

// withdraw takes o out of the queue. False: it is no longer in there.
func (b *batcher) withdraw(o *op) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.queue, o)
	if i >= 0 {
		b.queue = slices.Delete(b.queue, i, i+1)
	}
	return i >= 0
}

// take takes a batch out of the queue, with own in it, in the order of the ids:
// two batches that lock rows in the same order can't wait for each other. The
// second call for an id is left for the next batch, and one of the other kind
// where they have to be alike.
func (b *batcher) take(own *op) []*op {
	b.mu.Lock()
	defer b.mu.Unlock()
	batch, ids, size := []*op{own}, map[server.ID]bool{own.id: true}, len(own.data())
	b.queue = slices.DeleteFunc(b.queue, func(o *op) bool {
		if len(batch) == maxBatch || ids[o.id] || b.alike && (o.claim == nil) != (own.claim == nil) || size+len(o.data()) > maxTogether {
			return false
		}
		batch, ids[o.id], size = append(batch, o), true, size+len(o.data())
		return true
	})
	slices.SortFunc(batch, func(x, y *op) int { return bytes.Compare(x.id[:], y.id[:]) })
	return batch
}

// wait waits in the queue, and in the batch.
func (b *batcher) wait(ctx context.Context, o *op) (v verdict) {
	defer func() {
		if v != leads {
			b.mu.Lock()
			b.present--
			b.mu.Unlock()
		}
	}()
	timer := time.NewTimer(statementTimeout)
	defer timer.Stop()
	select {
	case v := <-o.told:
		return v
	case <-ctx.Done():
	case <-timer.C:
	}
	if b.withdraw(o) {
		return alone
	}
	timer.Reset(grace)
	return o.answer(timer.C)
}

// answer waits for what o is told, until the end. What it was told before counts
// also where both are there, after a stall: it may be a slot, which must not be
// lost.
func (o *op) answer(end <-chan time.Time) verdict {
	select {
	case v := <-o.told:
		return v
	case <-end:
	}
	select {
	case v := <-o.told:
		return v
	default:
		return alone // what the batch may still do is found by the token
	}
}

// share runs o together with others, if there are others. If not, o is alone,
// with a slot that the caller leaves after its first try.
func (s *Store) share(ctx context.Context, o *op) (verdict, *slot) {
	if s.d.slots == 0 {
		return alone, nil
	}
	t := s.batch.enter(o)
	if t == nil {
		if v := s.batch.wait(ctx, o); v != leads {
			return v, nil
		}
		t = s.batch.newSlot()
	}
	if !s.batch.company() {
		return alone, t
	}
	defer t.leave()
	return s.lead(ctx, o), nil
}

// company reports whether others wait. Those whom a batch has just let go have
// their next call ready, but are behind in the scheduler: whoever is the first of
// them would go alone, and all the others wait for it.
func (b *batcher) company() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 && b.present > max(b.few, 1) {
		b.mu.Unlock()
		runtime.Gosched()
		b.mu.Lock()
	}
	return len(b.queue) > 0
}

// lead runs a batch with own in it, and returns what became of own. Until it
// takes the batch nobody else is concerned.
func (s *Store) lead(ctx context.Context, own *op) verdict {
	if s.writer != nil {
		if err := s.writer.lock(ctx, overstay); err != nil {
			return alone
		}
		defer s.writer.unlock()
	}
	// The batch is not only own's: it outlives ctx, though not by much.
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })()
	var batch []*op
	var verdicts []verdict
	defer func() { // also if the driver panics
		for i, o := range batch {
			if o != own {
				v := alone
				if verdicts != nil {
					v = verdicts[i]
				}
				o.told <- v
			}
		}
	}()
	found, err := s.d.runBatch(work, s, func() []*op {
		runtime.Gosched() // those who were just told may have their next call ready
		batch = s.batch.take(own)
		return batch
	})
	if err != nil {
		return alone
	}
	verdicts = found
	return verdicts[slices.Index(batch, own)]
}

// runInTx is dialect.runBatch by the statements of single calls, which is right
// where a statement is no round trip.
func runInTx(ctx context.Context, s *Store, take func() []*op) ([]verdict, error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	var verdicts []verdict
	defer func() {
		if verdicts == nil && err == nil {
			// The driver panicked. If it was in a prepared statement, database/sql
			// still has it under way, and a rollback waits for its end for ever.
			go func() { _ = tx.Rollback() }()
			return
		}
		_ = tx.Rollback()
	}()
	q := &preparedTx{pool: s.pool, tx: tx, statements: map[string]*sql.Stmt{}}
	if verdicts, err = s.runEach(ctx, q, take()); err != nil {
		return nil, err
	}
	return verdicts, tx.Commit()
}

// runEach runs the batch, one by one.
func (s *Store) runEach(ctx context.Context, q querier, batch []*op) (verdicts []verdict, err error) {
	verdicts = make([]verdict, len(batch))
	for i, o := range batch {
		if verdicts[i], err = s.runIn(ctx, q, o); err != nil {
			return nil, err
		}
	}
	return verdicts, nil
}

func (s *Store) runIn(ctx context.Context, q querier, o *op) (verdict, error) {
	if o.claim != nil {
		won, err := s.create(ctx, q, o.claim)
		if won {
			return settled, err
		}
		return refused, err
	}
	n, err := exec(ctx, q, s.d.sql.complete, o.completeArgs()...)
	if n > 0 {
		return settled, err
	}
	return alone, err
}

// data is the result's, nil for a claim.
func (o *op) data() []byte {
	if o.result == nil {
		return nil
	}
	return o.result[dataArg].([]byte) //nolint:errcheck,forcetypeassert // see resultArgs
}

// completeArgs are the arguments of statements.complete.
func (o *op) completeArgs() []any {
	return append(slices.Clip(o.result), o.id[:], o.owner[:], o.generation)
}
