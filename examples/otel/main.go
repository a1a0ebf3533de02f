// Command otel shows the client through OpenTelemetry: a span for each call and
// for each of its attempts, and counters of attempts, retries and give-ups. The
// recipe to take along is telemetry.go. It needs nothing but OpenTelemetry's own
// packages: what happens in a call comes from Config.Observer, and
// oncemore.AttemptNumber tells a transport which attempt it is in.
//
// The program orders a chair from a server that loses its first answer and is
// overloaded at the second, and prints what was seen.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/exporters/stdout/stdoutmetric"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/oncemore-go/oncemore"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "otel:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	traceExporter, err := stdouttrace.New(stdouttrace.WithWriter(out), stdouttrace.WithPrettyPrint())
	if err != nil {
		return err
	}
	metricExporter, err := stdoutmetric.New(stdoutmetric.WithWriter(out), stdoutmetric.WithPrettyPrint())
	if err != nil {
		return err
	}
	traces := sdktrace.NewTracerProvider(sdktrace.WithSyncer(traceExporter))
	metrics := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewPeriodicReader(metricExporter)))
	defer func() { // what was counted is printed here
		err = errors.Join(err, traces.Shutdown(ctx), metrics.Shutdown(ctx))
	}()

	url, stop, err := openShop(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()

	client, err := NewClient(oncemore.Config{}, traces, metrics)
	if err != nil {
		return err
	}
	return order(ctx, client, url)
}

func order(ctx context.Context, client *Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(`{"item": "chair"}`))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		return fmt.Errorf("the shop answered %s", resp.Status)
	}
	return nil
}

// openShop starts a server that has trouble at first.
func openShop(ctx context.Context) (url string, stop func() error, err error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	var requests atomic.Int64
	shop := func(w http.ResponseWriter, _ *http.Request) {
		switch requests.Add(1) {
		case 1:
			panic(http.ErrAbortHandler) // the answer is lost
		case 2:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			w.WriteHeader(http.StatusCreated)
		}
	}
	srv := &http.Server{Handler: http.HandlerFunc(shop), ReadHeaderTimeout: time.Second}
	go func() { _ = srv.Serve(ln) }() // until stop
	return "http://" + ln.Addr().String() + "/orders", srv.Close, nil
}
