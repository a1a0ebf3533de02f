package server_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/sqlitetest"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
	"github.com/oncemore-go/oncemore/server/storetest"
)

// What random schedules found, as few steps as show it.

// hooked is a store with a step in between.
type hooked struct {
	server.Store
	looked  func() // a row was read, and is on its way
	renewal error
}

func (h *hooked) Lookup(ctx context.Context, id server.ID) (server.Row, bool, error) {
	row, found, err := h.Store.Lookup(ctx, id)
	if h.looked != nil {
		h.looked()
	}
	return row, found, err
}

func (h *hooked) Renew(ctx context.Context, hold server.Hold, lease time.Duration) (bool, error) {
	if h.renewal != nil {
		return false, h.renewal
	}
	return h.Store.Renew(ctx, hold, lease)
}

// An operator read that the run had lost its lease; the run ended all the same,
// and its client was answered. Settle then replaced that answer by another.
func TestSettleReplacesNoResultThatCameMeanwhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := storetest.NewMemory()
		goOn := make(chan struct{})
		owner := newMiddlewareOver(t, &hooked{Store: memory, renewal: errors.New("cut off")}, nil).
			Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				<-goOn
				w.WriteHeader(http.StatusCreated)
				_, _ = w.Write([]byte("of the run"))
			}))
		var first *httptest.ResponseRecorder
		go func() { first = post(owner, "k", "{}") }()
		time.Sleep(time.Minute)

		operator := newMiddlewareOver(t, &hooked{Store: memory, looked: func() {
			if first == nil {
				close(goOn)
				synctest.Wait()
			}
		}}, nil)
		err := operator.Settle(t.Context(), "acme", "k", server.Response{Status: 200, Body: []byte("of the operator")})
		require.NotNil(t, first)
		assert.Equal(t, "of the run", first.Body.String())
		require.ErrorIs(t, err, server.ErrSettled)
		assert.Equal(t, "of the run", post(operator.Wrap(&counter{}), "k", "{}").Body.String())
	})
}

// Two decide at once: the operator comes too late, and the application is not
// asked for nothing.
func TestSettleWaitsForRecover(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		asked, goOn := make(chan struct{}), make(chan struct{})
		m := newMiddleware(t, func(c *server.Config) {
			c.Recover = func(context.Context, *server.Operation) (server.Recovery, error) {
				close(asked)
				<-goOn
				return server.Recovery{Action: server.RunAgain}, nil
			}
		})
		var runs int
		g := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if runs++; runs == 1 {
				op, _ := server.OperationFrom(r.Context())
				op.EffectStarted()
				w.WriteHeader(http.StatusBadGateway)
				return
			}
			h.ServeHTTP(w, r)
		}))
		post(g, "k", "{}")
		var second *httptest.ResponseRecorder
		go func() { second = post(g, "k", "{}") }()
		<-asked
		err := m.Settle(t.Context(), "acme", "k", server.Response{Status: 200, Body: []byte("of the operator")})
		require.ErrorIs(t, err, server.ErrRunning)
		close(goOn)
		synctest.Wait()
		require.NotNil(t, second)
		assert.Equal(t, second.Body.String(), post(g, "k", "{}").Body.String())
		assert.EqualValues(t, 1, h.runs.Load())
	})
}

// A panic in Recover left a request without an event that names its outcome.
func TestRecoverThatPanicsHasAnOutcome(t *testing.T) {
	t.Parallel()
	var kinds []server.EventKind
	m := newMiddleware(t, func(c *server.Config) {
		c.Recover = func(context.Context, *server.Operation) (server.Recovery, error) { panic("no idea") }
		c.Observer = func(_ context.Context, e server.Event) { kinds = append(kinds, e.Kind) }
	})
	g := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op, _ := server.OperationFrom(r.Context())
		op.EffectStarted()
		w.WriteHeader(http.StatusBadGateway)
	}))
	post(g, "k", "{}")
	kinds = nil
	assert.PanicsWithValue(t, "no idea", func() { post(g, "k", "{}") })
	assert.Equal(t, []server.EventKind{server.EventTakeover, server.EventUnknown}, kinds)
}

