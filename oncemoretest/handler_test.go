package oncemoretest_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore"
	"github.com/oncemore-go/oncemore/oncemoretest"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/storetest"
)

// TestThePair: the answer is lost on the way three times in three manners, the
// middleware hands it out again, and the work is done once.
func TestThePair(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		once, err := server.New(storetest.NewMemory(), server.Config{Scope: server.SharedScope})
		require.NoError(t, err)
		charges := 0
		api := oncemoretest.Handler(once.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			charges++
			body, _ := io.ReadAll(r.Body)
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, "charge %d of %s", charges, body)
		})))
		network := oncemoretest.NewTransport(
			oncemoretest.Lost(api), oncemoretest.Cut(api), oncemoretest.Delay(time.Minute, api), api)
		client := newClient(t, network, &oncemore.Policy{OverallTimeout: -1})
		resp, err := client.Do(post(t, oncemore.WithKey(t.Context(), "order-1"), "1000"))
		require.NoError(t, err)
		assert.Equal(t, http.StatusCreated, resp.StatusCode)
		assert.Equal(t, "charge 1 of 1000", read(t, resp))
		assert.True(t, oncemore.Replayed(resp))
		assert.Equal(t, 1, charges)
		oncemoretest.AssertAttempts(t, network.Sent(), 4)
	})
}

type key struct{}

func TestHandlerSeesARequestOfAServer(t *testing.T) {
	t.Parallel()
	var seen *http.Request
	step := oncemoretest.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		assert.Equal(t, "body", string(body))
		assert.NoError(t, r.Context().Err())
		assert.Nil(t, r.Context().Value(key{}))
		_, bounded := r.Context().Deadline()
		assert.False(t, bounded, "a server knows nothing of it")
		assert.Nil(t, r.GetBody)
		seen = r
		w.Header().Set("X-Answer", "yes")
		_, _ = io.WriteString(w, "answer")
	}))
	ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "secret"), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://user@pay.example.com/a%2Fb?c=d", strings.NewReader("body"))
	require.NoError(t, err)
	resp, err := oncemoretest.NewTransport(step).RoundTrip(req)
	require.NoError(t, err)
	assert.Equal(t, "yes", resp.Header.Get("X-Answer"))
	assert.EqualValues(t, 6, resp.ContentLength)
	assert.Equal(t, "answer", read(t, resp))

	assert.Equal(t, "pay.example.com", seen.Host)
	assert.Equal(t, "/a%2Fb?c=d", seen.RequestURI)
	assert.Equal(t, "/a%2Fb?c=d", seen.URL.String())
	assert.EqualValues(t, 4, seen.ContentLength)

	req = post(t, ctx, "body") // of a length that nobody knows
	resp, err = oncemoretest.NewTransport(step).RoundTrip(req)
	require.NoError(t, err)
	read(t, resp)
	assert.EqualValues(t, -1, seen.ContentLength)
	assert.NotEmpty(t, seen.RemoteAddr)
	assert.Error(t, seen.Context().Err(), "it ends with the handler")
}

func TestHandlerAndLengths(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, method string
		size         int
		flush        bool
		want         int64
		body         int
	}{
		{"short", http.MethodGet, 10, false, 10, 10},
		{"none", http.MethodGet, 0, false, 0, 0},
		{"long", http.MethodGet, 4096, false, -1, 4096},
		{"streamed", http.MethodGet, 10, true, -1, 10},
		{"head", http.MethodHead, 10, false, 10, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			network := oncemoretest.NewTransport(oncemoretest.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, strings.Repeat("x", tt.size))
				if tt.flush {
					assert.NoError(t, http.NewResponseController(w).Flush())
				}
			})))
			req, err := http.NewRequestWithContext(t.Context(), tt.method, url, nil)
			require.NoError(t, err)
			resp, err := network.RoundTrip(req)
			require.NoError(t, err)
			assert.Equal(t, tt.want, resp.ContentLength)
			assert.Len(t, read(t, resp), tt.body)
		})
	}
}

func TestHandlerWithAnInformationalResponse(t *testing.T) {
	t.Parallel()
	network := oncemoretest.NewTransport(oncemoretest.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "done")
	})))
	resp, err := network.RoundTrip(request(t))
	require.NoError(t, err)
	assert.Equal(t, http.StatusCreated, resp.StatusCode)
	assert.Equal(t, "done", read(t, resp))
}

func TestHandlerThatPanics(t *testing.T) {
	t.Parallel()
	abort := oncemoretest.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	network := oncemoretest.NewTransport(abort, oncemoretest.Answer(http.StatusOK, ""))
	resp, err := newClient(t, network, &oncemore.Policy{BaseDelay: time.Millisecond}).Do(post(t, t.Context(), "x"))
	require.NoError(t, err)
	read(t, resp)
	assert.Equal(t, oncemore.ReasonConnection, oncemore.Attempts(resp)[0].Reason)

	bug := oncemoretest.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("a bug") }))
	assert.PanicsWithValue(t, "a bug", func() { _, _ = bug(request(t)) })
}

// TestHandlerSeesTheClientLeave: a handler that waits is told, and nobody gets
// its answer.
func TestHandlerSeesTheClientLeave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		network := oncemoretest.NewTransport(oncemoretest.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
		})), oncemoretest.Answer(http.StatusOK, "x"))
		began := time.Now()
		resp, err := newClient(t, network, &oncemore.Policy{Jitter: oncemore.JitterNone, BaseDelay: time.Second}).Do(post(t, t.Context(), "x"))
		require.NoError(t, err)
		read(t, resp)
		assert.Equal(t, oncemore.ReasonAttemptTimeout, oncemore.Attempts(resp)[0].Reason)
		assert.Equal(t, 11*time.Second, time.Since(began))
	})
}
