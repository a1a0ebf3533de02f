package oncemore

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// Config is what [New] makes a client of. The zero Config is a good one.
type Config struct {
	// HTTPClient is what the client sends with: its Transport, CheckRedirect,
	// Jar and Timeout are honoured, and copied by New. Timeout bounds the whole
	// call, the reading of the body too, as in net/http. Nil: a clone of
	// http.DefaultTransport, or http.DefaultTransport itself if it is no
	// *http.Transport; a nil Transport is http.DefaultTransport.
	HTTPClient *http.Client

	// Policy says what is retried, and how. It is copied. Nil: DefaultPolicy.
	Policy *Policy

	// NewKey makes the key of a call that has none from its header or from
	// WithKey. It is given a private copy of the request, whose body it must
	// not read (GetBody opens another). An error, or a key of the wrong form,
	// ends the call before anything is sent. Nil: NewKey.
	NewKey func(*http.Request) (string, error)

	// Budget bounds the retries to each host; clients that are given the same
	// one share it. It wins over Policy.Budget. Nil: one of its own.
	Budget *Budget

	// BeforeAttempt is called before each attempt, on each hop of a redirect:
	// to sign again, or to refresh a token. It may change req, which is a copy
	// made for this attempt with its body set; the idempotency key is put back
	// after it. It should look at req.URL before it adds a credential: a
	// redirect may have led to another host. Its error ends the call.
	BeforeAttempt func(req *http.Request, attempt int) error

	// StopRetry may veto a retry that the policy allows, by returning true. It
	// is called in the call's goroutine, after everything else has agreed. req
	// is a private copy.
	StopRetry func(req *http.Request, a Attempt) bool

	// Observer is told what happens, in the call's goroutine. With it each
	// attempt is traced, so that Attempt.Sends counts from the first one on.
	Observer func(context.Context, Event)

	// Logger gets one warning per retry, and one error per call that ended in
	// an error or on a retryable status, but for those that the caller
	// cancelled. Keys are hashed, URLs redacted. Nil: silent.
	Logger *slog.Logger
}

// Client is an http.Client that sends again what is worth sending again, and
// gives each operation one idempotency key, so that sending again is safe. It
// has the methods of http.Client. It may be used by many goroutines at once,
// and should be: its connections and its retry budget are what calls share.
//
// Where it differs from http.Client: an attempt has ten seconds for its
// response headers and a call thirty unless its context has a deadline, see
// [Policy]; the caller's *http.Request is never changed; and an error is a
// *url.Error that holds an [*Error].
type Client struct {
	transport     http.RoundTripper // nil: http.DefaultTransport, whatever it is by then
	checkRedirect func(*http.Request, []*http.Request) error
	jar           http.CookieJar
	timeout       time.Duration

	policy    atomic.Pointer[compiledPolicy]
	budget    *Budget
	ownBudget bool

	newKey        func(*http.Request) (string, error)
	beforeAttempt func(*http.Request, int) error
	stopRetry     func(*http.Request, Attempt) bool
	observer      func(context.Context, Event)
	logger        *slog.Logger
}

// New returns a client. Every invalid setting is an error here, and none is
// one later. No goroutine is started, and there is nothing to close.
func New(cfg Config) (*Client, error) {
	c := &Client{
		budget: cfg.Budget, newKey: cfg.NewKey, beforeAttempt: cfg.BeforeAttempt,
		stopRetry: cfg.StopRetry, observer: cfg.Observer, logger: cfg.Logger,
	}
	if hc := cfg.HTTPClient; hc != nil {
		c.transport, c.checkRedirect, c.jar, c.timeout = hc.Transport, hc.CheckRedirect, hc.Jar, hc.Timeout
	} else if t, ok := http.DefaultTransport.(*http.Transport); ok { //nolint:forbidigo // the documented default
		c.transport = t.Clone()
	}
	policy, err := compilePolicy(cfg.Policy)
	if err != nil {
		return nil, err
	}
	c.policy.Store(policy)
	if c.budget == nil {
		c.budget, c.ownBudget = NewBudget(policy.policy.Budget), true
	} else if err := c.budget.check(); err != nil {
		return nil, err
	}
	return c, nil
}

