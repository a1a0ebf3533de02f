package oncemore

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// Jitter says how a backoff delay d is spread, so that callers that failed
// together do not come back together.
type Jitter string

// The kinds of jitter. The zero value means [JitterFull].
const (
	JitterFull  Jitter = "full"  // anywhere in [0, d]: spreads best, the default
	JitterEqual Jitter = "equal" // anywhere in [d/2, d]: never comes back at once
	JitterNone  Jitter = "none"  // exactly d: for tests, and for a single caller
)

// off is how a limit that was switched off is kept: any negative number means
// the same.
const off = -1

// Policy says what is retried, how often, and how long it may take. It is
// plain data: made in code, or read from a file by [LoadPolicy], and the same
// file can serve many services.
//
// A zero field means its default, so the zero Policy means [DefaultPolicy]. A
// negative number switches a limit off where the field's comment says so, and
// is an error elsewhere. A list replaces the default; a list that is empty but
// not nil is empty.
//
// In JSON the fields are called by the snake case of their names, a duration
// is a string such as "250ms", "none" switches a limit off, and an unknown
// field is an error. docs/policy.schema.json describes the form.
//
// A client copies its policy when it takes it. A Policy may be read by many
// goroutines at once, and must not be changed while it is read.
type Policy struct {
	// Name is for people. It is not part of the hash. Default "".
	Name string

	// MaxAttempts bounds the sends of one call; the first one counts, so 1
	// means no retry. Default 5.
	MaxAttempts int

	// BaseDelay is the backoff before the first retry, less what jitter takes
	// off. Default 200 ms.
	BaseDelay time.Duration

	// MaxDelay caps every backoff delay, the first one too. It does not cap a
	// Retry-After; MaxRetryAfter does. Default 5 s.
	MaxDelay time.Duration

	// Multiplier makes each delay longer than the one before. At least 1.
	// Default 2.
	Multiplier float64

	// Jitter spreads the delays. Default [JitterFull].
	Jitter Jitter

	// AttemptTimeout bounds one attempt, until its response headers are in,
	// and the body too where BufferResponse has it read. Default 10 s;
	// negative is off.
	AttemptTimeout time.Duration

	// OverallTimeout bounds a call with all its attempts and waits, until Do
	// returns, where the caller's context has no deadline. It never cuts the
	// reading of a body. Default 30 s; negative is off.
	OverallTimeout time.Duration

	// MaxRetryAfter is the longest Retry-After that is waited for; a longer
	// one ends the call with the response that carries it. Default 60 s;
	// negative is off: any Retry-After is waited for, as the deadline allows.
	MaxRetryAfter time.Duration

	// FinalStatuses are the statuses not to retry among those that would be:
	// 429 and 500 to 599. Default 501 505 506 508 510 511. No setting makes
	// another 4xx retryable.
	FinalStatuses []int

	// KeyMethods are the methods that get an idempotency key, in upper case.
	// Default POST and PATCH; an empty list switches keys off.
	KeyMethods []string

	// MaxBufferedBody is how many bytes of a request body that has no GetBody
	// are kept, so that it can be sent again; a longer one is sent once.
	// Default 1 MiB; negative never keeps any.
	MaxBufferedBody int64

	// BufferResponse is up to which known length a keyed request's response
	// is read inside the attempt, so that a body that is cut off on the way
	// counts as no answer. Default 64 KiB; negative never reads any.
	BufferResponse int64

	// Budget bounds the retries of all calls to one host.
	Budget BudgetPolicy

	// Rules change the policy for some requests. Of those that match a
	// request the most specific one is used, alone.
	Rules []Rule
}

// Rule is what a policy changes for the requests that Match. Its zero fields
// are inherited from the policy, never from another rule. A rule may not set
// Name, Budget or Rules.
type Rule struct {
	// Match is a pattern in the syntax of [http.ServeMux]:
	// "[METHOD ][HOST]/[PATH]", for example "POST pay.example.com/v1/". The
	// host is in lower case and has no port: it matches every port. Of two
	// patterns the more specific one wins, as in ServeMux; two of which
	// neither is more specific are an error. No redirects are implied: "/v1/"
	// does not match a request for "/v1".
	Match string

	Policy
}

