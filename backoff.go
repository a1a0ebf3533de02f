package oncemore

import (
	"math"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// maxRetryAfterJitter bounds what is added to a Retry-After.
const maxRetryAfterJitter = time.Second

// newDelays returns the growing delays of one call, jitter not yet in them.
// The arithmetic is the library's; the waiting is ours.
func newDelays(p *Policy) backoff.ExponentialBackOff {
	b := backoff.ExponentialBackOff{
		InitialInterval: min(p.BaseDelay, p.MaxDelay),
		Multiplier:      p.Multiplier,
		MaxInterval:     p.MaxDelay,
		Stop:            backoff.Stop,
		Clock:           backoff.SystemClock,
	}
	b.Reset()
	return b
}

// shake applies the jitter to a delay.
func shake(d time.Duration, j Jitter) time.Duration {
	switch j {
	case JitterNone:
		return d
	case JitterEqual:
		return d - upTo(d/2)
	default:
		return d - upTo(d)
	}
}

// upTo returns a random duration below d, 0 if there is none.
func upTo(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d)
}

// waitAfter returns how long to wait after resp, which may be nil, where the
// backoff says delay. Retry-After counts on 429 and 503 only. tooLong says
// that it asks for more than the policy allows.
func waitAfter(resp *http.Response, delay time.Duration, p *Policy) (wait time.Duration, tooLong bool) {
	if resp == nil || !hasRetryAfter(resp) {
		return delay, false
	}
	asked, ok := RetryAfter(resp.Header, time.Now())
	if ok && p.MaxRetryAfter >= 0 && asked > p.MaxRetryAfter {
		return 0, true
	}
	wait = max(asked, delay)
	if floor := p.BaseDelay / 2; wait < floor {
		wait = floor + upTo(floor) // "now", or nonsense: not a hot loop, and not a herd either
	}
	// Upwards only: never earlier than asked, and not all at the same instant.
	return wait + upTo(min(asked/10, maxRetryAfterJitter, math.MaxInt64-wait)), false
}

func hasRetryAfter(resp *http.Response) bool {
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return len(resp.Header["Retry-After"]) > 0
	}
	return false
}
