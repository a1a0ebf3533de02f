package oncemore

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// even is a policy whose waits are known.
func even() *Policy {
	return &Policy{Jitter: JitterNone, BaseDelay: time.Second, MaxDelay: 4 * time.Second, OverallTimeout: -1, MaxAttempts: 6}
}

func TestBackoffGrowsToItsCap(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{Policy: even()}, func() *script { return statuses(503) }, func(t *testing.T, e env, s *script) {
		resp, body := e.send(t, http.MethodPost, "/", strings.NewReader("x"))
		assert.Equal(t, "Service Unavailable", body, "unread by us")
		assert.Equal(t, StopMaxAttempts, StopOf(resp))
		want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 4 * time.Second, 4 * time.Second}
		require.Len(t, s.gaps(), len(want))
		attempts := Attempts(resp)
		for i, gap := range s.gaps() {
			assert.Equal(t, want[i], gap)
			assert.Equal(t, gap, attempts[i].Wait)
		}
		assert.Zero(t, attempts[5].Wait)
	})
}

func TestJitter(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		jitter   Jitter
		low, top time.Duration
	}{{JitterFull, 0, time.Second}, {JitterEqual, time.Second / 2, time.Second}, {"", 0, time.Second}} {
		low, top := tt.top, time.Duration(0)
		for range 1000 {
			d := shake(tt.top, tt.jitter)
			low, top = min(low, d), max(top, d)
		}
		assert.GreaterOrEqual(t, low, tt.low)
		assert.LessOrEqual(t, top, tt.top)
		assert.Less(t, low, tt.low+tt.top/10, "spread")
		assert.Greater(t, top, tt.top*9/10, "spread")
	}
}

func TestRetryAfterSetsTheWait(t *testing.T) {
	t.Parallel()
	const date = "Mon, 01 Jan 2024 10:00:00 GMT"
	for _, tt := range []struct {
		name      string
		status    int
		headers   []string
		low, high time.Duration
	}{
		{"seconds", 429, []string{"Retry-After", "7"}, 7 * time.Second, 7700 * time.Millisecond},
		{"on 503", 503, []string{"Retry-After", "7"}, 7 * time.Second, 7700 * time.Millisecond},
		{"much", 429, []string{"Retry-After", "50"}, 50 * time.Second, 51 * time.Second},
		{"not on 502", 502, []string{"Retry-After", "7"}, time.Second, time.Second},
		{"below the backoff", 429, []string{"Retry-After", "0"}, time.Second, time.Second},
		{"nonsense", 429, []string{"Retry-After", "soon"}, time.Second, time.Second},
		{"by the server's clock", 503, []string{"Date", date, "Retry-After", "Mon, 01 Jan 2024 10:00:20 GMT"}, 20 * time.Second, 21 * time.Second},
		{"past", 503, []string{"Date", date, "Retry-After", "Mon, 01 Jan 2024 09:00:00 GMT"}, time.Second, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, Config{Policy: even()}, func() *script { return answers(status(tt.status, tt.headers...), status(200)) },
				func(t *testing.T, e env, s *script) {
					e.send(t, http.MethodPost, "/", strings.NewReader("x"))
					require.Len(t, s.gaps(), 1)
					assert.GreaterOrEqual(t, s.gaps()[0], tt.low)
					assert.LessOrEqual(t, s.gaps()[0], tt.high)
				})
		})
	}
}

func TestRetryAfterZeroIsNoHotLoop(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"0", "-1", "soon", "Fri, 31 Dec 1999 23:59:59 GMT"} {
		inBubble(t, Config{Policy: &Policy{BaseDelay: time.Second, MaxAttempts: 20, OverallTimeout: -1}}, func() *script { return answers(status(429, "Retry-After", value)) },
			func(t *testing.T, e env, s *script) {
				e.send(t, http.MethodGet, "/", nil)
				require.Len(t, s.gaps(), 19)
				for _, gap := range s.gaps() {
					assert.GreaterOrEqual(t, gap, time.Second/2)
				}
			})
	}
}

