package main

import (
	"context"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/oncemore-go/oncemore"
	"github.com/oncemore-go/oncemore/oncemoretest"
)

// lab is a client over a scripted network, and what is seen of it.
type lab struct {
	client  *Client
	network *oncemoretest.Transport
	spans   *tracetest.InMemoryExporter
	reader  *sdkmetric.ManualReader
	tokens  int64 // the last value of the gauge
}

func newLab(t *testing.T, cfg oncemore.Config, steps ...oncemoretest.Step) *lab {
	t.Helper()
	l := &lab{
		network: oncemoretest.NewTransport(steps...),
		spans:   tracetest.NewInMemoryExporter(), reader: sdkmetric.NewManualReader(),
	}
	cfg.HTTPClient = &http.Client{Transport: l.network}
	var err error
	l.client, err = NewClient(cfg,
		sdktrace.NewTracerProvider(sdktrace.WithSyncer(l.spans)), sdkmetric.NewMeterProvider(sdkmetric.WithReader(l.reader)))
	require.NoError(t, err)
	return l
}

// post sends one request, and reads the response if there is one.
func (l *lab) post(t *testing.T) error {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://pay.example.com/v1/charges?token=hush", strings.NewReader("1000"))
	require.NoError(t, err)
	resp, err := l.client.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	return resp.Body.Close()
}

// call returns the one span of a call, and those of its attempts in order.
func (l *lab) call(t *testing.T) (call tracetest.SpanStub, attempts []tracetest.SpanStub) {
	t.Helper()
	spans := l.spans.GetSpans()
	i := slices.IndexFunc(spans, func(s tracetest.SpanStub) bool { return s.Name == "call POST" })
	require.GreaterOrEqual(t, i, 0)
	call = spans[i]
	for _, s := range slices.Delete(spans, i, i+1) {
		assert.Equal(t, "HTTP POST", s.Name)
		assert.Equal(t, call.SpanContext.SpanID(), s.Parent.SpanID(), "the attempt is below the call")
		attempts = append(attempts, s)
	}
	slices.SortFunc(attempts, func(a, b tracetest.SpanStub) int { return a.StartTime.Compare(b.StartTime) })
	return call, attempts
}

func attributes(list []attribute.KeyValue) map[string]any {
	m := map[string]any{}
	for _, a := range list {
		m[string(a.Key)] = a.Value.AsInterface()
	}
	return m
}

// counters returns ours, as their attribute that tells why, and how often.
func (l *lab) counters(t *testing.T) map[string]map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, l.reader.Collect(t.Context(), &all))
	found := map[string]map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		if scope.Scope.Name != scopeName {
			continue
		}
		for _, m := range scope.Metrics {
			if gauge, ok := m.Data.(metricdata.Gauge[int64]); ok {
				for _, p := range gauge.DataPoints {
					l.tokens = p.Value
				}
				continue
			}
			sum, ok := m.Data.(metricdata.Sum[int64])
			require.True(t, ok)
			found[m.Name] = map[string]int64{}
			for _, p := range sum.DataPoints {
				labels := attributes(p.Attributes.ToSlice())
				assert.Equal(t, "POST", labels["http.request.method"])
				assert.Equal(t, "pay.example.com", labels["server.address"])
				delete(labels, "http.request.method")
				delete(labels, "server.address")
				require.Len(t, labels, 1)
				for _, why := range labels {
					found[m.Name][why.(string)] = p.Value //nolint:errcheck // a panic is as good
				}
			}
		}
	}
	return found
}

func TestACallThatNeedsThree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen []oncemore.EventKind
		l := newLab(t, oncemore.Config{
			Policy:   &oncemore.Policy{BaseDelay: time.Second, Jitter: oncemore.JitterNone},
			Observer: func(_ context.Context, e oncemore.Event) { seen = append(seen, e.Kind) },
		}, oncemoretest.Reset, oncemoretest.Answer(503, "later"), oncemoretest.Answer(201, "done", "Idempotency-Replayed", "true"))
		require.NoError(t, l.post(t))

		call, attempts := l.call(t)
		require.Len(t, attempts, 3)
		for i, want := range []map[string]any{
			{"error.type": "*net.OpError"},
			{"http.request.resend_count": int64(1), "http.response.status_code": int64(503)},
			{"http.request.resend_count": int64(2), "http.response.status_code": int64(201)},
		} {
			got := attributes(attempts[i].Attributes)
			for _, name := range []string{"http.request.resend_count", "http.response.status_code"} {
				assert.Equal(t, want[name], got[name], "attempt %d: %s", i+1, name)
			}
		}
		assert.Equal(t, codes.Error, attempts[0].Status.Code)

		got := attributes(call.Attributes)
		assert.NotEmpty(t, got["oncemore.policy"])
		delete(got, "oncemore.policy")
		assert.Equal(t, map[string]any{
			"http.request.method": "POST", "server.address": "pay.example.com", "http.response.status_code": int64(201),
			"oncemore.attempts": int64(3), "oncemore.stop": "success", "oncemore.replayed": true,
		}, got)
		assert.Equal(t, codes.Unset, call.Status.Code)
		require.Len(t, call.Events, 2)
		assert.Equal(t, map[string]any{"oncemore.reason": "connection", "oncemore.wait": "1s"}, attributes(call.Events[0].Attributes))
		assert.Equal(t, map[string]any{"oncemore.reason": "retryable status", "oncemore.wait": "2s"}, attributes(call.Events[1].Attributes))

		assert.Equal(t, map[string]map[string]int64{
			"oncemore.client.attempts": {"connection": 1, "retryable status": 1, "ok": 1},
			"oncemore.client.retries":  {"connection": 1, "retryable status": 1},
		}, l.counters(t))
		assert.Len(t, seen, 6, "three attempts, two retries, and done")

		// Each attempt is its own parent of what the server does.
		parents := map[string]bool{}
		for _, r := range l.network.Sent() {
			parents[r.Header.Get("Traceparent")] = true
		}
		assert.Len(t, slices.Collect(maps.Keys(parents)), 3)
		oncemoretest.AssertSameKey(t, l.network.Sent())
		oncemoretest.AssertSameBody(t, l.network.Sent())
	})
}

