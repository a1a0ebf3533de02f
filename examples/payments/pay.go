package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/oncemore-go/oncemore"
	"github.com/oncemore-go/oncemore/examples/internal/paymentapi"
	"github.com/oncemore-go/oncemore/examples/paymentclient"
)

// payer pays one payment, and says whether the answer was a replay: whether the
// payment had been charged by an earlier attempt, or an earlier run.
type payer func(ctx context.Context, p Payment) (replayed bool, err error)

// pay pays them all, a bounded number at a time, until ctx ends. A payment that
// fails stops no other one.
func pay(ctx context.Context, payments []Payment, workers int, one payer, paid *tally) {
	next := make(chan Payment)
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for p := range next {
				start := time.Now()
				replayed, err := one(ctx, p)
				if err != nil && ctx.Err() != nil {
					paid.cancelled()
					continue
				}
				paid.answer(p, replayed, err, time.Since(start))
			}
		})
	}
	defer running.Wait()
	defer close(next)
	for _, p := range payments {
		select {
		case next <- p:
		case <-ctx.Done():
			return
		}
	}
}

// newPayer is the payer that the options ask for, for the API at url.
func newPayer(url string, opt *options, policy *oncemore.Policy, paid *tally, stderr io.Writer) payer {
	// A connection for each attempt. On one that it uses again net/http re-sends
	// a keyed request by itself when it is reset: no harm, but the attempts of a
	// run would then depend on which connections happened to be kept.
	httpClient := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if opt.naive {
		return naive(url, httpClient, policy, paid)
	}
	cfg := oncemore.Config{
		HTTPClient: httpClient,
		Policy:     policy,
		Budget:     oncemore.NewBudget(policy.Budget), // one for all tenants
		Observer: func(_ context.Context, e oncemore.Event) {
			if e.Kind == oncemore.EventAttempt {
				paid.attempt()
			}
		},
	}
	if opt.verbose {
		cfg.Logger = slog.New(slog.NewTextHandler(stderr, nil))
	}
	return keyed(url, cfg)
}

// keyed pays through the payment API's client. The key is made from the tenant
// and the payment's id, so a run that is started again uses the same ones.
func keyed(url string, cfg oncemore.Config) payer {
	clients := clientCache{url: url, cfg: cfg, byTenant: map[string]*paymentclient.Client{}}
	return func(ctx context.Context, p Payment) (bool, error) {
		client, err := clients.of(p.Tenant)
		if err != nil {
			return false, err
		}
		charge, err := client.Charge(ctx, p.request())
		if err != nil {
			return false, err
		}
		if charge.ChargeRequest != p.request() {
			return false, fmt.Errorf("the answer is about another payment, %q", charge.Order)
		}
		return charge.Replayed, nil
	}
}

func (p *Payment) request() paymentclient.ChargeRequest {
	return paymentclient.ChargeRequest{
		Order: p.ID, Payer: p.Payer, Payee: p.Payee, Amount: p.Amount, Currency: p.Currency, Memo: p.Memo,
	}
}

// clientCache has a client for each tenant, as a client carries one token.
type clientCache struct {
	url string
	cfg oncemore.Config

	mu       sync.Mutex
	byTenant map[string]*paymentclient.Client
}

func (c *clientCache) of(tenant string) (*paymentclient.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if client, ok := c.byTenant[tenant]; ok {
		return client, nil
	}
	client, err := paymentclient.New(paymentclient.Config{
		BaseURL: c.url,
		Tenant:  tenant,
		Token:   paymentapi.Token(tenant),
		HTTP:    c.cfg,
	})
	if err != nil {
		return nil, err
	}
	c.byTenant[tenant] = client
	return client, nil
}
