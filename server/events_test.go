package server_test

import (
	"context"
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

func TestExactlyOneOutcomeForEachRefusal(t *testing.T) {
	t.Parallel()
	kinds := map[string]server.EventKind{
		"missing": server.EventMissing, "malformed": server.EventMalformed, "too-large": server.EventTooLarge, "scope": server.EventUnavailable,
		"mismatch": server.EventMismatch, "expired": server.EventExpired, "in-progress": server.EventInProgress, "not-kept": server.EventNotKept,
		"unknown": server.EventUnknown, "failed": server.EventUnavailable, "unavailable": server.EventUnavailable,
	}
	for _, tt := range refusals {
		t.Run(fmt.Sprint(tt.status, " ", tt.code), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var seen events
				requests := make(map[*http.Request]int)
				w := tt.make(t, func(c *server.Config) { c.Observer = seen.observe })
				assert.Equal(t, tt.status, w.Code)
				refusals := 0
				for _, event := range seen.of() {
					if event.Kind > server.EventUnavailable {
						continue
					}
					requests[event.Request]++
					if event.Kind == kinds[tt.code] && event.Status == tt.status {
						refusals++
						assert.Equal(t, http.MethodPost, event.Request.Method)
						if tt.code != "scope" {
							assert.Equal(t, "acme", event.Scope)
						}
						keyed := tt.code != "missing" && tt.code != "malformed" && tt.code != "scope"
						assert.Equal(t, keyed, len(event.KeyHash) == 64, "%q", event.KeyHash)
					}
				}
				assert.Equal(t, 1, refusals)
				for _, n := range requests {
					assert.Equal(t, 1, n)
				}
			})
		})
	}
}

func TestEventsOfARun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen events
		var id server.ID
		m := newMiddlewareOver(t, spy{newMemory(), &id}, func(c *server.Config) { c.Observer = seen.observe })
		g := m.Wrap(slow(&counter{}, 2*time.Second))
		first := sentTo(g, "k")
		time.Sleep(time.Second)
		second := sentTo(g, "k")
		<-first
		<-second
		post(g, "k", "{}")
		got := make([]string, 0, 4)
		for _, e := range seen.of() {
			got = append(got, fmt.Sprintf("%v attempt=%d status=%d wait=%v run=%v err=%v", e.Kind, e.Attempt, e.Status, e.Wait, e.Run, e.Err))
			assert.Equal(t, fmt.Sprintf("%x", id[:]), e.KeyHash, "a log line leads to the record")
			assert.Equal(t, "acme", e.Scope)
		}
		assert.ElementsMatch(t, []string{
			"executed attempt=1 status=201 wait=0s run=2s err=<nil>",
			"waited attempt=0 status=0 wait=1s run=0s err=<nil>",
			"replayed attempt=1 status=201 wait=1s run=0s err=<nil>",
			"replayed attempt=1 status=201 wait=0s run=0s err=<nil>",
		}, got)
	})
}

func TestKindsHaveNames(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for k := server.EventExecuted; k <= server.EventForgotten; k++ {
		assert.NotEmpty(t, k.String())
		assert.NotEqual(t, "invalid", k.String())
		assert.False(t, seen[k.String()], k.String())
		seen[k.String()] = true
	}
	assert.Equal(t, "invalid", server.EventKind(0).String())
	assert.Equal(t, "invalid", (server.EventForgotten + 1).String())
	for _, s := range []fmt.Stringer{
		server.Running, server.Done, server.Unknown, server.Expired, server.RefuseAbandoned, server.RerunAbandoned,
		server.RejectKeyless, server.PassKeyless, server.BodyHashKeyless, server.LeaveUnknown, server.RunAgain, server.SettleAs,
	} {
		assert.NotContains(t, []string{"", "invalid"}, s.String())
	}
	for _, s := range []fmt.Stringer{server.State(9), server.Abandoned(9), server.KeylessMode(9), server.RecoveryAction(9)} {
		assert.Equal(t, "invalid", s.String())
	}
}

