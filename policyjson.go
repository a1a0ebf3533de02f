package oncemore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// none is how JSON writes a limit that is switched off.
const none = "none"

// LoadPolicy reads the policy file at path, as [ParsePolicy] does. The error
// wraps that of the file system, if there is one, and names the file.
func LoadPolicy(path string) (*Policy, error) {
	data, err := os.ReadFile(path) // #nosec G304 -- the caller says which file
	if err != nil {
		return nil, fmt.Errorf("oncemore: policy: %w", err)
	}
	return parse(data, fmt.Sprintf("policy file %q", path))
}

// ParsePolicy reads a policy from its JSON form and returns it with every
// default spelled out; the rules keep what they say themselves. It is strict:
// an unknown or repeated field, a value of another type, null, and anything
// after the policy are errors. The error names all problems at once, each
// under its JSON path, such as rules[0].jitter; its Unwrap() []error gives
// them one by one.
func ParsePolicy(data []byte) (*Policy, error) {
	return parse(data, "policy")
}

// UnmarshalJSON reads a policy that is part of a larger document, as
// [ParsePolicy] does. Null there leaves p as it is, as encoding/json has it.
func (p *Policy) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	q, err := ParsePolicy(data)
	if err == nil {
		*p = *q
	}
	return err
}

// UnmarshalJSON reads a rule by itself, as [ParsePolicy] reads those of a
// policy.
func (r *Rule) UnmarshalJSON(data []byte) error {
	var ps problems
	var q Rule
	ps.readRule(data, "", &q)
	ps.merge(func(found *problems) {
		found.checkRule("", &q)
		found.checkPatterns([]Rule{q})
	})
	if len(ps) == 0 {
		*r = q
	}
	return ps.err("rule")
}

func parse(data []byte, what string) (*Policy, error) {
	var ps problems
	var p Policy
	if doc := ps.readDocument(data); doc != nil {
		ps.readPolicy(doc, &p)
		ps.merge(func(found *problems) { found.check(&p) })
	}
	if err := ps.err(what); err != nil {
		return nil, err
	}
	return p.filled(), nil
}

// merge adds what check finds, less what is covered by what is known.
func (ps *problems) merge(check func(*problems)) {
	var found problems
	check(&found)
	known := *ps
	for _, p := range found {
		if !known.cover(p.path) {
			*ps = append(*ps, p)
		}
	}
}

// readDocument returns the first JSON value of data, nil if there is none that
// is well formed.
func (ps *problems) readDocument(data []byte) json.RawMessage {
	if !utf8.Valid(data) {
		ps.add("", "not UTF-8")
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	var doc json.RawMessage
	if err := dec.Decode(&doc); err != nil {
		var syntax *json.SyntaxError
		switch {
		case errors.Is(err, io.EOF):
			ps.add("", "no JSON in it")
		case errors.As(err, &syntax):
			ps.add("", "%s: %s", position(data, syntax.Offset-1), syntax)
		default:
			ps.add("", "%s: %s", position(data, int64(len(data))), err)
		}
		return nil
	}
	if rest := data[dec.InputOffset():]; len(bytes.TrimLeft(rest, " \t\r\n")) > 0 {
		start := len(data) - len(bytes.TrimLeft(rest, " \t\r\n"))
		ps.add("", "%s: something follows the policy", position(data, int64(start)))
	}
	return doc
}

// position names a place in data as people count.
func position(data []byte, offset int64) string {
	before := data[:min(max(offset, 0), int64(len(data)))]
	line := bytes.Count(before, []byte("\n")) + 1
	return fmt.Sprintf("line %d, column %d", line, len(before)-bytes.LastIndexByte(before, '\n'))
}

func (ps *problems) readPolicy(doc json.RawMessage, p *Policy) {
	ps.readObject(doc, "", func(name, path string, value json.RawMessage) {
		switch name {
		case "budget":
			ps.readObject(value, path, func(name, path string, value json.RawMessage) {
				ps.readField(budgetFields, name, path, value, p)
			})
		case "rules":
			p.Rules = make([]Rule, 0)
			ps.readArray(value, path, func(path string, value json.RawMessage) {
				var r Rule
				ps.readRule(value, path, &r)
				p.Rules = append(p.Rules, r)
			})
		default:
			ps.readField(policyFields, name, path, value, p)
		}
	})
}

func (ps *problems) readRule(doc json.RawMessage, path string, r *Rule) {
	ps.readObject(doc, path, func(name, path string, value json.RawMessage) {
		switch name {
		case "match":
			r.Match = ps.readString(value, path, "a pattern")
		case "name", "budget", "rules":
			ps.add(path, notInRule)
		default:
			ps.readField(policyFields, name, path, value, &r.Policy)
		}
	})
}

// readObject calls each for the members of an object. doc is well formed, as
// everything below readDocument is.
func (ps *problems) readObject(doc json.RawMessage, path string, each func(name, path string, value json.RawMessage)) {
	if !ps.want(doc, path, "an object") {
		return
	}
	prefix := path
	if path != "" {
		prefix += "."
	}
	seen := map[string]bool{}
	dec := json.NewDecoder(bytes.NewReader(doc))
	_, _ = dec.Token() // the brace
	for dec.More() {
		token, _ := dec.Token()
		name, _ := token.(string)
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			ps.add(prefix+name, "%s", err)
			return
		}
		if seen[name] {
			ps.add(prefix+name, "is there twice")
			continue
		}
		seen[name] = true
		each(name, prefix+name, value)
	}
}

