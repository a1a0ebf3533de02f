package frameworks

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/storetest"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.ReleaseMode)
	gin.DefaultErrorWriter = io.Discard
	os.Exit(m.Run())
}

var recipes = map[string]func(*server.Middleware, *Shop) http.Handler{
	"chi": NewChi, "gin": NewGin, "gin.WrapH": NewGinWrapH, "echo": NewEcho,
}

// everywhere runs a test under each recipe that has the route.
func everywhere(t *testing.T, path string, test func(*testing.T, *api)) {
	t.Helper()
	for name, recipe := range recipes {
		if name == "gin.WrapH" && !slices.Contains([]string{"/charges", "/broken", "/stream"}, path) {
			continue // it has the others not
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t, recipe))
		})
	}
}

// routes is a store that remembers the route of the latest claim.
type routes struct {
	*storetest.Memory
	route atomic.Value
}

func (s *routes) Claim(ctx context.Context, c server.Claim) (server.Row, bool, error) {
	s.route.Store(c.Route)
	return s.Memory.Claim(ctx, c)
}

// api is a shop under a framework, behind a real server.
type api struct {
	shop  *Shop
	once  *server.Middleware
	store *routes
	url   string

	mu       sync.Mutex
	statuses []int // as the access log saw them
}

func open(t *testing.T, recipe func(*server.Middleware, *Shop) http.Handler) *api {
	t.Helper()
	a := &api{store: &routes{Memory: storetest.NewMemory()}}
	a.shop = &Shop{streaming: make(chan struct{}), saw: func(status int) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.statuses = append(a.statuses, status)
	}}
	var err error
	a.once, err = server.New(a.store, server.Config{Scope: Scope})
	require.NoError(t, err)
	srv := httptest.NewServer(recipe(a.once, a.shop))
	t.Cleanup(srv.Close)
	a.url = srv.URL
	return a
}

// start sends a request, and returns the response with its body open.
func (a *api) start(t *testing.T, method, path, tenant, key, body string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, a.url+path, strings.NewReader(body))
	require.NoError(t, err)
	if tenant != "" {
		req.Header.Set("Authorization", "Bearer "+tenant)
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := (&http.Client{}).Do(req)
	require.NoError(t, err)
	return resp
}

// runs says what has run how often.
func (a *api) runs() map[string]int {
	a.shop.mu.Lock()
	defer a.shop.mu.Unlock()
	return maps.Clone(a.shop.runs)
}

// answer is what a test looks at.
type answer struct {
	status       int
	body         string
	word, replay string // Idempotency-Status and Idempotency-Replayed
	code         string // of a problem document
}

func (a *api) post(t *testing.T, path, tenant, key, body string) answer {
	t.Helper()
	return finish(t, a.start(t, http.MethodPost, path, tenant, key, body))
}

func finish(t *testing.T, resp *http.Response) answer {
	t.Helper()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	got := answer{
		status: resp.StatusCode, body: strings.TrimSpace(string(body)),
		word: resp.Header.Get("Idempotency-Status"), replay: resp.Header.Get("Idempotency-Replayed"),
	}
	if resp.Header.Get("Content-Type") == "application/problem+json" {
		var problem struct{ Code string }
		require.NoError(t, json.Unmarshal(body, &problem))
		got.code, got.body = problem.Code, ""
	}
	return got
}

// logged returns the statuses that the access log saw, when there are n.
func (a *api) logged(t *testing.T, n int) []int {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	require.Len(t, a.statuses, n)
	return a.statuses
}

func TestFirstRunsThenReplays(t *testing.T) {
	t.Parallel()
	everywhere(t, "/charges", func(t *testing.T, a *api) {
		t.Helper()
		assert.Equal(t, answer{status: 201, body: "charge 1 of acme", word: "executed"}, a.post(t, "/charges", "acme", "k", "1000"))
		for range 2 {
			assert.Equal(t, answer{status: 201, body: "charge 1 of acme", word: "replayed", replay: "true"}, a.post(t, "/charges", "acme", "k", "1000"))
		}
		assert.Equal(t, answer{status: 422, word: "mismatch", code: "mismatch"}, a.post(t, "/charges", "acme", "k", "99999"))
		assert.Equal(t, answer{status: 400, word: "missing", code: "missing"}, a.post(t, "/charges", "acme", "", "1000"))
		assert.Equal(t, []int{201, 201, 201, 422, 400}, a.logged(t, 5))
		assert.Equal(t, map[string]int{"acme charge": 1}, a.runs())
	})
}

func TestTheTenantIsTheFrameworks(t *testing.T) {
	t.Parallel()
	everywhere(t, "/charges", func(t *testing.T, a *api) {
		t.Helper()
		assert.Equal(t, "charge 1 of acme", a.post(t, "/charges", "acme", "k", "1000").body)
		assert.Equal(t, answer{status: 201, body: "charge 1 of globex", word: "executed"}, a.post(t, "/charges", "globex", "k", "1000"))

		refused := a.post(t, "/charges", "", "k", "1000")
		assert.Equal(t, http.StatusUnauthorized, refused.status, "a replay needs authentication too")
		assert.Empty(t, refused.word)
		assert.Equal(t, map[string]int{"acme charge": 1, "globex charge": 1}, a.runs())

		rec, found, err := a.once.Lookup(t.Context(), "acme", "k")
		require.NoError(t, err)
		require.True(t, found)
		assert.Equal(t, server.Done, rec.State)
	})
}

