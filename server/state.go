package server

// State says how things stand under a key. docs/state-machine.md draws the
// transitions.
type State int8

// The states of a record.
const (
	// Running: claimed, and not yet ended.
	Running State = iota + 1
	// Done: the result is stored.
	Done
	// Unknown: the run ended without a result and may have had an effect.
	Unknown
	// Expired: the result is past its TTL; the key is refused.
	Expired
)

// String returns the state in lower case.
func (s State) String() string {
	switch s {
	case Running:
		return "running"
	case Done:
		return "done"
	case Unknown:
		return "unknown"
	case Expired:
		return "expired"
	}
	return "invalid"
}
