// Package propertytest lets several processes of the middleware meet random
// requests, faults, deaths and operators over one store, and holds everything
// that clients, handlers and the store see to a model of the keys.
//
// [Play] has the faults between the middleware and the store, so any store will
// do; in memory the time of a schedule is that of a bubble. [PlayInTransactions]
// has them between a SQL store and its driver, and holds what is written to what
// is on record.
package propertytest

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/storetest"
)

// What can be set from outside: one schedule by its seed, or how many.
//
//	ONCEMORE_SEED=17 go test ./server -run TestPropertySchedules
//	ONCEMORE_SCHEDULES=100000 go test -timeout 1h ./server -run TestPropertySchedules
//	ONCEMORE_SCHEDULES=1000 go test -C integration -run TestProperty
//
// The seed decides what is asked and what fails; which of two goroutines that
// are ready goes first is the scheduler's choice, and over a real database time
// is too, so a rare failure may need its seed more than once (-count).
const (
	seedVariable  = "ONCEMORE_SEED"
	countVariable = "ONCEMORE_SCHEDULES"
)

// Schedules plays the schedule that is asked for, or as many as there are to be,
// each with a seed of its own. It ends with the first that fails.
func Schedules(t *testing.T, count int, play func(t *testing.T, seed uint64)) {
	t.Helper()
	for _, seed := range seeds(t, count) {
		if play(t, seed); t.Failed() {
			return
		}
	}
}

// SchedulesAtOnce is Schedules for those that sleep most of their time: so many
// at once as there are lanes. Each is a test of its own, and alone in its lane.
func SchedulesAtOnce(t *testing.T, count, lanes int, play func(t *testing.T, seed uint64, lane int)) {
	t.Helper()
	todo := seeds(t, count)
	var next atomic.Int64
	var wg sync.WaitGroup
	for lane := range min(lanes, len(todo)) {
		wg.Go(func() {
			for !t.Failed() {
				n := int(next.Add(1)) - 1
				if n >= len(todo) {
					return
				}
				t.Run("seed "+strconv.FormatUint(todo[n], 10), func(t *testing.T) { play(t, todo[n], lane) })
			}
		})
	}
	wg.Wait()
}

func seeds(t *testing.T, count int) []uint64 {
	t.Helper()
	first := rand.Uint64() >> 16 // short enough to type
	var err error
	if text := os.Getenv(seedVariable); text != "" {
		count = 1
		if first, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedVariable, err)
		}
	} else if text := os.Getenv(countVariable); text != "" {
		if count, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", countVariable, err)
		}
	}
	all := make([]uint64, count)
	for i := range all {
		all[i] = first + uint64(i)
	}
	return all
}

// Store is what a schedule of [Play] is over.
type Store interface {
	server.Store
	Purge(ctx context.Context) (int64, error)
}

// PlayInMemory plays a schedule over a store in memory, in a bubble of its own.
// busy returns how many keys a middleware is busy with.
func PlayInMemory(t *testing.T, seed uint64, busy func(*server.Middleware) int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(seed, storetest.NewMemory(), false)
		w.busy = busy
		w.play(t)
	})
}

// Play plays a schedule over a store in which nothing is stored yet, in real
// time: some seconds, of which it sleeps nearly all.
func Play(t *testing.T, seed uint64, store Store) {
	t.Helper()
	newWorld(seed, store, true).play(t)
}