func TestACallThatGivesUp(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		policy oncemore.Policy
		step   oncemoretest.Step
		stop   string
		fails  bool
	}{
		{"status", oncemore.Policy{}, oncemoretest.Answer(503, ""), "max attempts", false},
		{"error", oncemore.Policy{}, oncemoretest.Reset, "max attempts", true},
		{"Retry-After", oncemore.Policy{}, oncemoretest.Answer(429, "", "Retry-After", "3600"), "retry-after", false},
		{"budget", oncemore.Policy{Budget: oncemore.BudgetPolicy{Capacity: 7}}, oncemoretest.Answer(503, ""), "budget", false},
		{"time", oncemore.Policy{}, oncemoretest.Delay(time.Hour, oncemoretest.Answer(200, "")), "deadline", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, oncemore.Config{Policy: &tt.policy}, tt.step)
				assert.Equal(t, tt.fails, l.post(t) != nil)
				call, attempts := l.call(t)
				assert.Len(t, l.network.Sent(), len(attempts))
				assert.EqualValues(t, len(attempts), attributes(call.Attributes)["oncemore.attempts"])
				assert.Equal(t, tt.stop, attributes(call.Attributes)["oncemore.stop"])
				assert.Equal(t, codes.Error, call.Status.Code)
				assert.Equal(t, "gave up: "+tt.stop, call.Status.Description)
				assert.Equal(t, map[string]int64{tt.stop: 1}, l.counters(t)["oncemore.client.give_ups"])
				if tt.stop == "budget" {
					assert.EqualValues(t, 2, l.tokens, "of seven, one retry took five")
				}
			})
		})
	}
}

// TestAFinalStatusIsNoGiveUp: a 422 is an answer, if no success.
func TestAFinalStatusIsNoGiveUp(t *testing.T) {
	t.Parallel()
	l := newLab(t, oncemore.Config{}, oncemoretest.Answer(422, ""))
	require.NoError(t, l.post(t))
	call, _ := l.call(t)
	assert.Equal(t, codes.Unset, call.Status.Code)
	assert.Equal(t, "final", attributes(call.Attributes)["oncemore.stop"])
	assert.Empty(t, l.counters(t)["oncemore.client.give_ups"])
}

// TestNothingSent: a call that ends before its first attempt.
func TestNothingSent(t *testing.T) {
	t.Parallel()
	l := newLab(t, oncemore.Config{NewKey: func(*http.Request) (string, error) { return "", io.ErrUnexpectedEOF }})
	require.ErrorIs(t, l.post(t), io.ErrUnexpectedEOF)
	call, attempts := l.call(t)
	assert.Empty(t, attempts)
	assert.Equal(t, "hook", attributes(call.Attributes)["oncemore.stop"])
	assert.EqualValues(t, 0, attributes(call.Attributes)["oncemore.attempts"])

	_, err := l.client.Do(&http.Request{})
	require.Error(t, err, "a request without a URL")
}

func TestConfigErrors(t *testing.T) {
	t.Parallel()
	_, err := NewClient(oncemore.Config{Policy: &oncemore.Policy{MaxAttempts: -1}}, sdktrace.NewTracerProvider(), sdkmetric.NewMeterProvider())
	require.Error(t, err)
}

func TestRun(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out))
	assert.Equal(t, 1, strings.Count(out.String(), `"Name": "call POST"`))
	assert.Equal(t, 3, strings.Count(out.String(), `"Name": "HTTP POST"`))
	for _, name := range []string{"attempts", "retries"} {
		assert.Contains(t, out.String(), `"Name": "oncemore.client.`+name+`"`)
	}
}
