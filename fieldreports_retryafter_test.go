package oncemore

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The recipes about Retry-After, delays and herds, in fake time.

// paced runs a recipe: these answers, this policy, one request.
func paced(t *testing.T, p *Policy, method string, a []http.HandlerFunc, check func(t *testing.T, resp *http.Response, gaps []time.Duration)) {
	t.Helper()
	inBubble(t, Config{Policy: p}, func() *script { return answers(a...) }, func(t *testing.T, e env, s *script) {
		resp, _ := e.send(t, method, "/", strings.NewReader("x"))
		check(t, resp, s.gaps())
	})
}

func handlers(h ...http.HandlerFunc) []http.HandlerFunc { return h }

func retryAfter(code int, value string, more ...string) http.HandlerFunc {
	return status(code, append([]string{"Retry-After", value}, more...)...)
}

// within checks each gap.
func within(t *testing.T, gaps []time.Duration, n int, low, high time.Duration) {
	t.Helper()
	assert.Len(t, gaps, n)
	for _, gap := range gaps {
		assert.GreaterOrEqual(t, gap, low)
		assert.LessOrEqual(t, gap, high)
	}
}

func TestB001_FractionIsIgnored(t *testing.T) {
	t.Parallel()
	paced(t, &Policy{MaxAttempts: 3}, http.MethodGet, handlers(retryAfter(429, "0.503"), status(200)),
		func(t *testing.T, resp *http.Response, gaps []time.Duration) {
			assert.Equal(t, 200, resp.StatusCode)
			within(t, gaps, 1, 100*time.Millisecond, 5*time.Second)
		})
}

func TestB003_FractionIsNeitherZeroNorHuge(t *testing.T) {
	t.Parallel()
	// Ignored, as documented: backoff decides.
	paced(t, even(), http.MethodPost, handlers(retryAfter(429, "292.052427053"), status(200)),
		func(t *testing.T, resp *http.Response, gaps []time.Duration) {
			assert.Equal(t, 200, resp.StatusCode)
			within(t, gaps, 1, time.Second, time.Second)
		})
}

func TestB005_NotANumber(t *testing.T) {
	t.Parallel()
	for _, v := range []string{"nan", "inf", "-inf", "Infinity", "infinity", "1e400"} {
		paced(t, nil, http.MethodGet, handlers(retryAfter(429, v), status(200)),
			func(t *testing.T, resp *http.Response, gaps []time.Duration) {
				assert.Equal(t, 200, resp.StatusCode, v)
				within(t, gaps, 1, 100*time.Millisecond, 200*time.Millisecond)
			})
	}
}

// inTwoSeconds answers with a date two seconds ahead.
func inTwoSeconds(code int, layout string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		retryAfter(code, time.Now().Add(2*time.Second).UTC().Format(layout))(w, r)
	}
}

func TestB007_Date(t *testing.T) {
	t.Parallel()
	paced(t, nil, http.MethodGet, handlers(inTwoSeconds(503, http.TimeFormat), status(200)),
		func(t *testing.T, resp *http.Response, gaps []time.Duration) {
			assert.Equal(t, 200, resp.StatusCode)
			within(t, gaps, 1, time.Second, 3*time.Second)
		})
	paced(t, nil, http.MethodGet, handlers(retryAfter(503, "Fri, 31 Dec 1999 23:59:59 GMT")),
		func(t *testing.T, _ *http.Response, gaps []time.Duration) {
			within(t, gaps, 4, 100*time.Millisecond, 5*time.Second)
		})
}

func TestB009_RFC850Date(t *testing.T) {
	t.Parallel()
	paced(t, nil, http.MethodGet, handlers(retryAfter(429, "Sunday, 06-Nov-94 08:49:37 GMT"), status(200)),
		func(t *testing.T, _ *http.Response, gaps []time.Duration) {
			within(t, gaps, 1, 100*time.Millisecond, 200*time.Millisecond)
		})
	paced(t, nil, http.MethodGet, handlers(inTwoSeconds(429, "Monday, 02-Jan-06 15:04:05 GMT"), status(200)),
		func(t *testing.T, _ *http.Response, gaps []time.Duration) {
			within(t, gaps, 1, time.Second, 3*time.Second)
		})
}

func TestB011_DatesOnPolls(t *testing.T) {
	t.Parallel()
	for _, code := range []int{503, 429} {
		busy := inTwoSeconds(code, http.TimeFormat)
		paced(t, nil, http.MethodGet, handlers(busy, busy, busy, status(200)),
			func(t *testing.T, resp *http.Response, gaps []time.Duration) {
				assert.Equal(t, 200, resp.StatusCode)
				within(t, gaps, 3, time.Second, 3*time.Second)
			})
	}
}

