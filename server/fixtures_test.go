package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/sqlitetest"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
	"github.com/oncemore-go/oncemore/server/storetest"
)

// TestMain is a crashing child where the environment says so (crash_test.go).
// Otherwise it runs the tests, and fails if they leave goroutines behind.
func TestMain(m *testing.M) {
	if os.Getenv(crashEnv) != "" {
		crashingChild()
	}
	code := m.Run()
	if left := leftBehind(); code == 0 && len(left) > 0 {
		fmt.Fprintf(os.Stderr, "%d goroutines are left behind:\n\n%s\n", len(left), strings.Join(left, "\n\n"))
		code = 1
	}
	os.Exit(code)
}

// leftBehind returns the goroutines that run code of this module, or were
// started by it, and don't end in a few seconds.
func leftBehind() (left []string) {
	buf := make([]byte, 4<<20)
	for range 100 {
		left = nil
		for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(stack, "oncemore-go/oncemore/") && !strings.Contains(stack, "server_test.TestMain") {
				left = append(left, stack)
			}
		}
		if len(left) == 0 {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return left
}

// faulty is a store whose calls fail when a test wants them to: before they
// take effect, or after it, as a lost reply does.
type faulty struct {
	server.Store

	mu            sync.Mutex
	before, after func(call string) error
	calls         map[string]int
}

func newFaulty(inner server.Store) *faulty {
	return &faulty{Store: inner, calls: make(map[string]int)}
}

// fail sets what happens before and after each call; nil is nothing.
func (f *faulty) fail(before, after func(call string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before, f.after = before, after
}

// count is how often a method was called.
func (f *faulty) count(call string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[call]
}

func (f *faulty) step(call string, do func() error) error {
	f.mu.Lock()
	f.calls[call]++
	before, after := f.before, f.after
	f.mu.Unlock()
	if before != nil {
		if err := before(call); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return err
	}
	if after != nil {
		return after(call)
	}
	return nil
}

func (f *faulty) yes(call string, do func() (bool, error)) (ok bool, err error) {
	err = f.step(call, func() (err error) { ok, err = do(); return err })
	return ok && err == nil, err
}

func (f *faulty) Claim(ctx context.Context, c server.Claim) (row server.Row, found bool, err error) {
	err = f.step("Claim", func() (err error) { row, found, err = f.Store.Claim(ctx, c); return err })
	if err != nil {
		return server.Row{}, false, err
	}
	return row, found, nil
}

func (f *faulty) Lookup(ctx context.Context, id server.ID) (row server.Row, found bool, err error) {
	err = f.step("Lookup", func() (err error) { row, found, err = f.Store.Lookup(ctx, id); return err })
	if err != nil {
		return server.Row{}, false, err
	}
	return row, found, nil
}

func (f *faulty) Takeover(ctx context.Context, t server.Takeover) (bool, error) {
	return f.yes("Takeover", func() (bool, error) { return f.Store.Takeover(ctx, t) })
}

func (f *faulty) Renew(ctx context.Context, h server.Hold, lease time.Duration) (bool, error) {
	return f.yes("Renew", func() (bool, error) { return f.Store.Renew(ctx, h, lease) })
}

func (f *faulty) Complete(ctx context.Context, h server.Hold, r server.Result) (bool, error) {
	return f.yes("Complete", func() (bool, error) { return f.Store.Complete(ctx, h, r) })
}

func (f *faulty) Release(ctx context.Context, h server.Hold) (bool, error) {
	return f.yes("Release", func() (bool, error) { return f.Store.Release(ctx, h) })
}

func (f *faulty) Settle(ctx context.Context, id server.ID, generation int64, r server.Result) (bool, error) {
	return f.yes("Settle", func() (bool, error) { return f.Store.Settle(ctx, id, generation, r) })
}

func (f *faulty) Forget(ctx context.Context, id server.ID) (bool, error) {
	return f.yes("Forget", func() (bool, error) { return f.Store.Forget(ctx, id) })
}

// faultyTx is faulty over a store with transactions.
type faultyTx struct{ *faulty }

func (f faultyTx) BeginTx(ctx context.Context, c *server.Claim) (tx server.Tx, row server.Row, found bool, err error) {
	err = f.step("BeginTx", func() (err error) {
		tx, row, found, err = f.Store.(server.TxStore).BeginTx(ctx, c) //nolint:errcheck,forcetypeassert // those that use it have one
		return err
	})
	if err != nil {
		if tx != nil {
			_ = tx.Rollback()
		}
		return nil, server.Row{}, false, err
	}
	if tx == nil {
		return nil, row, found, nil
	}
	return &faultyTxn{Tx: tx, f: f.faulty}, row, found, nil
}

type faultyTxn struct {
	server.Tx
	f *faulty
}

func (t *faultyTxn) Complete(ctx context.Context, h server.Hold, r server.Result) (bool, error) {
	return t.f.yes("Tx.Complete", func() (bool, error) { return t.Tx.Complete(ctx, h, r) })
}

func (t *faultyTxn) Commit(ctx context.Context) error {
	return t.f.step("Tx.Commit", func() error { return t.Tx.Commit(ctx) })
}

// errStore is what a store says that can't be reached.
var errStore = errors.New("connection refused")

// always fails every one of the calls.
func always(calls ...string) func(string) error { return times(1<<30, calls...) }

// times fails the first n of the calls.
func times(n int, calls ...string) func(string) error {
	var mu sync.Mutex
	return func(call string) error {
		mu.Lock()
		defer mu.Unlock()
		if n > 0 && slices.Contains(calls, call) {
			n--
			return errStore
		}
		return nil
	}
}

// events keeps what an Observer is told.
type events struct {
	mu   sync.Mutex
	list []server.Event
}

func (e *events) observe(_ context.Context, event server.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, event)
}

// of returns the events of the kinds, of all if there are none.
func (e *events) of(kinds ...server.EventKind) []server.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []server.Event
	for _, event := range e.list {
		if len(kinds) == 0 || slices.Contains(kinds, event.Kind) {
			out = append(out, event)
		}
	}
	return out
}

