package server_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
)

// setKey sends these lines of the key's header.
func setKey(lines ...string) func(*http.Request) {
	return func(r *http.Request) { r.Header["Idempotency-Key"] = lines }
}

func TestB104_KeyLength(t *testing.T) {
	t.Parallel()
	h := &counter{}
	store := newFaulty(newMemory())
	g := newMiddlewareOver(t, store, nil).Wrap(h)
	for _, n := range []int{0, 256, 4096} {
		wantProblem(t, post(g, "", "{}", setKey(strings.Repeat("k", n))), 400, "malformed")
	}
	assert.Zero(t, store.count("Claim"), "a malformed key costs the store nothing")
	for i, n := range []int{1, 255} {
		wantExecuted(t, post(g, strings.Repeat("k", n), "{}"), 201)
		assert.EqualValues(t, i+1, h.runs.Load())
	}
}

func TestB106_MalformedKeyIsNoServerError(t *testing.T) {
	t.Parallel()
	h := &counter{}
	g := newMiddleware(t, nil).Wrap(h)
	wantProblem(t, post(g, "", "{}", setKey("a b c")), 400, "malformed")
	wantProblem(t, post(g, "", "{}", setKey(strings.Repeat("x", 300))), 400, "malformed")
	assert.Zero(t, h.runs.Load())
	wantExecuted(t, post(g, "", "{}", setKey("{k}")), 201)
	for c := range 256 { // no byte makes a 500
		w := post(g, "", "{}", setKey("k"+string(rune(c))), as(fmt.Sprint(c)))
		assert.Contains(t, []int{201, 400}, w.Code, "byte %#x", c)
	}
}

func TestB108_QuotedAndBareAreOneKey(t *testing.T) {
	t.Parallel()
	sqlite, _ := newSQLite(t)
	for name, store := range map[string]server.Store{"memory": newMemory(), "sqlite": sqlite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &counter{}
			g := newMiddlewareOver(t, store, nil).Wrap(h)
			first := post(g, `"8e03978e-40d5"`, "{}")
			wantExecuted(t, first, 201)
			wantReplayed(t, post(g, `8e03978e-40d5`, "{}"), first)
			wantReplayed(t, post(g, "  8e03978e-40d5\t", "{}"), first)
			for _, bad := range []string{`"8e03`, `"`, `""`, `"8e03"x`, `"8e03";v=1`, `"8e\03"`, `"8e03\`} {
				wantProblem(t, post(g, bad, "{}"), 400, "malformed")
			}
			assert.EqualValues(t, 1, h.runs.Load())
			escaped := post(g, `"a\"b\\c"`, "{}")
			wantExecuted(t, escaped, 201)
			wantReplayed(t, post(g, `a"b\c`, "{}"), escaped)
		})
	}
}

func TestB110_TwoKeyLines(t *testing.T) {
	t.Parallel()
	h := &counter{}
	srv := httptest.NewServer(newMiddleware(t, nil).Wrap(h))
	defer srv.Close()
	raw := func(lines string) string {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", srv.Listener.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
		fmt.Fprintf(conn, "POST /charges HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n%s\r\n{}", lines)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		defer resp.Body.Close()
		return resp.Header.Get("Idempotency-Status")
	}
	assert.Equal(t, "malformed", raw("Idempotency-Key: k\r\nIdempotency-Key: k\r\n"))
	assert.Equal(t, "malformed", raw("idempotency-key: k\r\nIDEMPOTENCY-KEY: j\r\n"))
	assert.Zero(t, h.runs.Load())
	assert.Equal(t, "executed", raw("Idempotency-Key: k\r\n"))
	assert.Equal(t, "replayed", raw("idempotency-key: \"k\"\r\n"))
	assert.EqualValues(t, 1, h.runs.Load())
}

func TestB112_KeyOnAnotherRoute(t *testing.T) {
	t.Parallel()
	var orders, cancels counter
	m := newMiddleware(t, nil)
	mux := http.NewServeMux()
	mux.Handle("POST /orders", m.Wrap(&orders))
	mux.Handle("POST /orders/{id}/cancel", m.Wrap(&cancels))
	wantExecuted(t, post(mux, "k1", "{}", to("/orders")), 201)
	wantProblem(t, post(mux, "k1", "{}", to("/orders/7/cancel")), 422, "mismatch")
	assert.Zero(t, cancels.runs.Load())
}

