package oncemoretest_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/oncemore-go/oncemore/oncemoretest"
)

// verdict is a testing.TB that keeps what an assertion says.
type verdict struct {
	testing.TB
	said []string
}

func (*verdict) Helper()                        {}
func (v *verdict) Error(args ...any)            { v.said = append(v.said, fmt.Sprint(args...)) }
func (v *verdict) Errorf(f string, args ...any) { v.said = append(v.said, fmt.Sprintf(f, args...)) }

// sent makes requests of their keys and bodies.
func sent(keysAndBodies ...string) []oncemoretest.Request {
	var list []oncemoretest.Request
	for i := 0; i < len(keysAndBodies); i += 2 {
		r := oncemoretest.Request{
			Method: http.MethodPost, URL: "https://pay.example.com/", Header: http.Header{},
			Key: keysAndBodies[i], Body: keysAndBodies[i+1],
		}
		if r.Key != "" {
			r.Header.Set("Idempotency-Key", r.Key)
		}
		list = append(list, r)
	}
	return list
}

func TestAsserts(t *testing.T) {
	t.Parallel()
	attempts := func(n int) func(testing.TB, []oncemoretest.Request) {
		return func(tb testing.TB, sent []oncemoretest.Request) {
			tb.Helper()
			oncemoretest.AssertAttempts(tb, sent, n)
		}
	}
	twice := sent("k", "b")
	twice[0].Header.Add("Idempotency-Key", "k")
	for _, tt := range []struct {
		name   string
		assert func(testing.TB, []oncemoretest.Request)
		sent   []oncemoretest.Request
		want   string // "" if it holds
	}{
		{"attempts", attempts(2), sent("a", "", "a", ""), ""},
		{"no attempts", attempts(0), nil, ""},
		{"too few", attempts(1), nil, "sent 0 requests, want 1"},
		{
			"too many", attempts(1), sent("a", "", "a", ""),
			"sent 2 requests, want 1\n  1. POST https://pay.example.com/\n  2. POST https://pay.example.com/",
		},
		{"one key", oncemoretest.AssertSameKey, sent("a", "", "a", "", "a", ""), ""},
		{
			"two keys", oncemoretest.AssertSameKey, sent("a", "", "b", ""),
			"sent without one and the same key:\n  1. POST https://pay.example.com/: [\"a\"]\n  2. POST https://pay.example.com/: [\"b\"]",
		},
		{"a key lost", oncemoretest.AssertSameKey, sent("a", "", "", ""), "sent without one and the same key:\n  1. POST https://pay.example.com/: [\"a\"]\n  2. POST https://pay.example.com/: []"},
		{"no key", oncemoretest.AssertSameKey, sent("", ""), "sent without one and the same key:\n  1. POST https://pay.example.com/: []"},
		{"a key twice", oncemoretest.AssertSameKey, twice, "sent without one and the same key:\n  1. POST https://pay.example.com/: [\"k\" \"k\"]"},
		{"nothing with a key", oncemoretest.AssertSameKey, nil, "nothing was sent, so there is no key"},
		{"one body", oncemoretest.AssertSameBody, sent("", "abc", "", "abc"), ""},
		{"no body", oncemoretest.AssertSameBody, sent("", "", "", ""), ""},
		{
			"another body", oncemoretest.AssertSameBody, sent("", "abc", "", "abc", "", "axc"),
			`request 3 has another body than the first: 3 and 3 bytes, different from byte 1 on: "xc" and "bc"`,
		},
		{
			"an empty body", oncemoretest.AssertSameBody, sent("", "0123456789012345678901234", "", ""),
			`request 2 has another body than the first: 0 and 25 bytes, different from byte 0 on: "" and "01234567890123456789"`,
		},
		{"nothing with a body", oncemoretest.AssertSameBody, nil, "nothing was sent, so there is no body"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := &verdict{TB: t}
			tt.assert(v, tt.sent)
			if tt.want == "" {
				assert.Empty(t, v.said)
				return
			}
			assert.Equal(t, []string{tt.want}, v.said)
		})
	}
}
