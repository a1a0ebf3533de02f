package propertytest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/oncemore-go/oncemore/server"
)

// world is one schedule: processes over one store, the requests that clients
// send to them, and what happened.
type world struct {
	seed     uint64
	cfg      server.Config
	unit     time.Duration // a tenth of the lease
	longest  time.Duration // that a call of the store takes
	journal  *journal
	over     chan struct{} // closed at the end: the dead may go
	procs    []*process
	late     sync.WaitGroup               // what goes on beside the requests
	busy     func(*server.Middleware) int // nil: nobody can tell
	realTime bool                         // not in a bubble: what happens takes its time
	slack    time.Duration                // how much, at most

	mu        sync.Mutex
	rng       *rand.Rand
	trouble   float64 // how likely a call of the store fails
	calm      bool    // no more faults
	troubled  bool    // there was one, or somebody was killed or cut off
	nonces    map[int]*result
	last      int // nonce
	probes    int
	start     time.Time
	history   []string
	faults    []string
	forgotten map[identity]bool
	expired   map[identity]time.Time // when a client was told so
}

// note adds a line to the history.
func (w *world) note(format string, args ...any) {
	line := fmt.Sprintf("%10v  ", time.Since(w.start)) + fmt.Sprintf(format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.history = append(w.history, line)
}

// fault is an invariant that does not hold.
func (w *world) fault(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	w.note("VIOLATION: %s", line)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, line)
}

// result makes one that is told from all others by its nonce.
func (w *world) result() *result {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last++
	res := &result{nonce: w.last}
	w.nonces[res.nonce] = res
	return res
}

func (w *world) byNonce(n int) *result {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nonces[n]
}

// request is one arrival, and what its client makes of it.
type request struct {
	n       int
	at      time.Duration
	proc    *process
	id      identity
	keyless bool
	body    string
	leaves  time.Duration // after which the client leaves; 0: it stays
	script  script
	asks    recoverScript
	probe   bool // sent when all is calm

	start, end time.Time
	differs    bool   // from what the key was in use for when it was sent
	grant      *grant // the newest; under the lock of the journal
	run        *run
	decision   server.RecoveryAction // what Recover said
	asked      bool                  // it said so, and no error
	settlement *result               // of SettleAs
	writer     *answer
	events     []server.EventKind
}

func (r *request) String() string {
	if r == nil {
		return "an operator"
	}
	key := r.id.String()
	if r.keyless {
		key = fmt.Sprintf("%q/-", r.id.scope)
	}
	return fmt.Sprintf("request %d (%s %s %s)", r.n, r.proc.name, key, r.body)
}

// who is the identity of the operation: without a key the body is its name.
func (r *request) who() identity {
	if r.keyless {
		return identity{r.id.scope, "body " + r.body}
	}
	return r.id
}

// resultOf is what the request may give its operation.
func (r *request) resultOf() *result {
	switch {
	case r == nil:
		return nil
	case r.settlement != nil:
		return r.settlement
	case r.run != nil:
		return r.run.result
	}
	return nil
}

type (
	requestKey    struct{}
	settlementKey struct{}
)

func requestOf(ctx context.Context) *request {
	r, _ := ctx.Value(requestKey{}).(*request)
	return r
}

func settlementOf(ctx context.Context) *result {
	r, _ := ctx.Value(settlementKey{}).(*result)
	return r
}

// script is what the handler does with a request.
type script struct {
	before, after time.Duration // and between them:
	effect        bool          // it declares an effect
	obeys         bool          // it stops when its context ends
	panics        bool
	status        int
	flushes       bool
	large         bool // the body is over MaxStoredBody
	noLocation    bool
	resource      bool // it names a resource instead of a body
}

// recoverScript is what Recover says.
type recoverScript struct {
	takes  time.Duration
	action server.RecoveryAction
	fails  bool
	panics bool
}

// run is one execution of the handler.
type run struct {
	*result
	req      *request
	grant    *grant
	began    time.Time
	effect   bool
	panicked bool
	ended    bool
}

func (r *run) String() string {
	return fmt.Sprintf("run %d (status %d, effect %t, panicked %t, ended %t)", r.nonce, r.status, r.effect, r.panicked, r.ended)
}

const stored = 512 // MaxStoredBody where a schedule limits it

// ServeHTTP is the handler: it follows the script of the request.
func (w *world) ServeHTTP(rw http.ResponseWriter, hr *http.Request) {
	req := requestOf(hr.Context())
	op, ok := server.OperationFrom(hr.Context())
	if !ok || op.Scope() != req.id.scope || (!req.keyless && op.Key() != req.id.key) {
		w.fault("%v: not the operation that was asked for", req)
		return
	}
	r := &run{result: w.result(), req: req, began: time.Now()}
	if req.run != nil {
		w.fault("%v: one arrival runs twice", req)
	}
	w.journal.change(func() { r.run, req.run = r, r })
	w.journal.began(r, op.Attempt())
	defer w.journal.change(func() { r.ended = true })

	s := &req.script
	w.pass(hr.Context(), r, s.before)
	if s.effect {
		w.journal.change(func() { r.effect = true })
		op.EffectStarted()
	}
	w.pass(hr.Context(), r, s.after)
	if s.panics {
		w.journal.change(func() { r.panicked = true })
		panic(r)
	}
	status := s.status
	if s.obeys && hr.Context().Err() != nil {
		status = http.StatusServiceUnavailable
	}
	if s.resource {
		op.SetResource(fmt.Sprint("id-", r.nonce), fmt.Sprint("/things/", r.nonce))
	}
	w.answer(rw, r, status)
	w.pass(hr.Context(), r, 0)
}

