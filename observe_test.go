package oncemore

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEvents(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answers []http.HandlerFunc
		kinds   []EventKind
		stop    StopReason
	}{
		"success":   {handlers(status(200)), []EventKind{EventAttempt, EventDone}, StopSuccess},
		"retry":     {handlers(status(503), status(201, "Idempotency-Replayed", "true")), []EventKind{EventAttempt, EventRetry, EventAttempt, EventDone}, StopSuccess},
		"final":     {handlers(status(404)), []EventKind{EventAttempt, EventDone}, StopFinal},
		"exhausted": {handlers(status(500)), []EventKind{EventAttempt, EventRetry, EventAttempt, EventGiveUp}, StopMaxAttempts},
		"error":     {handlers(reset), []EventKind{EventAttempt, EventRetry, EventAttempt, EventGiveUp}, StopMaxAttempts},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, form := range forms {
				var events []Event
				s := answers(tt.answers...)
				srv := startServer(t, s, false)
				policy := &Policy{MaxAttempts: 2, BaseDelay: 1}
				c := newClient(t, Config{Policy: policy, Observer: func(ctx context.Context, e Event) {
					assert.Equal(t, error(nil), ctx.Err())
					events = append(events, e)
				}}, srv)
				e := formOf(c, form, srv.URL, false)
				resp, err := e.do(e.request(t, http.MethodPost, "/", strings.NewReader("x")))
				if err == nil {
					read(t, resp)
				}
				kinds := []EventKind{}
				for _, ev := range events {
					kinds = append(kinds, ev.Kind)
					assert.Equal(t, policy.Hash(), ev.Policy)
					assert.Positive(t, ev.Elapsed)
					assert.Equal(t, srv.URL+"/", ev.Request.URL.String())
					assert.GreaterOrEqual(t, ev.Attempt.Sends, 1, "with an Observer each send is counted")
					assert.Equal(t, ev.Kind == EventRetry, ev.Wait > 0)
				}
				assert.Equal(t, tt.kinds, kinds)
				last := events[len(events)-1]
				assert.Equal(t, tt.stop, last.Stop)
				assert.Equal(t, name == "retry", last.Replayed)
			}
		})
	}
}

func TestOnlyTheLastEventHasAStopReason(t *testing.T) {
	t.Parallel()
	var stops []StopReason
	observer := func(_ context.Context, e Event) { stops = append(stops, e.Stop) }
	e := simple(t, Config{Policy: quick(), Observer: observer}, answers(to(307, "/b"), status(503), status(200)))
	e.send(t, http.MethodPost, "/", strings.NewReader("x"))
	assert.Equal(t, []StopReason{0, 0, 0, 0, StopSuccess}, stops, "also after a redirect")
}

func TestRecordsInTheLog(t *testing.T) {
	t.Parallel()
	const key = "a-secret-key-of-the-callers"
	for name, tt := range map[string]struct {
		answers       []http.HandlerFunc
		warns, errors int
	}{
		"success": {handlers(status(200)), 0, 0}, "retry": {handlers(status(503), status(200)), 1, 0}, "final": {handlers(status(404)), 0, 0},
		"exhausted": {handlers(status(500)), 2, 1}, "error": {handlers(reset), 2, 1}, "too long": {handlers(retryAfter(503, "999")), 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			s := answers(tt.answers...)
			e := simple(t, Config{Policy: &Policy{MaxAttempts: 3, BaseDelay: 1}, Logger: slog.New(slog.NewTextHandler(&log, nil))}, s)
			req := e.request(t, http.MethodPost, "/charge?token=hush", strings.NewReader("x"))
			req.URL.User = url.UserPassword("me", "hush")
			req.Header.Set(KeyHeader, key)
			resp, err := e.do(req)
			if err == nil {
				read(t, resp)
			}
			text := log.String()
			assert.Equal(t, tt.warns, strings.Count(text, "level=WARN"), text)
			assert.Equal(t, tt.errors, strings.Count(text, "level=ERROR"), text)
			assert.NotContains(t, text, key)
			assert.NotContains(t, text, "hush")
			assert.NotContains(t, text, "me:")
			if tt.warns+tt.errors > 0 {
				assert.Contains(t, text, "key_hash="+keyHash(key))
				assert.Contains(t, text, "/charge")
				assert.Contains(t, text, "policy="+(&Policy{MaxAttempts: 3, BaseDelay: 1}).Hash())
			}
		})
	}
}

func TestACancelIsNotLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	e := simple(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, answers(silence))
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	_, err := e.do(e.request(t, http.MethodPost, "/", nil).WithContext(ctx))
	require.ErrorIs(t, err, context.Canceled)
	assert.Empty(t, log.String())
}