// SetPolicy changes the policy of the calls that begin from now on; calls under
// way keep the one that they began with. Nil is the default policy. The retry
// budget keeps its tokens, cut to the new capacity. On an error, which says
// what is wrong with p, nothing has changed.
func (c *Client) SetPolicy(p *Policy) error {
	policy, err := compilePolicy(p)
	if err != nil {
		return err
	}
	c.policy.Store(policy)
	if c.ownBudget {
		c.budget.resize(policy.policy.Budget)
	}
	return nil
}

// Do sends a request, and sends it again as the policy says, and returns the
// response of the last attempt: its body unread and open, for the caller to
// close. As with http.Client a status is never an error, also not when the
// attempts are used up on it; [StopOf] says why the call ended with it,
// [Attempts] what led there, [KeyOf] with which key.
//
// POST and PATCH get an idempotency key, the same one on each attempt: the one
// in the request's header, else that of [WithKey], else a new one. The key goes
// with a 307 or 308 on the same origin; it does not go to another origin, nor
// with a redirect that changes the method. Redirects are followed as net/http
// does, and a body without GetBody that was kept goes along too.
//
// The error is a *url.Error that wraps an [*Error], with the query and the
// password taken out of its URL. It comes with a response, already closed,
// only where CheckRedirect failed, as with http.Client.
//
// The request's body is closed, perhaps after Do has returned. A body that has
// GetBody is opened by it for each attempt, and can be sent again by another
// call to Do; that is another operation with another key.
func (c *Client) Do(req *http.Request) (*http.Response, error) {
	k := newCall(c, req, c.timeout)
	hop, err := k.begin(req, nil)
	if err != nil {
		return nil, k.failURL(hop, "", err)
	}
	hop.Response = nil // it is no redirect, whatever the caller took it from
	resp, at, err := k.follow(hop)
	if err != nil {
		return resp, k.failURL(hop, at, err)
	}
	k.succeed(resp)
	return resp, nil
}

// Get sends a GET request. See [Client.Do].
func (c *Client) Get(url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return c.Do(req)
}

// Head sends a HEAD request. See [Client.Do].
func (c *Client) Head(url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodHead, url, nil)
	if err != nil {
		return nil, err
	}
	return c.Do(req)
}

// Post sends a POST request, with a new idempotency key unless the policy says
// otherwise. The body is closed if it is an io.Closer. See [Client.Do].
func (c *Client) Post(url, contentType string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", contentType)
	return c.Do(req)
}

// PostForm sends a POST request with the data as its form. See [Client.Post].
func (c *Client) PostForm(url string, data url.Values) (*http.Response, error) {
	return c.Post(url, "application/x-www-form-urlencoded", strings.NewReader(data.Encode()))
}

// CloseIdleConnections closes the connections that are not in use, if the
// transport can.
func (c *Client) CloseIdleConnections() {
	if t, ok := c.roundTripper().(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// StandardClient returns a plain *http.Client with the same engine as its
// transport, for code that is typed to it. It shares the policy, the budget
// and the connections with c. Keys, retries, classification and events are the
// same; what it can't do, because net/http follows the redirects above it:
//
//   - each hop of a redirect is a call of its own with the same key: its
//     attempts count from 1, its overall time begins anew, it has an event of
//     its own at its end;
//   - a 307 or 308 is followed with a body only if the request has GetBody;
//   - the error of a call that Timeout ended is net/http's own and does not
//     hold an [*Error], and the URL in the *url.Error keeps its query;
//   - with a Jar, net/http adds the cookies to the caller's request.
func (c *Client) StandardClient() *http.Client {
	return &http.Client{Transport: standard{c}, CheckRedirect: c.checkRedirect, Jar: c.jar, Timeout: c.timeout}
}

// standard is the transport of a StandardClient.
type standard struct{ client *Client }

// RoundTrip sends one hop.
func (s standard) RoundTrip(req *http.Request) (*http.Response, error) {
	k := newCall(s.client, req, 0) // Timeout is above it
	hop, err := k.begin(req, callOf(req.Response))
	if err != nil {
		return nil, k.fail(hop, err)
	}
	resp, err := k.send(hop, k.body.exists())
	if err != nil {
		return nil, k.fail(hop, err)
	}
	k.succeed(resp)
	return resp, nil
}

// CloseIdleConnections is what http.Client.CloseIdleConnections looks for.
func (s standard) CloseIdleConnections() { s.client.CloseIdleConnections() }

func (c *Client) roundTripper() http.RoundTripper {
	if c.transport != nil {
		return c.transport
	}
	return http.DefaultTransport //nolint:forbidigo // the documented default
}