// On SQLite the transaction of a handler holds the only writer, so its own lease
// can't be renewed; nor can anybody take it.
func TestABusyDatabaseIsNoLostLease(t *testing.T) {
	t.Parallel()
	const lease = 150 * time.Millisecond
	store, books := newSQLite(t)
	g := newMiddlewareOver(t, store, func(c *server.Config) {
		c.ClaimFirst = true
		c.Lease = lease
	}).WrapTx(func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
		time.Sleep(3 * lease)
		w.WriteHeader(http.StatusCreated)
		return book(r.Context(), tx, "k")
	})
	wantExecuted(t, post(g, "k", "{}"), http.StatusCreated)
	assert.Equal(t, 1, books.count(t, "k"))
}

// The client of a run that lost its key was told to send a new one, although
// the operation was done, and its own request the first.
func TestALostRunIsAnsweredAfterItsTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := storetest.NewMemory()
		change := func(c *server.Config) {
			c.TTL = time.Minute
			c.Abandoned = server.RerunAbandoned
		}
		var first *httptest.ResponseRecorder
		cut := newMiddlewareOver(t, &hooked{Store: memory, renewal: errors.New("cut off")}, change)
		go func() {
			first = post(cut.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				time.Sleep(2 * time.Minute)
				w.WriteHeader(http.StatusCreated)
			})), "k", "{}")
		}()
		time.Sleep(40 * time.Second)
		second := post(newMiddlewareOver(t, memory, change).Wrap(&counter{}), "k", "{}")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.NotNil(t, first)
		wantReplayed(t, first, second)
	})
}

// Between two looks at the row the run of another process ended without a
// result, and another request got the key. Those who waited went on waiting for
// that one, and it was refused as a mismatch where they waited.
func TestWaitersLearnThatTheKeyIsAnotherRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := storetest.NewMemory()
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ContentLength == 1 {
				time.Sleep(time.Second)
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			time.Sleep(10 * time.Second)
			w.WriteHeader(http.StatusCreated)
		})
		here, there := newMiddlewareOver(t, memory, nil).Wrap(h), newMiddlewareOver(t, memory, nil).Wrap(h)
		var waiter, other *httptest.ResponseRecorder
		go func() {
			post(there, "k", "1")
			other = post(there, "k", "22")
		}()
		time.Sleep(10 * time.Millisecond)
		go func() { waiter = post(here, "k", "1") }()
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		require.NotNil(t, waiter, "still waits")
		wantProblem(t, waiter, http.StatusUnprocessableEntity, "mismatch")
		same := post(here, "k", "22")
		synctest.Wait()
		wantReplayed(t, same, other)
	})
}

// tardy reaches a takeover, and goes on with it when it is let.
type tardy struct {
	server.TxStore
	reached, goOn chan struct{}
	once          *sync.Once
}

func (s tardy) Takeover(ctx context.Context, t server.Takeover) (bool, error) {
	s.once.Do(func() { close(s.reached) })
	<-s.goOn
	return s.TxStore.Takeover(ctx, t)
}

// A handler that outlives its lease, as one does on SQLite where its own
// transaction keeps its renewals out, ends unknown while another process has
// read that its lease is over and asks for the row.
func TestAnEffectIsNotRunAgainBySomebodyWhoReadTooEarly(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "oncemore.db")
	open := func() *sqlstore.Store {
		s, err := sqlstore.New(sqlitetest.OpenFile(t, file), sqlstore.SQLite)
		require.NoError(t, err)
		require.NoError(t, s.Migrate(t.Context()))
		return s
	}
	config := func(c *server.Config) { c.ClaimFirst, c.Lease = true, 100*time.Millisecond }
	began, release := make(chan struct{}), make(chan struct{})
	one := newMiddlewareOver(t, open(), config).WrapTx(func(_ http.ResponseWriter, r *http.Request, _ *sql.Tx) error {
		op(r).EffectStarted()
		close(began)
		<-release
		return errHandler
	})
	late := tardy{open(), make(chan struct{}), make(chan struct{}), &sync.Once{}}
	var n atomic.Int64
	two := newMiddlewareOver(t, late, config).WrapTx(func(http.ResponseWriter, *http.Request, *sql.Tx) error {
		n.Add(1)
		return nil
	})
	first := sentTo(one, "k")
	<-began
	time.Sleep(200 * time.Millisecond) // until its lease is over
	second := sentTo(two, "k")
	<-late.reached
	close(release)
	assert.Equal(t, "unknown", status(<-first))
	close(late.goOn)
	wantProblem(t, <-second, 409, "unknown")
	assert.Zero(t, n.Load())
}