func TestALongRetryAfterEndsTheCall(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]StopReason{
		"61": StopRetryAfter, "9223372036854775808": StopRetryAfter, "60": StopSuccess,
	} {
		inBubble(t, Config{Policy: even()}, func() *script { return answers(status(429, "Retry-After", value), status(200)) },
			func(t *testing.T, e env, _ *script) {
				began := time.Now()
				resp, _ := e.send(t, http.MethodPost, "/", strings.NewReader("x"))
				assert.Equal(t, want, StopOf(resp))
				if want == StopRetryAfter {
					assert.Zero(t, time.Since(began))
					assert.Equal(t, 429, resp.StatusCode)
				}
			})
	}
}

func TestACallEndsWhereTheWaitWouldReachTheDeadline(t *testing.T) {
	t.Parallel()
	for name, bound := range map[string]func(context.Context, env) (context.Context, context.CancelFunc, env){
		"the caller's": func(ctx context.Context, e env) (context.Context, context.CancelFunc, env) {
			ctx, cancel := context.WithTimeout(ctx, 7*time.Second)
			return ctx, cancel, e
		},
		"the overall time": func(ctx context.Context, e env) (context.Context, context.CancelFunc, env) {
			p := even()
			p.OverallTimeout = 7 * time.Second
			_ = e.client.SetPolicy(p)
			return ctx, func() {}, e
		},
		"Timeout": func(ctx context.Context, e env) (context.Context, context.CancelFunc, env) {
			e.client.timeout = 7 * time.Second
			if e.std {
				e.do = e.client.StandardClient().Do
			}
			return ctx, func() {}, e
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, Config{Policy: even()}, func() *script { return statuses(503) }, func(t *testing.T, e env, s *script) {
				began := time.Now()
				ctx, cancel, e := bound(t.Context(), e)
				defer cancel()
				resp, err := e.do(e.request(t, http.MethodPost, "/", strings.NewReader("x")).WithContext(ctx))
				require.NoError(t, err)
				assert.Equal(t, "Service Unavailable", read(t, resp))
				assert.Equal(t, StopDeadline, StopOf(resp))
				assert.Len(t, s.requests(), 3)
				assert.Equal(t, 3*time.Second, time.Since(began), "the third wait would have ended at the deadline")
			})
		})
	}
}

func TestAttemptTimeoutsAreRetried(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{}, func() *script { return answers(silence, silence, status(201)) }, func(t *testing.T, e env, s *script) {
		began := time.Now()
		resp, _ := e.send(t, http.MethodPost, "/", strings.NewReader("x"))
		assert.Equal(t, 201, resp.StatusCode)
		assert.Equal(t, []Reason{ReasonAttemptTimeout, ReasonAttemptTimeout, ReasonOK}, reasons(Attempts(resp)))
		sameOperation(t, s.requests())
		assert.GreaterOrEqual(t, time.Since(began), 20*time.Second)
	})
}

func TestNeverAnswered(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{}, func() *script { return answers(silence) }, func(t *testing.T, e env, s *script) {
		began := time.Now()
		_, err := e.do(e.request(t, http.MethodPost, "/", strings.NewReader("x")))
		assert.Equal(t, 30*time.Second, time.Since(began))
		assert.Len(t, s.requests(), 3)
		assert.True(t, isContextError(err, context.DeadlineExceeded))
		assert.True(t, isTimeout(err))
		f := failure(t, err)
		assert.Equal(t, StopDeadline, f.Stop)
		assert.Len(t, f.Attempts, 3)
		assert.True(t, f.Timeout())
	})
}

func TestExhaustedAttemptTimeouts(t *testing.T) {
	t.Parallel()
	p := even()
	p.MaxAttempts = 2
	inBubble(t, Config{Policy: p}, func() *script { return answers(silence) }, func(t *testing.T, e env, _ *script) {
		_, err := e.do(e.request(t, http.MethodPut, "/", strings.NewReader("x")))
		assert.True(t, isContextError(err, context.DeadlineExceeded))
		assert.True(t, isTimeout(err))
		assert.Equal(t, StopMaxAttempts, failure(t, err).Stop)
		assert.Contains(t, err.Error(), "no answer within 10s")
	})
}