// Whatever happens, no log line and no event's error holds the key, the bodies,
// or what a header or a query may keep secret.
func TestNoSecretsInTheLog(t *testing.T) {
	t.Parallel()
	const key, body, answer, secret = "key-7f3a9c", "body-51d2e8", "answer-c40b77", "secret-99e1f0"
	var log logBuffer
	var seen events
	with := func(r *http.Request) {
		r.Header.Set("Authorization", "Bearer "+secret)
		r.Header.Set("Cookie", "sid="+secret)
		r.URL.RawQuery = "token=" + secret
	}
	synctest.Test(t, func(t *testing.T) {
		config := func(c *server.Config) { c.Logger, c.Observer, c.MaxRequestBody = log.logger(), seen.observe, 1000 }
		store := newFaulty(newMemory())
		m := newMiddlewareOver(t, store, config)
		g := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			switch r.URL.Path {
			case "/panic":
				panic(answer)
			case "/unknown":
				op(r).EffectStarted()
				w.WriteHeader(http.StatusInternalServerError)
			case "/bad":
				op(r).SetResource("id", "/"+answer+"\n")
			case "/500":
				w.WriteHeader(http.StatusInternalServerError)
			case "/flush":
				_ = http.NewResponseController(w).Flush()
			}
			w.Header().Set("Set-Cookie", secret)
			_, _ = io.WriteString(w, answer)
		}))
		for _, path := range []string{"/ok", "/panic", "/unknown", "/bad", "/500", "/flush"} {
			for range 2 {
				ch := make(chan struct{})
				for range 2 {
					go func() {
						defer func() { _ = recover(); ch <- struct{}{} }()
						post(g, key+path, body, with, to(path))
					}()
				}
				<-ch
				<-ch
			}
			func() {
				defer func() { _ = recover() }()
				post(g, key+path, body+"2", with, to(path))
			}()
		}
		post(g, key+" malformed", body, with)
		post(g, `"`+key, body, with)
		post(g, "", body, with)
		post(g, key, strings.Repeat(body, 1000), with)
		post(g, key+"cut", body, with, func(r *http.Request) { r.Body = io.NopCloser(brokenReader{}) })
		post(g, uuidv7(time.Now().Add(time.Hour)), body, with)
		post(g, uuidv7(time.Now().Add(-time.Hour*10000)), body, with)
		for _, calls := range [][]string{{"Claim"}, {"Complete"}, {"Release"}} {
			store.fail(always(calls...), nil)
			post(g, key+calls[0], body, with, to("/ok"))
			post(g, key+calls[0]+"5", body, with, to("/500"))
		}
		store.fail(nil, nil)
		require.NoError(t, m.Settle(t.Context(), "acme", key+"/unknown", server.Response{Status: 200, Body: []byte(answer)}))
		require.NoError(t, m.Forget(t.Context(), "acme", key+"/unknown"))
	})
	text := log.String()
	require.NotEmpty(t, text)
	for _, e := range seen.of() {
		text += fmt.Sprint(e.Err, e.KeyHash)
	}
	for _, word := range []string{key, body, answer, secret} {
		assert.NotContains(t, text, word)
	}
	for _, kind := range []string{
		"executed", "replayed", "waited", "mismatch", "unknown", "released", "not kept", "missing", "malformed", "too large", "expired",
		"unavailable", "store failure", "settled", "forgotten",
	} {
		assert.Regexp(t, `event="?`+kind, text)
	}
}

func TestScopeErrorsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	var log logBuffer
	g := newMiddleware(t, func(c *server.Config) {
		c.Logger = log.logger()
		c.Scope = func(*http.Request) (string, error) { return "", errors.New("token expired") }
	}).Wrap(&counter{})
	w := post(g, "k", "{}")
	assert.NotContains(t, w.Body.String(), "token expired", "the reason is not for the client")
	assert.Equal(t, 1, strings.Count(log.String(), "token expired"))
}

func TestOneLogRecordForEachEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log logBuffer
		var seen events
		store := newMemory()
		config := func(c *server.Config) {
			c.Logger, c.Observer, c.Abandoned = log.logger(), seen.observe, server.RerunAbandoned
		}
		g := newMiddlewareOver(t, store, config).Wrap(slow(&counter{}, time.Second))
		first, second := sentTo(g, "k"), sentTo(g, "k")
		<-first
		<-second
		abandon(t, store, "dead", time.Second)
		post(g, "dead", "{}")
		post(g, "k", "[]")
		lines := strings.Count(strings.TrimSpace(log.String()), "\n") + 1
		assert.Equal(t, len(seen.of()), lines, log.String())
		assert.Contains(t, log.String(), "level=WARN")
		assert.Contains(t, log.String(), "event=takeover")
	})
}

func TestTheObserverMayBeSlowToRead(t *testing.T) {
	t.Parallel()
	g := newMiddleware(t, func(c *server.Config) {
		c.Observer = func(ctx context.Context, e server.Event) {
			if e.Kind == server.EventExecuted {
				assert.NotNil(t, ctx)
				_, err := e.Request.Cookie("x") // it is a request like any other
				assert.ErrorIs(t, err, http.ErrNoCookie)
			}
		}
	}).Wrap(&counter{})
	wantExecuted(t, post(g, "k", "{}"), 201)
}

// goexit in handlers and everything else on the way: the number of outcomes is
// the number of requests.
func TestAsManyOutcomesAsRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen events
		store := newFaulty(newMemory())
		m := newMiddlewareOver(t, store, func(c *server.Config) {
			c.Observer, c.Lease, c.Wait, c.MaxWaiters = seen.observe, 3*time.Second, 2*time.Second, 2
		})
		g := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			code := 201
			_, _ = fmt.Sscan(r.URL.Path[1:], &code)
			if code == 1 {
				panic("boom")
			}
			w.WriteHeader(code)
		}))
		n := 0
		done := make(chan struct{})
		send := func(f func() *httptest.ResponseRecorder) {
			n++
			go func() {
				defer func() { _ = recover(); done <- struct{}{} }()
				f()
			}()
		}
		for i := range 200 {
			path := []string{"/201", "/500", "/1", "/404"}[i%4]
			send(func() *httptest.ResponseRecorder {
				return post(g, fmt.Sprint("k", i%17), fmt.Sprint(i%3), to(path))
			})
			if i%50 == 20 {
				store.fail(times(3, "Complete", "Release", "Claim", "Renew", "Lookup"), nil)
			}
			if i%7 == 0 {
				time.Sleep(300 * time.Millisecond)
			}
		}
		for range n {
			<-done
		}
		assert.Len(t, seen.outcomes(), n)
	})
}
