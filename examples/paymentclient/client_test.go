package paymentclient_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore"
	"github.com/oncemore-go/oncemore/examples/internal/paymentapi"
	"github.com/oncemore-go/oncemore/examples/paymentclient"
	"github.com/oncemore-go/oncemore/internal/faultproxy"
)

// bank is the real payment API behind a faulty network.
type bank struct {
	t       *testing.T
	url     string
	network *faultproxy.Proxy
	entries func() []paymentapi.Entry
}

func newBank(t *testing.T, api paymentapi.Config, faults faultproxy.Config) *bank {
	t.Helper()
	db, err := paymentapi.OpenLedger(t.Context(), filepath.Join(t.TempDir(), "ledger.db"))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	handler, err := paymentapi.New(t.Context(), db, api)
	require.NoError(t, err)
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	network, err := faultproxy.Start(srv.Listener.Addr().String(), faults)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, network.Close()) })
	return &bank{t, network.URL(), network, func() []paymentapi.Entry {
		entries, err := paymentapi.Entries(t.Context(), db)
		require.NoError(t, err)
		return entries
	}}
}

// newClient is a client as another process would have it: it shares nothing.
func newClient(t *testing.T, url, tenant string, policy oncemore.Policy) *paymentclient.Client {
	t.Helper()
	policy.BaseDelay, policy.MaxDelay = time.Millisecond, 10*time.Millisecond
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	client, err := paymentclient.New(paymentclient.Config{
		BaseURL: url,
		Tenant:  tenant,
		Token:   paymentapi.Token(tenant),
		HTTP:    oncemore.Config{HTTPClient: &http.Client{Transport: transport}, Policy: &policy},
	})
	require.NoError(t, err)
	return client
}

func order(n int) paymentclient.ChargeRequest {
	return paymentclient.ChargeRequest{
		Order: fmt.Sprint("order-", n), Payer: "Müller", Payee: "山田", Amount: 1000 + int64(n), Currency: "EUR", Memo: "two\nlines",
	}
}

func TestCharge(t *testing.T) {
	t.Parallel()
	b := newBank(t, paymentapi.Config{}, faultproxy.Config{})
	client := newClient(t, b.url, "acme", oncemore.Policy{})

	first, err := client.Charge(t.Context(), order(1))
	require.NoError(t, err)
	assert.Equal(t, order(1), first.ChargeRequest)
	assert.NotEmpty(t, first.ID)
	assert.WithinDuration(t, time.Now(), first.Created, time.Minute)
	assert.False(t, first.Replayed)

	again, err := client.Charge(t.Context(), order(1))
	require.NoError(t, err)
	assert.True(t, again.Replayed)
	again.Replayed = false
	assert.Equal(t, first, again)

	other, err := newClient(t, b.url, "sakura", oncemore.Policy{}).Charge(t.Context(), order(1))
	require.NoError(t, err)
	assert.False(t, other.Replayed, "another tenant's order is another order")
	assert.NotEqual(t, first.ID, other.ID)
	assert.Len(t, b.entries(), 2)
}

func TestChargeThroughFaults(t *testing.T) {
	t.Parallel()
	b := newBank(t, paymentapi.Config{}, faultproxy.Config{Seed: 1, Rates: map[faultproxy.Fault]float64{
		faultproxy.LostAnswer: 0.15, faultproxy.CutAnswer: 0.1, faultproxy.GatewayTimeout: 0.05, faultproxy.ResetBefore: 0.05,
		faultproxy.Unavailable: 0.05, faultproxy.UnavailableAfter: 0.05, faultproxy.TooManyRequests: 0.05,
	}})
	client := newClient(t, b.url, "acme", oncemore.Policy{MaxAttempts: 30})

	const n = 100
	ids := make([]string, n)
	var replays atomic.Int64
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := worker; i < n; i += 8 {
				charge, err := client.Charge(t.Context(), order(i))
				if err != nil {
					t.Errorf("order %d: %v", i, err)
					return
				}
				ids[i] = charge.ID
				if charge.Replayed {
					replays.Add(1)
				}
			}
		})
	}
	wg.Wait()

	charged := map[string]string{}
	for _, e := range b.entries() {
		assert.NotContains(t, charged, e.Order, "charged twice")
		charged[e.Order] = e.ID
	}
	require.Len(t, charged, n)
	for i, id := range ids {
		assert.Equal(t, charged[order(i).Order], id, "the caller knows the charge that is in the ledger")
	}
	assert.Positive(t, replays.Load(), "answers were lost and given once more")
	assert.Greater(t, b.network.Counts().Requests, n)
}