func TestB013_LongerThanTheMaximum(t *testing.T) {
	t.Parallel()
	paced(t, &Policy{MaxRetryAfter: 200 * time.Millisecond, MaxAttempts: 3}, http.MethodGet, handlers(retryAfter(429, "3600")),
		func(t *testing.T, resp *http.Response, gaps []time.Duration) {
			assert.Equal(t, 429, resp.StatusCode)
			assert.Equal(t, StopRetryAfter, StopOf(resp))
			assert.Empty(t, gaps)
		})
}

func TestB015_PastInt64(t *testing.T) {
	t.Parallel()
	for _, p := range []*Policy{{MaxRetryAfter: 300 * time.Millisecond}, {MaxRetryAfter: -1}} {
		paced(t, p, http.MethodGet, handlers(retryAfter(429, "9223372036854775808")),
			func(t *testing.T, resp *http.Response, gaps []time.Duration) {
				assert.Equal(t, 429, resp.StatusCode)
				assert.Empty(t, gaps)
			})
	}
}

func TestB017_EpochSecond(t *testing.T) {
	t.Parallel()
	paced(t, &Policy{MaxRetryAfter: 200 * time.Millisecond}, http.MethodGet,
		handlers(retryAfter(429, "1771404540", "X-RateLimit-Reset", "1771404540"), status(200)),
		func(t *testing.T, resp *http.Response, gaps []time.Duration) {
			assert.Equal(t, 429, resp.StatusCode)
			assert.Empty(t, gaps)
		})
}

func TestB259_EqualToTheMaximum(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]int{"1": 200, "2": 429} {
		paced(t, &Policy{MaxRetryAfter: time.Second}, http.MethodGet, handlers(retryAfter(429, value), status(200)),
			func(t *testing.T, resp *http.Response, _ []time.Duration) { assert.Equal(t, want, resp.StatusCode) })
	}
}

func TestB020_ZeroKeepsTheBackoff(t *testing.T) {
	t.Parallel()
	paced(t, &Policy{BaseDelay: 50 * time.Millisecond, MaxAttempts: 5}, http.MethodGet, handlers(retryAfter(429, "0")),
		func(t *testing.T, resp *http.Response, gaps []time.Duration) {
			assert.Equal(t, 429, resp.StatusCode)
			within(t, gaps, 4, 25*time.Millisecond, 400*time.Millisecond)
		})
}

func TestB022_MinusOne(t *testing.T) {
	t.Parallel()
	paced(t, nil, http.MethodPost, handlers(retryAfter(503, "-1"), status(200)),
		func(t *testing.T, resp *http.Response, gaps []time.Duration) {
			assert.Equal(t, 200, resp.StatusCode)
			within(t, gaps, 1, 100*time.Millisecond, 200*time.Millisecond)
		})
}

func TestB024_SecondsAreSeconds(t *testing.T) {
	t.Parallel()
	paced(t, nil, http.MethodGet, handlers(retryAfter(429, "2"), status(200)),
		func(t *testing.T, _ *http.Response, gaps []time.Duration) {
			within(t, gaps, 1, 2*time.Second, 2200*time.Millisecond)
		})
}

func TestB026_MillisecondHeadersAreIgnored(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"retry-after-ms", "x-ms-retry-after-ms"} {
		paced(t, nil, http.MethodGet, handlers(retryAfter(429, "1", name, "150"), status(200)),
			func(t *testing.T, _ *http.Response, gaps []time.Duration) {
				within(t, gaps, 1, time.Second, 1100*time.Millisecond)
			})
	}
}

func TestB028_ResetHeadersAreIgnored(t *testing.T) {
	t.Parallel()
	paced(t, nil, http.MethodGet, handlers(status(429, "X-RateLimit-Reset", "1562287945706"), status(200)),
		func(t *testing.T, _ *http.Response, gaps []time.Duration) {
			within(t, gaps, 1, 0, 200*time.Millisecond)
		})
}

func TestB030_DelaysDoNotOverflow(t *testing.T) {
	t.Parallel()
	for _, j := range []Jitter{JitterNone, JitterEqual, JitterFull} {
		delays := newDelays(&Policy{BaseDelay: 100 * time.Millisecond, MaxDelay: time.Second, Multiplier: 2})
		for range 200 {
			d := shake(delays.NextBackOff(), j)
			assert.Positive(t, d)
			assert.LessOrEqual(t, d, time.Second)
		}
	}
}

