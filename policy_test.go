package oncemore

import (
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParsePolicy(t *testing.T) {
	t.Parallel()
	for _, tt := range policyCorpus {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, err := ParsePolicy([]byte(tt.json))
			assert.Equal(t, tt.bad, problemPaths(err), "%v", err)
			if err != nil {
				assert.Nil(t, p)
				assert.True(t, strings.HasPrefix(err.Error(), "oncemore: policy: "), "%v", err)
				return
			}
			assert.NoError(t, p.Validate())
		})
	}
}

func TestParsePolicyOfWhatIsNoJSON(t *testing.T) {
	t.Parallel()
	for _, tt := range brokenPolicies {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, err := ParsePolicy([]byte(tt.json))
			assert.Equal(t, []string{""}, problemPaths(err), "%v", err)
			assert.Nil(t, p)
		})
	}
}

func TestParsePolicyErrorTexts(t *testing.T) {
	t.Parallel()
	_, err := ParsePolicy([]byte(`{
	"max_attempts": "3",
	"attempt_timeout": "10",
	"rules": [{"match": "/{a}", "jitter": "x"}, {"match": "/{b}"}, {"match": "/{"}, {}]
} {}`))
	require.EqualError(t, err, "oncemore: policy: "+strings.Join([]string{
		`line 5, column 3: something follows the policy`,
		`max_attempts: want a whole number, not a string`,
		`attempt_timeout: want a duration such as "250ms" or "none", not "10"`,
		`rules[0].jitter: "x" is none of "full", "equal", "none"`,
		`rules[1].match: "/{b}" conflicts with rules[0].match "/{a}": some request matches both, and neither is more specific`,
		`rules[2].match: parsing "/{": at offset 1: bad wildcard segment (must end with '}')`,
		`rules[3].match: missing; "/" matches every request`,
	}, "; "))
	var list interface{ Unwrap() []error }
	require.ErrorAs(t, err, &list)
	assert.Len(t, list.Unwrap(), 7)

	_, err = ParsePolicy([]byte("{\n  \"max_attempts\": 3,\n}"))
	assert.EqualError(t, err, `oncemore: policy: line 3, column 1: invalid character '}' looking for beginning of object key string`)
}

func TestParsePolicySpellsEveryDefaultOut(t *testing.T) {
	t.Parallel()
	p, err := ParsePolicy([]byte(`{}`))
	require.NoError(t, err)
	assert.Equal(t, DefaultPolicy(), p)

	p, err = ParsePolicy([]byte(`{"name":"x","max_attempts":2,"attempt_timeout":"none","final_statuses":[],"budget":{"retry_cost":1},"rules":[{"match":"/","jitter":"none"}]}`))
	require.NoError(t, err)
	want := DefaultPolicy()
	want.Name, want.MaxAttempts, want.AttemptTimeout, want.FinalStatuses = "x", 2, -1, []int{}
	want.Budget.RetryCost = 1
	want.Rules = []Rule{{Match: "/", Policy: Policy{Jitter: JitterNone}}}
	assert.Equal(t, want, p)
}

