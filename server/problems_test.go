package server_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
)

// refusalCase makes one refusal of each code.
type refusalCase struct {
	code   string
	status int
	make   func(t *testing.T, change func(*server.Config)) *httptest.ResponseRecorder
}

// over makes the middleware and sends it what f says.
func over(
	cfg func(*server.Config), h http.Handler, f func(http.Handler) *httptest.ResponseRecorder,
) func(*testing.T, func(*server.Config)) *httptest.ResponseRecorder {
	return func(t *testing.T, change func(*server.Config)) *httptest.ResponseRecorder {
		t.Helper()
		return f(newMiddleware(t, func(c *server.Config) {
			if cfg != nil {
				cfg(c)
			}
			change(c)
		}).Wrap(h))
	}
}

var refusals = []refusalCase{
	{"missing", 400, over(nil, &counter{}, func(g http.Handler) *httptest.ResponseRecorder { return post(g, "", "{}") })},
	{"malformed", 400, over(nil, &counter{}, func(g http.Handler) *httptest.ResponseRecorder { return post(g, "a b", "{}") })},
	{"too-large", 413, over(func(c *server.Config) { c.MaxRequestBody = 1 }, &counter{}, func(g http.Handler) *httptest.ResponseRecorder {
		return post(g, "k", "{}")
	})},
	{"scope", 500, over(func(c *server.Config) {
		c.Scope = func(*http.Request) (string, error) { return "", errors.New("no idea") }
	}, &counter{}, func(g http.Handler) *httptest.ResponseRecorder { return post(g, "k", "{}") })},
	{"scope", 401, over(func(c *server.Config) {
		c.Scope = func(*http.Request) (string, error) { return "", &server.StatusError{Status: 401} }
	}, &counter{}, func(g http.Handler) *httptest.ResponseRecorder { return post(g, "k", "{}") })},
	{"mismatch", 422, over(nil, &counter{}, func(g http.Handler) *httptest.ResponseRecorder {
		post(g, "k", "1")
		return post(g, "k", "2")
	})},
	{"expired", 412, over(func(c *server.Config) { c.TTL = time.Second }, &counter{}, func(g http.Handler) *httptest.ResponseRecorder {
		post(g, "k", "{}")
		time.Sleep(time.Second)
		return post(g, "k", "{}")
	})},
	{"in-progress", 409, over(func(c *server.Config) { c.Wait = time.Second }, slow(&counter{}, 5*time.Second), func(g http.Handler) *httptest.ResponseRecorder {
		first := sentTo(g, "k")
		synctest.Wait()
		defer func() { <-first }()
		return post(g, "k", "{}")
	})},
	{"in-progress", 503, over(func(c *server.Config) { c.MaxWaiters = 1 }, slow(&counter{}, 5*time.Second), func(g http.Handler) *httptest.ResponseRecorder {
		first, second := sentTo(g, "k"), sentTo(g, "k")
		synctest.Wait()
		defer func() { <-first; <-second }()
		return post(g, "k", "{}")
	})},
	{"not-kept", 409, over(func(c *server.Config) { c.MaxStoredBody = 1 }, &textHandler{"long", nil}, func(g http.Handler) *httptest.ResponseRecorder {
		post(g, "k", "{}")
		return post(g, "k", "{}")
	})},
	{"unknown", 409, over(nil, &textHandler{"", func(r *http.Request) { op(r).EffectStarted(); panic("boom") }}, func(g http.Handler) *httptest.ResponseRecorder {
		func() {
			defer func() { _ = recover() }()
			post(g, "k", "{}")
		}()
		return post(g, "k", "{}")
	})},
	{"failed", 500, over(func(c *server.Config) {
		c.MaxStoredBody = -1
		c.Rebuild = func(http.ResponseWriter, *http.Request, server.Record) error { return errors.New("no") }
	}, &textHandler{"x", func(r *http.Request) { op(r).SetResource("1", "") }}, func(g http.Handler) *httptest.ResponseRecorder {
		post(g, "k", "{}")
		return post(g, "k", "{}")
	})},
	{"unavailable", 503, func(t *testing.T, change func(*server.Config)) *httptest.ResponseRecorder {
		t.Helper()
		store := newFaulty(newMemory())
		store.fail(always("Claim"), nil)
		return post(newMiddlewareOver(t, store, change).Wrap(&counter{}), "k", "{}")
	}},
}

