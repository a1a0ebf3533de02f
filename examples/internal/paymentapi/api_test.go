package paymentapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/examples/internal/paymentapi"
)

type answer struct {
	status   int
	header   http.Header
	code     string
	id       string
	order    string
	body     string
	replayed bool
}

type fixture struct {
	t *testing.T
	*httptest.Server
	entries func() []paymentapi.Entry
}

func setup(t *testing.T, cfg paymentapi.Config) *fixture {
	t.Helper()
	db, err := paymentapi.OpenLedger(t.Context(), filepath.Join(t.TempDir(), "a ledger?#%.db"))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	api, err := paymentapi.New(t.Context(), db, cfg)
	require.NoError(t, err)
	srv := httptest.NewServer(api)
	t.Cleanup(srv.Close)
	return &fixture{t, srv, func() []paymentapi.Entry {
		entries, err := paymentapi.Entries(t.Context(), db)
		require.NoError(t, err)
		return entries
	}}
}

func (f *fixture) do(method, path, tenant, key, body string) answer {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), method, f.URL+path, strings.NewReader(body))
	require.NoError(f.t, err)
	if tenant != "" {
		req.Header.Set("Authorization", "Bearer "+paymentapi.Token(tenant))
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := f.Client().Do(req)
	require.NoError(f.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(f.t, err)
	var doc struct{ Code, ID, Order string }
	require.NoError(f.t, json.Unmarshal(b, &doc), "%s", b)
	return answer{
		resp.StatusCode, resp.Header, doc.Code, doc.ID, doc.Order, string(b),
		resp.Header.Get("Idempotency-Replayed") == "true",
	}
}

func (f *fixture) charge(tenant, key, body string) answer {
	f.t.Helper()
	return f.do(http.MethodPost, "/v1/charges", tenant, key, body)
}

func body(order string, amount int) string {
	return fmt.Sprintf(`{"order":%q,"payer":"Müller","payee":"山田","amount":%d,"currency":"EUR","memo":"a\nb"}`, order, amount)
}

func TestChargeAndReplay(t *testing.T) {
	t.Parallel()
	f := setup(t, paymentapi.Config{})

	first := f.charge("acme", "key-1", body("o-1", 1000))
	require.Equal(t, http.StatusCreated, first.status, first.body)
	assert.False(t, first.replayed)
	assert.Equal(t, "/v1/charges/"+first.id, first.header.Get("Location"))

	again := f.charge("acme", "key-1", body("o-1", 1000))
	assert.Equal(t, http.StatusCreated, again.status)
	assert.True(t, again.replayed)
	assert.Equal(t, first.body, again.body, "the body is made again from the ledger, and is the same")
	assert.Equal(t, first.header.Get("Location"), again.header.Get("Location"))
	assert.Equal(t, "application/json", again.header.Get("Content-Type"))
	assert.Contains(t, again.header.Get("Link"), "latest-version")

	entries := f.entries()
	require.Len(t, entries, 1)
	e := entries[0]
	assert.WithinDuration(t, time.Now(), e.Created, time.Minute)
	e.Created = time.Time{}
	assert.Equal(t, paymentapi.Entry{
		ID: first.id, Tenant: "acme", Order: "o-1", Payer: "Müller", Payee: "山田", Amount: 1000, Currency: "EUR", Memo: "a\nb",
	}, e)

	shown := f.do(http.MethodGet, "/v1/charges/"+first.id, "acme", "", "")
	assert.Equal(t, http.StatusOK, shown.status)
	assert.Equal(t, first.body, shown.body)
}

func TestTenants(t *testing.T) {
	t.Parallel()
	f := setup(t, paymentapi.Config{})

	a := f.charge("acme", "key-1", body("o-1", 1000))
	b := f.charge("sakura", "key-1", body("o-1", 1000))
	assert.False(t, b.replayed, "the key of another tenant is another key")
	assert.NotEqual(t, a.id, b.id)
	assert.Len(t, f.entries(), 2)

	other := f.do(http.MethodGet, "/v1/charges/"+a.id, "sakura", "", "")
	assert.Equal(t, http.StatusNotFound, other.status)
	assert.Equal(t, "not-found", other.code)
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	f := setup(t, paymentapi.Config{Authorize: func(_ context.Context, e paymentapi.Entry) (bool, error) {
		return e.Amount <= 5000, nil
	}})
	f.charge("acme", "used", body("o-1", 1000))

	for _, tt := range []struct {
		name, tenant, key, body string
		status                  int
		code                    string
	}{
		{"no token", "", "k1", body("o-2", 1), http.StatusUnauthorized, "unauthorized"},
		{"no key", "acme", "", body("o-2", 1), http.StatusBadRequest, "missing"},
		{"other body", "acme", "used", body("o-1", 1001), http.StatusUnprocessableEntity, "mismatch"},
		{"over the limit of the bank", "acme", "k2", body("o-2", 5001), http.StatusPaymentRequired, "declined"},
		{"no JSON", "acme", "k3", "charge me", http.StatusBadRequest, "invalid"},
		{"unknown field", "acme", "k4", `{"order":"x","tip":1}`, http.StatusBadRequest, "invalid"},
		{"no order", "acme", "k5", `{"payer":"a","payee":"b","amount":1,"currency":"EUR"}`, http.StatusBadRequest, "invalid"},
		{"no payee", "acme", "k6", `{"order":"x","payer":"a","amount":1,"currency":"EUR"}`, http.StatusBadRequest, "invalid"},
		{"zero", "acme", "k7", body("o-2", 0), http.StatusBadRequest, "invalid"},
		{"no currency", "acme", "k8", `{"order":"x","payer":"a","payee":"b","amount":1}`, http.StatusBadRequest, "invalid"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := f.charge(tt.tenant, tt.key, tt.body)
			assert.Equal(t, tt.status, got.status, got.body)
			assert.Equal(t, tt.code, got.code)
			assert.Equal(t, "application/problem+json", got.header.Get("Content-Type"))
		})
	}
	assert.Len(t, f.entries(), 1, "nothing of that was charged")

	again := f.charge("acme", "k2", body("o-2", 5001))
	assert.Equal(t, http.StatusPaymentRequired, again.status)
	assert.True(t, again.replayed, "a declined payment stays declined")
}