func TestLoadPolicy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()

	_, err := LoadPolicy(filepath.Join(dir, "none.json"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	assert.True(t, strings.HasPrefix(err.Error(), "oncemore: policy: "), "%v", err)

	path := filepath.Join(dir, "policy.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"max_attempts":7}`), 0o600))
	p, err := LoadPolicy(path)
	require.NoError(t, err)
	assert.Equal(t, 7, p.MaxAttempts)

	require.NoError(t, os.WriteFile(path, []byte(`{"max_attempts":-7}`), 0o600))
	_, err = LoadPolicy(path)
	assert.EqualError(t, err, `oncemore: policy file "`+path+`": max_attempts: must not be negative`)
}

func TestDefaultPolicy(t *testing.T) {
	t.Parallel()
	p := DefaultPolicy()
	require.NoError(t, p.Validate())
	assert.Equal(t, &Policy{
		MaxAttempts: 5, BaseDelay: 200 * time.Millisecond, MaxDelay: 5 * time.Second, Multiplier: 2, Jitter: "full",
		AttemptTimeout: 10 * time.Second, OverallTimeout: 30 * time.Second, MaxRetryAfter: 60 * time.Second,
		FinalStatuses: []int{501, 505, 506, 508, 510, 511}, KeyMethods: []string{"POST", "PATCH"},
		MaxBufferedBody: 1 << 20, BufferResponse: 64 << 10, Budget: BudgetPolicy{Capacity: 500, RetryCost: 5, TimeoutCost: 10},
	}, p)
	p.FinalStatuses[0], p.KeyMethods[0] = 0, ""
	assert.NotEqual(t, p, DefaultPolicy(), "each call returns a policy of its own")
}

// A number below zero switches a limit off, or is an error.
func TestValidateNegative(t *testing.T) {
	t.Parallel()
	tests := []struct {
		path string
		p    Policy
		ok   bool
	}{
		{"max_attempts", Policy{MaxAttempts: -1}, false},
		{"base_delay", Policy{BaseDelay: -1}, false},
		{"max_delay", Policy{MaxDelay: -1}, false},
		{"multiplier", Policy{Multiplier: -1}, false},
		{"attempt_timeout", Policy{AttemptTimeout: -1}, true},
		{"overall_timeout", Policy{OverallTimeout: math.MinInt64}, true},
		{"max_retry_after", Policy{MaxRetryAfter: -time.Hour}, true},
		{"max_buffered_body", Policy{MaxBufferedBody: -1}, true},
		{"buffer_response", Policy{BufferResponse: -1}, true},
		{"budget.capacity", Policy{Budget: BudgetPolicy{Capacity: -1}}, true},
		{"budget.retry_cost", Policy{Budget: BudgetPolicy{RetryCost: -1}}, false},
		{"budget.timeout_cost", Policy{Budget: BudgetPolicy{TimeoutCost: -1}}, false},
	}
	for _, tt := range tests {
		t.Run(tt.path, func(t *testing.T) {
			t.Parallel()
			err := tt.p.Validate()
			if tt.ok {
				assert.NoError(t, err)
				return
			}
			assert.Equal(t, []string{tt.path}, problemPaths(err))
		})
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	assert.NoError(t, (*Policy)(nil).Validate())
	assert.NoError(t, (&Policy{}).Validate())
	assert.NoError(t, everythingSet().Validate())
	bad := &Policy{
		Multiplier:    math.NaN(),
		Jitter:        "loud",
		FinalStatuses: []int{503, 404},
		KeyMethods:    []string{"POST", "put"},
		Rules: []Rule{
			{Match: "/", Policy: Policy{Name: "x", Budget: BudgetPolicy{Capacity: 1}, Rules: []Rule{}, Jitter: "loud"}},
			{Match: "pay.example.com:443/"},
			{Match: "/{a}/", Policy: Policy{Multiplier: math.Inf(1)}},
			{Match: "/{b}/"},
		},
	}
	err := bad.Validate()
	assert.Equal(t, []string{
		"final_statuses[1]", "jitter", "key_methods[1]", "multiplier",
		"rules[0].budget", "rules[0].jitter", "rules[0].name", "rules[0].rules",
		"rules[1].match", "rules[2].multiplier", "rules[3].match",
	}, problemPaths(err))
	assert.ErrorContains(t, err, "rules[2].match")
}

func TestHash(t *testing.T) {
	t.Parallel()
	// Pinned: it is in the logs of running services. It changes with a default,
	// and with nothing else.
	const defaultHash = "43ab5f723ae8"
	assert.Equal(t, defaultHash, DefaultPolicy().Hash())
	assert.Equal(t, "cee83baf7a68", everythingSet().Hash())

	rules := []Rule{{Match: "/a"}, {Match: "GET  /b", Policy: Policy{MaxAttempts: 2}}}
	tests := []struct {
		name string
		p, q *Policy
		same bool
	}{
		{"nil", nil, DefaultPolicy(), true},
		{"zero", &Policy{}, DefaultPolicy(), true},
		{"name", &Policy{Name: "x"}, DefaultPolicy(), true},
		{"any negative number", &Policy{AttemptTimeout: -1}, &Policy{AttemptTimeout: -5}, true},
		{"off is not the default", &Policy{AttemptTimeout: -1}, DefaultPolicy(), false},
		{"list in another order", &Policy{KeyMethods: []string{"PATCH", "POST", "POST"}}, DefaultPolicy(), true},
		{"empty list", &Policy{KeyMethods: []string{}}, DefaultPolicy(), false},
		{"no rules", &Policy{Rules: []Rule{}}, DefaultPolicy(), true},
		{"rules in another order", &Policy{Rules: rules}, &Policy{Rules: []Rule{{Match: "GET /b", Policy: Policy{MaxAttempts: 2}}, {Match: "/a"}}}, true},
		{"an inherited value spelled out", &Policy{Rules: []Rule{{Match: "/a"}}}, &Policy{Rules: []Rule{{Match: "/a", Policy: Policy{MaxAttempts: 5}}}}, true},
		{"a rule's value", &Policy{Rules: []Rule{{Match: "/a"}}}, &Policy{Rules: []Rule{{Match: "/a", Policy: Policy{MaxAttempts: 4}}}}, false},
		{"a rule's pattern", &Policy{Rules: []Rule{{Match: "/a"}}}, &Policy{Rules: []Rule{{Match: "/b"}}}, false},
		{"not a number", &Policy{Multiplier: math.NaN()}, DefaultPolicy(), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			assert.Regexp(t, `^[0-9a-f]{12}$`, tt.p.Hash())
			assert.Equal(t, tt.same, tt.p.Hash() == tt.q.Hash())
		})
	}
}

// Every field is in the table, is inherited, is hashed, and is written and read.
func TestEveryField(t *testing.T) {
	t.Parallel()
	base, full := DefaultPolicy(), everythingSet()
	for name, index := range policyStructFields() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &Policy{}
			value := reflect.ValueOf(full).Elem().FieldByIndex(index)
			require.False(t, value.IsZero(), "everythingSet leaves it out")
			reflect.ValueOf(p).Elem().FieldByIndex(index).Set(value)

			want := reflect.ValueOf(DefaultPolicy()).Elem()
			want.FieldByIndex(index).Set(value)
			assert.Equal(t, want.Addr().Interface(), p.over(base))
			assert.Equal(t, full, (&Policy{}).over(full).withRules(full.Rules))
			assert.Equal(t, name == "Name", p.Hash() == base.Hash())

			data, err := json.Marshal(p)
			require.NoError(t, err)
			q, err := ParsePolicy(data)
			require.NoError(t, err, "%s", data)
			assert.Equal(t, p.filled(), q, "%s", data)
		})
	}
}