func TestB032_ExtremeDelays(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{0, 1, math.MaxInt64} {
		for _, j := range []Jitter{JitterNone, JitterEqual, JitterFull} {
			for _, m := range []float64{1, 2, math.MaxFloat64} {
				p := &Policy{BaseDelay: d, MaxDelay: d, Multiplier: m, Jitter: j, MaxRetryAfter: -1}
				delays := newDelays(p)
				for range 100 {
					delay := shake(delays.NextBackOff(), j)
					assert.GreaterOrEqual(t, delay, time.Duration(0))
					for _, header := range []string{"", "0", "9999999999999999999", "1"} {
						resp := &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{}}
						if header != "" {
							resp.Header.Set("Retry-After", header)
						}
						wait, tooLong := waitAfter(resp, delay, p)
						assert.GreaterOrEqual(t, wait, time.Duration(0))
						assert.False(t, tooLong)
					}
				}
			}
		}
	}
}

func TestB035_NoHerd(t *testing.T) {
	t.Parallel()
	for _, header := range []string{"", "0", "3"} {
		synctest.Test(t, func(t *testing.T) {
			offsets := make([]float64, 50)
			began := time.Now()
			var wg sync.WaitGroup
			for i := range offsets {
				var sends int
				c, err := New(Config{HTTPClient: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
					if sends++; sends > 1 {
						offsets[i] = time.Since(began).Seconds()
						return answer(r, 200, ""), nil
					}
					resp := answer(r, 503, "")
					if header != "" {
						resp.Header.Set("Retry-After", header)
					}
					return resp, nil
				})}})
				require.NoError(t, err)
				wg.Go(func() {
					resp, err := c.Get("http://x.example")
					if assert.NoError(t, err) {
						_ = resp.Body.Close()
					}
				})
			}
			wg.Wait()
			mean, deviation := spread(offsets)
			least := 0.1
			if header == "3" {
				least = 0.01 // a tenth upwards at most
			}
			assert.Greater(t, deviation, least*mean, "mean %v", mean)
		})
	}
}

func spread(xs []float64) (mean, deviation float64) {
	for _, x := range xs {
		mean += x / float64(len(xs))
	}
	for _, x := range xs {
		deviation += (x - mean) * (x - mean) / float64(len(xs))
	}
	return mean, math.Sqrt(deviation)
}

func TestB037_AttemptsAreBounded(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		budget BudgetPolicy
		most   int
	}{{"without a budget", BudgetPolicy{Capacity: -1}, 300}, {"with one", BudgetPolicy{Capacity: 50}, 110}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				sends := 0
				c, err := New(Config{
					Policy: &Policy{MaxAttempts: 3, Budget: tt.budget},
					HTTPClient: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
						mu.Lock()
						defer mu.Unlock()
						sends++
						return answer(r, 503, ""), nil
					})},
				})
				require.NoError(t, err)
				var wg sync.WaitGroup
				for range 100 {
					wg.Go(func() {
						resp, err := c.Get("http://x.example")
						if assert.NoError(t, err) {
							assert.Contains(t, []StopReason{StopBudget, StopMaxAttempts}, StopOf(resp))
							_ = resp.Body.Close()
						}
					})
				}
				wg.Wait()
				assert.Equal(t, tt.most, sends)
			})
		})
	}
}

func TestB076_NoSleepIntoACertainDeadline(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{}, func() *script { return answers(retryAfter(503, "5")) }, func(t *testing.T, e env, s *script) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		began := time.Now()
		resp, err := e.do(e.request(t, http.MethodGet, "/", nil).WithContext(ctx))
		require.NoError(t, err)
		assert.Equal(t, 503, resp.StatusCode)
		assert.Equal(t, StopDeadline, StopOf(resp))
		assert.Zero(t, time.Since(began))
		assert.Len(t, s.requests(), 1)
		read(t, resp)
	})
}

func TestB078_NoSleepAfterTheLastTry(t *testing.T) {
	t.Parallel()
	inBubble(t, Config{Policy: &Policy{MaxAttempts: 1}}, func() *script { return answers(retryAfter(429, "3")) }, func(t *testing.T, e env, s *script) {
		began := time.Now()
		resp, _ := e.send(t, http.MethodPost, "/", strings.NewReader("x"))
		assert.Equal(t, StopMaxAttempts, StopOf(resp))
		assert.Zero(t, time.Since(began))
		assert.Len(t, s.requests(), 1)
	})
}

func TestB100_OptionsHoldOnEveryAttempt(t *testing.T) {
	t.Parallel()
	p := even()
	p.MaxRetryAfter = 2 * time.Second
	inBubble(t, Config{Policy: p}, func() *script {
		return answers(reset, retryAfter(503, "2"), reset, retryAfter(503, "5"), status(200))
	}, func(t *testing.T, e env, s *script) {
		resp, _ := e.send(t, http.MethodPost, "/", strings.NewReader("x"))
		assert.Equal(t, StopRetryAfter, StopOf(resp), "the limit counts on the fourth attempt, too")
		assert.Len(t, s.requests(), 4, fmt.Sprint(reasons(Attempts(resp))))
	})
}
