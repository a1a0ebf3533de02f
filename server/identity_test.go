package server_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
)

func TestNoTwoScopesAndKeysAreOne(t *testing.T) {
	t.Parallel()
	type pair struct{ scope, key string }
	pairs := []pair{
		{"a", "bc"},
		{"ab", "c"},
		{"abc", "x"},
		{"a", "b"},
		{"b", "a"},
		{"A", "b"},
		{"a", "B"},
		{"a\x00", "b"},
		{"a", "\\0b"},
		{"a\x00b", "b"},
		{"a ", "b"},
		{" a", "b"},
		{"a  ", "b"},
		{"a\t", "b"},
		{"a/b", "c"},
		{"a", "/bc"},
		{"a:b", "c"},
		{"a", ":b:c"},
		{"a|b", "c"},
		{"a,b", "c"},
		{"a\nb", "c"},
		{"é", "b"},
		{"e\u0301", "b"},
		{"E\u0301", "b"},
		{"ß", "b"},
		{"ss", "b"},
		{"ﬁ", "b"},
		{"fi", "b"},
		{"İ", "b"},
		{"i", "b"},
		{"ı", "b"},
		{"а", "b"}, // a Cyrillic one
		{"\xff", "b"},
		{"\xff\xfe", "b"},
		{"\ufffd", "b"},
		{strings.Repeat("a", 300), "b"},
		{strings.Repeat("a", 301), "b"},
		{"a", strings.Repeat("k", 254)},
		{"a", strings.Repeat("k", 255)},
		{"a", "%62"},
		{"a", "b%20"},
	}
	sqlite, _ := newSQLite(t)
	for name, store := range map[string]server.Store{"memory": newMemory(), "sqlite": sqlite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var scope string
			h := &counter{}
			m := newMiddlewareOver(t, store, func(c *server.Config) {
				c.Scope = func(*http.Request) (string, error) { return scope, nil }
			})
			g := m.Wrap(h)
			firsts := make(map[pair]*httptest.ResponseRecorder)
			for _, p := range pairs {
				scope = p.scope
				firsts[p] = post(g, p.key, "{}")
				wantExecuted(t, firsts[p], 201)
			}
			assert.EqualValues(t, len(pairs), h.runs.Load())
			for _, p := range pairs {
				scope = p.scope
				wantReplayed(t, post(g, p.key, "{}"), firsts[p])
				rec, ok, err := m.Lookup(t.Context(), p.scope, p.key)
				require.NoError(t, err, "%q", p)
				require.True(t, ok, "%q", p)
				assert.Equal(t, firsts[p].Body.String(), string(rec.Body), "%q", p)
			}
		})
	}
}

func TestEmptyScope(t *testing.T) {
	t.Parallel()
	h := &counter{}
	for _, mode := range []server.KeylessMode{server.RejectKeyless, server.PassKeyless, server.BodyHashKeyless} {
		g := newMiddleware(t, func(c *server.Config) {
			c.Keyless.Mode = mode
			c.Scope = func(*http.Request) (string, error) { return "", nil }
		}).Wrap(h)
		wantProblem(t, post(g, "k", "{}"), 400, "malformed")
		wantProblem(t, post(g, "", "{}"), 400, "malformed")
	}
	assert.Zero(t, h.runs.Load())
	scope, err := server.SharedScope(nil)
	require.NoError(t, err)
	assert.NotEmpty(t, scope)
}