func TestB115_TenantsAreApart(t *testing.T) {
	t.Parallel()
	g := newMiddleware(t, nil).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"owner":%q}`, op(r).Scope())
	}))
	a, b := post(g, "k", "{}", as("A")), post(g, "k", "{}", as("B"))
	assert.JSONEq(t, `{"owner":"A"}`, a.Body.String())
	assert.JSONEq(t, `{"owner":"B"}`, b.Body.String())
	wantReplayed(t, post(g, "k", "{}", as("A")), a)
	wantReplayed(t, post(g, "k", "{}", as("B")), b)
}

func TestB117_NobodyTakesAnothersKey(t *testing.T) {
	t.Parallel()
	g := newMiddleware(t, nil).Wrap(&counter{})
	wantExecuted(t, post(g, "5d41402abc4b2a76b9719d911017c592", "X", as("T2")), 201)
	wantExecuted(t, post(g, "5d41402abc4b2a76b9719d911017c592", "Y", as("T1")), 201)
}

func TestB120_ChangedBodyIsRefused(t *testing.T) {
	t.Parallel()
	h := &counter{}
	g := newMiddleware(t, nil).Wrap(h)
	first := post(g, "k", `{"impressions":1000}`)
	wantExecuted(t, first, 201)
	for range 3 {
		wantReplayed(t, post(g, "k", `{"impressions":1000}`), first)
	}
	wantProblem(t, post(g, "k", `{"impressions":999999}`), 422, "mismatch")
	assert.EqualValues(t, 1, h.runs.Load())
}

func TestB123_EditedBetweenTries(t *testing.T) {
	t.Parallel()
	h := &counter{}
	g := newMiddleware(t, nil).Wrap(h)
	post(g, "k", `{"v":1}`)
	wantProblem(t, post(g, "k", `{"v":1,"x":2}`), 422, "mismatch")
	wantProblem(t, post(g, "k", ``), 422, "mismatch")
	assert.EqualValues(t, 1, h.runs.Load())
}

func TestB124_MemberOrderIsAnotherBody(t *testing.T) {
	t.Parallel()
	h := &counter{}
	g := newMiddleware(t, nil).Wrap(h)
	post(g, "k", `{"a":1,"b":2}`)
	wantProblem(t, post(g, "k", `{"b":2,"a":1}`), 422, "mismatch")
	assert.EqualValues(t, 1, h.runs.Load())
}

func TestB126_NewMultipartBoundary(t *testing.T) {
	t.Parallel()
	h := &counter{}
	g := newMiddleware(t, nil).Wrap(h)
	form := func(boundary string) *httptest.ResponseRecorder {
		var b bytes.Buffer
		mw := multipart.NewWriter(&b)
		require.NoError(t, mw.SetBoundary(boundary))
		require.NoError(t, mw.WriteField("amount", "1000"))
		require.NoError(t, mw.Close())
		return post(g, "k", b.String(), func(r *http.Request) { r.Header.Set("Content-Type", mw.FormDataContentType()) })
	}
	first := form("one")
	wantReplayed(t, form("one"), first)
	wantProblem(t, form("two"), 422, "mismatch")
	assert.EqualValues(t, 1, h.runs.Load())
}

func TestB187_AuthenticationComesBeforeReplay(t *testing.T) {
	t.Parallel()
	var revoked atomic.Bool
	g := newMiddleware(t, nil).Wrap(&counter{})
	chain := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if revoked.Load() {
			http.Error(w, "token revoked", http.StatusUnauthorized)
			return
		}
		g.ServeHTTP(w, r)
	})
	wantExecuted(t, post(chain, "k", "{}"), 201)
	revoked.Store(true)
	assert.Equal(t, http.StatusUnauthorized, post(chain, "k", "{}").Code)
}

func TestB192_StoreDownFailsClosed(t *testing.T) {
	t.Parallel()
	h := &counter{}
	store := newFaulty(newMemory())
	g := newMiddlewareOver(t, store, nil).Wrap(h)
	store.fail(always("Claim", "Release", "Lookup"), nil)
	wantProblem(t, post(g, "k", "{}"), 503, "unavailable")
	assert.Zero(t, h.runs.Load())
	store.fail(nil, nil)
	wantExecuted(t, post(g, "k", "{}"), 201)
	assert.EqualValues(t, 1, h.runs.Load())
}

func TestB195_KeysLeaveNoMemoryBehind(t *testing.T) { //nolint:paralleltest // it measures the heap
	memory := &forgetful{newMemory()}
	g := newMiddlewareOver(t, memory, nil).Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	}))
	target := &url.URL{Path: "/charges"}
	send := func(from, to int) {
		for i := from; i < to; i++ {
			for _, key := range []string{"key-%d", "bad key %d"} {
				if key == "bad key %d" && i%10 > 0 {
					continue
				}
				w := &discarder{header: make(http.Header)}
				g.ServeHTTP(w, &http.Request{
					Method: http.MethodPost, URL: target, Body: http.NoBody,
					Header: http.Header{"Idempotency-Key": {fmt.Sprintf(key, i)}},
				})
				if want := map[string]int{"key-%d": 204, "bad key %d": 400}[key]; w.status != want {
					t.Fatalf("status %d, want %d", w.status, want)
				}
			}
		}
	}
	heap := func() uint64 {
		var m runtime.MemStats
		for range 3 {
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	send(0, 1000)
	before := heap()
	send(1000, 51_000)
	after := heap()
	runtime.KeepAlive(g)
	if after > before {
		assert.Less(t, after-before, uint64(4<<20), "bytes that 50,000 keys left behind")
	}
}

func TestB160_TheMarkerIsNoRequestHeader(t *testing.T) {
	t.Parallel()
	h := &counter{}
	g := newMiddleware(t, nil).Wrap(h)
	marked := func(r *http.Request) {
		r.Header.Set("Idempotency-Replayed", "true")
		r.Header.Set("Idempotency-Executed-At", "Mon, 02 Jan 2006 15:04:05 GMT")
		r.Header.Set("Idempotency-Status", "replayed")
	}
	first := post(g, "k", "{}", marked)
	wantExecuted(t, first, 201)
	assert.EqualValues(t, 1, h.runs.Load())
	wantReplayed(t, post(g, "k", "{}", marked), first)
}

func TestB160_AHandlerCanNotFakeTheMarker(t *testing.T) {
	t.Parallel()
	g := newMiddleware(t, nil).Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Idempotency-Replayed", "true")
		w.Header().Set("Idempotency-Executed-At", "Mon, 02 Jan 2006 15:04:05 GMT")
		w.Header().Set("Idempotency-Status", "lies")
		_, _ = io.WriteString(w, "x")
	}))
	first := post(g, "k", "{}")
	wantExecuted(t, first, 200)
	again := post(g, "k", "{}")
	wantReplayed(t, again, first)
	assert.NotContains(t, again.Header().Get("Idempotency-Executed-At"), "2006")
}
