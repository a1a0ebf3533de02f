package oncemore

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

// compiledPolicy is a policy as a client uses it: a private copy, checked,
// defaults filled in, each rule worked out. It is never changed once made.
type compiledPolicy struct {
	policy *Policy // what applies where no rule does
	hash   string
	// Rules by the host of their pattern, "" for any; in each list the more
	// specific ones first.
	rules map[string][]compiledRule
}

type compiledRule struct {
	pattern
	policy *Policy
}

// compilePolicy copies p, fills the defaults in and works the rules out. A nil
// p is the default policy. The error is that of Validate.
func compilePolicy(p *Policy) (*compiledPolicy, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	c := &compiledPolicy{policy: p.filled(), hash: p.Hash()}
	if len(c.policy.Rules) == 0 {
		return c, nil
	}
	c.rules = map[string][]compiledRule{}
	for i := range c.policy.Rules {
		r := &c.policy.Rules[i]
		pat := parsePattern(r.Match)
		c.rules[pat.host] = append(c.rules[pat.host], compiledRule{pat, r.effective(c.policy)})
	}
	for _, list := range c.rules {
		slices.SortStableFunc(list, func(a, b compiledRule) int { return a.precedence(&b.pattern) })
	}
	return c, nil
}

// forRequest returns the policy for r, never nil. It is shared: the caller
// must not change it. The host is r.Host, as the server sees it, or else the
// URL's.
func (c *compiledPolicy) forRequest(r *http.Request) *Policy {
	if len(c.rules) == 0 || r.URL == nil {
		return c.policy
	}
	method := cmp.Or(r.Method, http.MethodGet)
	path := cleanPath(requestPath(r.URL))
	if host := hostOnly(cmp.Or(r.Host, r.URL.Host)); host != "" {
		for i := range c.rules[host] {
			if rule := &c.rules[host][i]; rule.match(method, path) {
				return rule.policy
			}
		}
	}
	for i := range c.rules[""] {
		if rule := &c.rules[""][i]; rule.match(method, path) {
			return rule.policy
		}
	}
	return c.policy
}

// requestPath returns the path that is sent for u, escaped.
func requestPath(u *url.URL) string {
	if u.Opaque == "" {
		return u.EscapedPath()
	}
	p, _, _ := strings.Cut(u.Opaque, "?")
	if rest, ok := strings.CutPrefix(p, "//"); ok { // "//host/path"
		_, p, _ = strings.Cut(rest, "/")
	}
	return p
}

// hostOnly returns host in lower case, without a port, and without the
// brackets of an IPv6 address.
func hostOnly(host string) string {
	if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
		host = host[:i]
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

// checkPatterns adds what is wrong with the patterns of the rules. A conflict
// is a problem of the later rule, and names the first rule that it is with.
func (ps *problems) checkPatterns(rules []Rule) {
	known := make([]*pattern, len(rules)) // nil: not well formed
	for i := range rules {
		path, match := rulePath(i)+".match", rules[i].Match
		if text := patternProblem(match); text != "" {
			ps.add(path, "%s", text)
			continue
		}
		p := parsePattern(match)
		known[i] = &p
		j := slices.IndexFunc(known[:i], func(q *pattern) bool { return q != nil && q.conflicts(&p) })
		if j >= 0 {
			ps.add(path, "%q conflicts with %s.match %q: some request matches both, and neither is more specific",
				match, rulePath(j), rules[j].Match)
		}
	}
}

// patternProblem says what is wrong with a pattern by itself, "" if nothing.
func patternProblem(match string) string {
	if match == "" {
		return `missing; "/" matches every request`
	}
	if err := wellFormed(match); err != nil {
		return err.Error()
	}
	method, host, path := splitMatch(match)
	switch {
	case method != "" && !isMethod(method):
		return fmt.Sprintf("%q is not a method in upper case", method)
	case !isPatternHost(host):
		return fmt.Sprintf("%q is not a host in lower case, without scheme, port and wildcard (IPv6 in brackets)", host)
	case path != cleanPath(path):
		return fmt.Sprintf("path %q can never match; its clean form is %q", path, cleanPath(path))
	}
	return ""
}

// isPatternHost reports whether a request can have this host as hostOnly
// returns it; "" is any host. A pattern that can never match is a mistake that
// nothing else would show.
func isPatternHost(host string) bool {
	symbols := "-._"
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host, symbols = host[1:len(host)-1], ":."
		if host == "" {
			return false
		}
	}
	for _, c := range host {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c < utf8.RuneSelf && !strings.ContainsRune(symbols, c) {
			return false
		}
	}
	return host == strings.ToLower(host)
}

// wellFormed returns what http.ServeMux says against a pattern, which it says
// by a panic.
func wellFormed(match string) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%v", v)
		}
	}()
	http.NewServeMux().Handle(match, http.NotFoundHandler())
	return nil
}