func (p *Policy) withRules(rules []Rule) *Policy {
	p.Rules = rules
	return p
}

// policyStructFields returns the fields of Policy and of its Budget.
func policyStructFields() map[string][]int {
	fields := map[string][]int{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Policy]()) {
		if f.Name != "Budget" {
			fields[f.Name] = f.Index
			continue
		}
		for _, b := range reflect.VisibleFields(f.Type) {
			fields["Budget."+b.Name] = append(slices.Clone(f.Index), b.Index...)
		}
	}
	return fields
}

// everythingSet has no field at its default, and none at zero.
func everythingSet() *Policy {
	return &Policy{
		Name: "everything", MaxAttempts: 3, BaseDelay: time.Millisecond, MaxDelay: 1500 * time.Millisecond, Multiplier: 1.25,
		Jitter: JitterEqual, AttemptTimeout: -1, OverallTimeout: time.Minute, MaxRetryAfter: time.Hour,
		FinalStatuses: []int{429}, KeyMethods: []string{}, MaxBufferedBody: -1, BufferResponse: 1,
		Budget: BudgetPolicy{Capacity: -1, RetryCost: 1, TimeoutCost: 2},
		Rules: []Rule{
			{Match: "/"},
			{Match: "POST pay.example.com/v1/{id}", Policy: Policy{MaxAttempts: 9, KeyMethods: []string{"POST"}, MaxRetryAfter: -1}},
		},
	}
}

