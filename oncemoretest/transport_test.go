package oncemoretest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore"
	"github.com/oncemore-go/oncemore/oncemoretest"
)

const url = "https://pay.example.com/v1/charges?expand=payer"

// newClient is a client over a scripted network.
func newClient(t *testing.T, network http.RoundTripper, policy *oncemore.Policy) *oncemore.Client {
	t.Helper()
	client, err := oncemore.New(oncemore.Config{HTTPClient: &http.Client{Transport: network}, Policy: policy})
	require.NoError(t, err)
	return client
}

// post makes a POST with a body that can be read once.
func post(t *testing.T, ctx context.Context, body string) *http.Request { //nolint:revive // the test comes first
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, struct{ io.Reader }{strings.NewReader(body)})
	require.NoError(t, err)
	return req
}

func read(t *testing.T, resp *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return string(body)
}

func reasonsOf(attempts []oncemore.Attempt) []oncemore.Reason {
	var reasons []oncemore.Reason
	for _, a := range attempts {
		reasons = append(reasons, a.Reason)
	}
	return reasons
}

// TestEveryStep goes through a whole script, in fake time, with both forms of
// the client.
func TestEveryStep(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"Client", "StandardClient"} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				done := oncemoretest.Answer(http.StatusCreated, "charge ch_1", "Content-Type", "text/plain", "Link", "</a>", "Link", "</b>")
				network := oncemoretest.NewTransport(
					oncemoretest.Reset,
					oncemoretest.Lost(done),
					oncemoretest.Answer(http.StatusServiceUnavailable, "later", "Retry-After", "7"),
					oncemoretest.Cut(done),
					oncemoretest.Delay(time.Minute, done), // longer than an attempt may take
					oncemoretest.Delay(time.Second, done),
				)
				client := newClient(t, network, &oncemore.Policy{
					MaxAttempts: 6, BaseDelay: time.Second, Jitter: oncemore.JitterNone, MaxDelay: time.Second, OverallTimeout: -1,
				})
				do := client.Do
				if form == "StandardClient" {
					do = client.StandardClient().Do
				}
				began := time.Now()
				resp, err := do(post(t, t.Context(), "amount=1000"))
				require.NoError(t, err)

				assert.Equal(t, "201 Created", resp.Status)
				assert.EqualValues(t, 11, resp.ContentLength)
				assert.Equal(t, []string{"</a>", "</b>"}, resp.Header["Link"])
				assert.Equal(t, "charge ch_1", read(t, resp))
				assert.Equal(t, []oncemore.Reason{
					oncemore.ReasonConnection, oncemore.ReasonConnection, oncemore.ReasonRetryableStatus,
					oncemore.ReasonConnection, oncemore.ReasonAttemptTimeout, oncemore.ReasonOK,
				}, reasonsOf(oncemore.Attempts(resp)))

				sent := network.Sent()
				oncemoretest.AssertAttempts(t, sent, 6)
				oncemoretest.AssertSameKey(t, sent)
				oncemoretest.AssertSameBody(t, sent)
				for i, r := range sent {
					assert.Equal(t, i+1, r.Attempt)
					assert.Equal(t, http.MethodPost, r.Method)
					assert.Equal(t, url, r.URL)
					assert.Equal(t, "amount=1000", r.Body)
					assert.Equal(t, r.Header.Get("Idempotency-Key"), r.Key)
				}
				assert.Equal(t, oncemore.KeyOf(resp), sent[0].Key)
				assert.Equal(t, began, sent[0].At)
				assert.GreaterOrEqual(t, sent[3].At.Sub(sent[2].At), 7*time.Second, "Retry-After")
				assert.Equal(t, 11*time.Second, sent[5].At.Sub(sent[4].At), "the attempt's time and a wait")
				assert.Equal(t, sent[5].At.Add(time.Second), time.Now())
			})
		})
	}
}

