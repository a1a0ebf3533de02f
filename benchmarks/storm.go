package benchmarks

import (
	"math"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/failsafe-go/failsafe-go/budget"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/hashicorp/go-retryablehttp"

	"github.com/oncemore-go/oncemore"
)

// The storm: stormCallers of one process make a call a second each, whatever
// became of the last one. For stormDown nothing listens, then there is a server
// that does a request each stormService, one after the other.
const (
	stormCallers = 200
	stormDown    = 3 * time.Second
	stormAll     = 13 * time.Second
	stormService = time.Second / 500
	stormRefused = time.Millisecond      // until a connection is refused
	stormSlow    = 20 * time.Millisecond // more is not recovered yet
)

// stormy is a line of the storm's table: each with its own waits, as its
// documentation has them.
type stormy struct {
	name  string
	build func(http.RoundTripper) sender
}

var storms = []stormy{
	{"no retry", func(rt http.RoundTripper) sender { return plain(rt, settings{}) }},
	{"each 100 ms until it works", func(rt http.RoundTripper) sender {
		return loop(rt, settings{attempts: math.MaxInt, wait: 100 * time.Millisecond})
	}},
	{"oncemore, no budget", func(rt http.RoundTripper) sender {
		p := oncemore.DefaultPolicy()
		p.Budget.Capacity = off
		return standard(client(rt, p).Do)
	}},
	{"oncemore, default policy", func(rt http.RoundTripper) sender {
		return standard(client(rt, nil).Do)
	}},
	{"go-retryablehttp, its defaults", func(rt http.RoundTripper) sender {
		c := retryablehttp.NewClient()
		c.HTTPClient, c.Logger = &http.Client{Transport: rt}, nil
		return sendRetryable(c)
	}},
	{"failsafe-go, our waits, its budget", func(rt http.RoundTripper) sender {
		p := failsafehttp.NewRetryPolicyBuilder().WithMaxAttempts(5).WithBackoff(200*time.Millisecond, 5*time.Second).
			WithJitterFactor(0.5).WithBudget(budget.New()).ReturnLastFailure().Build()
		return standard((&http.Client{Transport: failsafehttp.NewRoundTripper(rt, p)}).Do)
	}},
	{"aws-sdk-go-v2 retry, its defaults", func(rt http.RoundTripper) sender {
		return sendAWS(rt, retry.NewStandard())
	}},
}

// weather is what a storm came to.
type weather struct {
	amplification float64 // attempts per call, while the server was down
	peak          float64 // requests within the worst second
	burst         float64 // and within the worst tenth of a second
	p99           float64 // milliseconds, of the calls that began after the outage
	recovery      float64 // seconds from its end until no request is slow any more
	lost          float64 // calls that came to nothing, in percent
}

// storm runs in a bubble: its seconds take none.
func storm(t *testing.T, s stormy) weather {
	t.Helper()
	var w weather
	synctest.Test(t, func(*testing.T) {
		o := &outage{began: time.Now(), free: time.Now()}
		send := s.build(o)
		var mu sync.Mutex
		var after []time.Duration
		var all, down, lost int
		var callers sync.WaitGroup
		for each := stormService / 2 * 5; time.Since(o.began) < stormAll; time.Sleep(each) { // 200 a second
			all++
			at := time.Since(o.began)
			if at < stormDown {
				down++
			}
			callers.Go(func() {
				status, err := send(&message{method: http.MethodPost, url: "http://api.example.com/v1/charges", body: oneKiB})
				mu.Lock()
				defer mu.Unlock()
				if err != nil || status != http.StatusCreated {
					lost++
				}
				if at >= stormDown {
					after = append(after, time.Since(o.began)-at)
				}
			})
		}
		callers.Wait()
		slices.Sort(after)
		w = weather{
			amplification: float64(o.refused) / float64(down),
			peak:          float64(densest(o.arrivals, time.Second)),
			burst:         float64(densest(o.arrivals, time.Second/10)),
			p99:           float64(after[len(after)*99/100].Microseconds()) / 1000,
			recovery:      max(o.slow-stormDown, 0).Seconds(),
			lost:          100 * float64(lost) / float64(all),
		}
	})
	return w
}

// outage is a transport to a server that is down at first.
type outage struct {
	began time.Time

	mu       sync.Mutex
	arrivals []time.Duration // of attempts
	refused  int
	free     time.Time     // when the server has done all that has arrived
	slow     time.Duration // when the latest slow request was answered
}

func (o *outage) RoundTrip(req *http.Request) (*http.Response, error) {
	up, wait := o.arrive()
	if err := pause(req.Context(), wait); err != nil {
		return nil, err
	}
	if !up {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	return (&fakeNetwork{}).RoundTrip(req)
}

// arrive takes note of an attempt, and says how long its answer takes.
func (o *outage) arrive() (up bool, wait time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	at := now.Sub(o.began)
	o.arrivals = append(o.arrivals, at)
	if at < stormDown {
		o.refused++
		return false, stormRefused
	}
	if o.free.Before(now) {
		o.free = now
	}
	o.free = o.free.Add(stormService)
	if wait = o.free.Sub(now); wait > stormSlow {
		o.slow = max(o.slow, at+wait)
	}
	return true, wait
}

// densest is the most that lies within a window.
func densest(at []time.Duration, window time.Duration) int {
	most, first := 0, 0
	for i := range at {
		for at[i]-at[first] >= window {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}