func TestMarshal(t *testing.T) {
	t.Parallel()
	data, err := json.Marshal(everythingSet())
	require.NoError(t, err)
	assert.JSONEq(t, `{"name":"everything","max_attempts":3,"base_delay":"1ms","max_delay":"1.5s","multiplier":1.25,"jitter":"equal",
		"attempt_timeout":"none","overall_timeout":"1m0s","max_retry_after":"1h0m0s","final_statuses":[429],"key_methods":[],
		"max_buffered_body":"none","buffer_response":1,"budget":{"capacity":"none","retry_cost":1,"timeout_cost":2},
		"rules":[{"match":"/"},{"match":"POST pay.example.com/v1/{id}","max_attempts":9,"max_retry_after":"none","key_methods":["POST"]}]}`, string(data))

	data, err = json.Marshal(struct {
		Zero Policy
		Nil  *Policy
		Rule Rule
	}{})
	require.NoError(t, err)
	assert.JSONEq(t, `{"Zero":{},"Nil":null,"Rule":{"match":""}}`, string(data))

	_, err = json.Marshal(Policy{Rules: []Rule{{Policy: Policy{Multiplier: math.NaN()}}}})
	assert.Error(t, err)
}

// A policy may be part of a service's own configuration.
func TestUnmarshal(t *testing.T) {
	t.Parallel()
	var config struct {
		Retry Policy
		Other *Policy
		Null  Policy
		Rule  Rule
	}
	require.NoError(t, json.Unmarshal([]byte(`{"Retry":{"max_attempts":2},"Other":null,"Null":null,"Rule":{"match":"/","max_attempts":3}}`), &config))
	assert.Equal(t, 2, config.Retry.MaxAttempts)
	assert.Equal(t, 5*time.Second, config.Retry.MaxDelay)
	assert.Nil(t, config.Other)
	assert.Zero(t, config.Null)
	assert.Equal(t, Rule{Match: "/", Policy: Policy{MaxAttempts: 3}}, config.Rule)

	before := config
	require.ErrorContains(t, json.Unmarshal([]byte(`{"Retry":{"attempts":2}}`), &config), "attempts: unknown field")
	require.ErrorContains(t, json.Unmarshal([]byte(`{"Rule":{"match":"/","budget":{}}}`), &config), "budget: a rule may not set it")
	require.ErrorContains(t, json.Unmarshal([]byte(`{"Rule":{"match":"/","jitter":"x"}}`), &config), "jitter: ")
	require.ErrorContains(t, json.Unmarshal([]byte(`{"Rule":{"match":"x:1/"}}`), &config), "match: ")
	assert.Equal(t, before, config)
}

func TestKeyedAndFinal(t *testing.T) {
	t.Parallel()
	p := DefaultPolicy()
	for method, want := range map[string]bool{"POST": true, "PATCH": true, "GET": false, "": false, "post": false, "PUT": false} {
		assert.Equal(t, want, p.keyed(method), "%q", method)
	}
	p.KeyMethods = []string{"GET"}
	assert.True(t, p.keyed(""), "no method is GET")
	for status, want := range map[int]bool{501: true, 511: true, 500: false, 429: false, 503: false} {
		assert.Equal(t, want, p.final(status), "%d", status)
	}
}

// problemPaths returns the sorted paths of the problems in err.
func problemPaths(err error) []string {
	var e *policyError
	if !errors.As(err, &e) {
		return nil
	}
	var paths []string
	for _, p := range e.problems {
		paths = append(paths, p.path)
	}
	slices.Sort(paths)
	return paths
}

// Whatever is read is written so that it is read again as the same policy.
func FuzzParsePolicy(f *testing.F) {
	for _, tt := range policyCorpus {
		f.Add([]byte(tt.json))
	}
	for _, tt := range brokenPolicies {
		f.Add([]byte(tt.json))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := ParsePolicy(data)
		if err != nil {
			if p != nil || len(problemPaths(err)) == 0 {
				t.Fatalf("%q: %v, %v", data, p, err)
			}
			return
		}
		if !json.Valid(data) {
			t.Fatalf("%q is no JSON", data)
		}
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		q, err := ParsePolicy(text)
		if err != nil {
			t.Fatalf("%q is written as %q: %v", data, text, err)
		}
		if p.Hash() != q.Hash() || p.Name != q.Name {
			t.Fatalf("%q is written as %q, which is another policy", data, text)
		}
		if _, err := compilePolicy(p); err != nil {
			t.Fatalf("%q: %v", data, err)
		}
	})
}
