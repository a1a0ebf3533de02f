package sqlstore

import (
	"time"

	"github.com/oncemore-go/oncemore/server"
)

// MaxBatch is how many share a transaction at most.
const MaxBatch = maxBatch

// PurgeText is the statement of a purge, and PurgeBatch how many rows it takes.
func PurgeText(d Dialect) string { return d.sql.purge }
func PurgeBatch(d Dialect) int64 { return d.purgeBatch }

// HoldSlots takes all slots, until release: claims and completions queue.
func (s *Store) HoldSlots() (release func()) {
	s.batch.mu.Lock()
	defer s.batch.mu.Unlock()
	slots := s.batch.slots
	s.batch.slots = 0
	s.batch.present += slots
	return func() {
		for range slots {
			(&slot{b: &s.batch}).handOn()
		}
	}
}

// TakeSlot takes a slot as a call does that never comes back.
func (s *Store) TakeSlot() { s.batch.enter(&op{}) }

// Answer is what a call that was given a slot makes of that, if it finds out only
// after its time is over.
func Answer() (leading bool) {
	o, end := op{told: make(chan verdict, 1)}, make(chan time.Time)
	o.told <- leads
	close(end)
	return o.answer(end) == leads
}

// Queue is a queue of nothing but calls.
type Queue struct{ b batcher }

// NewQueue returns one with so many slots, in which a few go straight through.
func NewQueue(slots, few int) *Queue { return &Queue{batcher{slots: slots, few: few}} }

// Enter returns what ends the call, if it went straight through.
func (q *Queue) Enter() (leave func(), straight bool) {
	t := q.b.enter(&op{})
	return t.leave, t != nil
}

// Take returns the batch of a leader who finds the others in the queue, in the
// order in which it is run.
func (q *Queue) Take(leader server.ID, others ...server.ID) []server.ID {
	for _, id := range others {
		q.b.enter(&op{id: id})
	}
	var ids []server.ID
	for _, o := range q.b.take(&op{id: leader}) {
		ids = append(ids, o.id)
	}
	return ids
}

// Company reports whether somebody with a slot is going to lead others.
func (q *Queue) Company() bool { return q.b.company() }

// Waiting is how many wait.
func (q *Queue) Waiting() int { return len(q.b.queue) }

// Queued is how many wait, and Free how many slots are free.
func (s *Store) Queued() int { s.batch.mu.Lock(); defer s.batch.mu.Unlock(); return len(s.batch.queue) }
func (s *Store) Free() int   { s.batch.mu.Lock(); defer s.batch.mu.Unlock(); return s.batch.slots }