// outcomes returns the kinds that name the outcome of a request.
func (e *events) outcomes() []server.EventKind {
	var out []server.EventKind
	for _, event := range e.of() {
		if event.Kind <= server.EventUnavailable {
			out = append(out, event.Kind)
		}
	}
	return out
}

func (e *events) reset() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = nil
}

// logBuffer is a log that may be written by several goroutines.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func (b *logBuffer) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// newSQLite is a migrated store over a new database file, with a table for
// the writes of handlers.
func newSQLite(tb testing.TB) (*sqlstore.Store, *ledger) {
	tb.Helper()
	db := sqlitetest.Open(tb)
	s, err := sqlstore.New(db, sqlstore.SQLite)
	require.NoError(tb, err)
	require.NoError(tb, s.Migrate(tb.Context()))
	return s, newLedger(tb, db)
}

// status is what became of a request, by its header.
func status(w *httptest.ResponseRecorder) string { return w.Header().Get("Idempotency-Status") }

// wantExecuted checks a first answer.
func wantExecuted(t *testing.T, w *httptest.ResponseRecorder, code int) {
	t.Helper()
	assert.Equal(t, code, w.Code, "body %q", w.Body)
	assert.Equal(t, "executed", status(w))
	assert.Empty(t, w.Header()["Idempotency-Replayed"])
	assert.Empty(t, w.Header()["Idempotency-Executed-At"])
}

// wantReplayed checks a replay against the first answer.
func wantReplayed(t *testing.T, w, first *httptest.ResponseRecorder) {
	t.Helper()
	assert.Equal(t, first.Code, w.Code, "body %q", w.Body)
	assert.Equal(t, "replayed", status(w))
	assert.Equal(t, []string{"true"}, w.Header()["Idempotency-Replayed"])
	assert.Len(t, w.Header()["Idempotency-Executed-At"], 1)
	assert.Equal(t, first.Body.String(), w.Body.String())
	for _, name := range []string{"Content-Type", "Content-Length", "Location", "Etag", "Link"} {
		assert.Equal(t, first.Header()[name], w.Header()[name], name)
	}
}

// as is a request of another tenant.
func as(tenant string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("X-Tenant", tenant) }
}

// to is a request to another path.
func to(path string) func(*http.Request) {
	return func(r *http.Request) { r.URL.Path = path }
}

// within is a request whose client leaves at the end of ctx.
func within(ctx context.Context) func(*http.Request) {
	return func(r *http.Request) { *r = *r.WithContext(ctx) }
}

// op is the operation of a request that is guarded.
func op(r *http.Request) *server.Operation {
	o, ok := server.OperationFrom(r.Context())
	if !ok {
		panic("no operation")
	}
	return o
}

func newMemory() *storetest.Memory { return storetest.NewMemory() }

// forgetful is a store in memory that keeps nothing that is done.
type forgetful struct{ *storetest.Memory }

func (f *forgetful) Complete(ctx context.Context, h server.Hold, r server.Result) (bool, error) {
	ok, err := f.Memory.Complete(ctx, h, r)
	if ok {
		_, err = f.Forget(ctx, h.ID)
	}
	return ok, err
}

// readCloser is a reader that need not be closed.
type readCloser struct{ io.Reader }

func (readCloser) Close() error { return nil }

// copyAll copies as handlers do: by ReadFrom, where there is one.
func copyAll(w io.Writer, r io.Reader) (int64, error) {
	if rf, ok := w.(io.ReaderFrom); ok {
		return rf.ReadFrom(r)
	}
	return io.Copy(w, r)
}

// discarder is a ResponseWriter that keeps only the status.
type discarder struct {
	header http.Header
	status int
}

func (d *discarder) Header() http.Header         { return d.header }
func (d *discarder) Write(p []byte) (int, error) { return len(p), nil }
func (d *discarder) WriteHeader(status int)      { d.status = status }

// newRequest is a keyed request.
func newRequest(key string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/charges", strings.NewReader("{}"))
	r.Header.Set("Idempotency-Key", key)
	return r
}

// sentTo is a request under way to h.
func sentTo(h http.Handler, key string) <-chan *httptest.ResponseRecorder {
	return sent(func() *httptest.ResponseRecorder { return post(h, key, "{}") })
}

// spy notes the identity of the last claim.
type spy struct {
	server.Store
	id *server.ID
}

func (s spy) Claim(ctx context.Context, c server.Claim) (server.Row, bool, error) {
	*s.id = c.ID
	return s.Store.Claim(ctx, c)
}
