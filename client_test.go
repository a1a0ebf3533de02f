package oncemore

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sent is a request as the server has seen it.
type sent struct {
	method, path, key, body string
	length                  int64
	header                  http.Header
}

// script is a server that answers requests in order; the last answer repeats.
type script struct {
	mu      sync.Mutex
	seen    []sent
	answers []http.HandlerFunc
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	s.mu.Lock()
	n := len(s.seen)
	s.seen = append(s.seen, sent{r.Method, r.URL.Path, r.Header.Get(KeyHeader), string(body), r.ContentLength, r.Header.Clone()})
	answer := s.answers[min(n, len(s.answers)-1)]
	s.mu.Unlock()
	answer(w, r)
}

func (s *script) requests() []sent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]sent(nil), s.seen...)
}

// status answers with a status and a body.
func status(code int, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(code)
		if code != http.StatusNoContent && code != http.StatusNotModified {
			_, _ = io.WriteString(w, http.StatusText(code))
		}
	}
}

func TestSmoke(t *testing.T) {
	t.Parallel()
	s := &script{answers: []http.HandlerFunc{status(503), status(500), status(201)}}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	c, err := New(Config{Policy: &Policy{BaseDelay: time.Millisecond}})
	require.NoError(t, err)
	t.Cleanup(c.CloseIdleConnections)
	for _, do := range []func(*http.Request) (*http.Response, error){c.Do, c.StandardClient().Do} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL, strings.NewReader("body"))
		require.NoError(t, err)
		s.seen = nil
		resp, err := do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, 201, resp.StatusCode)
		assert.Equal(t, StopSuccess, StopOf(resp))
		seen := s.requests()
		require.Len(t, seen, 3)
		assert.Len(t, Attempts(resp), 3)
		for _, r := range seen {
			assert.Equal(t, "body", r.body)
			assert.Equal(t, KeyOf(resp), r.key)
			assert.NotEmpty(t, r.key)
		}
		assert.Empty(t, req.Header)
	}
}
