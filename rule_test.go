package oncemore

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRuleMatching(t *testing.T) {
	t.Parallel()
	// MaxAttempts tells which rule was used: 100 plus its place.
	c := compileMatches(t,
		"pay.example.com/",                    // 0
		"POST pay.example.com/v1/",            // 1
		"GET pay.example.com/v1/",             // 2
		"HEAD pay.example.com/v1/head/",       // 3
		"POST pay.example.com/v1/{id}",        // 4
		"POST pay.example.com/v1/refund",      // 5
		"POST pay.example.com/v1/refund/{$}",  // 6
		"POST pay.example.com/v1/x/{rest...}", // 7
		"[2001:db8::1]/",                      // 8
		"/any/",                               // 9
		"10.0.0.1/",                           // 10
		"/a%2Fb/c",                            // 11
		"DELETE gone.example.com/",            // 12
	)
	tests := []struct {
		method, url string
		want        int // -1: no rule
	}{
		{"POST", "https://pay.example.com/", 0},
		{"POST", "https://pay.example.com", 0},
		{"POST", "https://pay.example.com:8443/other", 0},
		{"POST", "https://PAY.Example.com:8443/v1/a/b/c", 1},
		{"POST", "https://pay.example.com/v1/", 1},
		{"PUT", "https://pay.example.com/v1/", 0},
		{"POST", "https://pay.example.com/v1", 0}, // no redirect is implied
		{"GET", "https://pay.example.com/v1/a", 2},
		{"", "https://pay.example.com/v1/a", 2},
		{"HEAD", "https://pay.example.com/v1/a", 2},
		{"HEAD", "https://pay.example.com/v1/head/a", 3},
		{"GET", "https://pay.example.com/v1/head/a", 2},
		{"POST", "https://pay.example.com/v1/17", 4},
		{"POST", "https://pay.example.com/v1/refund", 5},
		{"POST", "https://pay.example.com/v1/%72efund", 5},
		{"POST", "https://pay.example.com/v1/refund?x=/", 5},
		{"POST", "https://pay.example.com/v1/refund/", 6},
		{"POST", "https://pay.example.com/v1/refund/1", 1},
		{"POST", "https://pay.example.com/v1/x/1/2", 7},
		{"POST", "https://pay.example.com/v1/x/", 7},
		{"POST", "https://pay.example.com//v1/./y/../refund", 5},
		{"POST", "https://pay.example.com/v1/a%2Fb", 4},
		{"POST", "https://pay.example.com/v1/100%25", 4},
		{"POST", "https://[2001:DB8::1]:8443/x", 8},
		{"POST", "https://[2001:db8::1]/x", 8},
		{"POST", "https://[2001:db8::2]/x", -1},
		{"POST", "https://elsewhere.example.com/any/", 9},
		{"POST", "https://elsewhere.example.com/any", -1},
		{"POST", "https://pay.example.com/any/", 0}, // a host wins over none
		{"POST", "http://10.0.0.1/", 10},
		{"POST", "http://x/a%2Fb/c", 11},
		{"POST", "http://x/a/b/c", -1},
		{"DELETE", "http://gone.example.com", 12},
		{"DELETE", "http://gone.example.com//a/../b", 12},
		{"CONNECT", "http://x/", -1},
		{"POST", "http://x//a/../b", -1},
	}
	for _, tt := range tests {
		t.Run(tt.method+" "+tt.url, func(t *testing.T) {
			t.Parallel()
			u, err := url.Parse(tt.url)
			require.NoError(t, err)
			for _, r := range []*http.Request{
				{Method: tt.method, URL: u},
				{Method: tt.method, URL: u, Host: u.Host},
				{Method: tt.method, URL: &url.URL{Scheme: "http", Host: "10.0.0.9", Path: u.Path, RawPath: u.RawPath}, Host: u.Host},
				{Method: tt.method, URL: &url.URL{Scheme: "http", Host: u.Host, Opaque: "//" + u.Host + u.RequestURI()}},
			} {
				assert.Equal(t, tt.want, ruleOf(c, r))
			}
		})
	}
	assert.Equal(t, -1, ruleOf(c, &http.Request{}), "no URL")
	assert.Equal(t, -1, ruleOf(c, &http.Request{URL: &url.URL{}}), "an empty URL")
	assert.Equal(t, 12, ruleOf(c, &http.Request{Method: http.MethodDelete, URL: &url.URL{Path: "*"}, Host: "gone.example.com"}))
}

