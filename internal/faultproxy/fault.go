package faultproxy

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"
)

// Fault is one thing that can happen to a request.
type Fault int

// The faults. The server does the work under those that are said to come after
// it, and doesn't see the request under the others.
const (
	// None: the request and its answer arrive.
	None Fault = iota
	// LostAnswer: after the work the connection is reset instead of the answer.
	LostAnswer
	// CutAnswer: after the work the answer breaks off, and the connection is
	// reset.
	CutAnswer
	// GatewayTimeout: after the work the answer is a 504.
	GatewayTimeout
	// ResetBefore: the connection is reset when the request has been read.
	ResetBefore
	// Unavailable: a 503 without Retry-After.
	Unavailable
	// UnavailableAfter: a 503 with Retry-After.
	UnavailableAfter
	// TooManyRequests: a 429 with Retry-After.
	TooManyRequests
)

// Faults are all of them but None, in a fixed order.
func Faults() []Fault {
	return []Fault{
		LostAnswer, CutAnswer, GatewayTimeout,
		ResetBefore, Unavailable, UnavailableAfter, TooManyRequests,
	}
}

// String says what happened, in words.
func (f Fault) String() string {
	switch f {
	case None:
		return "none"
	case LostAnswer:
		return "answer lost"
	case CutAnswer:
		return "answer cut off"
	case GatewayTimeout:
		return "504 after the work"
	case ResetBefore:
		return "reset before the work"
	case Unavailable:
		return "503"
	case UnavailableAfter:
		return "503 with Retry-After"
	case TooManyRequests:
		return "429 with Retry-After"
	}
	return "invalid"
}

// Counts is what a proxy has done so far.
type Counts struct {
	Requests  int           // that were read from clients
	Forwarded int           // of those, passed on to the server
	Broken    int           // that the server gave no whole answer to: it was not there, or died
	Slowed    int           // requests that were delayed
	Faults    map[Fault]int // requests that met each fault; without None
}

// Counts returns a copy of the counters.
func (p *Proxy) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.counts
	c.Faults = maps.Clone(c.Faults)
	return c
}

func (p *Proxy) count(add func(*Counts)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	add(&p.counts)
}

func (c *Config) validate() error {
	sum := 0.0
	for f, rate := range c.Rates {
		if !slices.Contains(Faults(), f) {
			return fmt.Errorf("rate for an unknown fault %d", f)
		}
		if !(rate >= 0 && rate <= 1) {
			return fmt.Errorf("rate of %q is %v, not from 0 to 1", f, rate)
		}
		sum += rate
	}
	switch {
	case sum > 1+1e-9: // ten times 0.1 is a little more than 1
		return fmt.Errorf("rates add up to %v, more than 1", sum)
	case !(c.Slow >= 0 && c.Slow <= 1):
		return fmt.Errorf("slow is %v, not from 0 to 1", c.Slow)
	case c.Latency < 0:
		return fmt.Errorf("latency is negative: %v", c.Latency)
	case c.RetryAfter < 0:
		return fmt.Errorf("retry-after is negative: %d", c.RetryAfter)
	}
	return nil
}

// decision is what happens to one send.
type decision struct {
	fault Fault
	delay time.Duration
	at    float64 // where CutAnswer cuts, from 0 to 1
}

// decide counts the send and draws its lot.
func (p *Proxy) decide(op string) decision {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sends[op]++
	d := p.cfg.draw(op, p.sends[op])

	p.counts.Requests++
	if d.fault != None {
		p.counts.Faults[d.fault]++
	}
	if d.delay > 0 {
		p.counts.Slowed++
	}
	return d
}

// draw is a pure function of the seed, the operation and the number of the send.
func (c *Config) draw(op string, send int) decision {
	h := sha256.New()
	var n [16]byte
	binary.BigEndian.PutUint64(n[:8], c.Seed)
	binary.BigEndian.PutUint64(n[8:], uint64(send)) //nolint:gosec // a count from 1
	h.Write(n[:])
	h.Write([]byte(op))
	sum := h.Sum(nil)
	rnd := rand.New(rand.NewPCG(binary.BigEndian.Uint64(sum), binary.BigEndian.Uint64(sum[8:])))

	d := decision{}
	lot := rnd.Float64()
	for _, f := range Faults() {
		if lot < c.Rates[f] {
			d.fault = f
			break
		}
		lot -= c.Rates[f]
	}
	if rnd.Float64() < c.Slow {
		d.delay = time.Duration((1 - rnd.Float64()) * float64(c.Latency))
	}
	d.at = rnd.Float64()
	return d
}

// operation names the request by its key, or else by what it asks for.
func operation(req *http.Request, body []byte) string {
	if key := req.Header.Get("Idempotency-Key"); key != "" {
		return "key " + key
	}
	return fmt.Sprintf("%s %s %x", req.Method, req.RequestURI, sha256.Sum256(body))
}
