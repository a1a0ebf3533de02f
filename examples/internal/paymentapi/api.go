// Package paymentapi is a small payment API, as a service would build it on
// package server: a charge and the record of its idempotency key are one
// transaction in one database. The examples run against it.
//
//	POST /v1/charges       makes a charge; needs an Idempotency-Key
//	GET  /v1/charges/{id}  how a charge stands now
//
// A caller is a tenant, named by its bearer token.
package paymentapi

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// Config is what a [New] API can be told.
type Config struct {
	// AllowKeyless lets charges without a key through, each of them a new one:
	// what an API does that does not know keys.
	AllowKeyless bool
	// Authorize asks the payer's bank for the money; false declines the charge.
	// An error says that nobody knows whether the bank has paid. Nil: every
	// charge is authorized. It is asked while the only writer of the ledger is
	// held, which a real service would not do.
	Authorize func(ctx context.Context, e Entry) (bool, error)
	// Expiry is how long a key replays. Zero: a day.
	Expiry time.Duration
	// Wait is how long a duplicate waits for the first. Zero: 30 s; negative:
	// it does not wait.
	Wait   time.Duration
	Logger *slog.Logger // nil: silent
}

// API is the payment API, an [http.Handler].
type API struct {
	db        *sql.DB
	authorize func(ctx context.Context, e Entry) (bool, error)
	once      *server.Middleware
	mux       *http.ServeMux
}

// New prepares the tables in db, which [OpenLedger] opened and the caller
// closes after [API.Shutdown].
func New(ctx context.Context, db *sql.DB, cfg Config) (*API, error) {
	store, err := sqlstore.New(db, sqlstore.SQLite)
	if err != nil {
		return nil, err
	}
	if err := store.Migrate(ctx); err != nil {
		return nil, err
	}
	keyless := server.Keyless{Mode: server.RejectKeyless}
	if cfg.AllowKeyless {
		keyless.Mode = server.PassKeyless
	}
	a := &API{db: db, authorize: cfg.Authorize, mux: http.NewServeMux()}
	a.once, err = server.New(store, server.Config{
		Scope:   tenantOf,
		Keyless: keyless,
		TTL:     cfg.Expiry,
		Wait:    cfg.Wait,
		Rebuild: a.rebuild,
		Logger:  cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	a.mux.Handle("POST /v1/charges", a.once.WrapTx(a.charge))
	a.mux.HandleFunc("GET /v1/charges/{id}", a.show)
	return a, nil
}

// Shutdown lets the charges that run end, and takes no new ones.
func (a *API) Shutdown(ctx context.Context) error { return a.once.Shutdown(ctx) }

// ServeHTTP finds out who is calling before anything else happens: a key means
// nothing without its tenant.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	tenant, ok := authenticate(r)
	if !ok {
		w.Header().Set("WWW-Authenticate", `Bearer realm="payments"`)
		problem(w, http.StatusUnauthorized, "unauthorized", "a bearer token is needed")
		return
	}
	a.mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tenantKey{}, tenant)))
}

// Token is the bearer token of a tenant. It stands in for a real one, which
// nobody could make from the name.
func Token(tenant string) string { return "test_" + tenant }

func authenticate(r *http.Request) (tenant string, ok bool) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return "", false
	}
	tenant, ok = strings.CutPrefix(token, "test_")
	return tenant, ok && tenant != ""
}

type tenantKey struct{}

// tenantOf is whose key it is, for the middleware, and whose charge, for us.
func tenantOf(r *http.Request) (string, error) {
	tenant, ok := r.Context().Value(tenantKey{}).(string)
	if !ok {
		return "", errors.New("request without a tenant")
	}
	return tenant, nil
}

