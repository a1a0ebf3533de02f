package oncemoretest_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/oncemore-go/oncemore"
	"github.com/oncemore-go/oncemore/oncemoretest"
)

// payer is the code to be tested: it pays through whatever transport it is
// given.
type payer struct{ client *oncemore.Client }

func newPayer(network http.RoundTripper) (*payer, error) {
	client, err := oncemore.New(oncemore.Config{
		HTTPClient: &http.Client{Transport: network},
		Policy:     &oncemore.Policy{BaseDelay: time.Millisecond, AttemptTimeout: 100 * time.Millisecond},
	})
	return &payer{client}, err
}

func (p *payer) pay(amount string) string {
	resp, err := p.client.Post("https://pay.example.com/v1/charges", "text/plain", strings.NewReader(amount))
	if err != nil {
		return "not paid: " + err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "not paid: " + err.Error()
	}
	return fmt.Sprintf("%s %s", resp.Status, body)
}

// Everything that can go wrong once does, and the payment is still one
// operation.
func ExampleTransport() {
	t := stdout{} // in a test, the test's own
	done := oncemoretest.Answer(http.StatusCreated, "charge 1")
	network := oncemoretest.NewTransport(
		oncemoretest.Lost(done),
		oncemoretest.Answer(http.StatusServiceUnavailable, "", "Retry-After", "0"),
		oncemoretest.Cut(done),
		done,
	)
	p, err := newPayer(network)
	if err != nil {
		t.Error(err)
	}
	fmt.Println(p.pay("1000"))

	oncemoretest.AssertAttempts(t, network.Sent(), 4)
	oncemoretest.AssertSameKey(t, network.Sent())
	oncemoretest.AssertSameBody(t, network.Sent())
	// Output:
	// 201 Created charge 1
}