func TestErrorsHoldNoSecrets(t *testing.T) {
	t.Parallel()
	const key = "a-secret-key-of-the-callers"
	below := &url.Error{Op: "Post", URL: "http://me:hush@below.example/?token=hush", Err: errors.New("boom under " + key)}
	for _, cause := range []error{
		below,
		errors.Join(errors.New("boom"), below),
		errors.New("http://me:hush@below.example/a?token=hush: no route; see https://below.example/#hush."), //nolint:revive // as some write them
	} {
		noSecrets(t, key, cause)
	}
}

func noSecrets(t *testing.T, key string, cause error) {
	t.Helper()
	c, err := New(Config{Policy: &Policy{MaxAttempts: 2, BaseDelay: 1}, HTTPClient: &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response, error) {
		return nil, cause
	})}})
	require.NoError(t, err)
	for _, target := range []string{"http://me:hush@x.example/a?token=hush#frag", "http://x.example/a?token=hush"} {
		req := requestTo(t, http.MethodPost, target, strings.NewReader("hush"))
		req.Header.Set(KeyHeader, key)
		_, err = c.Do(req)
		require.ErrorIs(t, err, cause)
		assert.NotContains(t, err.Error(), "hush")
		assert.NotContains(t, err.Error(), key)
		assert.Contains(t, err.Error(), "x.example/a")
		var ue *url.Error
		require.ErrorAs(t, err, &ue)
		assert.Equal(t, "Post", ue.Op)
		assert.NotContains(t, ue.URL, "hush")
		f := failure(t, err)
		assert.Equal(t, key, f.Key)
		assert.NotContains(t, f.Error(), "hush")
	}
}

func TestHooks(t *testing.T) {
	t.Parallel()
	t.Run("BeforeAttempt signs each attempt and hop", func(t *testing.T) {
		t.Parallel()
		sign := func(req *http.Request, attempt int) error {
			assert.Equal(t, attempt, AttemptNumber(req.Context()))
			assert.Empty(t, req.Header.Get("Signature"), "a fresh copy")
			assert.NotNil(t, req.Body)
			req.Header.Set("Signature", string(rune('0'+attempt)))
			req.Header.Set(KeyHeader, "of the hook's own")
			return nil
		}
		scripted(t, Config{Policy: quick(), BeforeAttempt: sign}, func() *script { return answers(status(503), to(307, "/b"), status(503), status(200)) },
			func(t *testing.T, e env, s *script) {
				resp, _ := e.send(t, http.MethodPost, "/", strings.NewReader("x"))
				want := []string{"1", "2", "3", "4"}
				if e.std {
					want = []string{"1", "2", "1", "2"}
				}
				for i, r := range s.requests() {
					assert.Equal(t, want[i], r.header.Get("Signature"))
					assert.Equal(t, []string{KeyOf(resp)}, r.keys, "the key is put back")
				}
			})
	})
	t.Run("its error ends the call", func(t *testing.T) {
		t.Parallel()
		refused := errors.New("no token")
		for _, last := range []int{1, 2} {
			scripted(t, Config{Policy: quick(), BeforeAttempt: func(_ *http.Request, attempt int) error { return errIf(attempt == last, refused) }},
				func() *script { return statuses(503) }, func(t *testing.T, e env, s *script) {
					_, err := e.do(e.request(t, http.MethodPost, "/", strings.NewReader("x")))
					require.ErrorIs(t, err, refused)
					assert.Equal(t, StopHook, failure(t, err).Stop)
					assert.Len(t, s.requests(), last-1)
				})
		}
	})
	t.Run("no attempt follows when the time is over", func(t *testing.T) {
		t.Parallel()
		for _, form := range forms {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				for want, hook := range map[StopReason]func(*http.Request, int) error{
					StopDeadline: func(*http.Request, int) error { time.Sleep(time.Minute); return nil },
					StopCanceled: func(r *http.Request, _ int) error { cancel(); return r.Context().Err() },
				} {
					c, err := New(Config{BeforeAttempt: hook, HTTPClient: &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response, error) {
						t.Error("sent")
						return nil, errors.New("sent")
					})}})
					require.NoError(t, err)
					ctx := ctx
					if want == StopDeadline {
						ctx = t.Context()
					}
					_, err = formOf(c, form, "", false).do(requestTo(t, http.MethodPost, "http://x.example", nil).WithContext(ctx))
					f := failure(t, err)
					assert.Equal(t, want, f.Stop)
					assert.Empty(t, f.Attempts)
				}
			})
		}
	})
	t.Run("StopRetry", func(t *testing.T) {
		t.Parallel()
		veto := func(req *http.Request, a Attempt) bool {
			assert.NotEmpty(t, req.Header.Get(KeyHeader))
			return a.Number == 2
		}
		scripted(t, Config{Policy: quick(), StopRetry: veto}, func() *script { return statuses(503) }, func(t *testing.T, e env, s *script) {
			resp, body := e.send(t, http.MethodPost, "/", strings.NewReader("x"))
			assert.Equal(t, "Service Unavailable", body)
			assert.Equal(t, StopVeto, StopOf(resp))
			assert.Len(t, s.requests(), 2)
			assert.Equal(t, 495, e.client.budget.level(hostPort(resp.Request.URL)), "the vetoed retry cost nothing")
		})
	})
	t.Run("AttemptNumber below us", func(t *testing.T) {
		t.Parallel()
		for _, p := range []*Policy{timeless(), quick()} {
			var numbers []int
			c, err := New(Config{Policy: p, HTTPClient: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
				numbers = append(numbers, AttemptNumber(r.Context()))
				return answer(r, 503, ""), nil
			})}})
			require.NoError(t, err)
			resp, err := c.Get("http://x.example")
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.Equal(t, []int{1, 2, 3, 4, 5}, numbers)
		}
	})
}

