package main

import (
	"io"
	"slices"
	"sync"
	"time"

	"github.com/oncemore-go/oncemore/internal/faultproxy"
)

// tally is what the client's side saw of a run. It believes nothing: whether a
// payment was charged is for the ledger to say.
type tally struct {
	mu       sync.Mutex
	progress progress

	calls    int  // that have ended
	stopped  bool // before all payments were paid
	attempts int
	replays  int
	took     []time.Duration // of each call that was answered, waits and all
	failed   map[name]error

	network faultproxy.Counts
}

func newTally(calls int, opt *options, stderr io.Writer) *tally {
	return &tally{progress: newProgress(calls, opt, stderr), failed: map[name]error{}}
}

// attempt counts a send.
func (t *tally) attempt() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attempts++
}

// answer notes the end of a call.
func (t *tally) answer(p Payment, replayed bool, err error, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls++
	if err != nil {
		t.failed[p.name()] = err
	} else {
		t.took = append(t.took, took)
	}
	if replayed {
		t.replays++
	}
	t.progress.show(t.calls, t.retries(), len(t.failed))
}

// cancelled notes the end of a call that was not let end by itself. It is no
// failure: what became of it is in the ledger, and the next run will know.
func (t *tally) cancelled() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls++
}

// end notes how the run ended, and what the network did.
func (t *tally) end(stopped bool, network faultproxy.Counts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.progress.end()
	t.stopped, t.network = stopped, network
	slices.Sort(t.took)
}

// retries are the attempts beyond the first of each call; those of calls under
// way are counted with them.
func (t *tally) retries() int { return max(t.attempts-t.calls, 0) }

// percentile is the time within which that share of the calls was answered.
func (t *tally) percentile(share float64) time.Duration {
	if len(t.took) == 0 {
		return 0
	}
	return t.took[min(int(share*float64(len(t.took))), len(t.took)-1)]
}
