package server_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/storetest"
)

// newMiddleware is over a store in memory, with the scope of X-Tenant.
func newMiddleware(tb testing.TB, change func(*server.Config)) *server.Middleware {
	tb.Helper()
	return newMiddlewareOver(tb, storetest.NewMemory(), change)
}

func newMiddlewareOver(tb testing.TB, store server.Store, change func(*server.Config)) *server.Middleware {
	tb.Helper()
	cfg := server.Config{Scope: tenant}
	if change != nil {
		change(&cfg)
	}
	m, err := server.New(store, cfg)
	require.NoError(tb, err)
	return m
}

func tenant(r *http.Request) (string, error) {
	if t := r.Header.Get("X-Tenant"); t != "" {
		return t, nil
	}
	return "acme", nil
}

// post sends one request with a key; "" sends none.
func post(h http.Handler, key, body string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/charges", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	for _, f := range change {
		f(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// problem is a problem document as a client reads it.
type problem struct {
	Type, Title, Detail, Code string
	Status                    int
	OriginalStatus            int `json:"original_status"`
}

// wantProblem checks a refusal.
func wantProblem(t *testing.T, w *httptest.ResponseRecorder, status int, code string) {
	t.Helper()
	assert.Equal(t, status, w.Code)
	assert.Equal(t, code, w.Header().Get("Idempotency-Status"))
	assert.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
	var p problem
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p), "body %q", w.Body)
	assert.Equal(t, code, p.Code)
	assert.Equal(t, status, p.Status)
	assert.True(t, strings.HasSuffix(p.Type, "#"+code), p.Type)
	assert.NotEmpty(t, p.Title)
	assert.NotEmpty(t, p.Detail)
	retry := status == http.StatusServiceUnavailable || code == "in-progress"
	assert.Equal(t, retry, w.Header().Get("Retry-After") != "", "Retry-After %q", w.Header().Get("Retry-After"))
}

// counter is a handler that counts its runs and answers 201.
type counter struct{ runs atomic.Int64 }

