package server

// Busy returns how many keys m is busy with: at rest there are none.
func Busy(m *Middleware) int {
	m.flights.mu.Lock()
	defer m.flights.mu.Unlock()
	return len(m.flights.byID)
}