// compileMatches returns a policy that has a rule for each pattern, in reverse
// order so that the order is seen not to matter.
func compileMatches(tb testing.TB, matches ...string) *compiledPolicy {
	tb.Helper()
	p := &Policy{MaxAttempts: 99}
	for i, match := range slices.Backward(matches) {
		p.Rules = append(p.Rules, Rule{Match: match, Policy: Policy{MaxAttempts: 100 + i}})
	}
	c, err := compilePolicy(p)
	require.NoError(tb, err)
	return c
}

func ruleOf(c *compiledPolicy, r *http.Request) int {
	return c.forRequest(r).MaxAttempts - 100
}

func TestRulesInheritFromThePolicyOnly(t *testing.T) {
	t.Parallel()
	c, err := compilePolicy(&Policy{
		Name: "shared", MaxAttempts: 7, AttemptTimeout: -1, FinalStatuses: []int{500}, Budget: BudgetPolicy{RetryCost: 1},
		Rules: []Rule{
			{Match: "/", Policy: Policy{MaxAttempts: 2, Jitter: JitterNone, KeyMethods: []string{}}},
			{Match: "/a", Policy: Policy{MaxDelay: 1, FinalStatuses: []int{}, OverallTimeout: -1}},
		},
	})
	require.NoError(t, err)
	all := c.forRequest(httptest.NewRequest(http.MethodGet, "http://x/b", http.NoBody))
	a := c.forRequest(httptest.NewRequest(http.MethodGet, "http://x/a", http.NoBody))

	assert.Equal(t, 2, all.MaxAttempts)
	assert.Equal(t, JitterNone, all.Jitter)
	assert.Empty(t, all.KeyMethods)
	assert.Equal(t, []int{500}, all.FinalStatuses)

	want := DefaultPolicy()
	want.Name, want.MaxAttempts, want.AttemptTimeout, want.Budget.RetryCost = "shared", 7, -1, 1
	want.MaxDelay, want.FinalStatuses, want.OverallTimeout = 1, []int{}, -1
	assert.Equal(t, want, a, "nothing of the rule for /")
}

func TestCompilePolicyCopies(t *testing.T) {
	t.Parallel()
	p := everythingSet()
	p.Rules = append(p.Rules, Rule{Match: "/x", Policy: Policy{FinalStatuses: []int{500}}})
	c, err := compilePolicy(p)
	require.NoError(t, err)
	hash := c.hash
	assert.Equal(t, p.Hash(), hash)

	p.FinalStatuses[0], p.Rules[1].KeyMethods[0], p.Rules[2].FinalStatuses[0] = 999, "changed", 999
	p.Rules[0].Match, p.MaxAttempts = "changed", 1000
	assert.Equal(t, hash, c.policy.Hash())
	r := httptest.NewRequest(http.MethodGet, "http://h/x", http.NoBody)
	assert.Equal(t, []int{500}, c.forRequest(r).FinalStatuses)
	r = httptest.NewRequest(http.MethodPost, "http://pay.example.com/v1/1", http.NoBody)
	assert.Equal(t, []string{"POST"}, c.forRequest(r).KeyMethods)
}

func TestCompilePolicy(t *testing.T) {
	t.Parallel()
	c, err := compilePolicy(nil)
	require.NoError(t, err)
	assert.Equal(t, DefaultPolicy(), c.policy)
	assert.Equal(t, DefaultPolicy().Hash(), c.hash)

	_, err = compilePolicy(&Policy{Rules: []Rule{{Match: "/{a}"}, {Match: "/{b}"}}})
	assert.EqualError(t, err, `oncemore: policy: rules[1].match: "/{b}" conflicts with rules[0].match "/{a}": some request matches both, and neither is more specific`)
}

