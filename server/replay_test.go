package server_test

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
)

func TestAReferenceIsStoredInsteadOfTheBody(t *testing.T) {
	t.Parallel()
	for _, processes := range []int{1, 2} { // handed over in memory, and read from the store
		synctest.Test(t, func(t *testing.T) {
			var n atomic.Int64
			store := newMemory()
			m := newMiddlewareOver(t, store, nil)
			h := respond(&n, func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(time.Second)
				op(r).SetResource("wrong", "/wrong")
				op(r).SetResource("o_1", "/o/1") // the last call counts
				h := w.Header()
				h["Link"] = []string{`</o>; rel="up"`, `</o/2>; rel="next"`}
				h.Set("ETag", `"x"`)
				h.Set("Content-Encoding", "br")
				h.Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusCreated)
				_, _ = io.WriteString(w, `{"id":"o_1"}`)
			})
			first := sentTo(m.Wrap(h), "k")
			synctest.Wait()
			other := m
			if processes == 2 {
				other = newMiddlewareOver(t, store, nil)
			}
			waiter := post(other.Wrap(h), "k", "{}")
			w := <-first
			wantExecuted(t, w, 201)
			assert.JSONEq(t, `{"id":"o_1"}`, w.Body.String())
			assert.Equal(t, `"x"`, w.Header().Get("Etag"))
			assert.Len(t, w.Header()["Link"], 2, "the first answer is the handler's own")
			for _, again := range []interface {
				Header() http.Header
			}{waiter, post(m.Wrap(h), "k", "{}")} {
				assert.Equal(t, "replayed", again.Header().Get("Idempotency-Status"))
				assert.Equal(t, []string{`</o>; rel="up"`, `</o/2>; rel="next"`, `</o/1>; rel="latest-version"`}, again.Header()["Link"])
				assert.Empty(t, again.Header().Get("Etag"))
				assert.Empty(t, again.Header().Get("Content-Encoding"))
				assert.Equal(t, "application/json", again.Header().Get("Content-Type"))
			}
			assert.Empty(t, waiter.Body.String())
			assert.Equal(t, 201, waiter.Code)
			rec, _, err := m.Lookup(t.Context(), "acme", "k")
			require.NoError(t, err)
			assert.Equal(t, "o_1", rec.ResourceID)
			assert.Equal(t, "/o/1", rec.ResourceURL)
			assert.Nil(t, rec.Body)
			assert.EqualValues(t, 1, n.Load())
		})
	}
}

func TestABadReferenceIsDropped(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"/o/1\r\nSet-Cookie: x=1", "/o\n1", "/o>; rel=\"x\"", strings.Repeat("x", 3000)} {
		var log logBuffer
		g := newMiddleware(t, func(c *server.Config) { c.Logger = log.logger() }).Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			op(r).SetResource("o_1", url)
			_, _ = io.WriteString(w, "x")
		}))
		wantExecuted(t, post(g, "k", "{}"), 200)
		again := post(g, "k", "{}")
		assert.Equal(t, "replayed", status(again), "the id is still a reference")
		assert.Empty(t, again.Header()["Link"])
		assert.Contains(t, log.String(), "SetResource")
	}
}

func TestRebuild(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	var seen events
	mode := "ok"
	g := newMiddleware(t, func(c *server.Config) {
		c.Observer = seen.observe
		c.Rebuild = func(w http.ResponseWriter, r *http.Request, rec server.Record) error {
			body, err := io.ReadAll(r.Body)
			assert.NoError(t, err) //nolint:testifylint // in a handler
			assert.Equal(t, `{"amount":1}`, string(body))
			_, guarded := server.OperationFrom(r.Context())
			assert.False(t, guarded)
			assert.Equal(t, server.Done, rec.State)
			assert.Equal(t, 201, rec.Status)
			assert.Equal(t, 1, rec.Attempt)
			assert.Equal(t, "o_1", rec.ResourceID)
			assert.Equal(t, "/o/1", rec.ResourceURL)
			assert.Equal(t, "/o/1", rec.Header.Get("Location"))
			switch mode {
			case "status":
				w.WriteHeader(http.StatusGone)
			case "error":
				w.Header().Set("X-Half", "done")
				_, _ = io.WriteString(w, "half")
				return errors.New("database down")
			case "panic":
				panic("boom")
			}
			w.Header().Set("Idempotency-Status", "lies")
			fmt.Fprintf(w, "made again: %s", rec.ResourceID)
			assert.ErrorIs(t, http.NewResponseController(w).Flush(), server.ErrStreamingInTx)
			return nil
		}
	}).Wrap(respond(&n, func(w http.ResponseWriter, r *http.Request) {
		op(r).SetResource("o_1", "/o/1")
		w.Header().Set("Location", "/o/1")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "first")
	}))
	// Headers of an outer middleware survive everything.
	outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", "7")
		g.ServeHTTP(w, r)
	})
	wantExecuted(t, post(outer, "k", `{"amount":1}`), 201)

	again := post(outer, "k", `{"amount":1}`)
	assert.Equal(t, 201, again.Code)
	assert.Equal(t, "made again: o_1", again.Body.String())
	assert.Equal(t, "replayed", status(again))
	assert.Equal(t, "true", again.Header().Get("Idempotency-Replayed"))
	assert.Equal(t, "/o/1", again.Header().Get("Location"))
	assert.Equal(t, `</o/1>; rel="latest-version"`, again.Header().Get("Link"))
	assert.Equal(t, "15", again.Header().Get("Content-Length"))
	assert.Equal(t, "7", again.Header().Get("X-Request-Id"))

	mode = "status"
	assert.Equal(t, http.StatusGone, post(outer, "k", `{"amount":1}`).Code)

	mode = "error"
	failed := post(outer, "k", `{"amount":1}`)
	wantProblem(t, failed, 500, "failed")
	for _, name := range []string{"X-Half", "Location", "Link", "Idempotency-Replayed"} {
		assert.Empty(t, failed.Header().Get(name), name)
	}
	assert.Equal(t, "7", failed.Header().Get("X-Request-Id"))

	mode = "panic"
	seen.reset()
	assert.PanicsWithValue(t, "boom", func() { post(outer, "k", `{"amount":1}`) })
	assert.Len(t, seen.outcomes(), 1)
	assert.EqualValues(t, 1, n.Load())
}