func TestFingerprint(t *testing.T) {
	t.Parallel()
	base := func(r *http.Request) { r.Header.Set("Content-Type", "application/json") }
	same := map[string]func(*http.Request){
		"charset":             func(r *http.Request) { r.Header.Set("Content-Type", "application/json; charset=utf-8") },
		"upper case type":     func(r *http.Request) { r.Header.Set("Content-Type", "Application/JSON") },
		"bad parameter":       func(r *http.Request) { r.Header.Set("Content-Type", "application/json; =") },
		"another header":      func(r *http.Request) { r.Header.Set("Authorization", "Bearer 2") },
		"another host":        func(r *http.Request) { r.Host = "other.example" },
		"chunked":             func(r *http.Request) { r.ContentLength = -1 },
		"fragment":            func(r *http.Request) { r.URL.Fragment = "x" },
		"another remote":      func(r *http.Request) { r.RemoteAddr = "192.0.2.7:1" },
		"another HTTP":        func(r *http.Request) { r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/2.0", 2, 0 },
		"request id":          func(r *http.Request) { r.Header.Set("X-Request-Id", "2") },
		"accept":              func(r *http.Request) { r.Header.Set("Accept", "text/plain") },
		"a quoted key":        setKey(`"k"`),
		"a key with a margin": setKey(" k "),
	}
	other := map[string]func(*http.Request){
		"method":              func(r *http.Request) { r.Method = http.MethodPatch },
		"path":                func(r *http.Request) { r.URL.Path += "/2" },
		"slash":               func(r *http.Request) { r.URL.Path += "/" },
		"escaped path":        func(r *http.Request) { r.URL.Path, r.URL.RawPath = "/a/b", "/a%2Fb" },
		"query":               func(r *http.Request) { r.URL.RawQuery = "a=1&b=3" },
		"query order":         func(r *http.Request) { r.URL.RawQuery = "b=2&a=1" },
		"no query":            func(r *http.Request) { r.URL.RawQuery = "" },
		"type":                func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") },
		"no type":             func(r *http.Request) { r.Header.Del("Content-Type") },
		"body":                func(r *http.Request) { r.Body, r.ContentLength = io.NopCloser(strings.NewReader("{ }")), 3 },
		"no body":             func(r *http.Request) { r.Body, r.ContentLength = http.NoBody, 0 },
		"part moved to query": func(r *http.Request) { r.URL.RawQuery, r.URL.Path = "a=1&b=2x", "/a/b" },
	}
	send := func(g http.Handler, change func(*http.Request)) *httptest.ResponseRecorder {
		return post(g, "k", "{}", func(r *http.Request) {
			base(r)
			r.URL.Path, r.URL.RawQuery = "/a/b", "a=1&b=2"
			if change != nil {
				change(r)
			}
		})
	}
	h := &counter{}
	g := newMiddleware(t, nil).Wrap(h)
	first := send(g, nil)
	wantExecuted(t, first, 201)
	for name, change := range same {
		assert.Equal(t, "replayed", status(send(g, change)), name)
	}
	for name, change := range other {
		assert.Equal(t, "mismatch", status(send(g, change)), name)
	}
	assert.EqualValues(t, 1, h.runs.Load())
}

func TestAfterAReleaseTheKeyIsFreeForAnotherBody(t *testing.T) {
	t.Parallel()
	g := newMiddleware(t, nil).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if string(body) == "bad" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	wantExecuted(t, post(g, "k", "bad"), 500)
	wantExecuted(t, post(g, "k", "good"), 200)
	wantProblem(t, post(g, "k", "bad"), 422, "mismatch")
}

// A body that is longer than its announced length, as a decompressing
// middleware makes it, is bounded all the same.
func TestTheBodyLimitDoesNotBelieveTheLength(t *testing.T) {
	t.Parallel()
	h := &counter{}
	g := newMiddleware(t, func(c *server.Config) { c.MaxRequestBody = 100 }).Wrap(h)
	send := func(body string, length int64) *httptest.ResponseRecorder {
		return post(g, "k", "", func(r *http.Request) {
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), length
		})
	}
	for _, length := range []int64{-1, 0, 50} {
		wantProblem(t, send(strings.Repeat("x", 10_000), length), 413, "too-large")
		wantProblem(t, send(strings.Repeat("x", 101), length), 413, "too-large")
	}
	assert.Zero(t, h.runs.Load())
	first := send("body", 0)
	assert.Contains(t, first.Body.String(), `"request":"body"`)
	wantReplayed(t, send("body", -1), first)
	wantProblem(t, send("other", 0), 422, "mismatch")
}

func TestABodyThatBreaksOff(t *testing.T) {
	t.Parallel()
	h := &counter{}
	store := newFaulty(newMemory())
	g := newMiddlewareOver(t, store, nil).Wrap(h)
	w := post(g, "k", "{}", func(r *http.Request) {
		r.Body = io.NopCloser(io.MultiReader(strings.NewReader("{"), brokenReader{}))
	})
	wantProblem(t, w, 400, "malformed")
	assert.Zero(t, store.count("Claim"))
	wantExecuted(t, post(g, "k", "{}"), 201)
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("connection reset") }

// uuidv7 is a key made at that time.
func uuidv7(made time.Time) string {
	ms := made.UnixMilli()
	return fmt.Sprintf("%08x-%04x-7000-8000-0123456789ab", ms>>16, ms&0xffff)
}