func TestBudgetOfACall(t *testing.T) {
	t.Parallel()
	const host = "x.example:80"
	for name, tt := range map[string]struct {
		outcomes []int // 0: a timeout, -1: the caller cancels
		before   int
		want     int
	}{
		"a first success gives one":        {[]int{200}, 100, 101},
		"a first failure takes nothing":    {[]int{404}, 100, 100},
		"a success gives all back":         {[]int{503, 503, 200}, 100, 100},
		"a final answer does too":          {[]int{503, 422}, 100, 100},
		"exhausted, nothing comes back":    {[]int{503, 503, 503, 503, 503}, 100, 80},
		"a timeout costs more":             {[]int{0, 503, 503, 503, 503}, 100, 75},
		"what the caller cancels is given": {[]int{503, -1}, 100, 100},
		"empty":                            {[]int{503, 503, 503}, 9, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, form := range forms {
				budget := NewBudget(BudgetPolicy{Capacity: 500})
				require.True(t, budget.take(host, 500-tt.before))
				ctx, cancel := context.WithCancel(t.Context())
				n := 0
				c, err := New(Config{Budget: budget, Policy: quick(), HTTPClient: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
					n++
					switch code := tt.outcomes[n-1]; code {
					case 0:
						return nil, slow{"timeout"}
					case -1:
						cancel()
						return nil, errors.New("boom")
					default:
						return answer(r, code, "x"), nil
					}
				})}})
				require.NoError(t, err)
				resp, err := formOf(c, form, "", false).do(requestTo(t, http.MethodPost, "http://X.example/", strings.NewReader("x")).WithContext(ctx))
				cancel()
				if err == nil {
					_ = resp.Body.Close()
				}
				assert.Equal(t, tt.want, budget.level(host))
				if name == "empty" {
					assert.Equal(t, StopBudget, StopOf(resp))
				}
			}
		})
	}
}

func TestACallKeepsItsCosts(t *testing.T) {
	t.Parallel()
	policy := func(cost int) *Policy {
		p := quick()
		p.Budget = BudgetPolicy{Capacity: 10, RetryCost: cost}
		return p
	}
	var c *Client
	c, err := New(Config{Policy: policy(5), HTTPClient: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		return answer(r, 503, ""), c.SetPolicy(policy(10))
	})}})
	require.NoError(t, err)
	resp, err := c.Do(requestTo(t, http.MethodGet, "http://x.example", nil))
	require.NoError(t, err)
	_ = read(t, resp)
	assert.Len(t, Attempts(resp), 3, "two retries of 5 tokens, although the new policy takes 10")
}

func TestSetPolicyUnderLoad(t *testing.T) {
	t.Parallel()
	e := simple(t, Config{Policy: quick()}, statuses(503))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				assert.NoError(t, e.client.SetPolicy(&Policy{MaxAttempts: 1 + i%3, BaseDelay: 1, Budget: BudgetPolicy{Capacity: -1}}))
			}
		}
	})
	for range 50 {
		resp, err := e.client.Get(e.url)
		require.NoError(t, err)
		read(t, resp)
		assert.Equal(t, StopMaxAttempts, StopOf(resp))
	}
	close(stop)
	wg.Wait()
	require.Error(t, e.client.SetPolicy(&Policy{MaxAttempts: -1}))
	require.NoError(t, e.client.SetPolicy(nil))
	assert.Equal(t, DefaultPolicy().Hash(), e.client.policy.Load().hash)
}

func TestNewRefusesWhatIsInvalid(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{
		{Policy: &Policy{MaxAttempts: -1}}, {Policy: &Policy{FinalStatuses: []int{404}}}, {Budget: NewBudget(BudgetPolicy{RetryCost: -1})},
	} {
		_, err := New(cfg)
		require.Error(t, err)
	}
}