// textHandler writes a text.
type textHandler struct {
	text   string
	before func(*http.Request)
}

func (h *textHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.before != nil {
		h.before(r)
	}
	fmt.Fprint(w, h.text)
}

func TestProblems(t *testing.T) {
	t.Parallel()
	docs, err := os.ReadFile("../docs/problems.md")
	require.NoError(t, err)
	for _, tt := range refusals {
		t.Run(fmt.Sprint(tt.status, " ", tt.code), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := tt.make(t, func(*server.Config) {})
				wantProblem(t, w, tt.status, tt.code)
				assert.Equal(t, "no-store", w.Header().Get("Cache-Control"))
				assert.Equal(t, fmt.Sprint(w.Body.Len()), w.Header().Get("Content-Length"))
				var members map[string]any
				require.NoError(t, json.Unmarshal(w.Body.Bytes(), &members))
				for _, name := range []string{"type", "title", "status", "detail", "code"} {
					assert.Contains(t, members, name)
				}
				_, original := members["original_status"]
				assert.Equal(t, tt.code == "not-kept", original)
				assert.Equal(t, "https://github.com/oncemore-go/oncemore/blob/main/docs/problems.md#"+tt.code, members["type"])
				assert.Regexp(t, `(?m)^#+ `+tt.code+`\b`, string(docs), "docs/problems.md has no such heading")
			})
			synctest.Test(t, func(t *testing.T) {
				w := tt.make(t, func(c *server.Config) { c.DocsURL = "https://docs.example/problems" })
				assert.Contains(t, w.Body.String(), `"https://docs.example/problems#`+tt.code+`"`)
			})
			synctest.Test(t, func(t *testing.T) {
				w := tt.make(t, func(c *server.Config) {
					c.Refuse = func(w http.ResponseWriter, r *http.Request, p server.Problem) {
						assert.NotNil(t, r)
						assert.Equal(t, tt.code, p.Code)
						assert.Equal(t, tt.status, p.Status)
						assert.NotEmpty(t, p.Title)
						assert.NotEmpty(t, p.Detail)
						assert.True(t, strings.HasSuffix(p.Type, "#"+tt.code))
						assert.Equal(t, tt.code == "not-kept", p.OriginalStatus == 200)
						assert.Equal(t, tt.code, w.Header().Get("Idempotency-Status"), "headers are set before")
						assert.Equal(t, tt.status == 503 || tt.code == "in-progress", w.Header().Get("Retry-After") != "")
						w.Header().Set("Content-Type", "text/xml")
						w.WriteHeader(p.Status)
						fmt.Fprintf(w, "<error>%s</error>", p.Code)
					}
				})
				assert.Equal(t, tt.status, w.Code)
				assert.Equal(t, "<error>"+tt.code+"</error>", w.Body.String())
				assert.Equal(t, "text/xml", w.Header().Get("Content-Type"))
			})
		})
	}
}

func TestANilStatusErrorIsNoPanic(t *testing.T) {
	t.Parallel()
	for _, status := range []int{0, 99, 200, 399, 600} { // no status of an error
		g := newMiddleware(t, func(c *server.Config) {
			c.Scope = func(*http.Request) (string, error) { return "", &server.StatusError{Status: status} }
		}).Wrap(&counter{})
		wantProblem(t, post(g, "k", "{}"), 500, "scope")
	}
	g := newMiddleware(t, func(c *server.Config) {
		c.Scope = func(*http.Request) (string, error) { return "", &server.StatusError{Status: 503} }
	}).Wrap(&counter{})
	wantProblem(t, post(g, "k", "{}"), 503, "scope")
}
