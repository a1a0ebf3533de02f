package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/oncemore-go/oncemore"
	"github.com/oncemore-go/oncemore/examples/internal/paymentapi"
)

// naive is what many services do: send again whatever got no good answer, ever
// less often. It has the timeouts and the delays of the policy, and no key.
func naive(url string, client *http.Client, policy *oncemore.Policy, paid *tally) payer {
	client.Timeout = policy.AttemptTimeout
	return func(ctx context.Context, p Payment) (bool, error) {
		body, err := json.Marshal(p.request())
		if err != nil {
			return false, err
		}
		delay := policy.BaseDelay
		for attempt := 1; ; attempt++ {
			paid.attempt()
			again, err := naiveAttempt(ctx, client, url, p.Tenant, body)
			if err == nil || !again || attempt == policy.MaxAttempts || ctx.Err() != nil {
				return false, err
			}
			select {
			case <-time.After(delay):
			case <-ctx.Done():
				return false, ctx.Err()
			}
			delay = min(2*delay, policy.MaxDelay)
		}
	}
}

// naiveAttempt sends the payment, and says whether to send it again.
func naiveAttempt(ctx context.Context, client *http.Client, url, tenant string, body []byte) (again bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/charges", bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	req.Header.Set("Authorization", "Bearer "+paymentapi.Token(tenant))
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return true, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return true, err
	}
	if resp.StatusCode != http.StatusCreated {
		return resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= 500, fmt.Errorf("status %d", resp.StatusCode)
	}
	return false, nil
}
