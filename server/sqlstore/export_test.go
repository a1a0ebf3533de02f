package sqlstore

// HoldSlots takes all slots, until release: claims and completions queue.
func (s *Store) HoldSlots() (release func()) {
	s.batch.mu.Lock()
	defer s.batch.mu.Unlock()
	slots := s.batch.slots
	s.batch.slots = 0
	return func() {
		for range slots {
			(&slot{b: &s.batch}).handOn()
		}
	}
}

// TakeSlot takes a slot as a call does that never comes back.
func (s *Store) TakeSlot() { s.batch.enter(&op{}) }

// Queued is how many wait, and Free how many slots are free.
func (s *Store) Queued() int { s.batch.mu.Lock(); defer s.batch.mu.Unlock(); return len(s.batch.queue) }
func (s *Store) Free() int   { s.batch.mu.Lock(); defer s.batch.mu.Unlock(); return s.batch.slots }