// The caller dies, or gives up, when the charge is made and its answer is lost.
// Another process makes the same call, and gets that charge.
func TestCrashBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	b := newBank(t, paymentapi.Config{}, faultproxy.Config{Rates: map[faultproxy.Fault]float64{faultproxy.LostAnswer: 1}})
	before := newClient(t, b.url, "acme", oncemore.Policy{MaxAttempts: 1})
	_, err := before.Charge(t.Context(), order(1))
	require.ErrorIs(t, err, paymentclient.ErrUnknown)
	require.Len(t, b.entries(), 1)

	// The same API over a network that works.
	calm, err := faultproxy.Start(b.network.Upstream(), faultproxy.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, calm.Close()) })
	after := newClient(t, calm.URL(), "acme", oncemore.Policy{})
	charge, err := after.Charge(t.Context(), order(1))
	require.NoError(t, err)
	assert.True(t, charge.Replayed)
	assert.Equal(t, b.entries()[0].ID, charge.ID)
	assert.Len(t, b.entries(), 1)
}

func TestRefusedByTheAPI(t *testing.T) {
	t.Parallel()
	b := newBank(t, paymentapi.Config{Authorize: func(_ context.Context, e paymentapi.Entry) (bool, error) {
		return e.Amount <= 5000, nil
	}}, faultproxy.Config{})
	client := newClient(t, b.url, "acme", oncemore.Policy{})

	large := order(1)
	large.Amount = 5001
	_, err := client.Charge(t.Context(), large)
	require.ErrorIs(t, err, paymentclient.ErrDeclined)
	_, err = client.Charge(t.Context(), large)
	require.ErrorIs(t, err, paymentclient.ErrDeclined, "and stays so")

	_, err = client.Charge(t.Context(), order(2))
	require.NoError(t, err)
	changed := order(2)
	changed.Amount++
	_, err = client.Charge(t.Context(), changed)
	require.ErrorIs(t, err, paymentclient.ErrMismatch)

	bad := order(3)
	bad.Amount = 0
	_, err = client.Charge(t.Context(), bad)
	var e *paymentclient.Error
	require.ErrorAs(t, err, &e)
	require.NoError(t, e.Kind)
	assert.Equal(t, "invalid", e.Code)
	require.EqualError(t, err, `paymentclient: refused: status 400, "invalid": amount is not positive`)

	assert.Len(t, b.entries(), 1)
}

func TestExpiredOrder(t *testing.T) {
	t.Parallel()
	b := newBank(t, paymentapi.Config{Expiry: time.Millisecond}, faultproxy.Config{})
	client := newClient(t, b.url, "acme", oncemore.Policy{})
	_, err := client.Charge(t.Context(), order(1))
	require.NoError(t, err)
	time.Sleep(5 * time.Millisecond)
	_, err = client.Charge(t.Context(), order(1))
	require.ErrorIs(t, err, paymentclient.ErrExpired)
	assert.Len(t, b.entries(), 1)
}

// A second send while the first is being worked on is told so, where the API
// does not let it wait; when the first has ended, its charge is there.
func TestInProgress(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan struct{}), make(chan struct{})
	b := newBank(t, paymentapi.Config{Wait: -1, Authorize: func(context.Context, paymentapi.Entry) (bool, error) {
		close(asked)
		<-answer
		return true, nil
	}}, faultproxy.Config{})
	client := newClient(t, b.url, "acme", oncemore.Policy{})
	first := make(chan paymentclient.Charge, 1)
	go func() {
		charge, err := client.Charge(t.Context(), order(1))
		assert.NoError(t, err)
		first <- charge
	}()
	<-asked
	_, err := client.Charge(t.Context(), order(1))
	require.ErrorIs(t, err, paymentclient.ErrInProgress)
	close(answer)
	charge := <-first
	again, err := client.Charge(t.Context(), order(1))
	require.NoError(t, err)
	assert.Equal(t, charge.ID, again.ID)
	assert.Len(t, b.entries(), 1)
}

// The API does not know itself what became of the charge, and asks its bank no
// second time.
func TestUnknownToTheAPI(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	b := newBank(t, paymentapi.Config{Authorize: func(context.Context, paymentapi.Entry) (bool, error) {
		asked.Add(1)
		return false, errors.New("the line to the bank went dead")
	}}, faultproxy.Config{Rates: map[faultproxy.Fault]float64{faultproxy.LostAnswer: 0.3, faultproxy.GatewayTimeout: 0.3}})
	client := newClient(t, b.url, "acme", oncemore.Policy{MaxAttempts: 30})
	for i := range 10 {
		_, err := client.Charge(t.Context(), order(i))
		require.ErrorIs(t, err, paymentclient.ErrUnknown)
		var e *paymentclient.Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, "unknown", e.Code)
	}
	assert.EqualValues(t, 10, asked.Load())
	assert.Empty(t, b.entries())
}

