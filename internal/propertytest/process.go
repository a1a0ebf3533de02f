package propertytest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/oncemore-go/oncemore/server"
)

var (
	errTrouble = errors.New("the store is out of order")
	errDead    = errors.New("the process is dead")
)

// process is one of several over one store: a middleware, and the network
// between it and the store, which fails at random.
type process struct {
	w    *world
	name string
	mw   *server.Middleware
	dead chan struct{} // closed when it dies: nothing comes back any more

	mu      sync.Mutex
	thaw    time.Time // until then no call of the store gets through
	closing bool
}

var _ server.Store = (*process)(nil)

func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.alive() {
		close(p.dead)
	}
}

func (p *process) alive() bool {
	select {
	case <-p.dead:
		return false
	default:
		return true
	}
}

// freeze cuts the process off from the store for a while.
func (p *process) freeze(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.thaw = time.Now().Add(d)
}

func (p *process) frozen() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Until(p.thaw)
}

func (p *process) isClosing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closing
}

func (p *process) shutdown(grace time.Duration) error {
	p.mu.Lock()
	p.closing = true
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	return p.mw.Shutdown(ctx)
}

// die never returns where the process is dead.
func (p *process) die() {
	if !p.alive() {
		<-p.w.over
		panic(errDead)
	}
}

// sleep passes time, unless ctx ends before. The dead sleep for ever.
func (p *process) sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-p.dead:
	}
	p.die()
}

// trouble is what can become of a call of the store.
type trouble int

const (
	noTrouble  trouble = iota
	refusal            // nothing was done, and it says so
	lostReply          // it was done, and the reply was lost
	lateEffect         // the reply is lost, and then it is done
	slowCall           // it arrives late
	slowReply          // it was done, and the reply comes late
	hang               // nothing comes back until the call is given up; it may have been done
	troubles
)

// draw says what becomes of the next call.
func (w *world) draw() (trouble, time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.calm || w.rng.Float64() >= w.trouble {
		return noTrouble, 0
	}
	w.troubled = true
	return trouble(1 + w.rng.IntN(int(troubles)-1)), w.upTo(w.longest)
}

// upTo is short as often as long.
func (w *world) upTo(d time.Duration) time.Duration { return upTo(w.rng, d) }

func upTo(rng *rand.Rand, d time.Duration) time.Duration {
	if rng.IntN(2) == 0 {
		d /= 16
	}
	return time.Duration(rng.Int64N(int64(d) + 1))
}

// reply is what a call of the store returns.
type reply struct {
	row server.Row
	yes bool
}

// call sends one call to the store, or to nowhere.
func (p *process) call(ctx context.Context, do func(context.Context) (reply, error)) (r reply, err error) {
	if err := p.gate(ctx); err != nil {
		return reply{}, err
	}
	switch kind, d := p.w.draw(); kind {
	case refusal:
		return reply{}, errTrouble
	case lostReply:
		_, _ = do(ctx)
		return reply{}, errTrouble
	case lateEffect:
		p.w.late.Go(func() {
			time.Sleep(d)
			_, _ = do(context.WithoutCancel(ctx))
		})
		return reply{}, errTrouble
	case slowCall:
		if err = rest(ctx, d); err == nil {
			r, err = do(ctx)
		}
	case slowReply:
		r, err = do(ctx)
		_ = rest(ctx, d)
	case hang:
		if d%2 == 0 {
			_, _ = do(ctx)
		}
		_ = rest(ctx, p.w.longest)
		return reply{}, errTrouble
	default:
		r, err = do(ctx)
	}
	// Who died or was cut off meanwhile gets no reply.
	if gone := p.gate(ctx); gone != nil {
		return reply{}, gone
	}
	return r, err
}

// gate lets nobody through who is dead or cut off.
func (p *process) gate(ctx context.Context) error {
	if !p.alive() {
		<-p.w.over
		return errDead
	}
	d := p.frozen()
	if d <= 0 {
		return nil
	}
	// A store bounds its statements in time.
	if err := rest(ctx, min(d, p.w.cfg.Lease)); err != nil || d <= p.w.cfg.Lease {
		return err
	}
	return errTrouble
}

func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// rows is a call that returns a row, yes one that does not.
func (p *process) rows(ctx context.Context, do func(context.Context) (server.Row, bool, error)) (server.Row, bool, error) {
	r, err := p.call(ctx, func(ctx context.Context) (reply, error) {
		row, found, err := do(ctx)
		return reply{row, found}, err
	})
	return r.row, r.yes, err
}

func (p *process) yes(ctx context.Context, do func(context.Context) (bool, error)) (bool, error) {
	r, err := p.call(ctx, func(ctx context.Context) (reply, error) {
		yes, err := do(ctx)
		return reply{yes: yes}, err
	})
	return r.yes, err
}

func (p *process) Claim(ctx context.Context, c server.Claim) (server.Row, bool, error) {
	return p.rows(ctx, func(ctx context.Context) (server.Row, bool, error) { return p.w.journal.Claim(ctx, c) })
}

func (p *process) Lookup(ctx context.Context, id server.ID) (server.Row, bool, error) {
	return p.rows(ctx, func(ctx context.Context) (server.Row, bool, error) { return p.w.journal.Lookup(ctx, id) })
}

func (p *process) Takeover(ctx context.Context, t server.Takeover) (bool, error) {
	return p.yes(ctx, func(ctx context.Context) (bool, error) { return p.w.journal.Takeover(ctx, t) })
}

func (p *process) Renew(ctx context.Context, h server.Hold, lease time.Duration) (bool, error) {
	return p.yes(ctx, func(ctx context.Context) (bool, error) { return p.w.journal.Renew(ctx, h, lease) })
}

func (p *process) Complete(ctx context.Context, h server.Hold, r server.Result) (bool, error) {
	return p.yes(ctx, func(ctx context.Context) (bool, error) { return p.w.journal.Complete(ctx, h, r) })
}

func (p *process) Release(ctx context.Context, h server.Hold) (bool, error) {
	return p.yes(ctx, func(ctx context.Context) (bool, error) { return p.w.journal.Release(ctx, h) })
}

func (p *process) Settle(ctx context.Context, id server.ID, generation int64, r server.Result) (bool, error) {
	return p.yes(ctx, func(ctx context.Context) (bool, error) { return p.w.journal.Settle(ctx, id, generation, r) })
}

func (p *process) Forget(ctx context.Context, id server.ID) (bool, error) {
	return p.yes(ctx, func(ctx context.Context) (bool, error) { return p.w.journal.Forget(ctx, id) })
}
