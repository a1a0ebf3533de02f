package benchmarks

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/PuerkitoBio/rehttp"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	restyv2 "github.com/go-resty/resty/v2"
	"github.com/gojek/heimdall/v7"
	"github.com/gojek/heimdall/v7/httpclient"
	"github.com/google/uuid"
	"github.com/hashicorp/go-retryablehttp"
	restyv3 "resty.dev/v3"

	"github.com/oncemore-go/oncemore"
)

// subject is one line of the table.
type subject struct {
	name  string
	build func(http.RoundTripper, settings) sender

	keyless func(http.RoundTripper, settings) sender // with keys switched off; ours only
	keyed   bool                                     // makes a key for a POST
	noRetry bool                                     // plain net/http
}

// ours reports whether the subject is oncemore.
func (s *subject) ours() bool { return s.keyless != nil }

// subjects are the lines of the table, the floor first.
var subjects = []subject{
	{name: "net/http", build: plain, noRetry: true},
	{name: "oncemore, timeouts off", build: withPolicy(untimed), keyless: withPolicy(keyless(untimed)), keyed: true},
	{name: "oncemore, default policy", build: withPolicy(policy), keyless: withPolicy(keyless(policy)), keyed: true},
	{name: "StandardClient, timeouts off", build: standardWith(untimed), keyless: standardWith(keyless(untimed)), keyed: true},
	{name: "StandardClient, default policy", build: standardWith(policy), keyless: standardWith(keyless(policy)), keyed: true},
	{name: "go-retryablehttp 0.7.8", build: retryable},
	{name: "its StandardClient", build: retryableStandard},
	{name: "rehttp 1.4.0", build: rehttpClient},
	{name: "heimdall 7.0.3", build: heimdallClient},
	{name: "failsafe-go 0.9.8", build: failsafeClient},
	{name: "resty 3.0.0-rc.4", build: resty3},
	{name: "resty 2.17.2", build: resty2},
	{name: "aws-sdk-go-v2 retry 1.48.0", build: awsClient},
	{name: "loop written by hand", build: loop, keyed: true},
}

func plain(rt http.RoundTripper, _ settings) sender {
	return standard((&http.Client{Transport: rt}).Do)
}

func newRetryable(rt http.RoundTripper, s settings) *retryablehttp.Client {
	c := retryablehttp.NewClient()
	c.HTTPClient = &http.Client{Transport: rt}
	c.Logger = nil
	c.RetryMax = s.attempts - 1
	c.Backoff = func(_, _ time.Duration, _ int, _ *http.Response) time.Duration { return s.wait }
	return c
}

// retryable uses the library's own kind of request.
func retryable(rt http.RoundTripper, s settings) sender {
	return sendRetryable(newRetryable(rt, s))
}

func sendRetryable(c *retryablehttp.Client) sender {
	return func(m *message) (int, error) {
		var body any
		switch p := m.body; {
		case p == nil:
		case p.path == "":
			body = p.data
		default:
			body = retryablehttp.ReaderFunc(func() (io.Reader, error) { return os.Open(p.path) })
		}
		req, err := retryablehttp.NewRequest(m.method, m.url, body)
		if err != nil {
			return 0, err
		}
		if m.body != nil {
			req.Header["Content-Type"] = []string{"application/json"}
			req.ContentLength = m.body.size // of a file it does not find out by itself
		}
		return finish(c.Do(req))
	}
}

func retryableStandard(rt http.RoundTripper, s settings) sender {
	return standard(newRetryable(rt, s).StandardClient().Do)
}

func rehttpClient(rt http.RoundTripper, s settings) sender {
	retry := rehttp.RetryAll(
		rehttp.RetryMaxRetries(s.attempts-1),
		rehttp.RetryAny(rehttp.RetryStatusInterval(500, 600), rehttp.RetryIsErr(func(err error) bool { return err != nil })),
	)
	return standard((&http.Client{Transport: rehttp.NewTransport(rt, retry, rehttp.ConstDelay(s.wait))}).Do)
}