// BudgetPolicy sizes the retry budget of a host. The budget starts full; a
// retry takes tokens before its wait, success gives some back, and a host
// whose budget is used up gets first attempts only.
type BudgetPolicy struct {
	// Capacity is how many tokens a host has at most. Default 500; negative
	// switches the budget off.
	Capacity int

	// RetryCost is what a retry takes. Default 5.
	RetryCost int

	// TimeoutCost is what a retry takes after a timeout, instead of
	// RetryCost. Default 10.
	TimeoutCost int
}

// DefaultPolicy returns a new copy of the policy that is used where none is
// given, every value spelled out.
func DefaultPolicy() *Policy {
	return &Policy{
		MaxAttempts:     5,
		BaseDelay:       200 * time.Millisecond,
		MaxDelay:        5 * time.Second,
		Multiplier:      2,
		Jitter:          JitterFull,
		AttemptTimeout:  10 * time.Second,
		OverallTimeout:  30 * time.Second,
		MaxRetryAfter:   time.Minute,
		FinalStatuses:   []int{501, 505, 506, 508, 510, 511},
		KeyMethods:      []string{http.MethodPost, http.MethodPatch},
		MaxBufferedBody: 1 << 20,
		BufferResponse:  64 << 10,
		Budget:          BudgetPolicy{Capacity: 500, RetryCost: 5, TimeoutCost: 10},
	}
}

// field is one entry of the table that reading, writing, checking and hashing
// a policy share, so that none of them can forget a field.
type field struct {
	name string            // in JSON and in paths
	in   func(*Policy) any // a pointer to it
	none bool              // may be switched off
}

// policyFields has every field but Budget and Rules.
var policyFields = []field{
	{"name", func(p *Policy) any { return &p.Name }, false},
	{"max_attempts", func(p *Policy) any { return &p.MaxAttempts }, false},
	{"base_delay", func(p *Policy) any { return &p.BaseDelay }, false},
	{"max_delay", func(p *Policy) any { return &p.MaxDelay }, false},
	{"multiplier", func(p *Policy) any { return &p.Multiplier }, false},
	{"jitter", func(p *Policy) any { return &p.Jitter }, false},
	{"attempt_timeout", func(p *Policy) any { return &p.AttemptTimeout }, true},
	{"overall_timeout", func(p *Policy) any { return &p.OverallTimeout }, true},
	{"max_retry_after", func(p *Policy) any { return &p.MaxRetryAfter }, true},
	{"final_statuses", func(p *Policy) any { return &p.FinalStatuses }, false},
	{"key_methods", func(p *Policy) any { return &p.KeyMethods }, false},
	{"max_buffered_body", func(p *Policy) any { return &p.MaxBufferedBody }, true},
	{"buffer_response", func(p *Policy) any { return &p.BufferResponse }, true},
}

// budgetFields are the fields of Policy.Budget.
var budgetFields = []field{
	{"capacity", func(p *Policy) any { return &p.Budget.Capacity }, true},
	{"retry_cost", func(p *Policy) any { return &p.Budget.RetryCost }, false},
	{"timeout_cost", func(p *Policy) any { return &p.Budget.TimeoutCost }, false},
}

// over returns a copy of p whose zero fields are base's. Nothing is shared
// with either.
func (p *Policy) over(base *Policy) *Policy {
	return &Policy{
		Name:            cmp.Or(p.Name, base.Name),
		MaxAttempts:     cmp.Or(p.MaxAttempts, base.MaxAttempts),
		BaseDelay:       cmp.Or(p.BaseDelay, base.BaseDelay),
		MaxDelay:        cmp.Or(p.MaxDelay, base.MaxDelay),
		Multiplier:      cmp.Or(p.Multiplier, base.Multiplier),
		Jitter:          cmp.Or(p.Jitter, base.Jitter),
		AttemptTimeout:  cmp.Or(p.AttemptTimeout, base.AttemptTimeout),
		OverallTimeout:  cmp.Or(p.OverallTimeout, base.OverallTimeout),
		MaxRetryAfter:   cmp.Or(p.MaxRetryAfter, base.MaxRetryAfter),
		FinalStatuses:   listOr(p.FinalStatuses, base.FinalStatuses),
		KeyMethods:      listOr(p.KeyMethods, base.KeyMethods),
		MaxBufferedBody: cmp.Or(p.MaxBufferedBody, base.MaxBufferedBody),
		BufferResponse:  cmp.Or(p.BufferResponse, base.BufferResponse),
		Budget:          p.Budget.over(base.Budget),
		Rules:           cloneRules(p.Rules),
	}
}