// TestResetIsAsTheRealOne compares it with a connection that a server really
// resets.
func TestResetIsAsTheRealOne(t *testing.T) {
	t.Parallel()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		_, _ = conn.Read(make([]byte, 1<<10))
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = conn.Close()
	})
	defer wg.Wait()
	defer ln.Close()

	real := &http.Transport{}
	defer real.CloseIdleConnections()
	for name, rt := range map[string]http.RoundTripper{
		"real": real, "Reset": oncemoretest.NewTransport(oncemoretest.Reset), "Lost": oncemoretest.NewTransport(oncemoretest.Lost(oncemoretest.Answer(200, "x"))),
	} {
		// Without a key it must not be sent again.
		client := newClient(t, rt, &oncemore.Policy{KeyMethods: []string{}})
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+ln.Addr().String(), strings.NewReader("x"))
		require.NoError(t, err)
		_, err = client.Do(req)
		require.Error(t, err, name)

		var failure *oncemore.Error
		require.ErrorAs(t, err, &failure, name)
		require.Len(t, failure.Attempts, 1, name)
		assert.Equal(t, oncemore.ReasonConnection, failure.Attempts[0].Reason, name)
		assert.Equal(t, oncemore.StopFinal, failure.Stop, name)
		var op *net.OpError
		require.ErrorAs(t, err, &op, name)
		assert.Equal(t, "read", op.Op, name)
		require.ErrorIs(t, err, syscall.ECONNRESET, name)
		assert.Contains(t, err.Error(), "connection reset by peer", name)
		assert.False(t, failure.Timeout(), name)
	}
}

func TestCutIsSeenAtRead(t *testing.T) {
	t.Parallel()
	network := oncemoretest.NewTransport(oncemoretest.Cut(oncemoretest.Answer(http.StatusOK, "0123456789")))
	resp, err := newClient(t, network, nil).Get(url) // no key, so the body is the caller's to read
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.EqualValues(t, 10, resp.ContentLength)
	body, err := io.ReadAll(resp.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	assert.Equal(t, "01234", string(body))

	assert.PanicsWithValue(t, "oncemoretest: Cut of an answer that has no body", func() {
		_, _ = oncemoretest.Cut(oncemoretest.Answer(http.StatusOK, ""))(request(t))
	})
}

func TestDelayEndsWithTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("the user left")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(3*time.Second, func() { cancel(gone) })
		worked := false
		network := oncemoretest.NewTransport(oncemoretest.Delay(time.Hour, func(req *http.Request) (*http.Response, error) {
			worked = true
			return oncemoretest.Answer(http.StatusOK, "x")(req)
		}))
		began := time.Now()
		_, err := network.RoundTrip(post(t, ctx, "x"))
		require.ErrorIs(t, err, gone)
		assert.Equal(t, 3*time.Second, time.Since(began))
		assert.True(t, worked)
		oncemoretest.AssertAttempts(t, network.Sent(), 1)

		_, err = network.RoundTrip(post(t, ctx, "x"))
		require.ErrorIs(t, err, gone)
		oncemoretest.AssertAttempts(t, network.Sent(), 1)

		body := &closes{Reader: strings.NewReader("x")} // and where it is no transport's step
		late := oncemoretest.Delay(time.Hour, func(*http.Request) (*http.Response, error) {
			return &http.Response{Body: body}, nil
		})
		_, err = late(post(t, ctx, "x"))
		require.ErrorIs(t, err, gone)
		assert.True(t, body.closed)
	})
}

func TestAnAnswerToAClientThatHasGone(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	body := &closes{Reader: strings.NewReader("x")}
	network := oncemoretest.NewTransport(func(*http.Request) (*http.Response, error) {
		cancel()
		return &http.Response{StatusCode: http.StatusOK, Body: body}, nil
	})
	_, err := network.RoundTrip(post(t, ctx, "x"))
	require.ErrorIs(t, err, context.Canceled)
	assert.True(t, body.closed)
}

// TestRoundTripperContract: the request is left alone, its body is closed in
// any case, and a response has the request.
func TestRoundTripperContract(t *testing.T) {
	t.Parallel()
	meddle := func(req *http.Request) (*http.Response, error) {
		req.Header.Set("X-Meddled", "yes")
		req.URL.Path = "/meddled"
		return oncemoretest.Answer(http.StatusOK, "")(req)
	}
	network := oncemoretest.NewTransport(meddle, oncemoretest.Reset, func(*http.Request) (*http.Response, error) { return nil, nil })
	for i := range 3 {
		body := &closes{Reader: strings.NewReader("x")}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
		require.NoError(t, err)
		resp, err := network.RoundTrip(req)
		assert.Equal(t, i > 0, err != nil)
		assert.Equal(t, i > 0, resp == nil)
		if resp != nil {
			assert.Same(t, req, resp.Request)
		}
		assert.True(t, body.closed)
		assert.Equal(t, url, req.URL.String())
		assert.Empty(t, req.Header)
	}

	body := &closes{Reader: io.MultiReader(strings.NewReader("x"), failing{})}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
	require.NoError(t, err)
	_, err = network.RoundTrip(req)
	require.ErrorIs(t, err, errDisk)
	assert.True(t, body.closed)
	oncemoretest.AssertAttempts(t, network.Sent(), 3)
	for _, r := range network.Sent() {
		assert.Equal(t, url, r.URL)
		assert.Empty(t, r.Header)
	}
}

