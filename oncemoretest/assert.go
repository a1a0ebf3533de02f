package oncemoretest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/oncemore-go/oncemore"
)

// AssertAttempts fails the test unless n requests were sent.
func AssertAttempts(tb testing.TB, sent []Request, n int) {
	tb.Helper()
	if len(sent) != n {
		tb.Errorf("sent %d requests, want %d%s", len(sent), n, list(sent, Request.line))
	}
}

// AssertSameKey fails the test unless all of these requests carried one and the
// same idempotency key, and there was at least one. Requests of several calls
// are told apart by slicing what [Transport.Sent] returns.
func AssertSameKey(tb testing.TB, sent []Request) {
	tb.Helper()
	if len(sent) == 0 {
		tb.Error("nothing was sent, so there is no key")
		return
	}
	for _, r := range sent {
		if r.Key == "" || len(r.Header.Values(oncemore.KeyHeader)) != 1 || r.Key != sent[0].Key {
			tb.Errorf("sent without one and the same key:%s", list(sent, Request.keys))
			return
		}
	}
}

// AssertSameBody fails the test unless all of these requests had the same body,
// byte for byte, and there was at least one. The body may be empty.
func AssertSameBody(tb testing.TB, sent []Request) {
	tb.Helper()
	if len(sent) == 0 {
		tb.Error("nothing was sent, so there is no body")
		return
	}
	for i, r := range sent {
		if r.Body != sent[0].Body {
			at := firstDifference(sent[0].Body, r.Body)
			tb.Errorf("request %d has another body than the first: %d and %d bytes, different from byte %d on: %q and %q",
				i+1, len(r.Body), len(sent[0].Body), at, excerpt(r.Body, at), excerpt(sent[0].Body, at))
			return
		}
	}
}

func (r Request) line() string { return r.Method + " " + r.URL }

func (r Request) keys() string {
	return fmt.Sprintf("%s: %q", r.line(), r.Header.Values(oncemore.KeyHeader))
}

// list puts each request on a line of its own.
func list(sent []Request, line func(Request) string) string {
	var b strings.Builder
	for i, r := range sent {
		fmt.Fprintf(&b, "\n  %d. %s", i+1, line(r))
	}
	return b.String()
}

func firstDifference(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// excerpt is what stands at a place, and a little of what follows.
func excerpt(s string, at int) string { return s[at:min(len(s), at+20)] }