func (b BudgetPolicy) over(base BudgetPolicy) BudgetPolicy {
	return BudgetPolicy{
		Capacity:    cmp.Or(b.Capacity, base.Capacity),
		RetryCost:   cmp.Or(b.RetryCost, base.RetryCost),
		TimeoutCost: cmp.Or(b.TimeoutCost, base.TimeoutCost),
	}
}

// filled returns a deep copy of p with the defaults in place of its zero
// fields; a nil p is the default policy. Rules are copied as they are: what
// they inherit is decided in effective.
func (p *Policy) filled() *Policy {
	if p == nil {
		return DefaultPolicy()
	}
	return p.over(DefaultPolicy())
}

// effective returns the policy of the requests that r is for: r over p, which
// is filled.
func (r *Rule) effective(p *Policy) *Policy {
	q := r.over(p)
	q.Name, q.Budget, q.Rules = p.Name, p.Budget, nil
	return q
}

// listOr returns a copy of the first list that is not nil.
func listOr[T any](list, base []T) []T {
	if list == nil {
		list = base
	}
	return slices.Clone(list)
}

func cloneRules(rules []Rule) []Rule {
	rules = slices.Clone(rules)
	for i := range rules {
		r := &rules[i]
		r.FinalStatuses = slices.Clone(r.FinalStatuses)
		r.KeyMethods = slices.Clone(r.KeyMethods)
		r.Rules = cloneRules(r.Rules)
	}
	return rules
}

// keyed reports whether a request of this method gets an idempotency key. An
// empty method is GET, as in net/http.
func (p *Policy) keyed(method string) bool {
	return slices.Contains(p.KeyMethods, cmp.Or(method, http.MethodGet))
}

// final reports whether the policy lists status as one not to retry.
func (p *Policy) final(status int) bool {
	return slices.Contains(p.FinalStatuses, status)
}

// Hash returns twelve hex digits that name the effective values: a default
// that is left out and one that is spelled out hash alike, and so do lists and
// rules in another order. Name is left out. Logs and events carry it, so that
// each call tells which policy it used; a service can pin it in a test. It
// stays the same as long as neither the policy nor a default that it relies on
// changes.
func (p *Policy) Hash() string {
	q := p.filled()
	h := sha256.New()
	hashFields(h, q)
	for _, f := range budgetFields {
		fmt.Fprintf(h, "budget.%s=%s\n", f.name, hashed(f.in(q)))
	}
	slices.SortStableFunc(q.Rules, func(a, b Rule) int {
		return cmp.Compare(canonicalMatch(a.Match), canonicalMatch(b.Match))
	})
	for i := range q.Rules {
		r := &q.Rules[i]
		fmt.Fprintf(h, "rule=%q\n", canonicalMatch(r.Match))
		hashFields(h, r.effective(q))
	}
	return hex.EncodeToString(h.Sum(nil)[:6])
}

func hashFields(w io.Writer, p *Policy) {
	for _, f := range policyFields {
		if f.name != "name" {
			fmt.Fprintf(w, "%s=%s\n", f.name, hashed(f.in(p)))
		}
	}
}

// hashed writes a value in the form that is hashed. It differs from JSON on
// purpose: the hash must not change when the JSON gets prettier.
func hashed(ptr any) string {
	switch v := ptr.(type) {
	case *int:
		return strconv.Itoa(max(*v, off))
	case *int64:
		return strconv.FormatInt(max(*v, off), 10)
	case *time.Duration:
		return strconv.FormatInt(max(int64(*v), off), 10)
	case *float64:
		return strconv.FormatFloat(*v, 'g', -1, 64)
	case *Jitter:
		return strconv.Quote(string(*v))
	case *[]int:
		return fmt.Sprint(slices.Compact(slices.Sorted(slices.Values(*v))))
	case *[]string:
		return fmt.Sprintf("%q", slices.Compact(slices.Sorted(slices.Values(*v))))
	}
	panic(fmt.Sprintf("oncemore: no hash for a %T", ptr))
}

// isFinite reports whether f is a number.
func isFinite(f float64) bool {
	return !math.IsNaN(f) && !math.IsInf(f, 0)
}
