// Package paymentclient is the client of the payment API in this repository's
// examples, as the author of such a client would publish it.
//
// A charge is named by its order: [Client.Charge] for one order charges once,
// however often it is called, by however many processes, for as long as the API
// remembers the order's key. No answer, a crash in mid-call, an exhausted wait:
// call it again with the same [ChargeRequest]. The key is made from the tenant
// and the order, so there is nothing to store before the call and nothing to
// look up after a crash.
//
// The client retries by itself what is worth a retry, see package oncemore.
package paymentclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/oncemore-go/oncemore"
)

// Config is what a [Client] is made from.
type Config struct {
	// BaseURL is where the API is, "https://pay.example.com". Required.
	BaseURL string
	// Tenant is the account that the charges are made for; with the order it
	// makes the key. Required.
	Tenant string
	// Token is the tenant's bearer token. Required.
	Token string
	// HTTP is what is below: policy, budget, transport, observer, logger. Its
	// zero value is a good one.
	HTTP oncemore.Config
}

// Client calls the payment API. It may be used by several goroutines.
type Client struct {
	charges string
	tenant  string
	token   string
	http    *oncemore.Client
}

// New makes a client. Every wrong setting is an error here.
func New(cfg Config) (*Client, error) {
	base, err := url.Parse(cfg.BaseURL)
	switch {
	case err != nil:
		return nil, fmt.Errorf("paymentclient: base URL: %w", err)
	case base.Scheme == "" || base.Host == "":
		return nil, errors.New("paymentclient: the base URL needs a scheme and a host")
	case cfg.Tenant == "":
		return nil, errors.New("paymentclient: no tenant")
	case cfg.Token == "":
		return nil, errors.New("paymentclient: no token")
	}
	client, err := oncemore.New(cfg.HTTP)
	if err != nil {
		return nil, fmt.Errorf("paymentclient: %w", err)
	}
	return &Client{
		charges: base.JoinPath("v1", "charges").String(),
		tenant:  cfg.Tenant,
		token:   cfg.Token,
		http:    client,
	}, nil
}

// ChargeRequest asks for money to be moved.
type ChargeRequest struct {
	// Order names the charge, for ever: one order, one charge. The same order
	// with anything else changed is [ErrMismatch].
	Order    string `json:"order"`
	Payer    string `json:"payer"`
	Payee    string `json:"payee"`
	Amount   int64  `json:"amount"`   // in minor units: cents, yen, fils
	Currency string `json:"currency"` // a code of ISO 4217
	Memo     string `json:"memo,omitempty"`
}

// Charge is a charge that was made.
type Charge struct {
	ChargeRequest

	ID      string    `json:"id"`
	Created time.Time `json:"created_at"`
	// Replayed: an earlier call or attempt made the charge, and this is its
	// answer, given once more.
	Replayed bool `json:"-"`
}

// Charge makes the charge, or returns the one that was made for its order
// before. Every error is an [*Error], and matches one of the package's
// sentinels where there is one for it. After [ErrUnknown], [ErrInProgress] and
// the end of ctx the same call may be made again.
func (c *Client) Charge(ctx context.Context, ask ChargeRequest) (Charge, error) {
	body, err := json.Marshal(ask)
	if err != nil {
		return Charge{}, &Error{Err: err}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.charges, bytes.NewReader(body))
	if err != nil {
		return Charge{}, &Error{Err: err}
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, application/problem+json")
	req.Header.Set(oncemore.KeyHeader, oncemore.KeyFor(c.tenant, ask.Order))

	resp, err := c.http.Do(req)
	if err != nil {
		return Charge{}, noAnswer(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		return Charge{}, refused(resp)
	}
	charge := Charge{Replayed: oncemore.Replayed(resp)}
	if err := json.NewDecoder(resp.Body).Decode(&charge); err != nil {
		return Charge{}, noAnswer(fmt.Errorf("reading the charge: %w", err))
	}
	return charge, nil
}