func TestTheLastStepRepeats(t *testing.T) {
	t.Parallel()
	network := oncemoretest.NewTransport(oncemoretest.Reset, oncemoretest.Answer(http.StatusTeapot, ""))
	var zero oncemoretest.Transport
	for i, want := range []int{0, 418, 418, 418} {
		resp, err := network.RoundTrip(request(t))
		if want == 0 {
			require.Error(t, err)
		} else {
			require.NoError(t, err)
			assert.Equal(t, want, resp.StatusCode)
			require.NoError(t, resp.Body.Close())
		}
		resp, err = zero.RoundTrip(request(t))
		require.NoError(t, err)
		assert.Equal(t, http.StatusOK, resp.StatusCode)
		require.NoError(t, resp.Body.Close())
		assert.Len(t, zero.Sent(), i+1)
		assert.Equal(t, http.MethodGet, zero.Sent()[i].Method)
		assert.Zero(t, zero.Sent()[i].Attempt, "not sent by package oncemore")
	}
}

func TestAnswerToHead(t *testing.T) {
	t.Parallel()
	network := oncemoretest.NewTransport(oncemoretest.Answer(http.StatusOK, "12345"))
	resp, err := newClient(t, network, nil).Head(url)
	require.NoError(t, err)
	assert.EqualValues(t, 5, resp.ContentLength)
	assert.Empty(t, read(t, resp))
	odd := []string{"Retry-After"}
	assert.Panics(t, func() { oncemoretest.Answer(http.StatusOK, "", odd...) })
}

// TestSendsAreCounted: an observer sees that each attempt was written once.
func TestSendsAreCounted(t *testing.T) {
	t.Parallel()
	network := oncemoretest.NewTransport(oncemoretest.Reset, oncemoretest.Answer(http.StatusOK, ""))
	var sends []int
	client, err := oncemore.New(oncemore.Config{
		HTTPClient: &http.Client{Transport: network},
		Policy:     &oncemore.Policy{BaseDelay: time.Millisecond},
		Observer: func(_ context.Context, e oncemore.Event) {
			if e.Kind == oncemore.EventAttempt {
				sends = append(sends, e.Attempt.Sends)
			}
		},
	})
	require.NoError(t, err)
	resp, err := client.Do(post(t, t.Context(), "x"))
	require.NoError(t, err)
	read(t, resp)
	assert.Equal(t, []int{1, 1}, sends)
}

// TestManyAtOnce is for the race detector.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	network := oncemoretest.NewTransport(oncemoretest.Reset, oncemoretest.Lost(oncemoretest.Answer(http.StatusOK, "")), oncemoretest.Answer(http.StatusOK, "x"))
	client := newClient(t, network, &oncemore.Policy{BaseDelay: time.Millisecond})
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			resp, err := client.Do(post(t, t.Context(), fmt.Sprint(i)))
			if assert.NoError(t, err) {
				assert.NoError(t, resp.Body.Close())
			}
			network.Sent()
		})
	}
	wg.Wait()
	oncemoretest.AssertAttempts(t, network.Sent(), 22)
}

// TestWithAPlainClient: it is a transport like any other.
func TestWithAPlainClient(t *testing.T) {
	t.Parallel()
	network := oncemoretest.NewTransport(
		oncemoretest.Answer(http.StatusTemporaryRedirect, "", "Location", "/v2"), oncemoretest.Answer(http.StatusOK, "there"))
	client := &http.Client{Transport: network}
	resp, err := client.Do(request(t))
	require.NoError(t, err)
	assert.Equal(t, "there", read(t, resp))
	assert.Equal(t, "https://pay.example.com/v2", network.Sent()[1].URL)
}

func request(t *testing.T) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "", url, nil)
	require.NoError(t, err)
	return req
}

// closes is a body that knows whether it was closed.
type closes struct {
	io.Reader
	closed bool
}

func (c *closes) Close() error {
	c.closed = true
	return nil
}

var errDisk = errors.New("disk error")

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errDisk }