func TestAgeInTheKey(t *testing.T) {
	t.Parallel()
	const retention = 48 * time.Hour
	config := func(c *server.Config) { c.TTL, c.Retention = 24*time.Hour, retention }
	for name, tt := range map[string]struct {
		age  time.Duration
		code int
		word string
	}{
		"just made":         {0, 201, "executed"},
		"before retention":  {retention - time.Minute, 201, "executed"},
		"after retention":   {retention + time.Minute, 412, "expired"},
		"very old":          {20 * 365 * 24 * time.Hour, 412, "expired"},
		"a clock ahead":     {-4 * time.Minute, 201, "executed"},
		"a clock far ahead": {-6 * time.Minute, 400, "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := &counter{}
				key := uuidv7(time.Now().Add(-tt.age))
				g := newMiddleware(t, config).Wrap(h)
				for _, spelling := range []string{key, `"` + key + `"`} {
					w := post(g, spelling, "{}")
					if tt.word == "executed" {
						assert.Equal(t, tt.code, w.Code)
						continue
					}
					wantProblem(t, w, tt.code, tt.word)
				}
				upper := post(g, strings.ToUpper(key), "{}")
				assert.Equal(t, tt.code, upper.Code)
				v4 := post(g, key[:14]+"4"+key[15:], "{}")
				assert.Equal(t, 201, v4.Code, "only a UUIDv7 has a time")
			})
		})
	}
	t.Run("a row wins over the age", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			h := &counter{}
			store := newMemory()
			m := newMiddlewareOver(t, store, config)
			g := m.Wrap(h)
			key := uuidv7(time.Now().Add(-retention + time.Hour))
			first := post(g, key, "{}")
			wantExecuted(t, first, 201)
			time.Sleep(2 * time.Hour)
			wantReplayed(t, post(g, key, "{}"), first)
			time.Sleep(23 * time.Hour)
			wantProblem(t, post(g, key, "{}"), 412, "expired")
			time.Sleep(retention)
			n, err := store.Purge(t.Context())
			require.NoError(t, err)
			assert.EqualValues(t, 1, n)
			wantProblem(t, post(g, key, "{}"), 412, "expired")
			assert.EqualValues(t, 1, h.runs.Load())
		})
	})
	t.Run("the row of a key from the future is kept for longer", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			store := newMemory()
			g := newMiddlewareOver(t, store, config).Wrap(&counter{})
			key := uuidv7(time.Now().Add(4 * time.Minute))
			post(g, key, "{}")
			for range 4 { // never a moment when neither row nor age refuse it
				time.Sleep(12*time.Hour + time.Second)
				_, err := store.Purge(t.Context())
				require.NoError(t, err)
			}
			for range 30 {
				_, err := store.Purge(t.Context())
				require.NoError(t, err)
				wantProblem(t, post(g, key, "{}"), 412, "expired")
				time.Sleep(time.Minute)
			}
		})
	})
}

func TestExpiryIsFixedAtTheClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		h := &counter{}
		old := newMiddlewareOver(t, store, func(c *server.Config) { c.TTL = time.Hour }).Wrap(slow(h, 30*time.Minute+time.Second))
		post(old, "k", "{}", func(*http.Request) {})
		fresh := newMiddlewareOver(t, store, func(c *server.Config) { c.TTL = 100 * time.Hour }).Wrap(h)
		assert.Equal(t, "replayed", status(post(fresh, "k", "{}")))
		time.Sleep(30 * time.Minute) // from the first arrival, not from the end of the run
		wantProblem(t, post(fresh, "k", "{}"), 412, "expired")
		wantProblem(t, post(fresh, "k", "[]"), 412, "expired")
	})
}

func TestARunningRecordDoesNotExpire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &counter{}
		one, two := pair(t, newMemory(), slow(h, 10*time.Second), func(c *server.Config) { c.TTL = time.Second })
		first := sentTo(one, "k")
		time.Sleep(2 * time.Second)
		waiters := []<-chan *httptest.ResponseRecorder{sentTo(one, "k"), sentTo(two, "k")}
		winner := <-first
		for _, ch := range waiters {
			wantReplayed(t, <-ch, winner)
		}
		wantProblem(t, post(two, "k", "{}"), 412, "expired")
	})
}

func TestAnOpaqueKeyIsNewAfterThePurge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		g := newMiddlewareOver(t, store, nil).Wrap(&counter{})
		post(g, "k", "{}")
		time.Sleep(7*24*time.Hour + 5*time.Minute)
		n, err := store.Purge(t.Context())
		require.NoError(t, err)
		assert.Zero(t, n, "the purge leaves ten minutes more")
		wantProblem(t, post(g, "k", "{}"), 412, "expired")
		time.Sleep(6 * time.Minute)
		_, err = store.Purge(t.Context())
		require.NoError(t, err)
		wantExecuted(t, post(g, "k", "{}"), 201)
	})
}