func (c *counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := c.runs.Add(1)
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", fmt.Sprintf("/charges/%d", n))
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"charge":%d,"request":%q}`, n, body)
}

func TestCases(t *testing.T) {
	t.Parallel()
	t.Run("executed, then replayed", func(t *testing.T) {
		t.Parallel()
		h := &counter{}
		g := newMiddleware(t, nil).Wrap(h)
		first, second := post(g, "k1", `{"amount":1000}`), post(g, "k1", `{"amount":1000}`)
		assert.Equal(t, http.StatusCreated, first.Code)
		assert.Equal(t, "executed", first.Header().Get("Idempotency-Status"))
		assert.Empty(t, first.Header().Get("Idempotency-Replayed"))
		assert.Equal(t, http.StatusCreated, second.Code)
		assert.Equal(t, "replayed", second.Header().Get("Idempotency-Status"))
		assert.Equal(t, "true", second.Header().Get("Idempotency-Replayed"))
		at, err := http.ParseTime(second.Header().Get("Idempotency-Executed-At"))
		require.NoError(t, err)
		assert.WithinDuration(t, time.Now(), at, 5*time.Second)
		assert.Equal(t, first.Body.String(), second.Body.String())
		for _, name := range []string{"Content-Type", "Location", "Content-Length"} {
			assert.Equal(t, first.Header().Get(name), second.Header().Get(name), name)
			assert.NotEmpty(t, second.Header().Get(name), name)
		}
		assert.EqualValues(t, 1, h.runs.Load())
	})
	t.Run("another request under the key", func(t *testing.T) {
		t.Parallel()
		h := &counter{}
		g := newMiddleware(t, nil).Wrap(h)
		post(g, "k", `{"amount":1000}`)
		wantProblem(t, post(g, "k", `{"amount":99999}`), 422, "mismatch")
		wantProblem(t, post(g, "k", `{"amount":1000}`, func(r *http.Request) { r.URL.Path = "/refunds" }), 422, "mismatch")
		wantProblem(t, post(g, "k", `{"amount":1000}`, func(r *http.Request) { r.Method = http.MethodPatch }), 422, "mismatch")
		wantProblem(t, post(g, "k", `{"amount":1000}`, func(r *http.Request) { r.URL.RawQuery = "a=1" }), 422, "mismatch")
		wantProblem(t, post(g, "k", `{"amount":1000}`, func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }), 422, "mismatch")
		same := post(g, "k", `{"amount":1000}`, func(r *http.Request) { r.Header.Set("Content-Type", "application/json; charset=utf-8") })
		assert.Equal(t, "replayed", same.Header().Get("Idempotency-Status"), "parameters of the media type don't count")
		assert.EqualValues(t, 1, h.runs.Load())
	})
	t.Run("other scope, other operation", func(t *testing.T) {
		t.Parallel()
		h := &counter{}
		g := newMiddleware(t, nil).Wrap(h)
		post(g, "k", "{}")
		other := post(g, "k", "{}", func(r *http.Request) { r.Header.Set("X-Tenant", "umbrella") })
		assert.Equal(t, "executed", other.Header().Get("Idempotency-Status"))
		assert.EqualValues(t, 2, h.runs.Load())
	})
	t.Run("other methods pass", func(t *testing.T) {
		t.Parallel()
		g := newMiddleware(t, nil).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, ok := server.OperationFrom(r.Context())
			assert.False(t, ok)
			w.WriteHeader(http.StatusNoContent)
		}))
		w := post(g, "k", "", func(r *http.Request) { r.Method = http.MethodGet })
		assert.Equal(t, http.StatusNoContent, w.Code)
		assert.Empty(t, w.Header().Get("Idempotency-Status"))
	})
	t.Run("malformed keys", func(t *testing.T) {
		t.Parallel()
		h := &counter{}
		g := newMiddleware(t, nil).Wrap(h)
		future := "018bcfe5-6800-7000-8000-000000000000"
		ms := time.Now().Add(6 * time.Minute).UnixMilli()
		future = fmt.Sprintf("%08x-%04x%s", ms>>16, ms&0xffff, future[13:])
		for _, key := range []string{" ", `"`, `"k`, `"k"x`, `"a b"`, "a b", `""`, `"k";p=1`, `"\k"`, "é", "a\x7f", strings.Repeat("k", 256), future} {
			w := post(g, "x", "{}", func(r *http.Request) { r.Header["Idempotency-Key"] = []string{key} })
			wantProblem(t, w, 400, "malformed")
		}
		w := post(g, "x", "{}", func(r *http.Request) { r.Header["Idempotency-Key"] = []string{"k", "k"} })
		wantProblem(t, w, 400, "malformed")
		assert.Zero(t, h.runs.Load())
		for i, key := range []string{"k", strings.Repeat("k", 255), "a,b", `"quoted"`, `a"b`} {
			w := post(g, key, "{}")
			assert.Equal(t, 201, w.Code, key)
			assert.EqualValues(t, i+1, h.runs.Load(), key)
		}
		assert.Equal(t, "replayed", post(g, "quoted", "{}").Header().Get("Idempotency-Status"), "quoted and bare are the same key")
	})
	t.Run("scope", func(t *testing.T) {
		t.Parallel()
		scope, fail := "", error(nil)
		g := newMiddleware(t, func(c *server.Config) {
			c.Scope = func(*http.Request) (string, error) { return scope, fail }
		}).Wrap(&counter{})
		wantProblem(t, post(g, "k", "{}"), 400, "malformed")
		fail = errors.New("no idea")
		wantProblem(t, post(g, "k", "{}"), 500, "scope")
		fail = fmt.Errorf("wrapped: %w", &server.StatusError{Status: 401, Err: errors.New("who are you")})
		wantProblem(t, post(g, "k", "{}"), 401, "scope")
	})
	t.Run("too large", func(t *testing.T) {
		t.Parallel()
		h := &counter{}
		g := newMiddleware(t, func(c *server.Config) { c.MaxRequestBody = 10 }).Wrap(h)
		assert.Equal(t, 201, post(g, "k", "0123456789").Code)
		wantProblem(t, post(g, "k2", "0123456789a"), 413, "too-large")
		wantProblem(t, post(g, "k3", "0123456789a", func(r *http.Request) { r.ContentLength = -1 }), 413, "too-large")
		assert.EqualValues(t, 1, h.runs.Load())
	})
	t.Run("not final is not kept", func(t *testing.T) {
		t.Parallel()
		for status, kept := range map[int]bool{
			200: true, 201: true, 204: true, 304: true, 400: true, 404: true, 409: true, 422: true,
			401: false, 403: false, 408: false, 425: false, 429: false, 500: false, 503: false,
		} {
			var n atomic.Int64
			g := newMiddleware(t, nil).Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				n.Add(1)
				w.WriteHeader(status)
			}))
			first, second := post(g, "k", "{}"), post(g, "k", "{}")
			assert.Equal(t, status, first.Code)
			assert.Equal(t, "executed", first.Header().Get("Idempotency-Status"))
			assert.Equal(t, status, second.Code)
			want := int64(2)
			if kept {
				want = 1
			}
			assert.Equal(t, want, n.Load(), "status %d", status)
		}
	})
	t.Run("panic frees the key", func(t *testing.T) {
		t.Parallel()
		var n atomic.Int64
		g := newMiddleware(t, nil).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n.Add(1)
			if r.Header.Get("X-Effect") != "" {
				op, _ := server.OperationFrom(r.Context())
				op.EffectStarted()
			}
			if n.Load() == 1 || r.Header.Get("X-Effect") != "" {
				panic("boom")
			}
			w.WriteHeader(http.StatusCreated)
		}))
		assert.PanicsWithValue(t, "boom", func() { post(g, "k", "{}") })
		assert.Equal(t, 201, post(g, "k", "{}").Code)
		effect := func(r *http.Request) { r.Header.Set("X-Effect", "1") }
		assert.PanicsWithValue(t, "boom", func() { post(g, "k2", "{}", effect) })
		wantProblem(t, post(g, "k2", "{}", effect), 409, "unknown")
		assert.EqualValues(t, 3, n.Load())
	})
}

