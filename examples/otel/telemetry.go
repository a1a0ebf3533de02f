package main

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncemore-go/oncemore"
)

const scopeName = "github.com/oncemore-go/oncemore/examples/otel"

// Client is an oncemore.Client that can be seen at work. Each call is a span,
// with a span of otelhttp below it for each attempt. An event in the call's
// span tells of each retry, and three counters of all of them:
//
//   - oncemore.client.attempts, by method, host and reason;
//   - oncemore.client.retries, by method, host and reason, which is that of the
//     attempt before;
//   - oncemore.client.give_ups, by method, host and stop reason.
//
// A gauge, oncemore.client.budget, has the tokens that the retry budget has left
// for each host that was called.
type Client struct {
	client *oncemore.Client
	tracer trace.Tracer
}

// NewClient makes the client of cfg visible to the providers. cfg.Observer, if
// there is one, is still told.
func NewClient(cfg oncemore.Config, traces trace.TracerProvider, metrics metric.MeterProvider) (*Client, error) {
	if cfg.Budget == nil { // one that can be asked
		var b oncemore.BudgetPolicy
		if cfg.Policy != nil {
			b = cfg.Policy.Budget
		}
		cfg.Budget = oncemore.NewBudget(b)
	}
	o, err := newObserver(metrics.Meter(scopeName), cfg.Budget, cfg.Observer)
	if err != nil {
		return nil, err
	}
	cfg.Observer = o.observe

	inner := http.Client{}
	if cfg.HTTPClient != nil {
		inner = *cfg.HTTPClient
	}
	base := inner.Transport
	if base == nil {
		base = http.DefaultTransport
	}
	inner.Transport = otelhttp.NewTransport(resend{base},
		otelhttp.WithTracerProvider(traces), otelhttp.WithMeterProvider(metrics),
		otelhttp.WithPropagators(propagation.TraceContext{}))
	cfg.HTTPClient = &inner

	client, err := oncemore.New(cfg)
	if err != nil {
		return nil, err
	}
	return &Client{client, traces.Tracer(scopeName)}, nil
}

// Do is oncemore.Client.Do inside a span. The span ends with the call, when the
// response's body is still to be read; that of the last attempt ends with the
// body.
func (c *Client) Do(req *http.Request) (*http.Response, error) {
	ctx, span := c.tracer.Start(req.Context(), "call "+methodOf(req))
	defer span.End()
	return c.client.Do(req.WithContext(ctx))
}

// resend is below otelhttp, and notes in its span which resend the attempt is:
// the semantic conventions want it on all but the first.
type resend struct{ next http.RoundTripper }

func (t resend) RoundTrip(req *http.Request) (*http.Response, error) {
	if n := oncemore.AttemptNumber(req.Context()); n > 1 {
		trace.SpanFromContext(req.Context()).SetAttributes(semconv.HTTPRequestResendCount(n - 1))
	}
	return t.next.RoundTrip(req)
}

// observer turns events into metrics, and into what the call's span says.
type observer struct {
	attempts, retries, giveUps metric.Int64Counter
	tokens                     metric.Int64Gauge
	budget                     *oncemore.Budget
	next                       func(context.Context, oncemore.Event)
}

func newObserver(meter metric.Meter, budget *oncemore.Budget, next func(context.Context, oncemore.Event)) (*observer, error) {
	var errs [4]error
	o := &observer{budget: budget, next: next}
	o.tokens, errs[3] = meter.Int64Gauge("oncemore.client.budget", metric.WithUnit("{token}"),
		metric.WithDescription("Tokens that the retry budget has left for the host."))
	o.attempts, errs[0] = meter.Int64Counter("oncemore.client.attempts", metric.WithUnit("{attempt}"),
		metric.WithDescription("Requests sent, the first of each call included, by what came of them."))
	o.retries, errs[1] = meter.Int64Counter("oncemore.client.retries", metric.WithUnit("{retry}"),
		metric.WithDescription("Attempts that are followed by another one, by why."))
	o.giveUps, errs[2] = meter.Int64Counter("oncemore.client.give_ups", metric.WithUnit("{call}"),
		metric.WithDescription("Calls that ended in an error or on a retryable status, by why there was no further attempt."))
	return o, errors.Join(errs[:]...)
}

// observe is the Config.Observer. Its context is that of the call, so the span
// in it is the call's.
func (o *observer) observe(ctx context.Context, e oncemore.Event) {
	span := trace.SpanFromContext(ctx)
	about := describe(e.Request)
	reason := attribute.String("oncemore.reason", e.Attempt.Reason.String())
	stop := attribute.String("oncemore.stop", e.Stop.String())

	switch e.Kind {
	case oncemore.EventAttempt:
		o.attempts.Add(ctx, 1, metric.WithAttributes(append(about, reason)...))
	case oncemore.EventRetry:
		o.retries.Add(ctx, 1, metric.WithAttributes(append(about, reason)...))
		span.AddEvent("retry", trace.WithAttributes(reason, attribute.Stringer("oncemore.wait", e.Wait)))
	case oncemore.EventGiveUp:
		o.giveUps.Add(ctx, 1, metric.WithAttributes(append(about, stop)...))
		span.SetStatus(codes.Error, "gave up: "+e.Stop.String())
		fallthrough
	case oncemore.EventDone:
		span.SetAttributes(append(about, stop,
			attribute.Int("oncemore.attempts", e.Attempt.Number),
			attribute.Bool("oncemore.replayed", e.Replayed),
			attribute.String("oncemore.policy", e.Policy))...)
		if e.Attempt.Status != 0 {
			span.SetAttributes(semconv.HTTPResponseStatusCode(e.Attempt.Status))
		}
	}
	if u := e.Request.URL; u != nil {
		if level := o.budget.Level(u); level >= 0 {
			o.tokens.Record(ctx, int64(level), metric.WithAttributes(semconv.ServerAddress(u.Hostname())))
		}
	}
	if o.next != nil {
		o.next(ctx, e)
	}
}

// describe has few values, as the attributes of a metric must.
func describe(req *http.Request) []attribute.KeyValue {
	about := []attribute.KeyValue{semconv.HTTPRequestMethodKey.String(methodOf(req))}
	if req.URL != nil {
		about = append(about, semconv.ServerAddress(req.URL.Hostname()))
	}
	return slices.Clip(about) // each use appends its own
}

func methodOf(req *http.Request) string { return cmp.Or(req.Method, http.MethodGet) }
