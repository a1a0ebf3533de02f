// Package refunds is a service that pays money back.
package refunds

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/oncemore-go/oncemore"
	"github.com/oncemore-go/oncemore/examples/sharedpolicy/retrypolicy"
)

// Service pays money back.
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

// Refund pays a charge back, once, however often it must be sent. A rule of the
// policy gives refunds more attempts and more time: nobody waits at a till for
// them.
func (s *Service) Refund(ctx context.Context, charge string) error {
	body := strings.NewReader(url.Values{"charge": {charge}}.Encode())
	ctx = oncemore.WithKey(ctx, oncemore.KeyFor("refunds", charge))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://pay.example.com/v1/refunds", body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		return fmt.Errorf("charge %s is not refunded: %s", charge, resp.Status)
	}
	return nil
}
