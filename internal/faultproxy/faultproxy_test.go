package faultproxy_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/faultproxy"
)

// No goroutine of a proxy may be left when all tests have ended.
func TestMain(m *testing.M) {
	before := runtime.NumGoroutine()
	code := m.Run()
	for deadline := time.Now().Add(5 * time.Second); code == 0 && runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			fmt.Fprintf(os.Stderr, "goroutines are left over:\n%s\n", buf[:runtime.Stack(buf, true)])
			code = 1
		}
	}
	os.Exit(code)
}

// seen is a server that counts what reaches it.
type seen struct {
	*httptest.Server
	n atomic.Int64
}

func newSeen(t *testing.T) *seen {
	t.Helper()
	s := &seen{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		s.n.Add(1)
		w.Header().Set("X-Seen", r.Method+" "+r.URL.RequestURI()+" "+r.Header.Get("X-Sent")+" ["+r.UserAgent()+"]")
		if r.Method == http.MethodDelete {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "got %s", body)
	}))
	t.Cleanup(s.Close)
	return s
}

func start(t *testing.T, upstream string, cfg faultproxy.Config) *faultproxy.Proxy {
	t.Helper()
	p, err := faultproxy.Start(strings.TrimPrefix(upstream, "http://"), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	return p
}

func client(t *testing.T) *http.Client {
	t.Helper()
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// received is what a client got, as far as it got it.
type received struct {
	status     int
	retryAfter string
	length     int64
	body       string
}

// send posts a body and returns what comes back.
func send(t *testing.T, c *http.Client, url, body string) (received, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	resp, err := c.Do(req)
	if err != nil {
		return received{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return received{resp.StatusCode, resp.Header.Get("Retry-After"), resp.ContentLength, string(b)}, err
}

func TestNoFault(t *testing.T) {
	t.Parallel()
	s := newSeen(t)
	p := start(t, s.URL, faultproxy.Config{})
	c := client(t)

	for _, tt := range []struct {
		name, method, body, want string
		status                   int
	}{
		{"body", http.MethodPost, "äöü", "got äöü", http.StatusCreated},
		{"no body", http.MethodPost, "", "got ", http.StatusCreated},
		{"get", http.MethodGet, "", "got ", http.StatusCreated},
		{"head", http.MethodHead, "", "", http.StatusCreated},
		{"no content", http.MethodDelete, "", "", http.StatusNoContent},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), tt.method, p.URL()+"/a%2Fb?q=1", strings.NewReader(tt.body))
			require.NoError(t, err)
			req.Header.Set("X-Sent", "x")
			req.Header.Set("User-Agent", "")
			resp, err := c.Do(req)
			require.NoError(t, err)
			defer resp.Body.Close()
			got, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			assert.Equal(t, tt.status, resp.StatusCode)
			assert.Equal(t, tt.want, string(got))
			assert.Equal(t, tt.method+" /a%2Fb?q=1 x []", resp.Header.Get("X-Seen"), "the request arrives as it was sent")
			assert.False(t, resp.Close, "the client's connection is kept")
		})
	}
	counts := p.Counts()
	assert.Equal(t, 5, counts.Requests)
	assert.Equal(t, 5, counts.Forwarded)
	assert.Empty(t, counts.Faults)
}

func TestChunkedAndExpect(t *testing.T) {
	t.Parallel()
	s := newSeen(t)
	p := start(t, s.URL, faultproxy.Config{})
	tr := &http.Transport{ExpectContinueTimeout: time.Minute}
	t.Cleanup(tr.CloseIdleConnections)

	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL(), io.MultiReader(strings.NewReader("in "), strings.NewReader("pieces")))
	require.NoError(t, err)
	req.Header.Set("Expect", "100-continue")
	resp, err := tr.RoundTrip(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Equal(t, "got in pieces", string(got))
}

func TestChunkedAnswerIsPassedOnWhole(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusProcessing)
		for i := range 3 {
			fmt.Fprint(w, i)
			_ = http.NewResponseController(w).Flush()
		}
	}))
	t.Cleanup(srv.Close)
	p := start(t, srv.URL, faultproxy.Config{})

	got, err := send(t, client(t), p.URL(), "")
	require.NoError(t, err)
	assert.Equal(t, received{http.StatusOK, "", 3, "012"}, got)
}