// What the API says in situations that are hard to make, and what others say.
func TestErrorKinds(t *testing.T) {
	t.Parallel()
	lost := func(http.ResponseWriter) { panic(http.ErrAbortHandler) }
	say := func(status int, body string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		}
	}
	for _, tt := range []struct {
		name    string
		answers []func(http.ResponseWriter)
		kind    error
		status  int
		code    string
	}{
		{"in progress", []func(http.ResponseWriter){say(409, `{"code":"in-progress"}`)}, paymentclient.ErrInProgress, 409, "in-progress"},
		{"unknown to the API", []func(http.ResponseWriter){say(409, `{"code":"unknown"}`)}, paymentclient.ErrUnknown, 409, "unknown"},
		{"unavailable to the end", []func(http.ResponseWriter){lost, say(503, `{"code":"unavailable"}`), say(503, "busy")}, paymentclient.ErrUnknown, 503, ""},
		{"too many requests to the end", []func(http.ResponseWriter){lost, lost, say(429, `{}`)}, paymentclient.ErrUnknown, 429, ""},
		{"no answer to the end", []func(http.ResponseWriter){lost, lost, lost}, paymentclient.ErrUnknown, 0, ""},
		{"unauthorized", []func(http.ResponseWriter){say(401, `{"code":"unauthorized"}`)}, nil, 401, "unauthorized"},
		{"unauthorized, after an answer was lost", []func(http.ResponseWriter){lost, say(401, `{"code":"unauthorized"}`)}, paymentclient.ErrUnknown, 401, "unauthorized"},
		{"refused for good, after an answer was lost", []func(http.ResponseWriter){lost, say(400, `{"code":"invalid"}`)}, nil, 400, "invalid"},
		{"something else answers", []func(http.ResponseWriter){say(200, "<html>log in</html>")}, paymentclient.ErrUnknown, 200, ""},
		{"no charge in the answer", []func(http.ResponseWriter){say(201, "<html>")}, paymentclient.ErrUnknown, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var n atomic.Int64
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				tt.answers[n.Add(1)-1](w)
			}))
			defer srv.Close()
			client := newClient(t, srv.URL, "acme", oncemore.Policy{MaxAttempts: 3})

			_, err := client.Charge(t.Context(), order(1))

			var e *paymentclient.Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, tt.kind, e.Kind)
			assert.Equal(t, tt.status, e.Status)
			assert.Equal(t, tt.code, e.Code)
			assert.EqualValues(t, len(tt.answers), n.Load(), "attempts")
			assert.NotContains(t, err.Error(), oncemore.KeyFor("acme", "order-1"))
			assert.NotContains(t, err.Error(), paymentapi.Token("acme"))
		})
	}
}

func TestCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // until then the server does not see that the client leaves
		cancel()
		<-r.Context().Done()
	}))
	defer srv.Close()
	_, err := newClient(t, srv.URL, "acme", oncemore.Policy{}).Charge(ctx, order(1))
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, paymentclient.ErrUnknown)
	var attempts *oncemore.Error
	require.ErrorAs(t, err, &attempts, "what was tried can be read")
	assert.Len(t, attempts.Attempts, 1)
}

func TestNewErrors(t *testing.T) {
	t.Parallel()
	ok := paymentclient.Config{BaseURL: "https://pay.example.com/api", Tenant: "acme", Token: "x"}
	_, err := paymentclient.New(ok)
	require.NoError(t, err)

	for _, tt := range []struct {
		name string
		set  func(*paymentclient.Config)
		want string
	}{
		{"no URL", func(c *paymentclient.Config) { c.BaseURL = "" }, "scheme and a host"},
		{"no scheme", func(c *paymentclient.Config) { c.BaseURL = "pay.example.com" }, "scheme and a host"},
		{"bad URL", func(c *paymentclient.Config) { c.BaseURL = "https://pay.example.com:port" }, "base URL"},
		{"no tenant", func(c *paymentclient.Config) { c.Tenant = "" }, "no tenant"},
		{"no token", func(c *paymentclient.Config) { c.Token = "" }, "no token"},
		{"bad policy", func(c *paymentclient.Config) { c.HTTP.Policy = &oncemore.Policy{MaxAttempts: -1} }, "paymentclient: oncemore: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := ok
			tt.set(&cfg)
			_, err := paymentclient.New(cfg)
			require.ErrorContains(t, err, tt.want)
			assert.True(t, strings.HasPrefix(err.Error(), "paymentclient: "))
		})
	}
}

func TestErrorUnwrap(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	err := error(&paymentclient.Error{Kind: paymentclient.ErrUnknown, Err: cause})
	require.ErrorIs(t, err, paymentclient.ErrUnknown)
	require.ErrorIs(t, err, cause)
	assert.NotErrorIs(t, err, paymentclient.ErrDeclined)
}
