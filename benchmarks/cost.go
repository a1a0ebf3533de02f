package benchmarks

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync/atomic"
)

// cost is what one call takes; the time is that of all processors, the garbage
// collector's too.
type cost struct{ allocs, bytes, nanos float64 }

// measure is the cost of f, over n calls of it.
func measure(n int, f func() error) (cost, error) {
	runtime.GC()
	for range 10 { // fills pools and connections
		if err := f(); err != nil {
			return cost{}, err
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := cpuTime()
	for range n {
		if err := f(); err != nil {
			return cost{}, err
		}
	}
	took := cpuTime() - began
	runtime.ReadMemStats(&after)
	per := float64(n)
	return cost{
		allocs: float64(after.Mallocs-before.Mallocs) / per,
		bytes:  float64(after.TotalAlloc-before.TotalAlloc) / per,
		nanos:  float64(took.Nanoseconds()) / per,
	}, nil
}

// median of the samples of each figure by itself.
func median(samples []cost) cost {
	pick := func(get func(cost) float64) float64 {
		values := make([]float64, len(samples))
		for i, s := range samples {
			values[i] = get(s)
		}
		return middle(values)
	}
	return cost{
		allocs: pick(func(c cost) float64 { return c.allocs }),
		bytes:  pick(func(c cost) float64 { return c.bytes }),
		nanos:  pick(func(c cost) float64 { return c.nanos }),
	}
}

func middle(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}

// call is a kind of call whose cost is measured.
type call struct {
	name      string
	message   message
	keys      bool // is about keys: for oncemore and the floor only
	off       bool // with keys switched off
	retry     bool // the first attempt gets a 503; the floor sends twice
	answered  bool // the answer has a body
	loopback  bool // over a connection to a server in this process
	iterating int  // divides the number of iterations
}

var calls = []call{
	{name: "GET", message: message{method: http.MethodGet}},
	{name: "POST 1 KiB", message: message{method: http.MethodPost, body: oneKiB}},
	{name: "caller's key", message: message{method: http.MethodPost, body: oneKiB, key: "order-4711"}, keys: true},
	{name: "keys off", message: message{method: http.MethodPost, body: oneKiB}, keys: true, off: true},
	{name: "POST, one retry", message: message{method: http.MethodPost, body: oneKiB}, retry: true},
	{name: "POST, answer with a body", message: message{method: http.MethodPost, body: oneKiB}, answered: true},
	{name: "GET, loopback", message: message{method: http.MethodGet}, loopback: true, iterating: 5},
	{name: "POST, loopback", message: message{method: http.MethodPost, body: oneKiB}, loopback: true, iterating: 5},
	{name: "one retry, loopback", message: message{method: http.MethodPost, body: oneKiB}, retry: true, loopback: true, iterating: 5},
}

var oneKiB = &payload{data: make([]byte, 1<<10), size: 1 << 10}

// applies reports whether the subject is measured with this kind of call.
func (c *call) applies(s *subject) bool {
	return !c.keys || s.noRetry || s.keyless != nil
}

// run measures one round of the kind of call.
func (c *call) run(s *subject, n int) (cost, error) {
	do, stop := c.prepare(s)
	defer stop()
	return measure(n/max(c.iterating, 1), do)
}

// prepare returns a function that makes the call once, and one for the end.
func (c *call) prepare(s *subject) (do func() error, stop func()) {
	stop = func() {}
	var rt http.RoundTripper = &fakeNetwork{failFirst: c.retry, answered: c.answered}
	m := c.message
	m.url = "http://api.example.com/v1/charges"
	if c.loopback {
		server, transport := httptest.NewServer(&acceptor{failFirst: c.retry}), newTransport()
		stop = func() {
			transport.CloseIdleConnections()
			server.Close()
		}
		rt, m.url = transport, server.URL
	}
	build := s.build
	if c.off && s.keyless != nil {
		build = s.keyless
	}
	send := build(rt, settings{attempts: 5, wait: 1})
	return func() error {
		status, err := send(&m)
		if err == nil && c.retry && s.noRetry {
			status, err = send(&m)
		}
		if err == nil && status != http.StatusCreated {
			err = fmt.Errorf("%s: %s: status %d", s.name, c.name, status)
		}
		return err
	}, stop
}

// acceptor is the server to fakeNetwork: it reads the request and answers.
type acceptor struct {
	failFirst bool
	failed    atomic.Bool // of one client that sends one at a time
}

func (a *acceptor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := discard(r.Body); err != nil {
		return // the connection is gone
	}
	if a.failFirst && !a.failed.Swap(!a.failed.Load()) {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write([]byte(answer))
}