func TestTheCallerEndsTheCall(t *testing.T) {
	t.Parallel()
	cause := errors.New("the shop has closed")
	for _, tt := range []struct {
		name string
		with func(context.Context) (context.Context, context.CancelFunc)
		want error
		stop StopReason
	}{
		{"cancel", func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			time.AfterFunc(5*time.Second, func() { cancel(cause) })
			return ctx, func() { cancel(nil) }
		}, context.Canceled, StopCanceled},
		{"deadline", func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeoutCause(ctx, 5*time.Second, cause)
		}, context.DeadlineExceeded, StopDeadline},
	} {
		for where, h := range map[string]http.HandlerFunc{"in an attempt": silence, "in a wait": status(429, "Retry-After", "4")} {
			t.Run(tt.name+" "+where, func(t *testing.T) {
				t.Parallel()
				inBubble(t, Config{Policy: &Policy{OverallTimeout: -1}}, func() *script { return answers(h) }, func(t *testing.T, e env, s *script) {
					began := time.Now()
					ctx, cancel := tt.with(t.Context())
					defer cancel()
					resp, err := e.do(e.request(t, http.MethodPost, "/", strings.NewReader("x")).WithContext(ctx))
					if where == "in a wait" && tt.stop == StopDeadline {
						require.NoError(t, err, "the second wait can't fit")
						assert.Equal(t, tt.stop, StopOf(resp))
						_ = resp.Body.Close()
						return
					}
					assert.True(t, isContextError(err, tt.want), "%v", err)
					require.ErrorIs(t, err, cause)
					assert.Equal(t, 5*time.Second, time.Since(began))
					f := failure(t, err)
					assert.Equal(t, tt.stop, f.Stop)
					assert.Equal(t, tt.stop == StopDeadline, f.Timeout())
					assert.Len(t, f.Attempts, len(s.requests()))
					if where == "in a wait" {
						assert.Equal(t, 429, f.Attempts[0].Status)
					}
				})
			})
		}
	}
}

func TestAContextThatHasEndedSendsNothing(t *testing.T) {
	t.Parallel()
	scripted(t, Config{}, func() *script { return statuses(200) }, func(t *testing.T, e env, s *script) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		body := &closeCounter{Reader: strings.NewReader("x")}
		req := e.request(t, http.MethodPost, "/", body).WithContext(ctx)
		_, err := e.do(req)
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, StopCanceled, failure(t, err).Stop)
		assert.Empty(t, s.requests())
		assert.Equal(t, 1, body.closed())
	})
}

func TestTheBodyMayBeReadAfterEveryTimeout(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{}, func() *script {
		return answers(func(w http.ResponseWriter, _ *http.Request) {
			for range 100 {
				_, _ = io.WriteString(w, "one second more\n")
				w.(http.Flusher).Flush() //nolint:errcheck // it is one
				time.Sleep(time.Second)
			}
		})
	}, func(t *testing.T, e env, _ *script) {
		resp, body := e.send(t, http.MethodPost, "/", strings.NewReader("x"))
		assert.Equal(t, 200, resp.StatusCode)
		assert.Len(t, body, 1600)
	})
}

func TestTimeoutBoundsTheBodyToo(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{HTTPClient: &http.Client{Timeout: 5 * time.Second}}, func() *script {
		return answers(func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush() //nolint:errcheck // it is one
			silence(w, r)
		})
	}, func(t *testing.T, e env, _ *script) {
		began := time.Now()
		resp, err := e.do(e.request(t, http.MethodPost, "/", strings.NewReader("x")))
		require.NoError(t, err)
		_, err = io.ReadAll(resp.Body)
		require.Error(t, err)
		assert.True(t, isTimeout(err), "%v", err)
		assert.Equal(t, 5*time.Second, time.Since(began))
		_ = resp.Body.Close()
	})
}

func TestTimeoutKeepsTheKeyInTheError(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{HTTPClient: &http.Client{Timeout: 25 * time.Second}}, func() *script { return answers(silence) }, func(t *testing.T, e env, s *script) {
		began := time.Now()
		_, err := e.do(e.request(t, http.MethodPost, "/", strings.NewReader("x")))
		assert.Equal(t, 25*time.Second, time.Since(began))
		assert.True(t, isTimeout(err))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		if e.std {
			return // net/http's own error
		}
		f := failure(t, err)
		assert.Equal(t, StopDeadline, f.Stop)
		assert.Equal(t, s.requests()[0].key, f.Key)
		assert.Len(t, f.Attempts, 3)
	})
}