// charge is the body of a charge: what is asked for, and what was done.
type charge struct {
	ID       string     `json:"id,omitempty"`
	Order    string     `json:"order"`
	Payer    string     `json:"payer"`
	Payee    string     `json:"payee"`
	Amount   int64      `json:"amount"` // in minor units
	Currency string     `json:"currency"`
	Memo     string     `json:"memo,omitempty"`
	Created  *time.Time `json:"created_at,omitempty"`
}

// charge makes a charge. Whatever it writes through tx is committed together
// with the answer that it gives, or not at all.
func (a *API) charge(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
	tenant, err := tenantOf(r)
	if err != nil {
		return err
	}
	ask, err := readCharge(r.Body)
	if err != nil {
		problem(w, http.StatusBadRequest, "invalid", err.Error())
		return nil
	}
	e := Entry{
		ID: "ch_" + rand.Text(), Tenant: tenant, Order: ask.Order, Payer: ask.Payer, Payee: ask.Payee,
		Amount: ask.Amount, Currency: ask.Currency, Memo: ask.Memo, Created: time.Now().UTC().Truncate(time.Millisecond),
	}
	op, keyed := server.OperationFrom(r.Context())
	if a.authorize != nil {
		if keyed {
			op.EffectStarted() // no rollback reaches the bank
		}
		switch authorized, err := a.authorize(r.Context(), e); {
		case err != nil:
			return err
		case !authorized:
			problem(w, http.StatusPaymentRequired, "declined", "the payer's bank has declined")
			return nil
		}
	}
	if err := book(r.Context(), tx, e); err != nil {
		return err
	}
	location := "/v1/charges/" + e.ID
	if keyed {
		op.SetResource(e.ID, location) // the record keeps where the charge is, not a second copy of it
	}
	w.Header().Set("Location", location)
	return writeCharge(w, http.StatusCreated, e)
}

// rebuild writes the body of a replay, from the charge that the record names. A
// charge is never changed, so it is the body of the first answer.
func (a *API) rebuild(w http.ResponseWriter, r *http.Request, rec server.Record) error {
	tenant, err := tenantOf(r)
	if err != nil {
		return err
	}
	e, err := find(r.Context(), a.db, tenant, rec.ResourceID)
	if err != nil {
		return err
	}
	return writeCharge(w, rec.Status, e)
}

func (a *API) show(w http.ResponseWriter, r *http.Request) {
	tenant, err := tenantOf(r)
	if err != nil {
		problem(w, http.StatusInternalServerError, "failed", "the request has no tenant")
		return
	}
	e, err := find(r.Context(), a.db, tenant, r.PathValue("id"))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		problem(w, http.StatusNotFound, "not-found", "there is no such charge")
	case err != nil:
		problem(w, http.StatusInternalServerError, "failed", "the ledger can't be read")
	default:
		_ = writeCharge(w, http.StatusOK, e) // the client has gone
	}
}

func readCharge(body io.Reader) (charge, error) {
	var c charge
	dec := json.NewDecoder(body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil {
		return charge{}, fmt.Errorf("the body is no charge: %w", err)
	}
	switch {
	case c.Order == "":
		return charge{}, errors.New("order is missing")
	case c.Payer == "" || c.Payee == "":
		return charge{}, errors.New("payer or payee is missing")
	case c.Amount <= 0:
		return charge{}, errors.New("amount is not positive")
	case len(c.Currency) != 3:
		return charge{}, errors.New("currency is no code of ISO 4217")
	}
	return c, nil
}

func writeCharge(w http.ResponseWriter, status int, e Entry) error {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	return json.NewEncoder(w).Encode(charge{
		ID: e.ID, Order: e.Order, Payer: e.Payer, Payee: e.Payee,
		Amount: e.Amount, Currency: e.Currency, Memo: e.Memo, Created: &e.Created,
	})
}

// problem writes a refusal in the form that the middleware's own have, RFC 9457.
func problem(w http.ResponseWriter, status int, code, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{ // the client has gone
		"type": "about:blank", "title": http.StatusText(status), "status": status, "code": code, "detail": detail,
	})
}