func heimdallClient(rt http.RoundTripper, s settings) sender {
	return standard(httpclient.NewClient(
		httpclient.WithHTTPClient(&http.Client{Transport: rt}),
		httpclient.WithRetryCount(s.attempts-1),
		httpclient.WithRetrier(heimdall.NewRetrierFunc(func(int) time.Duration { return s.wait })),
	).Do)
}

func failsafeClient(rt http.RoundTripper, s settings) sender {
	retry := failsafehttp.NewRetryPolicyBuilder().WithMaxRetries(s.attempts - 1).WithDelay(s.wait).ReturnLastFailure().Build() //nolint:bodyclose // there is no response yet
	return standard((&http.Client{Transport: failsafehttp.NewRoundTripper(rt, retry)}).Do)
}

func resty2(rt http.RoundTripper, s settings) sender {
	c := restyv2.NewWithClient(&http.Client{Transport: rt}).SetRetryCount(s.attempts - 1).
		SetRetryWaitTime(s.wait).SetRetryMaxWaitTime(s.wait).SetLogger(silent{}).
		AddRetryCondition(func(r *restyv2.Response, err error) bool { return err != nil || r.StatusCode() >= 500 })
	return func(m *message) (int, error) {
		req := c.R()
		if body, file, err := restyBody(m.body); err != nil {
			return 0, err
		} else if body != nil {
			defer closeFile(file)
			req.SetBody(body).SetHeader("Content-Type", "application/json")
		}
		resp, err := req.Execute(m.method, m.url)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode(), nil
	}
}

func resty3(rt http.RoundTripper, s settings) sender {
	c := restyv3.NewWithClient(&http.Client{Transport: rt}).SetRetryCount(s.attempts-1).SetLogger(silent{}).
		SetRetryAllowNonIdempotent(true).AddRetryConditions(restyv3.RetryConditionStatus5XX, restyv3.RetryConditionStatusZero).
		SetRetryDelayStrategy(func(*restyv3.Response, error) (time.Duration, error) { return s.wait, nil })
	return func(m *message) (int, error) {
		req := c.R()
		if body, file, err := restyBody(m.body); err != nil {
			return 0, err
		} else if body != nil {
			defer closeFile(file)
			req.SetBody(body).SetHeader("Content-Type", "application/json")
		}
		resp, err := req.Execute(m.method, m.url)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode(), nil
	}
}

// silent is a logger of resty.
type silent struct{}

func (silent) Debugf(string, ...any) {}
func (silent) Warnf(string, ...any)  {}
func (silent) Errorf(string, ...any) {}

// restyBody is a body as resty takes it: the bytes, or the open file.
func restyBody(p *payload) (body any, file *os.File, err error) {
	switch {
	case p == nil:
		return nil, nil, nil
	case p.path == "":
		return p.data, nil, nil
	}
	if file, err = os.Open(p.path); err != nil {
		return nil, nil, err
	}
	return file, file, nil
}

func closeFile(f *os.File) {
	if f != nil {
		_ = f.Close()
	}
}

// loop is the least that does the job: a key, and a new body for each attempt.
// It lacks nearly all that makes a retry safe and bounded.
func loop(rt http.RoundTripper, s settings) sender {
	c := &http.Client{Transport: rt}
	return standard(func(req *http.Request) (*http.Response, error) {
		if req.Method == http.MethodPost && req.Header[oncemore.KeyHeader] == nil {
			req.Header[oncemore.KeyHeader] = []string{uuid.NewString()}
		}
		for attempt := 1; ; attempt++ {
			resp, err := c.Do(req)
			if attempt == s.attempts || err == nil && resp.StatusCode < http.StatusInternalServerError {
				return resp, err
			}
			if err == nil {
				_ = discard(resp.Body)
				_ = resp.Body.Close()
			}
			if err := pause(req.Context(), s.wait); err != nil {
				return nil, err
			}
			if req.GetBody != nil {
				body, err := req.GetBody()
				if err != nil {
					return nil, err
				}
				again := *req
				again.Body = body
				req = &again
			}
		}
	})
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

var errStatus = errors.New("the status says that it failed")