func TestWithoutAuthenticationNothingRuns(t *testing.T) {
	t.Parallel()
	_, err := Scope(httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil))
	var status *server.StatusError
	require.ErrorAs(t, err, &status)
	assert.Equal(t, http.StatusUnauthorized, status.Status)
}

// TestAnErrorOfTheHandler: what the framework makes of it is the result.
func TestAnErrorOfTheHandler(t *testing.T) {
	t.Parallel()
	everywhere(t, "/declined", func(t *testing.T, a *api) {
		t.Helper()
		first := a.post(t, "/declined", "acme", "k", "1000")
		assert.Equal(t, 402, first.status)
		assert.Contains(t, first.body, "the card was declined")
		assert.Equal(t, "executed", first.word)
		again := a.post(t, "/declined", "acme", "k", "1000")
		assert.Equal(t, answer{status: 402, body: first.body, word: "replayed", replay: "true"}, again)
		assert.Equal(t, []int{402, 402}, a.logged(t, 2))
		assert.Equal(t, map[string]int{"acme decline": 1}, a.runs())
	})
}

// TestAStatusWithoutABody: gin holds it back until all handlers are over.
func TestAStatusWithoutABody(t *testing.T) {
	t.Parallel()
	everywhere(t, "/accounts/7/refresh", func(t *testing.T, a *api) {
		t.Helper()
		assert.Equal(t, answer{status: 202, word: "executed"}, a.post(t, "/accounts/7/refresh", "acme", "k", ""))
		assert.Equal(t, answer{status: 202, word: "replayed", replay: "true"}, a.post(t, "/accounts/7/refresh", "acme", "k", ""))
		assert.Equal(t, []int{202, 202}, a.logged(t, 2))
		assert.Equal(t, map[string]int{"acme refresh": 1}, a.runs())
		assert.Contains(t, []string{"/accounts/{id}/refresh", "/accounts/:id/refresh"}, a.store.route.Load(), "for those who look at the records")
	})
}

// TestAPanicFreesTheKey: it has passed the middleware when the framework
// recovers from it.
func TestAPanicFreesTheKey(t *testing.T) {
	t.Parallel()
	everywhere(t, "/broken", func(t *testing.T, a *api) {
		t.Helper()
		first := a.post(t, "/broken", "acme", "k", "1000")
		assert.Equal(t, 500, first.status)
		assert.Empty(t, first.word)
		_, found, err := a.once.Lookup(t.Context(), "acme", "k")
		require.NoError(t, err)
		assert.False(t, found)

		assert.Equal(t, answer{status: 200, body: "run 2", word: "executed"}, a.post(t, "/broken", "acme", "k", "1000"))
		assert.Equal(t, answer{status: 200, body: "run 2", word: "replayed", replay: "true"}, a.post(t, "/broken", "acme", "k", "1000"))
		assert.Equal(t, []int{500, 200, 200}, a.logged(t, 3))
	})
}

// TestAnAbortIsNoSuccess: the client sees a broken connection or a failure, and
// the key is free.
func TestAnAbortIsNoSuccess(t *testing.T) {
	t.Parallel()
	everywhere(t, "/aborted", func(t *testing.T, a *api) {
		t.Helper()
		for n := range 2 {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, a.url+"/aborted", strings.NewReader("1000"))
			require.NoError(t, err)
			req.Header.Set("Authorization", "Bearer acme")
			req.Header.Set("Idempotency-Key", "k")
			req.Close = true // on a connection that it has used before, net/http sends a keyed request again by itself
			resp, err := (&http.Client{}).Do(req)
			if err == nil {
				assert.Equal(t, 500, finish(t, resp).status)
			}
			assert.Equal(t, map[string]int{"acme abort": n + 1}, a.runs())
		}
	})
}

// TestAStreamReachesItsFirstCaller, part by part; a retry learns that it was
// done.
func TestAStreamReachesItsFirstCaller(t *testing.T) {
	t.Parallel()
	everywhere(t, "/stream", func(t *testing.T, a *api) {
		t.Helper()
		resp := a.start(t, http.MethodPost, "/stream", "acme", "k", "1000")
		assert.Equal(t, 200, resp.StatusCode)
		assert.Equal(t, "executed", resp.Header.Get("Idempotency-Status"))
		line, err := bufio.NewReaderSize(resp.Body, 16).ReadString('\n')
		require.NoError(t, err, "the handler still runs")
		assert.Equal(t, "stream 1\n", line)

		assert.Equal(t, answer{status: 409, word: "not-kept", code: "not-kept"}, a.post(t, "/stream", "acme", "k", "1000"))
		close(a.shop.streaming)
		assert.Equal(t, "the end", finish(t, resp).body)
		assert.Equal(t, map[string]int{"acme stream": 1}, a.runs())
	})
}

func TestOtherMethodsPass(t *testing.T) {
	t.Parallel()
	everywhere(t, "/declined", func(t *testing.T, a *api) { // where there are such
		t.Helper()
		got := finish(t, a.start(t, http.MethodGet, "/charges", "acme", "", ""))
		assert.Equal(t, answer{status: 200, body: "none"}, got)
	})
}

// TestManyAtOnce is for the race detector: one runs, all get its answer.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	everywhere(t, "/charges", func(t *testing.T, a *api) {
		t.Helper()
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				got := a.post(t, "/charges", "acme", "k", "1000")
				assert.Equal(t, "charge 1 of acme", got.body)
			})
		}
		wg.Wait()
		assert.Equal(t, map[string]int{"acme charge": 1}, a.runs())
	})
}
