package oncemore

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// call is one logical call: what its attempts share, over all hops of a
// redirect. It is the context of its requests too, so that a response leads
// back to it.
type call struct {
	context.Context // the caller's, bounded by HTTPClient.Timeout

	client  *Client
	policy  *compiledPolicy
	began   time.Time
	overall time.Duration      // Policy.OverallTimeout, where it counts; 0: none
	cancel  context.CancelFunc // of HTTPClient.Timeout; nil: none

	// Side by side, here as in attempt, bools share a word, which matters as
	// there is one of these for every call.
	single   bool // WithoutRetry
	keyed    bool // the key still goes with the request
	bare     bool // the first attempt has no context of its own
	returned bool // the caller has the response
	retries  int32

	key    string
	method string
	origin *url.URL

	body     requestBody
	attempts []Attempt
	again    *again // nil before the first retry
	stop     StopReason
	req      *http.Request // of the latest hop

	room     [1]Attempt // room for the attempt of nearly every call
	first    attempt
	buffered bufferedBody
}

// again is what a call needs once it is retried, in one allocation: the delays
// of all its retries, and the room for the attempt that nearly always is the
// last one.
type again struct {
	delays backoff.ExponentialBackOff
	room   [2]Attempt
	second tracedAttempt
}

// delay returns the next delay, jitter not yet in it.
func (c *call) delay(p *Policy) time.Duration {
	if c.again == nil {
		c.again = &again{delays: newDelays(p)}
		c.attempts = append(c.again.room[:0], c.attempts...)
	}
	return c.again.delays.NextBackOff()
}

func newCall(c *Client, req *http.Request, timeout time.Duration) *call {
	k := &call{Context: req.Context(), client: c, policy: c.policy.Load(), began: time.Now()}
	k.attempts = k.room[:0]
	if timeout > 0 {
		k.Context, k.cancel = context.WithDeadline(k.Context, k.began.Add(timeout))
	}
	return k
}

// Value makes the call its own value. WithKey is for this call alone: a token
// that a hook fetches with this context must not be asked for under the key of
// a payment.
func (c *call) Value(key any) any {
	switch key.(type) {
	case callKey:
		return c
	case attemptKey:
		if c.bare {
			return &c.first
		}
	case withKey:
		if k, _ := c.Context.Value(key).(string); k == "" {
			return c.Context.Value(key)
		}
		return nil
	}
	return c.Context.Value(key)
}

// begin makes the private copy of the request, checks it, and settles what
// holds for the whole call. A prev is the call of the hop before, where
// net/http follows the redirects above us.
func (c *call) begin(req *http.Request, prev *call) (*http.Request, error) {
	hop := req.WithContext(c)
	if hop.Header = req.Header.Clone(); hop.Header == nil {
		hop.Header = http.Header{}
	}
	p := c.policy.forRequest(hop)
	c.single = c.Context.Value(withoutRetry{}) != nil
	c.body.init(req, c.keep(p))
	if err := checkRequest(hop); err != nil {
		return hop, err
	}
	if _, bounded := c.Deadline(); !bounded && p.OverallTimeout > 0 {
		c.overall = p.OverallTimeout
	}
	if prev != nil {
		c.key, c.keyed, c.method, c.origin = prev.key, prev.keyed, prev.method, prev.origin
		return hop, nil
	}
	key, err := c.findKey(hop, p)
	if err != nil {
		return hop, err
	}
	c.key, c.keyed, c.method, c.origin = key, key != "", methodOf(hop), hop.URL
	return hop, nil
}

// keep returns how much of a body to keep: nothing where no retry is possible.
func (c *call) keep(p *Policy) int64 {
	if c.single || p.MaxAttempts <= 1 {
		return 0
	}
	return max(p.MaxBufferedBody, 0)
}

// aim puts the key on the request of a hop, or takes it off: it stays with the
// method and the origin that it was made for. Once off, it stays off, also on
// the way back.
func (c *call) aim(req *http.Request) {
	c.keyed = c.keyed && methodOf(req) == c.method && sameOrigin(req.URL, c.origin)
	setKey(req.Header, c.hopKey())
}

// hopKey is the key that the latest hop carries.
func (c *call) hopKey() string {
	if c.keyed {
		return c.key
	}
	return ""
}

