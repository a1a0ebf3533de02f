package redisstore_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore"
	"github.com/oncemore-go/oncemore/oncemoretest"
	"github.com/oncemore-go/oncemore/server"
)

// effects counts what was done.
type effects struct {
	mu   sync.Mutex
	runs map[string]int
}

func (e *effects) handler(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	e.mu.Lock()
	e.runs[string(body)]++
	run := e.runs[string(body)]
	e.mu.Unlock()
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "%s, run %d", body, run)
}

// process is an instance of a service, with a client of its own to the Redis
// that all share.
func process(t *testing.T, addr string, e *effects, cfg server.Config) oncemoretest.Step {
	t.Helper()
	cfg.Scope = server.SharedScope
	m, err := server.New(newStore(t, connect(t, addr)), cfg)
	require.NoError(t, err)
	return oncemoretest.Handler(m.Wrap(http.HandlerFunc(e.handler)))
}

// post sends one operation over network, and returns the status, the answer and
// whether it was a replay.
func post(t *testing.T, network http.RoundTripper, key, body string) (status int, answer string, replayed bool) {
	t.Helper()
	client, err := oncemore.New(oncemore.Config{
		HTTPClient: &http.Client{Transport: network},
		Policy:     &oncemore.Policy{BaseDelay: time.Millisecond, MaxAttempts: 8},
	})
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(oncemore.WithKey(t.Context(), key), http.MethodPost, "https://pay.example.com/charges", strings.NewReader(body))
	require.NoError(t, err)
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text), oncemore.Replayed(resp)
}

// Two instances of a service, callers that ask both at once, and a network that
// loses answers: every operation is done once, and all get its answer.
func TestPair(t *testing.T) {
	t.Parallel()
	addr := startRedis(t).addr()
	done := &effects{runs: map[string]int{}}
	a, b := process(t, addr, done, server.Config{}), process(t, addr, done, server.Config{})
	networks := []func() http.RoundTripper{
		func() http.RoundTripper {
			return oncemoretest.NewTransport(oncemoretest.Lost(a), oncemoretest.Reset, b)
		},
		func() http.RoundTripper { return oncemoretest.NewTransport(oncemoretest.Cut(b), a) },
		func() http.RoundTripper {
			return oncemoretest.NewTransport(oncemoretest.Reset, oncemoretest.Lost(b), b)
		},
		func() http.RoundTripper { return oncemoretest.NewTransport(a) },
	}
	for op := range 25 {
		key, body := oncemore.NewKey(), fmt.Sprintf("charge %d", op)
		var wg sync.WaitGroup
		for _, network := range networks {
			wg.Go(func() {
				status, answer, _ := post(t, network(), key, body)
				assert.Equal(t, http.StatusCreated, status)
				assert.Equal(t, body+", run 1", answer)
			})
		}
		wg.Wait()
		_, _, replayed := post(t, oncemoretest.NewTransport(b), key, body)
		assert.True(t, replayed)
	}
	assert.Len(t, done.runs, 25)
	for body, runs := range done.runs {
		assert.Equal(t, 1, runs, body)
	}
	status, _, _ := post(t, oncemoretest.NewTransport(a), "order-1", "one thing")
	assert.Equal(t, http.StatusCreated, status)
	status, _, _ = post(t, oncemoretest.NewTransport(b), "order-1", "another")
	assert.Equal(t, http.StatusUnprocessableEntity, status)
}

// A key past its TTL is still known, and refused.
func TestExpiredIsAnswered(t *testing.T) {
	t.Parallel()
	done := &effects{runs: map[string]int{}}
	api := process(t, startRedis(t).addr(), done, server.Config{TTL: 100 * time.Millisecond, Retention: time.Hour})
	status, _, _ := post(t, oncemoretest.NewTransport(api), "order-1", "charge")
	assert.Equal(t, http.StatusCreated, status)
	require.NoError(t, wait(t.Context(), 150*time.Millisecond))
	status, _, _ = post(t, oncemoretest.NewTransport(api), "order-1", "charge")
	assert.Equal(t, http.StatusPreconditionFailed, status)
	assert.Equal(t, map[string]int{"charge": 1}, done.runs)
}
