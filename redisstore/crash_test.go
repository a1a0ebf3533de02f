package redisstore_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/redisstore"
	"github.com/oncemore-go/oncemore/server"
)

// The server is killed under load. With appendfsync always, what was
// acknowledged is there when it is back, and whatever was not is decided by
// asking again.
func TestKilledServerForgetsNothing(t *testing.T) {
	t.Parallel()
	srv := startRedis(t)
	s := newStore(t, connect(t, srv.addr()))
	for range 3 {
		killRound(t, s, srv)
	}
}

func killRound(t *testing.T, s *redisstore.Store, srv *redisServer) {
	t.Helper()
	type acked struct {
		c             server.Claim
		claimed, done bool
	}
	var mu sync.Mutex
	var records []acked
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for ctx.Err() == nil {
				c := newClaim()
				r := acked{c: c}
				_, found, err := s.Claim(ctx, c)
				if r.claimed = found && err == nil; r.claimed {
					ok, err := s.Complete(ctx, holdOf(c), result(c))
					r.done = ok && err == nil
				}
				mu.Lock()
				records = append(records, r)
				mu.Unlock()
			}
		})
	}
	require.NoError(t, wait(ctx, 300*time.Millisecond))
	srv.kill()
	require.NoError(t, wait(ctx, 100*time.Millisecond))
	cancel()
	wg.Wait()
	srv.start(t)

	var done, open, none int
	for _, r := range records {
		row, found, err := s.Lookup(t.Context(), r.c.ID)
		require.NoError(t, err)
		switch {
		case found && row.State == server.Done:
			require.Equal(t, result(r.c).Data, row.Data)
			done++
		case r.done || r.claimed && !found:
			require.Fail(t, "an acknowledged record is lost")
		case found: // claimed, and not completed: its owner can go on
			require.Equal(t, r.c.Owner, row.Owner)
			ok, err := s.Complete(t.Context(), holdOf(r.c), result(r.c))
			yes(t, ok, err)
			open++
		default:
			none++
		}
	}
	require.Positive(t, done)
	t.Logf("%d done, %d claimed, %d never there", done, open, none)
}

// A call rides out a restart of the server, if it is short.
func TestCallRidesOutARestart(t *testing.T) {
	t.Parallel()
	srv := startRedis(t)
	s := newStore(t, connect(t, srv.addr()))
	c := newClaim()
	_, _, err := s.Claim(t.Context(), c)
	require.NoError(t, err)
	srv.kill()
	answer := make(chan error, 1)
	go func() {
		ok, err := s.Complete(t.Context(), holdOf(c), result(c))
		if err == nil && !ok {
			err = assert.AnError
		}
		answer <- err
	}()
	srv.start(t)
	require.NoError(t, <-answer)
	row, found, err := s.Lookup(t.Context(), c.ID)
	yes(t, found, err)
	assert.Equal(t, server.Done, row.State)
}

// proxy stands between a program and its server, and can lose the reply to what
// it has forwarded.
type proxy struct {
	net.Listener
	upstream string
	lose     atomic.Bool // the reply to the next script, and its connection with it
	lost     atomic.Int64
	frozen   atomic.Bool // nothing passes any more, and no connection is closed
}

func newProxy(t *testing.T, upstream string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{Listener: l, upstream: upstream}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(conn)
		}
	}()
	return p
}

func (p *proxy) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	upstream, err := net.Dial("tcp", p.upstream)
	if err != nil {
		return
	}
	defer func() { _ = upstream.Close() }()
	var cut atomic.Bool
	go func() {
		defer func() { _ = client.Close() }()
		buf := make([]byte, 64<<10)
		for {
			n, err := upstream.Read(buf)
			if err != nil || cut.Load() { // it has done what was asked, and says so in vain
				return
			}
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		if p.frozen.Load() {
			continue
		}
		if bytes.Contains(buf[:n], []byte("evalsha")) && p.lose.CompareAndSwap(true, false) {
			p.lost.Add(1)
			cut.Store(true)
		}
		if _, err := upstream.Write(buf[:n]); err != nil {
			return
		}
		if cut.Load() {
			_, _ = io.Copy(io.Discard, client)
			return
		}
	}
}

