package benchmarks

import (
	"net/http"
	"time"

	"github.com/oncemore-go/oncemore"
)

// off switches a limit of the policy off.
const off = -1

// policy returns the default policy, with the waits that all are given here.
func policy(s settings) *oncemore.Policy {
	p := oncemore.DefaultPolicy()
	p.MaxAttempts = s.attempts
	p.BaseDelay, p.MaxDelay, p.Jitter = s.wait, s.wait, oncemore.JitterNone
	return p
}

// untimed is policy without its two timeouts, which cost a timer each.
func untimed(s settings) *oncemore.Policy {
	p := policy(s)
	p.AttemptTimeout, p.OverallTimeout = off, off
	return p
}

// keyless is a policy without keys.
func keyless(of func(settings) *oncemore.Policy) func(settings) *oncemore.Policy {
	return func(s settings) *oncemore.Policy {
		p := of(s)
		p.KeyMethods = []string{}
		return p
	}
}

// client makes a client of a policy.
func client(rt http.RoundTripper, p *oncemore.Policy) *oncemore.Client {
	c, err := oncemore.New(oncemore.Config{HTTPClient: &http.Client{Transport: rt}, Policy: p})
	if err != nil {
		panic(err) // the policies are written here
	}
	return c
}

// withPolicy and standardWith are the two forms of the client.
func withPolicy(p func(settings) *oncemore.Policy) func(http.RoundTripper, settings) sender {
	return func(rt http.RoundTripper, s settings) sender { return standard(client(rt, p(s)).Do) }
}

func standardWith(p func(settings) *oncemore.Policy) func(http.RoundTripper, settings) sender {
	return func(rt http.RoundTripper, s settings) sender {
		return standard(client(rt, p(s)).StandardClient().Do)
	}
}

// settings are what every client is given: few attempts, and next to no wait.
type settings struct {
	attempts int
	wait     time.Duration
}
