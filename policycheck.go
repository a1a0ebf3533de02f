package oncemore

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Validate reports everything that is wrong with the policy, nil if nothing
// is. The problems are in one error, each under its JSON path, such as
// rules[0].jitter; the error's Unwrap() []error gives them one by one. New and
// SetPolicy validate by themselves. A nil policy is the default one, and
// valid.
func (p *Policy) Validate() error {
	var ps problems
	ps.check(p)
	return ps.err("policy")
}

// problem is one thing that is wrong with a policy, and where.
type problem struct {
	path string
	text string
}

func (p *problem) String() string {
	if p.path == "" {
		return p.text
	}
	return p.path + ": " + p.text
}

// problems are collected, not returned one at a time: who repairs a file wants
// to see them all.
type problems []*problem

func (ps *problems) add(path, format string, args ...any) {
	*ps = append(*ps, &problem{path, fmt.Sprintf(format, args...)})
}

// cover reports whether path, or something that holds it, has a problem
// already: what could not be read is not judged as well.
func (ps *problems) cover(path string) bool {
	for _, p := range *ps {
		rest, ok := strings.CutPrefix(path, p.path)
		if ok && p.path != "" && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return true
		}
	}
	return false
}

// err returns the problems as one error about what, or nil.
func (ps *problems) err(what string) error {
	if len(*ps) == 0 {
		return nil
	}
	return &policyError{what, *ps}
}

// policyError is the error of Validate, ParsePolicy and LoadPolicy.
type policyError struct {
	what     string
	problems problems
}

func (e *policyError) Error() string {
	texts := make([]string, len(e.problems))
	for i, p := range e.problems {
		texts[i] = p.String()
	}
	return "oncemore: " + e.what + ": " + strings.Join(texts, "; ")
}

func (e *policyError) Unwrap() []error {
	errs := make([]error, len(e.problems))
	for i, p := range e.problems {
		errs[i] = errors.New(p.String())
	}
	return errs
}

// check adds what is wrong with p.
func (ps *problems) check(p *Policy) {
	if p == nil {
		return
	}
	ps.checkFields("", policyFields, p)
	ps.checkFields("budget.", budgetFields, p)
	for i := range p.Rules {
		ps.checkRule(rulePath(i), &p.Rules[i])
	}
	ps.checkPatterns(p.Rules)
}

func rulePath(i int) string {
	return fmt.Sprintf("rules[%d]", i)
}

const notInRule = "a rule may not set it"

func (ps *problems) checkRule(path string, r *Rule) {
	if r.Name != "" {
		ps.add(path+".name", notInRule)
	}
	if r.Budget != (BudgetPolicy{}) {
		ps.add(path+".budget", notInRule)
	}
	if r.Rules != nil {
		ps.add(path+".rules", notInRule)
	}
	ps.checkFields(path+".", policyFields, &r.Policy)
}

func (ps *problems) checkFields(prefix string, fields []field, p *Policy) {
	for _, f := range fields {
		path := prefix + f.name
		switch v := f.in(p).(type) {
		case *int:
			ps.checkSign(path, int64(*v), f.none)
		case *int64:
			ps.checkSign(path, *v, f.none)
		case *time.Duration:
			ps.checkSign(path, int64(*v), f.none)
		case *float64:
			if !isFinite(*v) || *v < 1 && *v != 0 {
				ps.add(path, "%v is not a number of at least 1", *v)
			}
		case *Jitter:
			ps.checkJitter(path, *v)
		case *[]int:
			for i, status := range *v {
				if status != 429 && (status < 500 || status > 599) {
					ps.add(fmt.Sprintf("%s[%d]", path, i), "%d is neither 429 nor from 500 to 599", status)
				}
			}
		case *[]string:
			for i, method := range *v {
				if !isMethod(method) {
					ps.add(fmt.Sprintf("%s[%d]", path, i), "%q is not a method in upper case", method)
				}
			}
		}
	}
}

func (ps *problems) checkSign(path string, n int64, none bool) {
	if n < 0 && !none {
		ps.add(path, "must not be negative")
	}
}

func (ps *problems) checkJitter(path string, j Jitter) {
	switch j {
	case "", JitterFull, JitterEqual, JitterNone:
	default:
		ps.add(path, `%q is none of "full", "equal", "none"`, j)
	}
}

// isMethod reports whether s is a method (RFC 9110 section 9.1) as a request
// can carry it. Methods are case-sensitive and written in upper case, so one
// with a small letter is a mistake that would never match.
func isMethod(s string) bool {
	const symbols = "!#$%&'*+-.^_`|~"
	for i := range len(s) {
		c := s[i]
		if (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte(symbols, c) < 0 {
			return false
		}
	}
	return s != ""
}