// The server does what it was asked, and its reply is lost on the way. The call
// is sent again, and knows its own work.
func TestLostReply(t *testing.T) {
	t.Parallel()
	addr := startRedis(t).addr()
	direct := newStore(t, connect(t, addr))
	p := newProxy(t, addr)
	// The retries are the store's own.
	client := redis.NewClient(&redis.Options{Addr: p.Addr().String(), MaxRetries: -1, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	s := newStore(t, client)
	ctx := t.Context()
	warm(t, direct)
	const rounds = 10
	for range rounds {
		lossy := func() context.Context { p.lose.Store(true); return ctx }
		c := newClaim()
		row, _, err := s.Claim(lossy(), c)
		require.NoError(t, err)
		require.Equal(t, c.Owner, row.Owner, "the claim is its own")
		ok, err := s.Renew(lossy(), holdOf(c), time.Millisecond)
		yes(t, ok, err)
		require.NoError(t, wait(ctx, 2*time.Millisecond))
		next := server.Takeover{ID: c.ID, Owner: rival(c).Owner, From: c.Owner, Generation: 1, Lease: time.Minute}
		ok, err = s.Takeover(lossy(), next)
		yes(t, ok, err)
		ok, err = s.Complete(lossy(), server.Hold{ID: c.ID, Owner: next.Owner, Generation: 2}, result(c))
		yes(t, ok, err)
		ok, err = s.Settle(lossy(), c.ID, 2, result(rival(c)))
		yes(t, ok, err)
		row, _, err = direct.Lookup(ctx, c.ID)
		require.NoError(t, err)
		require.EqualValues(t, 3, row.Generation, "each was counted once")
		ok, err = s.Forget(lossy(), c.ID)
		yes(t, ok, err)

		_, _, err = direct.Claim(ctx, c)
		require.NoError(t, err)
		ok, err = s.Release(lossy(), holdOf(c))
		yes(t, ok, err)
	}
	assert.EqualValues(t, 7*rounds, p.lost.Load(), "all were lost")
}

// warm makes every script known to the server, so that each call is one EVALSHA.
func warm(t *testing.T, s *redisstore.Store) {
	t.Helper()
	c := newClaim()
	_, _, _ = s.Claim(t.Context(), c)
	_, _, _ = s.Lookup(t.Context(), c.ID)
	_, _ = s.Takeover(t.Context(), server.Takeover{ID: c.ID})
	_, _ = s.Renew(t.Context(), server.Hold{ID: c.ID}, time.Minute)
	_, _ = s.Complete(t.Context(), server.Hold{ID: c.ID}, result(c))
	_, _ = s.Settle(t.Context(), c.ID, 7, result(c))
	_, _ = s.Forget(t.Context(), c.ID)
	ok, err := s.Release(t.Context(), holdOf(c))
	yes(t, ok, err)
}

// A server that hangs holds up nobody for ever: the caller's deadline counts,
// and without one the store has its own, also where the client has none.
func TestFrozenServerIsGivenUp(t *testing.T) {
	t.Parallel()
	p := newProxy(t, startRedis(t).addr())
	client := redis.NewClient(&redis.Options{Addr: p.Addr().String(), ReadTimeout: -1, WriteTimeout: -1, MaxRetries: -1, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	s := newStore(t, client)
	c := newClaim()
	_, _, err := s.Claim(t.Context(), c)
	require.NoError(t, err)
	p.frozen.Store(true)
	all(t, 2, func(i int) error {
		ctx := t.Context()
		if i == 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
		}
		if _, _, err := s.Lookup(ctx, c.ID); err == nil {
			return assert.AnError
		} else if i == 0 {
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		}
		return nil
	})
	p.frozen.Store(false)
	_, found, err := s.Lookup(t.Context(), c.ID)
	yes(t, found, err)
}