// ended returns why the caller's context is at its end, nil while it is not,
// and remembers it as the reason to stop.
func (c *call) ended(req *http.Request) error {
	err := endOf(req)
	if err == nil {
		return nil
	}
	c.stop = StopCanceled
	if errors.Is(err, context.DeadlineExceeded) {
		c.stop = StopDeadline
	}
	return withCause(c.Context, err)
}

// end returns the instant at which the call must have ended.
func (c *call) end() (time.Time, bool) {
	if t, ok := c.Deadline(); ok {
		return t, true
	}
	return c.began.Add(c.overall), c.overall > 0
}

// succeed ends the call with a response.
func (c *call) succeed(resp *http.Response) {
	c.body.finish()
	c.returned = true
	if c.cancel != nil && !hasCloser(resp) {
		c.cancel()
	}
	switch c.latest().Reason {
	case ReasonOK, ReasonFinalStatus:
		c.observe(EventDone, c.req, resp, 0)
	default:
		c.observe(EventGiveUp, c.req, resp, 0)
		c.logGiveUp(c.req, nil)
	}
}

// fail ends the call with an error.
func (c *call) fail(hop *http.Request, err error) *Error {
	c.body.finish()
	if c.cancel != nil {
		c.cancel()
	}
	if c.stop == 0 {
		c.stop = StopFinal
	}
	if c.req == nil {
		c.req = hop
	}
	c.observe(EventGiveUp, c.req, nil, 0)
	c.logGiveUp(c.req, err)
	return &Error{Attempts: c.attempts, Key: c.key, Stop: c.stop, Err: err}
}

// failURL ends the call with an error in the form in which http.Client does,
// at a URL that is already redacted; "" is that of the hop.
func (c *call) failURL(hop *http.Request, at string, err error) error {
	if at == "" && hop.URL != nil {
		at = redact(hop.URL)
	}
	method := methodOf(hop)
	return &url.Error{Op: method[:1] + strings.ToLower(method[1:]), URL: at, Err: c.fail(hop, err)}
}

// checkRequest finds what is wrong with a request before anything is sent. Its
// scheme is left to the transport.
func checkRequest(req *http.Request) error {
	switch u := req.URL; {
	case u == nil:
		return errors.New("nil Request.URL")
	case req.RequestURI != "":
		return errors.New("Request.RequestURI is set")
	case !isToken(methodOf(req)):
		return errors.New("invalid method")
	case u.Host == "" && (u.Scheme == "http" || u.Scheme == "https"):
		return errors.New("no host in the URL")
	case !isHost(cmp.Or(req.Host, u.Host)):
		return errors.New("invalid host")
	}
	for name, values := range req.Header {
		if !isToken(name) {
			return errors.New("invalid header name")
		}
		for _, v := range values {
			if !isFieldValue(v) {
				return errors.New("invalid value of header " + name)
			}
		}
	}
	return nil
}

// isToken follows RFC 9110 section 5.6.2.
func isToken(s string) bool {
	for i := range len(s) {
		switch b := s[i]; {
		case b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z', b >= '0' && b <= '9':
		case strings.IndexByte("!#$%&'*+-.^_`|~", b) < 0:
			return false
		}
	}
	return s != ""
}

// isFieldValue follows RFC 9110 section 5.5, as net/http reads it.
func isFieldValue(s string) bool {
	for i := range len(s) {
		if b := s[i]; b < ' ' && b != '\t' || b == 0x7F {
			return false
		}
	}
	return true
}

func isHost(s string) bool {
	for i := range len(s) {
		if b := s[i]; b <= ' ' || b == 0x7F || b == '/' {
			return false
		}
	}
	return true
}

func methodOf(req *http.Request) string {
	return cmp.Or(req.Method, http.MethodGet)
}

// sameOrigin compares scheme, host and port (RFC 6454 section 5).
func sameOrigin(a, b *url.URL) bool {
	return strings.EqualFold(a.Scheme, b.Scheme) &&
		strings.EqualFold(a.Hostname(), b.Hostname()) && portOf(a) == portOf(b)
}

// hostPort names a host for the budget, in a string of its own: that of the URL
// may be long, and the budget keeps the name.
func hostPort(u *url.URL) string {
	if port := portOf(u); u.Port() == "" && port != "" {
		return strings.ToLower(u.Host) + ":" + port
	}
	return strings.Clone(strings.ToLower(u.Host))
}

func portOf(u *url.URL) string {
	if port := u.Port(); port != "" {
		return port
	}
	switch strings.ToLower(u.Scheme) {
	case "http":
		return "80"
	case "https":
		return "443"
	}
	return ""
}