// The path of every request leads through here.
func TestForRequestAllocatesNothing(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "http://pay.example.com:8443/v1/charges/17/", http.NoBody)
	for name, c := range map[string]*compiledPolicy{
		"no rules":     compileMatches(t),
		"no rule fits": compileMatches(t, "POST other.example.com/", "GET pay.example.com/v1/", "/v1/charges/{id}", "/v1/{x}/{$}"),
		"a rule":       compileMatches(t, "pay.example.com/v1/{kind}/{id}/{$}"),
	} {
		assert.Zero(t, testing.AllocsPerRun(100, func() { c.forRequest(r) }), name)
	}
}

// Every pair of patterns over a small alphabet, and sets of them.
func TestRulesAreServeMuxs(t *testing.T) {
	t.Parallel()
	var patterns []string
	var paths []string
	for _, first := range []string{"", "/a", "/{x}", "/%2F"} {
		for _, second := range []string{"", "/a", "/b", "/{y}"} {
			for _, last := range []string{"", "/", "/{$}", "/{z...}", "/a"} {
				if path := first + second + last; path != "" {
					paths = append(paths, path)
				}
			}
		}
	}
	for _, method := range []string{"", "GET ", "HEAD ", "POST "} {
		for _, path := range paths {
			patterns = append(patterns, method+path, method+"h"+path)
		}
	}
	slices.Sort(patterns)
	patterns = slices.Compact(patterns)
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		p, q := patterns[random.IntN(len(patterns))], patterns[random.IntN(len(patterns))]
		a, b := parsePattern(p), parsePattern(q)
		mux := http.NewServeMux()
		require.True(t, register(mux, p, 1))
		require.Equal(t, !register(mux, q, 2), a.conflicts(&b), "%s and %s", p, q)
	}

	requests := []string{"/", "/a", "/a/", "/c", "/c/", "/a/a", "/a/b", "/c/c", "/a/a/", "/a/c/", "/c/b/a", "/c/c/c/c", "/%2F", "/%2f/a", "/%61", "/a/%2F"}
	for range 500 {
		var rules []Rule
		mux := http.NewServeMux()
		for range 30 {
			if p := patterns[random.IntN(len(patterns))]; register(mux, p, len(rules)+1) {
				rules = append(rules, Rule{Match: p, Policy: Policy{MaxAttempts: len(rules) + 1}})
			}
		}
		c, err := compilePolicy(&Policy{MaxAttempts: 1000, Rules: rules})
		require.NoError(t, err)
		for _, path := range requests {
			for _, method := range []string{"GET", "HEAD", "POST", "PUT"} {
				for _, host := range []string{"h", "i"} {
					r := httptest.NewRequest(method, "http://"+host+path, http.NoBody)
					if want, ok := ruleOfMux(mux, r); ok {
						require.Equal(t, want, c.forRequest(r).MaxAttempts%1000, "%s %s among %v", method, r.URL, rules)
					}
				}
			}
		}
	}
}

// register adds a pattern to mux unless mux refuses it.
func register(mux *http.ServeMux, pattern string, n int) (ok bool) {
	defer func() { ok = recover() == nil }()
	mux.Handle(pattern, ruleHandler(n))
	return
}

type ruleHandler int

func (ruleHandler) ServeHTTP(http.ResponseWriter, *http.Request) {}

// ruleOfMux returns the number under which the pattern for r was registered, 0
// if there is none, and false if mux wants to redirect.
func ruleOfMux(mux *http.ServeMux, r *http.Request) (int, bool) {
	handler, pattern := mux.Handler(r)
	if n, ok := handler.(ruleHandler); ok {
		return int(n), true
	}
	return 0, pattern == ""
}

