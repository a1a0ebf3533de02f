// Command sharedpolicy shows two services under one retry policy: a file that
// is embedded in a package which both import. The payment provider fails five
// times before it works, so checkout gives up after the four attempts of the
// policy, and refunds gets through with the six that a rule grants it. Each
// line carries the policy's hash.
//
//	go run ./examples/sharedpolicy
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/oncemore-go/oncemore"
	"github.com/oncemore-go/oncemore/examples/sharedpolicy/checkout"
	"github.com/oncemore-go/oncemore/examples/sharedpolicy/refunds"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	pay, err := checkout.New(provider(5), report(out, "checkout"))
	if err != nil {
		return err
	}
	repay, err := refunds.New(provider(5), report(out, "refunds"))
	if err != nil {
		return err
	}
	if err := pay.Pay(ctx, "A-17", 4999); err != nil {
		fmt.Fprintln(out, "checkout:", err)
	}
	return repay.Refund(ctx, "ch_42")
}

// report returns an observer that writes a line per attempt and per call.
func report(out io.Writer, service string) func(context.Context, oncemore.Event) {
	return func(_ context.Context, e oncemore.Event) {
		switch e.Kind {
		case oncemore.EventAttempt:
			fmt.Fprintf(out, "%s: policy %s: attempt %d: %d\n", service, e.Policy, e.Attempt.Number, e.Attempt.Status)
		case oncemore.EventRetry:
			fmt.Fprintf(out, "%s: policy %s: next attempt in %v\n", service, e.Policy, e.Wait.Round(time.Millisecond))
		case oncemore.EventDone, oncemore.EventGiveUp:
			fmt.Fprintf(out, "%s: policy %s: ended: %v\n", service, e.Policy, e.Stop)
		}
	}
}

// provider returns a client to a payment provider, played here, that answers
// 503 so many times and then works.
func provider(failures int) *http.Client {
	return &http.Client{Transport: roundTripper(func(req *http.Request) (*http.Response, error) {
		if req.Body != nil {
			req.Body.Close()
		}
		status := http.StatusCreated
		if failures > 0 {
			status = http.StatusServiceUnavailable
		}
		failures--
		return &http.Response{
			StatusCode: status, Status: http.StatusText(status), Request: req,
			Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, Body: http.NoBody,
		}, nil
	})}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