// stuck is a body that has nothing to say until it is closed.
type stuck chan struct{}

func (b stuck) Read([]byte) (int, error) { <-b; return 0, io.ErrClosedPipe }

func (b stuck) Close() error {
	select {
	case <-b:
	default:
		close(b)
	}
	return nil
}

func TestTheDrainIsPartOfTheWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := 0
		c, err := New(Config{
			Policy: &Policy{BaseDelay: 80 * time.Millisecond, Jitter: JitterNone},
			HTTPClient: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
				if n++; n == 1 {
					return &http.Response{StatusCode: 503, Body: make(stuck), ContentLength: -1, Request: r}, nil
				}
				return answer(r, 200, ""), nil
			})},
		})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		began := time.Now()
		resp, err := c.Do(requestTo(t, http.MethodGet, "http://x.example", nil).WithContext(ctx))
		require.NoError(t, err, "there was time for the wait")
		_ = read(t, resp)
		assert.Equal(t, 80*time.Millisecond, time.Since(began))
	})
}

func TestTimeoutIsADeadline(t *testing.T) {
	t.Parallel()
	for range 20 { // net/http has two timers for it, and either may be first
		synctest.Test(t, func(t *testing.T) {
			var last Event
			c, err := New(Config{
				HTTPClient: &http.Client{Timeout: time.Second, Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
					select {
					case <-r.Cancel: //nolint:staticcheck // this is about it
					case <-r.Context().Done():
					}
					return nil, errors.New("boom")
				})},
				Observer: func(_ context.Context, e Event) { last = e },
			})
			require.NoError(t, err)
			_, err = c.StandardClient().Do(requestTo(t, http.MethodPost, "http://x.example", nil))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Equal(t, StopDeadline, last.Stop)
		})
	}
}

func TestNoWaitAndNoTimerIsLeft(t *testing.T) {
	t.Parallel()
	for _, form := range forms {
		synctest.Test(t, func(t *testing.T) {
			c, err := New(Config{HTTPClient: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
				return answer(r, 503, "no"), nil
			})}})
			require.NoError(t, err)
			began := time.Now()
			resp, err := formOf(c, form, "http://x.example", false).do(requestTo(t, http.MethodPost, "http://x.example", strings.NewReader("x")))
			require.NoError(t, err)
			waited := time.Duration(0)
			for _, a := range Attempts(resp) {
				waited += a.Wait
			}
			assert.Equal(t, waited, time.Since(began), "no wait after the last attempt")
			require.NoError(t, resp.Body.Close())
		}) // the bubble ends only when nothing is left in it
	}
}

func requestTo(t *testing.T, method, url string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	require.NoError(t, err)
	return req
}

func TestARetryOfARequestThatWasNotWritten(t *testing.T) {
	t.Parallel()
	// A POST without a key: an attempt that could not even connect in time is
	// retried, one that was written is not.
	for name, want := range map[string]int{"connect": 2, "answer": 1} {
		synctest.Test(t, func(t *testing.T) {
			c, s, end := stuckDial(t, name == "connect")
			defer end()
			_, err := c.Do(requestTo(t, http.MethodPost, "http://x.example", strings.NewReader("x")))
			if name == "connect" {
				require.NoError(t, err)
				assert.Len(t, s.requests(), 1)
				return
			}
			f := failure(t, err)
			assert.Len(t, f.Attempts, want)
			assert.Equal(t, ReasonAttemptTimeout, f.Attempts[0].Reason)
			assert.Equal(t, StopFinal, f.Stop)
			assert.Empty(t, f.Key)
		})
	}
}

func TestTheOverallTimeEndsTheOnlyAttempt(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{Policy: &Policy{MaxAttempts: 1, AttemptTimeout: -1, OverallTimeout: 5 * time.Second}}, func() *script { return answers(silence) },
		func(t *testing.T, e env, _ *script) {
			began := time.Now()
			_, err := e.do(e.request(t, http.MethodPost, "/", strings.NewReader("x")))
			assert.True(t, isContextError(err, context.DeadlineExceeded))
			assert.Equal(t, StopDeadline, failure(t, err).Stop)
			assert.Equal(t, 5*time.Second, time.Since(began))
		})
}