func TestKeyless(t *testing.T) {
	t.Parallel()
	h := &counter{}
	wantProblem(t, post(newMiddleware(t, nil).Wrap(h), "", "{}"), 400, "missing")
	pass := newMiddleware(t, func(c *server.Config) { c.Keyless.Mode = server.PassKeyless }).Wrap(h)
	for range 2 {
		assert.Equal(t, "unprotected", post(pass, "", "{}").Header().Get("Idempotency-Status"))
	}
	assert.EqualValues(t, 2, h.runs.Load())
	over := newMiddleware(t, func(c *server.Config) {
		c.Keyless = server.Keyless{Mode: server.PassKeyless, Until: time.Now()}
	}).Wrap(h)
	wantProblem(t, post(over, "", "{}"), 400, "missing")
}

func TestBodyHashWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		g := newMiddleware(t, func(c *server.Config) { c.Keyless.Mode = server.BodyHashKeyless }).Wrap(h)
		first := post(g, "", "{}")
		assert.Equal(t, "executed", first.Header().Get("Idempotency-Status"))
		time.Sleep(9 * time.Second)
		second := post(g, "", "{}")
		assert.Equal(t, "replayed", second.Header().Get("Idempotency-Status"))
		assert.Equal(t, first.Body.String(), second.Body.String())
		assert.Equal(t, "executed", post(g, "", `{"other":1}`).Header().Get("Idempotency-Status"))
		time.Sleep(1100 * time.Millisecond) // counted from the first tap
		assert.Equal(t, "executed", post(g, "", "{}").Header().Get("Idempotency-Status"))
		assert.EqualValues(t, 3, h.runs.Load())
	})
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		g := newMiddleware(t, func(c *server.Config) { c.TTL = time.Hour }).Wrap(h)
		post(g, "k", "{}")
		time.Sleep(time.Hour + time.Second)
		wantProblem(t, post(g, "k", "{}"), 412, "expired")
		wantProblem(t, post(g, "k", `{"other":1}`), 412, "expired")
		assert.EqualValues(t, 1, h.runs.Load())
	})
}

func TestHundredArrivalsOneRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(time.Second)
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write([]byte("once"))
		})
		g := newMiddleware(t, func(c *server.Config) { c.MaxWaiters = 99 }).Wrap(h)
		var wg sync.WaitGroup
		answers := make([]*httptest.ResponseRecorder, 100)
		for i := range answers {
			wg.Go(func() { answers[i] = post(g, "k", "{}") })
		}
		wg.Wait()
		replays := 0
		for _, w := range answers {
			assert.Equal(t, 201, w.Code)
			assert.Equal(t, "once", w.Body.String())
			if w.Header().Get("Idempotency-Replayed") == "true" {
				replays++
			}
		}
		assert.Equal(t, 99, replays)
	})
}

// Below http.StripPrefix two routes look alike; their requests are two all the
// same.
func TestStrippedPathsAreNotOneRequest(t *testing.T) {
	t.Parallel()
	m := newMiddleware(t, nil)
	h := &counter{}
	mux := http.NewServeMux()
	mux.Handle("/orders/", http.StripPrefix("/orders", m.Wrap(h)))
	mux.Handle("/refunds/", http.StripPrefix("/refunds", m.Wrap(h)))
	at := func(target string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, target, strings.NewReader("{}"))
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		return w
	}
	assert.Equal(t, "executed", at("/orders/1").Header().Get("Idempotency-Status"))
	wantProblem(t, at("/refunds/1"), 422, "mismatch")
	for _, target := range []string{"/orders/1", "http://example.com/orders/1"} {
		assert.Equal(t, "replayed", at(target).Header().Get("Idempotency-Status"), target)
	}
	assert.EqualValues(t, 1, h.runs.Load())
}

// What is not the first request is told so at once, also where no more may wait.
func TestMismatchPastMaxWaiters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newMiddleware(t, func(c *server.Config) { c.MaxWaiters = 1 }).Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(time.Second)
			w.WriteHeader(http.StatusCreated)
		}))
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { assert.Equal(t, http.StatusCreated, post(g, "k", "{}").Code) })
		}
		synctest.Wait()
		wantProblem(t, post(g, "k", "{}"), 503, "in-progress")
		wantProblem(t, post(g, "k", `{"other":1}`), 422, "mismatch")
		wg.Wait()
	})
}

// Rebuild is told when the operation came, whether the row was read or handed
// over.
func TestRebuildKnowsTheTimes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		came := time.Now()
		var seen []server.Record
		var mu sync.Mutex
		g := newMiddleware(t, func(c *server.Config) {
			c.Rebuild = func(_ http.ResponseWriter, _ *http.Request, rec server.Record) error {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, rec)
				return nil
			}
		}).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			op, _ := server.OperationFrom(r.Context())
			op.SetResource("ch_1", "/charges/ch_1")
			_, _ = w.Write([]byte("long"))
		}))
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() { post(g, "k", "{}") })
		}
		wg.Wait()
		post(g, "k", "{}")
		require.Len(t, seen, 2)
		for _, rec := range seen {
			assert.WithinDuration(t, came, rec.CreatedAt, 0)
			assert.WithinDuration(t, came.Add(24*time.Hour), rec.ExpiresAt, 0)
			assert.WithinDuration(t, came.Add(time.Second), rec.ExecutedAt, 0)
		}
	})
}