func TestAnAnswerThatCanNotBeRead(t *testing.T) {
	t.Parallel()
	h := &counter{}
	store := newMemory()
	var id server.ID
	m := newMiddlewareOver(t, spy{store, &id}, nil)
	g := m.Wrap(h)
	post(g, "k", "{}")
	for _, junk := range []string{"", "\x09", "\x01", "\x01\x01\xff\xff\xff\xff\x0f"} {
		row, _, err := store.Lookup(t.Context(), id)
		require.NoError(t, err)
		ok, err := store.Settle(t.Context(), id, row.Generation, server.Result{State: server.Done, Status: 200, Data: []byte(junk)})
		require.NoError(t, err)
		require.True(t, ok)
		wantProblem(t, post(g, "k", "{}"), 500, "failed")
		_, ok, err = m.Lookup(t.Context(), "acme", "k")
		require.Error(t, err)
		assert.True(t, ok)
	}
	assert.EqualValues(t, 1, h.runs.Load(), "it is not run again")
	require.NoError(t, m.Forget(t.Context(), "acme", "k"))
	wantExecuted(t, post(g, "k", "{}"), 201)
}

func TestBinaryAndGzip(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	srv := live(t, newMiddleware(t, nil).Wrap(respond(&n, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Content-Type", "text/plain")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, "compressed")
		assert.NoError(t, z.Close())
	})))
	for _, want := range []string{"executed", "replayed"} {
		resp, body := call(t, srv, "k", "{}")
		assert.Equal(t, want, resp.Header.Get("Idempotency-Status"))
		assert.True(t, resp.Uncompressed)
		assert.Equal(t, "compressed", body)
	}
	assert.EqualValues(t, 1, n.Load())
}

// What an outer middleware does to the headers of one answer is not seen in
// another.
func TestAnswersShareNoHeaders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newMiddleware(t, nil).Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(time.Second)
			for i := range 3 { // there is room for a fourth
				w.Header().Add("Link", fmt.Sprintf("</%d>", i))
			}
			w.WriteHeader(http.StatusCreated)
		}))
		done := make(chan []string)
		for i := range 20 {
			outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				g.ServeHTTP(w, r)
				w.Header().Add("Link", fmt.Sprintf("</outer/%d>", i))
			})
			go func() {
				r := newRequest("k")
				w := &discarder{header: make(http.Header)}
				outer.ServeHTTP(w, r)
				time.Sleep(time.Second)
				if got, want := w.header["Link"], fmt.Sprintf("</outer/%d>", i); len(got) != 4 || got[3] != want {
					t.Errorf("got %q, want %q at its end", got, want)
				}
				done <- nil
			}()
		}
		for range 20 {
			<-done
		}
	})
}

// What a handler does to its headers after WriteHeader is neither sent nor stored.
func TestHeadersAreThoseOfWriteHeader(t *testing.T) {
	t.Parallel()
	names := make([]string, 12) // more than there is room for in advance
	for i := range names {
		names[i] = fmt.Sprintf("X-%d", i)
	}
	var n atomic.Int64
	g := newMiddleware(t, func(c *server.Config) { c.ReplayHeaders = names }).Wrap(respond(&n, func(w http.ResponseWriter, _ *http.Request) {
		for _, name := range names {
			w.Header()[name] = []string{"a", "b"}
		}
		w.WriteHeader(http.StatusCreated)
		for _, name := range names {
			w.Header()[name][1] = "late"
			w.Header().Add(name, "later")
		}
	}))
	for range 2 {
		got := post(g, "k", "{}")
		for _, name := range names {
			assert.Equal(t, []string{"a", "b"}, got.Result().Header[name])
		}
	}
	assert.EqualValues(t, 1, n.Load())
}

// Expired, the reference and everything else is still refused, and nothing
// runs.
func TestHeadersOverTheLimitAreNotKept(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	g := newMiddleware(t, func(c *server.Config) { c.ReplayHeaders = []string{"X-Big"} }).Wrap(respond(&n, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Big", strings.Repeat("x", 70<<10))
		if r.URL.Path == "/o" {
			w.Header().Set("Location", "/o/1")
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "x")
	}))
	first := post(g, "k", "{}")
	assert.Len(t, first.Header().Get("X-Big"), 70<<10)
	assert.Equal(t, "x", first.Body.String())
	wantProblem(t, post(g, "k", "{}"), 409, "not-kept")
	post(g, "k2", "{}", to("/o"))
	again := post(g, "k2", "{}", to("/o"))
	assert.Equal(t, 201, again.Code)
	assert.Equal(t, "/o/1", again.Header().Get("Location"))
	assert.Empty(t, again.Body.String())
	assert.EqualValues(t, 2, n.Load())
}
