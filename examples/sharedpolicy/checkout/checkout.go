// Package checkout is a service that takes payments.
package checkout

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/oncemore-go/oncemore"
	"github.com/oncemore-go/oncemore/examples/sharedpolicy/retrypolicy"
)

// Service takes payments.
type Service struct {
	client *oncemore.Client
}

// New returns a service that calls out through hc, under the shared policy.
// The client, and so its retry budget, is the service's own.
func New(hc *http.Client, observe func(context.Context, oncemore.Event)) (*Service, error) {
	policy, err := retrypolicy.Policy()
	if err != nil {
		return nil, err
	}
	client, err := oncemore.New(oncemore.Config{HTTPClient: hc, Policy: policy, Observer: observe})
	if err != nil {
		return nil, err
	}
	return &Service{client}, nil
}

// Pay charges an order, once, however often it must be sent: the key is made
// from the order, so a Pay of the same order after a crash is the same charge.
func (s *Service) Pay(ctx context.Context, order string, cents int) error {
	body, err := json.Marshal(map[string]any{"order": order, "amount": cents, "currency": "EUR"})
	if err != nil {
		return err
	}
	ctx = oncemore.WithKey(ctx, oncemore.KeyFor("checkout", order))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://pay.example.com/v1/charges", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		return fmt.Errorf("order %s is not paid: %s", order, resp.Status)
	}
	return nil
}