// What is missing is written in three lines: a host that refuses connections. The
// request was not sent, so it is tried again even without a key.
func ExampleStep() {
	refused := func(*http.Request) (*http.Response, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	network := oncemoretest.NewTransport(refused, oncemoretest.Answer(http.StatusCreated, ""))
	client, err := oncemore.New(oncemore.Config{
		HTTPClient: &http.Client{Transport: network},
		Policy:     &oncemore.Policy{BaseDelay: time.Millisecond, KeyMethods: []string{}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	resp, err := client.Post("https://pay.example.com/v1/charges", "text/plain", strings.NewReader("1000"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status, oncemore.Attempts(resp)[0].Reason)
	// Output:
	// 201 Created not sent
}

// The last step repeats.
func ExampleNewTransport() {
	network := oncemoretest.NewTransport(oncemoretest.Reset, oncemoretest.Answer(http.StatusServiceUnavailable, "overloaded"))
	p, err := newPayer(network)
	if err != nil {
		fmt.Println(err)
	}
	fmt.Println(p.pay("1000"), len(network.Sent()))
	// Output:
	// 503 Service Unavailable overloaded 5
}

func ExampleTransport_Sent() {
	network := oncemoretest.NewTransport(oncemoretest.Reset, oncemoretest.Answer(http.StatusCreated, "charge"))
	p, err := newPayer(network)
	if err != nil {
		fmt.Println(err)
	}
	p.pay("1000")
	p.pay("2000")
	for _, r := range network.Sent() {
		fmt.Println(r.Attempt, r.Method, r.URL, r.Header.Get("Content-Type"), r.Body, r.Key != "")
	}
	// Output:
	// 1 POST https://pay.example.com/v1/charges text/plain 1000 true
	// 2 POST https://pay.example.com/v1/charges text/plain 1000 true
	// 1 POST https://pay.example.com/v1/charges text/plain 2000 true
}

// Headers are pairs; a name may come more than once.
func ExampleAnswer() {
	network := oncemoretest.NewTransport(oncemoretest.Answer(http.StatusCreated, `{"id":"ch_1"}`,
		"Content-Type", "application/json", "Idempotency-Replayed", "true"))
	client, err := oncemore.New(oncemore.Config{HTTPClient: &http.Client{Transport: network}})
	if err != nil {
		fmt.Println(err)
		return
	}
	resp, err := client.Post("https://pay.example.com/v1/charges", "text/plain", strings.NewReader("1000"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status, resp.Header.Get("Content-Type"), oncemore.Replayed(resp))
	// Output:
	// 201 Created application/json true
}

// The caller can't tell whether the charge was made, so without a key it must
// not send it again.
func ExampleReset() {
	network := oncemoretest.NewTransport(oncemoretest.Reset)
	client, err := oncemore.New(oncemore.Config{
		HTTPClient: &http.Client{Transport: network},
		Policy:     &oncemore.Policy{KeyMethods: []string{}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = client.Post("https://pay.example.com/v1/charges", "text/plain", strings.NewReader("1000"))
	fmt.Println(err)
	fmt.Println(len(network.Sent()))
	// Output:
	// Post "https://pay.example.com/v1/charges": oncemore: 1 attempt (final): read tcp 192.0.2.1:1234->192.0.2.2:443: read: connection reset by peer
	// 1
}

// A naive server does the work of a retry again. That is what a test with Lost
// shows.
func ExampleLost() {
	charges := 0
	naive := oncemoretest.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		charges++
		fmt.Fprintf(w, "charge %d", charges)
	}))
	p, err := newPayer(oncemoretest.NewTransport(oncemoretest.Lost(naive), naive))
	if err != nil {
		fmt.Println(err)
	}
	fmt.Println(p.pay("1000"))
	// Output:
	// 200 OK charge 2
}

// The answer to a keyed request is read inside the attempt, so half of one is
// none. That of a GET is the caller's to read.
func ExampleCut() {
	network := oncemoretest.NewTransport(oncemoretest.Cut(oncemoretest.Answer(http.StatusOK, "0123456789")))
	client, err := oncemore.New(oncemore.Config{HTTPClient: &http.Client{Transport: network}})
	if err != nil {
		fmt.Println(err)
		return
	}
	resp, err := client.Get("https://pay.example.com/v1/charges")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	fmt.Printf("%q %v\n", body, err)
	// Output:
	// "01234" unexpected EOF
}

// The first answer comes when nobody waits for it any more.
func ExampleDelay() {
	done := oncemoretest.Answer(http.StatusCreated, "charge 1")
	network := oncemoretest.NewTransport(oncemoretest.Delay(time.Minute, done), done)
	p, err := newPayer(network)
	if err != nil {
		fmt.Println(err)
	}
	fmt.Println(p.pay("1000"), len(network.Sent()))
	// Output:
	// 201 Created charge 1 2
}

// The code under test meets a handler of one's own; the network before it loses
// the first answer.
func ExampleHandler() {
	charges := map[string]string{} // by key
	api := oncemoretest.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get(oncemore.KeyHeader)
		if charges[key] == "" {
			charges[key] = fmt.Sprintf("charge %d", len(charges)+1)
		}
		fmt.Fprint(w, charges[key])
	}))
	p, err := newPayer(oncemoretest.NewTransport(oncemoretest.Lost(api), api))
	if err != nil {
		fmt.Println(err)
	}
	fmt.Println(p.pay("1000"))
	fmt.Println(p.pay("1000"))
	// Output:
	// 200 OK charge 1
	// 200 OK charge 2
}

func ExampleAssertAttempts() {
	t := stdout{} // in a test, the test's own
	oncemoretest.AssertAttempts(t, []oncemoretest.Request{
		{Method: http.MethodPost, URL: "https://pay.example.com/v1/charges"},
	}, 2)
	// Output:
	// sent 1 requests, want 2
	//   1. POST https://pay.example.com/v1/charges
}

// A client that makes a key for each attempt is caught.
func ExampleAssertSameKey() {
	t := stdout{} // in a test, the test's own
	network := oncemoretest.NewTransport(oncemoretest.Reset)
	for _, key := range []string{"k-1", "k-2"} {
		req, err := http.NewRequest(http.MethodPost, "https://pay.example.com/v1/charges", strings.NewReader("1000"))
		if err != nil {
			t.Error(err)
		}
		req.Header.Set(oncemore.KeyHeader, key)
		_, _ = network.RoundTrip(req)
	}
	oncemoretest.AssertSameKey(t, network.Sent())
	// Output:
	// sent without one and the same key:
	//   1. POST https://pay.example.com/v1/charges: ["k-1"]
	//   2. POST https://pay.example.com/v1/charges: ["k-2"]
}

func ExampleAssertSameBody() {
	t := stdout{} // in a test, the test's own
	oncemoretest.AssertSameBody(t, []oncemoretest.Request{{Body: "amount=1000"}, {Body: "amount"}})
	// Output:
	// request 2 has another body than the first: 6 and 11 bytes, different from byte 6 on: "" and "=1000"
}

// stdout stands for the *testing.T that an Example does not have.
type stdout struct{ testing.TB }

func (stdout) Helper()                      {}
func (stdout) Error(args ...any)            { fmt.Println(args...) }
func (stdout) Errorf(f string, args ...any) { fmt.Printf(f+"\n", args...) }
