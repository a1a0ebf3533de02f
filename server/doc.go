// Package server is net/http middleware that runs a keyed request once and
// replays its result.
package server