func TestFaults(t *testing.T) {
	t.Parallel()
	const body = "pay 1000"
	for _, tt := range []struct {
		fault      faultproxy.Fault
		done       int64 // how often the server did the work
		status     int   // that the client gets; 0: an error
		retryAfter string
	}{
		{faultproxy.LostAnswer, 1, 0, ""},
		{faultproxy.CutAnswer, 1, 0, ""},
		{faultproxy.GatewayTimeout, 1, http.StatusGatewayTimeout, ""},
		{faultproxy.ResetBefore, 0, 0, ""},
		{faultproxy.Unavailable, 0, http.StatusServiceUnavailable, ""},
		{faultproxy.UnavailableAfter, 0, http.StatusServiceUnavailable, "2"},
		{faultproxy.TooManyRequests, 0, http.StatusTooManyRequests, "2"},
	} {
		t.Run(tt.fault.String(), func(t *testing.T) {
			t.Parallel()
			s := newSeen(t)
			p := start(t, s.URL, faultproxy.Config{
				Rates:      map[faultproxy.Fault]float64{tt.fault: 1},
				RetryAfter: 2,
			})

			got, err := send(t, client(t), p.URL(), body)

			assert.Equal(t, tt.done, s.n.Load(), "times the work was done")
			if tt.status == 0 {
				require.Error(t, err)
				if tt.fault != faultproxy.CutAnswer {
					require.ErrorIs(t, err, syscall.ECONNRESET, "a reset, not an end of stream")
				}
			} else {
				require.NoError(t, err)
				assert.Equal(t, tt.status, got.status)
				assert.Equal(t, tt.retryAfter, got.retryAfter)
			}
			assert.Equal(t, map[faultproxy.Fault]int{tt.fault: 1}, p.Counts().Faults)
		})
	}
}

// A cut answer has its headers, and never the whole of its body.
func TestCutAnswer(t *testing.T) {
	t.Parallel()
	s := newSeen(t)
	for seed := range uint64(50) {
		p := start(t, s.URL, faultproxy.Config{
			Seed:  seed,
			Rates: map[faultproxy.Fault]float64{faultproxy.CutAnswer: 1},
		})
		got, err := send(t, client(t), p.URL(), "0123456789")
		require.Error(t, err)
		assert.Less(t, len(got.body), len("got 0123456789"))
	}
}