// A policy refuses the patterns that http.ServeMux refuses, and finds the rule
// that ServeMux finds for the clean path, unless that wants to redirect.
func FuzzRulesAreServeMuxs(f *testing.F) {
	f.Add("POST pay.example.com/v1/\nGET /{id}\n/{a}/{b...}\n/{$}", "POST", "pay.example.com", "/v1/x")
	f.Add("/a/\n/a/{b}/\n/a/{b}/{$}\n/a/c/{d...}", "GET", "h", "/a/c//d/../e/")
	f.Add("GET /\nHEAD /x\n/y", "HEAD", "h:80", "/x")
	f.Add("/%2F/{x}\n/{$}\n/a%20b", "GET", "h", "/%2f/%2F")
	f.Add("h/{x}/\n/{x...}", "PUT", "H", "")
	f.Add("[::1]/a\n\tx.y/", "PUT", "[::1]:80", "/a")
	f.Add("/{\n{}/\nh:1/\n//", "CONNECT", "h", "//a/../b")
	f.Add("/{a}\n/{b}\n/a/{x}/c\n/{y}/b/c\n/q/{z}/c\n/{a}/{$}\n/{a}/{b}", "GET", "h", "/a/b/c")
	f.Add("/\n/{a...}\nHEAD /{a}\nGET /a\nGET /%2F\nHEAD /{$}", "HEAD", "h", "/%2F")
	f.Fuzz(func(t *testing.T, matches, method, host, path string) {
		p := &Policy{MaxAttempts: 1000}
		mux := http.NewServeMux()
		for i, match := range slices.Compact(strings.SplitN(matches, "\n", 20)) {
			ok := register(mux, match, i+1)
			rule := Rule{Match: match, Policy: Policy{MaxAttempts: i + 1}}
			if err := (&Policy{Rules: []Rule{rule}}).Validate(); err != nil {
				if ok {
					return // we refuse more: what can never match
				}
				continue
			}
			err := (&Policy{Rules: append(p.Rules[:len(p.Rules):len(p.Rules)], rule)}).Validate()
			if ok != (err == nil) {
				t.Fatalf("%q after %v: ServeMux takes it: %t; policy: %v", match, p.Rules, ok, err)
			}
			if ok {
				p.Rules = append(p.Rules, rule)
			}
		}
		c, err := compilePolicy(p)
		if err != nil {
			t.Fatal(err)
		}
		u, err := url.ParseRequestURI("http://h" + path)
		if err != nil {
			return
		}
		r := &http.Request{Method: method, URL: u, Host: host}
		got := c.forRequest(r).MaxAttempts % 1000 // never panics
		if method == "" || method == http.MethodConnect || strings.ToLower(host) != host || strings.ContainsAny(host, "[]:") || host == "" {
			return // ServeMux wants its requests prepared
		}
		if want, ok := ruleOfMux(mux, withCleanPath(r)); ok && got != want {
			t.Fatalf("%s %s%s: rule %d, ServeMux has %d", method, host, path, got, want)
		}
	})
}

// withCleanPath returns r with its path made clean, as ServeMux would have it by a
// redirect.
func withCleanPath(r *http.Request) *http.Request {
	u := *r.URL
	clean := cleanPath(u.EscapedPath())
	if path, err := url.PathUnescape(clean); err == nil {
		u.Path, u.RawPath = path, clean
	}
	return &http.Request{Method: r.Method, URL: &u, Host: r.Host}
}

func BenchmarkForRequest(b *testing.B) {
	matches := []string{"POST pay.example.com/v1/charges/{id}"}
	for i := range 50 {
		matches = append(matches, fmt.Sprintf("POST pay.example.com/v1/thing%d/", i), fmt.Sprintf("host%d.example.com/", i))
	}
	c := compileMatches(b, matches...)
	r := httptest.NewRequest(http.MethodPost, "http://pay.example.com/v1/charges/17", http.NoBody)
	for b.Loop() {
		c.forRequest(r)
	}
}
