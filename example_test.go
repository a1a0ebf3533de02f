package oncemore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/oncemore-go/oncemore"
	"github.com/oncemore-go/oncemore/internal/memhttp"
)

// flaky answers 503 to the first request of every operation, and 201 to the
// next one.
func flaky() http.Handler {
	var seen sync.Map
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, again := seen.LoadOrStore(r.Header.Get(oncemore.KeyHeader), true); !again {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "paid\n")
	})
}

// open returns a client of a handler, and what closes both.
func open(h http.Handler, cfg oncemore.Config) (client *oncemore.Client, end func()) {
	srv := memhttp.New(h)
	cfg.HTTPClient = &http.Client{Transport: srv.Transport()}
	if cfg.Policy == nil {
		cfg.Policy = &oncemore.Policy{BaseDelay: time.Millisecond}
	}
	client, err := oncemore.New(cfg)
	if err != nil {
		panic(err)
	}
	return client, func() {
		client.CloseIdleConnections()
		_ = srv.Close()
	}
}

func ExampleClient_Post() {
	client, end := open(flaky(), oncemore.Config{})
	defer end()

	resp, err := client.Post(memhttp.URL+"/charges", "application/json", strings.NewReader(`{"amount":1000}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)
	for _, a := range oncemore.Attempts(resp) {
		fmt.Println(a.Number, a.Status, a.Reason)
	}
	// Output:
	// 201 Created
	// 1 503 retryable status
	// 2 201 ok
}

func ExampleClient_Do() {
	client, end := open(flaky(), oncemore.Config{})
	defer end()

	// The key is that of the order, so the same call after a crash is the same
	// operation.
	ctx := oncemore.WithKey(context.Background(), oncemore.KeyFor("tenant 7", "order", "1234"))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, memhttp.URL+"/charges", strings.NewReader(`{"amount":1000}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	resp, err := client.Do(req)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode, oncemore.StopOf(resp), oncemore.KeyOf(resp) == oncemore.KeyFor("tenant 7", "order", "1234"))
	// Output:
	// 201 success true
}

func ExampleClient_StandardClient() {
	client, end := open(flaky(), oncemore.Config{})
	defer end()

	plain := client.StandardClient() // an *http.Client, for code that is typed to it
	resp, err := plain.Post(memhttp.URL, "text/plain", strings.NewReader("x"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode, len(oncemore.Attempts(resp)))
	// Output:
	// 201 2
}

func ExampleError() {
	down := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	client, end := open(down, oncemore.Config{Policy: &oncemore.Policy{MaxAttempts: 2, BaseDelay: time.Millisecond}})
	defer end()

	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, memhttp.URL, strings.NewReader("x"))
	if err != nil {
		fmt.Println(err)
		return
	}
	req.Header.Set(oncemore.KeyHeader, "order-1234")
	resp, err := client.Do(req)
	if err == nil {
		_ = resp.Body.Close()
	}
	var failed *oncemore.Error
	if errors.As(err, &failed) {
		fmt.Println(failed.Stop, len(failed.Attempts), failed.Attempts[0].Reason)
		fmt.Println("unknown; to be sent again under", failed.Key)
	}
	// Output:
	// max attempts 2 connection
	// unknown; to be sent again under order-1234
}

func ExampleConfig_observer() {
	client, end := open(flaky(), oncemore.Config{Observer: func(_ context.Context, e oncemore.Event) {
		fmt.Println(e.Kind, e.Attempt.Number, e.Attempt.Status, e.Stop)
	}})
	defer end()

	resp, err := client.Post(memhttp.URL, "text/plain", strings.NewReader("x"))
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = resp.Body.Close()
	// Output:
	// attempt 1 503 unknown
	// retry 1 503 unknown
	// attempt 2 201 unknown
	// done 2 201 success
}

func ExampleClassify() {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, memhttp.URL, http.NoBody)
	if err != nil {
		fmt.Println(err)
		return
	}
	unavailable := &http.Response{StatusCode: http.StatusServiceUnavailable}
	fmt.Println(oncemore.Classify(req, unavailable, nil).Retry) // it may have been done
	req.Header.Set(oncemore.KeyHeader, oncemore.NewKey())
	fmt.Println(oncemore.Classify(req, unavailable, nil).Retry) // the server will know it
	// Output:
	// false
	// true
}

func ExampleKeyFor() {
	fmt.Println(oncemore.KeyFor("tenant", "order", "7"))
	fmt.Println(oncemore.KeyFor("a", "bc") == oncemore.KeyFor("ab", "c"))
	// Output:
	// 79fb5163-c72d-8d5d-8d56-8cdf9ce477d3
	// false
}

func ExampleWithoutRetry() {
	client, end := open(flaky(), oncemore.Config{})
	defer end()

	ctx := oncemore.WithoutRetry(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, memhttp.URL, http.NoBody)
	if err != nil {
		fmt.Println(err)
		return
	}
	resp, err := client.Do(req)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode, oncemore.StopOf(resp), oncemore.KeyOf(resp) != "")
	// Output:
	// 503 max attempts true
}
