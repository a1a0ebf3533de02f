package oncemore

import (
	"cmp"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
)

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
