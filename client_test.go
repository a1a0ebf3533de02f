package oncemore

import (
	"io"
	"log"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func silentLog() *log.Logger { return log.New(io.Discard, "", 0) }

// httpClient is what a Client can stand in for.
type httpClient interface {
	Do(req *http.Request) (*http.Response, error)
	Get(url string) (*http.Response, error)
	Head(url string) (*http.Response, error)
	Post(url, contentType string, body io.Reader) (*http.Response, error)
	PostForm(url string, data url.Values) (*http.Response, error)
	CloseIdleConnections()
}

var (
	_ httpClient = (*http.Client)(nil)
	_ httpClient = (*Client)(nil)
)

func TestRetriesUnderOneKey(t *testing.T) {
	t.Parallel()
	for _, method := range []string{http.MethodPost, http.MethodPatch, http.MethodPut, http.MethodGet, http.MethodDelete} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			scripted(t, Config{Policy: quick()}, func() *script { return statuses(503, 500, 201) }, func(t *testing.T, e env, s *script) {
				req := e.request(t, method, "/pay", strings.NewReader("one pound"))
				req.Header.Set("Content-Type", "text/plain")
				resp, err := e.do(req)
				require.NoError(t, err)
				assert.Equal(t, "Created", read(t, resp))
				assert.Equal(t, 201, resp.StatusCode)
				assert.Equal(t, StopSuccess, StopOf(resp))
				assert.Equal(t, []Reason{ReasonRetryableStatus, ReasonRetryableStatus, ReasonOK}, reasons(Attempts(resp)))

				seen := s.requests()
				require.Len(t, seen, 3)
				sameOperation(t, seen)
				assert.Equal(t, "one pound", seen[0].body)
				assert.Equal(t, KeyOf(resp), seen[0].key)
				assert.Equal(t, method == http.MethodPost || method == http.MethodPatch, seen[0].key != "")
				assert.Equal(t, http.Header{"Content-Type": {"text/plain"}}, req.Header, "the caller's request")
			})
		})
	}
}

func TestTheCallersRequestIsNotChanged(t *testing.T) {
	t.Parallel()
	scripted(t, Config{Policy: quick(), BeforeAttempt: func(req *http.Request, _ int) error {
		req.Header.Set("Authorization", "secret")
		req.URL.RawQuery = "changed"
		return nil
	}}, func() *script { return statuses(503, 200) }, func(t *testing.T, e env, s *script) {
		req := e.request(t, http.MethodPost, "/a?b=c", strings.NewReader("x"))
		url, body, ctx := req.URL.String(), req.Body, req.Context()
		resp, err := e.do(req)
		require.NoError(t, err)
		read(t, resp)
		assert.Empty(t, req.Header)
		assert.Equal(t, url, req.URL.String())
		assert.Equal(t, body, req.Body)
		assert.Equal(t, ctx, req.Context())
		assert.NotSame(t, req, resp.Request)
		assert.Equal(t, "secret", s.requests()[1].header.Get("Authorization"))
		require.NoError(t, resp.Request.Context().Err(), "a later request may be made with it")
	})
}

func TestOneRequestTwiceIsTwoOperations(t *testing.T) {
	t.Parallel()
	scripted(t, Config{Policy: quick()}, func() *script { return statuses(503, 200, 503, 200) }, func(t *testing.T, e env, s *script) {
		req := e.request(t, http.MethodPost, "/", strings.NewReader("body"))
		for range 2 {
			resp, err := e.do(req)
			require.NoError(t, err)
			read(t, resp)
		}
		seen := s.requests()
		require.Len(t, seen, 4)
		sameOperation(t, seen[:2])
		sameOperation(t, seen[2:])
		assert.NotEqual(t, seen[0].key, seen[2].key)
		assert.Equal(t, "body", seen[3].body)
	})
}

func TestTheShortForms(t *testing.T) {
	t.Parallel()
	s := statuses(503, 200)
	e := simple(t, Config{Policy: quick()}, s)
	for name, call := range map[string]func() (*http.Response, error){
		"GET":      func() (*http.Response, error) { return e.client.Get(e.url) },
		"HEAD":     func() (*http.Response, error) { return e.client.Head(e.url) },
		"POST":     func() (*http.Response, error) { return e.client.Post(e.url, "text/plain", strings.NewReader("x")) },
		"POSTFORM": func() (*http.Response, error) { return e.client.PostForm(e.url, url.Values{"a": {"b c"}}) },
	} {
		s.mu.Lock()
		s.seen = nil
		s.mu.Unlock()
		resp, err := call()
		require.NoError(t, err)
		read(t, resp)
		seen := s.requests()
		require.Len(t, seen, 2, name)
		assert.Equal(t, strings.TrimSuffix(name, "FORM"), seen[1].method)
		if name == "POSTFORM" {
			assert.Equal(t, "a=b+c", seen[1].body)
			assert.Equal(t, "application/x-www-form-urlencoded", seen[1].header.Get("Content-Type"))
		}
	}
	_, err := e.client.Get(":")
	require.Error(t, err)
}
