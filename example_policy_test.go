package oncemore_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/oncemore-go/oncemore"
)

// A policy as a platform team shares it. What it leaves out is spelled out.
func ExampleParsePolicy() {
	policy, err := oncemore.ParsePolicy([]byte(`{
		"name": "payments",
		"max_attempts": 4,
		"overall_timeout": "none",
		"rules": [
			{"match": "POST pay.example.com/v1/refunds", "max_attempts": 6}
		]
	}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(policy.MaxAttempts, policy.AttemptTimeout, policy.Rules[0].MaxAttempts)
	fmt.Println(policy.Hash())
	// Output:
	// 4 10s 6
	// cd3b3eb87e40
}

// All problems come at once, each under its path.
func ExampleParsePolicy_problems() {
	_, err := oncemore.ParsePolicy([]byte(`{
		"max_retries": 4,
		"final_statuses": [503, 404],
		"rules": [{"match": "pay.example.com:443/", "jitter": "some"}]
	}`))
	var list interface{ Unwrap() []error }
	if errors.As(err, &list) {
		for _, problem := range list.Unwrap() {
			fmt.Println(problem)
		}
	}
	// Output:
	// max_retries: unknown field
	// final_statuses[1]: 404 is neither 429 nor from 500 to 599
	// rules[0].jitter: "some" is none of "full", "equal", "none"
	// rules[0].match: "pay.example.com:443" is not a host in lower case, without scheme, port and wildcard (IPv6 in brackets)
}

// A policy made in code is checked in the same way, and written as it is read.
func ExamplePolicy() {
	policy := &oncemore.Policy{
		MaxAttempts:    3,
		AttemptTimeout: 2 * time.Second,
		OverallTimeout: -1, // off
		KeyMethods:     []string{},
	}
	if err := policy.Validate(); err != nil {
		fmt.Println(err)
		return
	}
	text, err := json.Marshal(policy)
	fmt.Println(string(text), err)
	// Output:
	// {"max_attempts":3,"attempt_timeout":"2s","overall_timeout":"none","key_methods":[]} <nil>
}

// A date is measured against the server's own clock.
func ExampleRetryAfter() {
	header := http.Header{}
	header.Set("Date", "Mon, 30 Nov 2026 12:00:00 GMT")
	header.Set("Retry-After", "Mon, 30 Nov 2026 12:00:07 GMT")
	fmt.Println(oncemore.RetryAfter(header, time.Now()))

	header.Set("Retry-After", "120")
	fmt.Println(oncemore.RetryAfter(header, time.Now()))

	header.Set("Retry-After", "0.5") // not in the standard
	fmt.Println(oncemore.RetryAfter(header, time.Now()))
	// Output:
	// 7s true
	// 2m0s true
	// 0s false
}