func (ps *problems) readArray(doc json.RawMessage, path string, each func(path string, value json.RawMessage)) {
	if !ps.want(doc, path, "an array") {
		return
	}
	var values []json.RawMessage
	if err := json.Unmarshal(doc, &values); err != nil {
		ps.add(path, "%s", err)
		return
	}
	for i, value := range values {
		each(fmt.Sprintf("%s[%d]", path, i), value)
	}
}

// want reports whether a value is of the kind that its description names, and
// adds a problem if not.
func (ps *problems) want(value json.RawMessage, path, description string) bool {
	if kind := kindOf(value); kind != description {
		ps.add(path, "want %s, not %s", description, kind)
		return false
	}
	return true
}

func kindOf(value json.RawMessage) string {
	switch value[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

// readField reads the field of p that fields has under name.
func (ps *problems) readField(fields []field, name, path string, value json.RawMessage, p *Policy) {
	for _, f := range fields {
		if f.name != name {
			continue
		}
		switch v := f.in(p).(type) {
		case *string:
			*v = ps.readString(value, path, "a string")
		case *Jitter:
			*v = Jitter(ps.readString(value, path, `"full", "equal" or "none"`))
		case *time.Duration:
			*v = ps.readDuration(value, path, f.none)
		case *int:
			*v = int(ps.readInt(value, path, f.none, math.MaxInt))
		case *int64:
			*v = ps.readInt(value, path, f.none, math.MaxInt64)
		case *float64:
			*v = ps.readFloat(value, path)
		case *[]int:
			*v = make([]int, 0)
			ps.readArray(value, path, func(path string, value json.RawMessage) {
				*v = append(*v, int(ps.readInt(value, path, false, math.MaxInt)))
			})
		case *[]string:
			*v = make([]string, 0)
			ps.readArray(value, path, func(path string, value json.RawMessage) {
				*v = append(*v, ps.readString(value, path, "a method"))
			})
		}
		return
	}
	ps.add(path, "unknown field")
}

func (ps *problems) readString(value json.RawMessage, path, description string) string {
	var s string
	if kindOf(value) != "a string" || json.Unmarshal(value, &s) != nil {
		ps.add(path, "want %s, not %s", description, kindOf(value))
	}
	return s
}

func (ps *problems) readDuration(value json.RawMessage, path string, offable bool) time.Duration {
	description := `a duration such as "250ms"`
	if offable {
		description += ` or "none"`
	}
	known := len(*ps)
	s := ps.readString(value, path, description)
	if len(*ps) > known {
		return 0
	}
	if offable && s == none {
		return off
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		ps.add(path, "want %s, not %q", description, s)
	}
	return d
}

// readInt reads a whole number up to limit. 1e3 and 5.0 are whole
// numbers too, as JSON Schema has it.
func (ps *problems) readInt(value json.RawMessage, path string, offable bool, limit int64) int64 {
	description := "a whole number"
	if offable {
		description += ` or "none"`
		if string(value) == strconv.Quote(none) {
			return off
		}
	}
	if kind := kindOf(value); kind != "a number" {
		ps.add(path, "want %s, not %s", description, kind)
		return 0
	}
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil && strings.ContainsAny(string(value), ".eE") {
		f, ferr := strconv.ParseFloat(string(value), 64)
		if n = int64(f); ferr == nil && float64(n) == f && math.Abs(f) <= 1<<53 {
			err = nil
		}
	}
	if err != nil || n > limit || n < -limit-1 {
		ps.add(path, "want %s, not %s", description, value)
		return 0
	}
	return n
}

func (ps *problems) readFloat(value json.RawMessage, path string) float64 {
	if !ps.want(value, path, "a number") {
		return 0
	}
	f, err := strconv.ParseFloat(string(value), 64)
	if err != nil {
		ps.add(path, "%s is too large", value)
		return 0
	}
	return f
}