// pass lets the handler's time pass, and looks at its context.
func (w *world) pass(ctx context.Context, r *run, d time.Duration) {
	wait := ctx
	if !r.req.script.obeys {
		wait = context.WithoutCancel(ctx)
	}
	r.req.proc.sleep(wait, d)
	w.checkContext(ctx, r)
}

// answer writes the response of a run.
func (w *world) answer(rw http.ResponseWriter, r *run, status int) {
	s := &r.req.script
	body := fmt.Sprintf("nonce=%d;request=%s;", r.nonce, r.req.body)
	if s.large {
		body += strings.Repeat(".", 2*stored)
	}
	early := s.flushes || (s.large && w.cfg.MaxStoredBody > 0)
	w.journal.change(func() {
		r.status, r.body = status, body
		r.early = early
		r.kept = !early && !s.resource
	})
	h := rw.Header()
	h.Set("Content-Type", "text/plain")
	h.Set("Etag", fmt.Sprintf(`"%d"`, r.nonce))
	h.Set("Set-Cookie", "session=secret")
	h.Set("Idempotency-Replayed", "true") // not for the handler to say
	if !s.noLocation {
		h.Set("Location", fmt.Sprint("/results/", r.nonce))
	}
	rw.WriteHeader(status)
	if s.flushes {
		rw.(http.Flusher).Flush() //nolint:errcheck,forcetypeassert // a panic is a failure too
	}
	_, _ = rw.Write([]byte(body))
}

// recover is Config.Recover: it follows the script of the request.
func (w *world) recover(ctx context.Context, op *server.Operation) (server.Recovery, error) {
	req := requestOf(ctx)
	s := &req.asks
	req.proc.sleep(ctx, s.takes)
	w.note("%v: asked, says %v, fails %t, panics %t", req, s.action, s.fails, s.panics)
	switch {
	case s.panics:
		panic(s)
	case s.fails:
		w.journal.change(func() { w.journal.failed[req.who()] = true })
		return server.Recovery{Action: s.action}, errTrouble
	}
	found := server.Recovery{Action: s.action}
	w.journal.change(func() {
		req.decision, req.asked = s.action, true
		if s.action == server.SettleAs {
			req.settlement, found.Response = w.settlement(req.body)
		}
	})
	if op.Attempt() < 1 {
		w.fault("%v: asked about attempt %d", req, op.Attempt())
	}
	return found, nil
}

// settlement is a result that no run gave.
func (w *world) settlement(body string) (*result, server.Response) {
	res := w.result()
	res.status, res.kept = http.StatusAccepted, true
	res.body = fmt.Sprintf("nonce=%d;request=%s;", res.nonce, body)
	return res, server.Response{Status: res.status, Body: []byte(res.body), Header: http.Header{
		"Location": {fmt.Sprint("/results/", res.nonce)}, "Content-Type": {"text/plain"},
	}}
}

// observe is Config.Observer.
func (w *world) observe(ctx context.Context, e server.Event) {
	req := requestOf(ctx)
	if req == nil {
		return
	}
	w.note("%v: event %v, status %d, %v", req, e.Kind, e.Status, e.Err)
	w.journal.change(func() { req.events = append(req.events, e.Kind) })
}

// send sends a request, and returns when its client has the answer or has left.
func (w *world) send(req *request) {
	ctx, leave := context.WithCancel(context.WithValue(context.Background(), requestKey{}, req))
	defer leave()
	hr, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://shop.example/orders", strings.NewReader(req.body))
	if err != nil {
		panic(err)
	}
	hr.Header.Set("Content-Type", "application/json")
	if !req.keyless {
		hr.Header.Set("Idempotency-Key", req.id.key)
	}
	req.start = time.Now()
	req.writer = &answer{w: w, req: req, header: make(http.Header)}
	if req.leaves > 0 {
		timer := time.AfterFunc(req.leaves, func() {
			w.note("%v: the client leaves", req)
			leave()
		})
		defer timer.Stop()
	}
	w.journal.change(func() {
		l := w.journal.lives[w.journal.ids[req.who()]]
		req.differs = l != nil && l.body != req.body
	})
	w.note("%v: sent", req)
	defer func() {
		req.end = time.Now()
		if v := recover(); v != nil && v != any(req.run) && v != any(&req.asks) && v != any(errDead) {
			panic(v)
		}
		w.note("%v: over", req)
		w.checkAnswer(req)
	}()
	req.proc.mw.Wrap(w).ServeHTTP(req.writer, hr)
	req.writer.returned = true
}