// When nobody knows whether the bank has paid, the order is not free to be sent
// to it again.
func TestUnknownOutcome(t *testing.T) {
	t.Parallel()
	asked := 0
	f := setup(t, paymentapi.Config{Authorize: func(context.Context, paymentapi.Entry) (bool, error) {
		asked++
		return false, errors.New("the line to the bank went dead")
	}})
	first := f.charge("acme", "key-1", body("o-1", 1000))
	assert.Equal(t, http.StatusInternalServerError, first.status)
	assert.Equal(t, "unknown", first.header.Get("Idempotency-Status"))
	again := f.charge("acme", "key-1", body("o-1", 1000))
	assert.Equal(t, http.StatusConflict, again.status)
	assert.Equal(t, "unknown", again.code)
	assert.Equal(t, 1, asked)
	assert.Empty(t, f.entries())
}

func TestExpiredKey(t *testing.T) {
	t.Parallel()
	f := setup(t, paymentapi.Config{Expiry: time.Millisecond})
	f.charge("acme", "key-1", body("o-1", 1000))
	time.Sleep(5 * time.Millisecond)
	again := f.charge("acme", "key-1", body("o-1", 1000))
	assert.Equal(t, http.StatusPreconditionFailed, again.status)
	assert.Equal(t, "expired", again.code)
	assert.Len(t, f.entries(), 1)
}

func TestKeyless(t *testing.T) {
	t.Parallel()
	f := setup(t, paymentapi.Config{AllowKeyless: true})
	a := f.charge("acme", "", body("o-1", 1000))
	b := f.charge("acme", "", body("o-1", 1000))
	assert.Equal(t, http.StatusCreated, b.status)
	assert.NotEqual(t, a.id, b.id, "nothing knows that they are the same")
	assert.Len(t, f.entries(), 2)
}

func TestOpenLedgerErrors(t *testing.T) {
	t.Parallel()
	_, err := paymentapi.OpenLedger(t.Context(), filepath.Join(t.TempDir(), "no", "such", "folder.db"))
	require.ErrorContains(t, err, "folder.db")
}
