package oncemore

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"path"
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

// cleanPath returns the canonical form of an escaped path, as http.ServeMux
// does before it matches one.
func cleanPath(p string) string {
	if p == "" {
		return "/"
	}
	if p[0] != '/' {
		p = "/" + p
	}
	clean := path.Clean(p)
	switch {
	case p[len(p)-1] != '/' || clean == "/":
		return clean
	case len(p) == len(clean)+1:
		return p // it was clean but for the slash that Clean took off
	}
	return clean + "/"
}

// pattern is a parsed Rule.Match. http.ServeMux judges whether it is well
// formed; what a pattern matches is found here, because ServeMux answers a
// request with redirects where a client wants to know the rule and nothing
// else.
type pattern struct {
	method   string // "" is any
	host     string // "" is any
	segments []segment
}

// segment is what a pattern says of one segment of the path. A trailing slash
// in the path is a segment "/" of its own, and so is {$} in the pattern.
type segment struct {
	kind    segmentKind
	literal string // unescaped
}

type segmentKind int

// In the order in which they win.
const (
	literalSegment segmentKind = iota // this one
	wildSegment                       // any one
	multiSegment                      // whatever is left, perhaps nothing
)

// splitMatch cuts "[METHOD ][HOST]/[PATH]" in three. The path starts with a
// slash, or is empty if there is none.
func splitMatch(match string) (method, host, path string) {
	rest := match
	if i := strings.IndexAny(match, " \t"); i >= 0 {
		method, rest = match[:i], strings.TrimLeft(match[i+1:], " \t")
	}
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		return method, rest[:i], rest[i:]
	}
	return method, rest, ""
}

// canonicalMatch writes a pattern with single spaces.
func canonicalMatch(match string) string {
	method, host, path := splitMatch(match)
	return strings.TrimLeft(method+" "+host+path, " ")
}

// parsePattern parses a pattern that http.ServeMux has found well formed.
func parsePattern(match string) pattern {
	method, host, path := splitMatch(match)
	p := pattern{method: method, host: strings.Trim(host, "[]")}
	for path != "" {
		var text string
		text, path = cutSegment(path)
		s := segment{literalSegment, unescape(text)}
		switch {
		case text == "/": // a trailing slash
			s = segment{kind: multiSegment}
		case text == "{$}":
			s.literal = "/"
		case strings.HasPrefix(text, "{") && strings.HasSuffix(text, "...}"):
			s = segment{kind: multiSegment}
		case strings.HasPrefix(text, "{"):
			s = segment{kind: wildSegment}
		}
		p.segments = append(p.segments, s)
	}
	return p
}

// cutSegment takes the first segment off a path, as it is escaped. The path
// starts with a slash; if that is all, the segment is the slash.
func cutSegment(path string) (seg, rest string) {
	if path == "/" {
		return "/", ""
	}
	path = path[1:]
	if i := strings.IndexByte(path, '/'); i >= 0 {
		return path[:i], path[i:]
	}
	return path, ""
}

func unescape(seg string) string {
	if s, err := url.PathUnescape(seg); err == nil {
		return s
	}
	return seg
}

// match reports whether the pattern, whose host has matched, matches a method
// and a clean escaped path.
func (p *pattern) match(method, path string) bool {
	if p.method != "" && p.method != method && (p.method != http.MethodGet || method != http.MethodHead) {
		return false
	}
	for _, s := range p.segments {
		if s.kind == multiSegment {
			return path != ""
		}
		if path == "" {
			return false
		}
		var text string
		text, path = cutSegment(path)
		text = unescape(text)
		if s.kind == literalSegment && text != s.literal || s.kind == wildSegment && text == "/" {
			return false
		}
	}
	return path == ""
}

// precedence orders patterns of one host so that of all that match a request
// the most specific one comes first. Method before path is enough: patterns
// of which one had the narrower method and the other the narrower path
// conflict, and are refused.
func (p *pattern) precedence(q *pattern) int {
	return cmp.Or(
		cmp.Compare(methodRank(p.method), methodRank(q.method)),
		slices.CompareFunc(p.segments, q.segments, func(a, b segment) int { return cmp.Compare(a.kind, b.kind) }),
	)
}

// methodRank puts GET, which is for HEAD too, behind every other method, and
// no method last.
func methodRank(method string) int {
	switch method {
	case "":
		return 2
	case http.MethodGet:
		return 1
	}
	return 0
}

// covers reports whether p matches every request that q matches. Their hosts
// are the same.
func (p *pattern) covers(q *pattern) bool {
	if p.method != "" && p.method != q.method && (p.method != http.MethodGet || q.method != http.MethodHead) {
		return false
	}
	for i, s := range p.segments {
		if i == len(q.segments) {
			return false
		}
		if s.kind == multiSegment {
			return true
		}
		t := q.segments[i]
		if t.kind > s.kind || s.kind == literalSegment && s != t || s.kind == wildSegment && t.literal == "/" {
			return false
		}
	}
	return len(p.segments) == len(q.segments)
}

// meets reports whether some request matches both p and q. Their hosts are the
// same.
func (p *pattern) meets(q *pattern) bool {
	get, head := http.MethodGet, http.MethodHead
	if p.method != q.method && p.method != "" && q.method != "" &&
		(p.method != get || q.method != head) && (p.method != head || q.method != get) {
		return false
	}
	for i := range min(len(p.segments), len(q.segments)) {
		s, t := p.segments[i], q.segments[i]
		switch {
		case s.kind == multiSegment || t.kind == multiSegment:
			return true
		case s.kind == literalSegment && t.kind == literalSegment && s != t:
			return false
		case s.kind != t.kind && (s.literal == "/" || t.literal == "/"):
			return false
		}
	}
	return len(p.segments) == len(q.segments)
}

// conflicts reports whether p and q match some request together and neither is
// more specific, which is when http.ServeMux refuses the two.
func (p *pattern) conflicts(q *pattern) bool {
	return p.host == q.host && p.meets(q) && p.covers(q) == q.covers(p)
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