// outcomes sends each of n operations until it succeeds, from several
// goroutines, and lists what each send met.
func outcomes(t *testing.T, seed uint64, n, workers int, withKey bool) []string {
	t.Helper()
	s := newSeen(t)
	p := start(t, s.URL, faultproxy.Config{
		Seed:  seed,
		Rates: map[faultproxy.Fault]float64{faultproxy.GatewayTimeout: 0.3, faultproxy.Unavailable: 0.2, faultproxy.TooManyRequests: 0.1},
	})
	c := client(t)
	got := make([]string, n)
	next := make(chan int)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range next {
				for done := false; !done; {
					req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL(), strings.NewReader(fmt.Sprint("operation ", i)))
					if err != nil {
						return
					}
					if withKey {
						req.Header.Set("Idempotency-Key", fmt.Sprint("key-", i))
					}
					resp, err := c.Do(req)
					if err != nil {
						got[i] += err.Error()
						return
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
					got[i] += fmt.Sprint(resp.StatusCode, " ")
					done = resp.StatusCode == http.StatusCreated
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	return got
}

func TestSeedDecides(t *testing.T) {
	t.Parallel()
	for _, withKey := range []bool{true, false} {
		one := outcomes(t, 1, 100, 1, withKey)
		assert.Equal(t, one, outcomes(t, 1, 100, 16, withKey), "the order of the goroutines decides nothing")
		assert.NotEqual(t, one, outcomes(t, 2, 100, 16, withKey), "another seed is another run")
	}
}

func TestRates(t *testing.T) {
	t.Parallel()
	all := strings.Fields(strings.Join(outcomes(t, 7, 500, 8, true), ""))
	count := map[string]float64{}
	for _, status := range all {
		count[status]++
	}
	total := float64(len(all))
	assert.InDelta(t, 0.3, count["504"]/total, 0.06)
	assert.InDelta(t, 0.2, count["503"]/total, 0.06)
	assert.InDelta(t, 0.1, count["429"]/total, 0.06)
	assert.InDelta(t, 0.4, count["201"]/total, 0.06)
}

func TestOperation(t *testing.T) {
	t.Parallel()
	s := newSeen(t)
	var ops []string
	p := start(t, s.URL, faultproxy.Config{Operation: func(r *http.Request, body []byte) string {
		ops = append(ops, r.Method+" "+string(body))
		return "all the same"
	}})
	_, err := send(t, client(t), p.URL(), "a")
	require.NoError(t, err)
	assert.Equal(t, []string{"POST a"}, ops)
}

func TestLatency(t *testing.T) {
	t.Parallel()
	s := newSeen(t)
	p := start(t, s.URL, faultproxy.Config{Slow: 1, Latency: time.Hour})

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for p.Counts().Slowed == 0 {
			runtime.Gosched()
		}
		cancel()
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL(), http.NoBody)
	require.NoError(t, err)
	_, err = client(t).Do(req)
	require.ErrorIs(t, err, context.Canceled)
	assert.Zero(t, s.n.Load())
	require.NoError(t, p.Close(), "close does not wait for the hour")
}

func TestServerGone(t *testing.T) {
	t.Parallel()
	s := newSeen(t)
	p := start(t, s.URL, faultproxy.Config{})
	s.Close()

	_, err := send(t, client(t), p.URL(), "x")
	require.Error(t, err)
	assert.Equal(t, 1, p.Counts().Broken)
}

func TestNotHTTP(t *testing.T) {
	t.Parallel()
	s := newSeen(t)
	p := start(t, s.URL, faultproxy.Config{})
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", p.Addr())
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "hello\r\n\r\n")
	require.NoError(t, err)
	_, err = bufio.NewReader(conn).ReadByte()
	require.Error(t, err)
	assert.Zero(t, p.Counts().Requests)
}

func TestConfigErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		cfg  faultproxy.Config
		want string
	}{
		{"negative rate", faultproxy.Config{Rates: map[faultproxy.Fault]float64{faultproxy.LostAnswer: -0.1}}, `rate of "answer lost" is -0.1`},
		{"rate over 1", faultproxy.Config{Rates: map[faultproxy.Fault]float64{faultproxy.CutAnswer: 1.5}}, "not from 0 to 1"},
		{"sum over 1", faultproxy.Config{Rates: map[faultproxy.Fault]float64{faultproxy.CutAnswer: 0.6, faultproxy.LostAnswer: 0.6}}, "add up to 1.2"},
		{"a rate of none", faultproxy.Config{Rates: map[faultproxy.Fault]float64{faultproxy.None: 0.5}}, "unknown fault 0"},
		{"slow", faultproxy.Config{Slow: 2}, "slow is 2"},
		{"latency", faultproxy.Config{Latency: -1}, "latency is negative"},
		{"retry-after", faultproxy.Config{RetryAfter: -1}, "retry-after is negative"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := faultproxy.Start("127.0.0.1:1", tt.cfg)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

// Closing while requests are under way leaves nothing behind.
func TestClose(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	defer close(release)
	reached := make(chan struct{}, 8)
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		reached <- struct{}{}
		<-release
	}))
	t.Cleanup(srv.Close)
	u, err := url.Parse(srv.URL)
	require.NoError(t, err)
	p, err := faultproxy.Start(u.Host, faultproxy.Config{})
	require.NoError(t, err)

	c := client(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			_, err := send(t, c, p.URL(), "x")
			assert.Error(t, err)
		})
	}
	for range 8 {
		<-reached
	}
	require.NoError(t, p.Close())
	require.NoError(t, p.Close(), "twice is once")
	wg.Wait()
	_, err = send(t, c, p.URL(), "x")
	require.Error(t, err)
}
