package oncemore

import (
	"encoding/json"
	"math/big"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The published schema and the parser judge every file alike.
func TestSchemaJudgesAsTheParserDoes(t *testing.T) {
	t.Parallel()
	schema := readSchema(t)
	for _, tt := range policyCorpus {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var doc any
			decode(t, []byte(tt.json), &doc)
			ok := schema.accepts(t, schema.root, doc)
			if tt.schemaBlind {
				assert.True(t, ok, "the schema sees this one; take the mark off")
				return
			}
			assert.Equal(t, len(tt.bad) == 0, ok)
		})
	}
}

// The schema describes each field that there is, and no other, in the policy
// and in a rule.
func TestSchemaHasEveryField(t *testing.T) {
	t.Parallel()
	schema := readSchema(t)
	names := func(fields []field, more ...string) []string {
		for _, f := range fields {
			more = append(more, f.name)
		}
		slices.Sort(more)
		return more
	}
	properties := func(path ...string) []string {
		node := schema.root
		for _, name := range path {
			node, _ = node[name].(map[string]any)
		}
		var keys []string
		for name := range node {
			keys = append(keys, name)
		}
		slices.Sort(keys)
		return keys
	}
	assert.Equal(t, names(policyFields, "budget", "rules"), properties("properties"))
	assert.Equal(t, names(budgetFields), properties("properties", "budget", "properties"))
	assert.Equal(t, names(policyFields[1:], "match"), properties("properties", "rules", "items", "properties"))
}

// What a policy is written as is valid by the schema too.
func TestSchemaAcceptsWhatIsWritten(t *testing.T) {
	t.Parallel()
	schema := readSchema(t)
	for _, p := range []*Policy{{}, DefaultPolicy(), everythingSet()} {
		data, err := json.Marshal(p)
		require.NoError(t, err)
		var doc any
		decode(t, data, &doc)
		assert.True(t, schema.accepts(t, schema.root, doc), "%s", data)
	}
}

// policySchema is docs/policy.schema.json, with as much of JSON Schema as it
// uses; any other keyword fails the test.
type policySchema struct {
	root map[string]any
}

func readSchema(t *testing.T) *policySchema {
	t.Helper()
	data, err := os.ReadFile("docs/policy.schema.json")
	require.NoError(t, err)
	s := &policySchema{}
	decode(t, data, &s.root)
	return s
}

func decode(t *testing.T, data []byte, v any) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(string(data)))
	dec.UseNumber()
	require.NoError(t, dec.Decode(v))
}

func (s *policySchema) accepts(t *testing.T, schema map[string]any, value any) bool {
	t.Helper()
	ok := true
	for keyword, arg := range schema {
		ok = s.keyword(t, schema, keyword, arg, value) && ok
	}
	return ok
}

func (s *policySchema) keyword(t *testing.T, schema map[string]any, keyword string, arg, value any) bool {
	t.Helper()
	_, isString := value.(string)
	number, isNumber := rational(value)
	object, isObject := value.(map[string]any)
	array, isArray := value.([]any)
	switch keyword {
	case "$schema", "$defs", "title", "description", "additionalProperties": // with properties
		return true
	case "$ref":
		return s.accepts(t, s.definition(t, arg), value)
	case "type":
		return map[any]bool{
			"string": isString, "number": isNumber, "integer": isNumber && number.IsInt(), "object": isObject, "array": isArray,
		}[arg]
	case "const":
		return equal(arg, value)
	case "enum":
		return slices.ContainsFunc(list(arg), func(v any) bool { return equal(v, value) })
	case "minimum":
		least, _ := rational(arg)
		return !isNumber || number.Cmp(least) >= 0
	case "maximum":
		most, _ := rational(arg)
		return !isNumber || number.Cmp(most) <= 0
	case "pattern":
		return !isString || schemaPattern(t, arg).MatchString(text(t, value))
	case "items":
		return !slices.ContainsFunc(array, func(v any) bool { return !s.accepts(t, subschema(t, arg), v) })
	case "required":
		return !isObject || !slices.ContainsFunc(list(arg), func(name any) bool { return object[text(t, name)] == nil })
	case "properties":
		require.Equal(t, false, schema["additionalProperties"])
		for name, v := range object {
			property, known := subschema(t, arg)[name]
			if !known || !s.accepts(t, subschema(t, property), v) {
				return false
			}
		}
		return true
	case "allOf":
		return !slices.ContainsFunc(list(arg), func(sub any) bool { return !s.accepts(t, subschema(t, sub), value) })
	case "anyOf":
		return slices.ContainsFunc(list(arg), func(sub any) bool { return s.accepts(t, subschema(t, sub), value) })
	case "not":
		return !s.accepts(t, subschema(t, arg), value)
	}
	require.Failf(t, "unknown keyword", "%q", keyword)
	return false
}

func (s *policySchema) definition(t *testing.T, ref any) map[string]any {
	t.Helper()
	name, ok := strings.CutPrefix(text(t, ref), "#/$defs/")
	require.True(t, ok)
	return subschema(t, subschema(t, s.root["$defs"])[name])
}

func subschema(t *testing.T, v any) map[string]any {
	t.Helper()
	schema, ok := v.(map[string]any)
	require.True(t, ok, "%v is no schema", v)
	return schema
}

func text(t *testing.T, v any) string {
	t.Helper()
	s, ok := v.(string)
	require.True(t, ok, "%v is no string", v)
	return s
}

func list(v any) []any {
	values, _ := v.([]any)
	return values
}

func rational(v any) (*big.Rat, bool) {
	n, ok := v.(json.Number)
	if !ok {
		return nil, false
	}
	return new(big.Rat).SetString(n.String())
}

func equal(a, b any) bool {
	x, aNumber := rational(a)
	y, bNumber := rational(b)
	if aNumber && bNumber {
		return x.Cmp(y) == 0
	}
	return reflect.DeepEqual(a, b)
}

// The schema's patterns are ECMAScript's; of what they use only \uXXXX is
// spelled in another way by Go.
func schemaPattern(t *testing.T, v any) *regexp.Regexp {
	t.Helper()
	escape := regexp.MustCompile(`\\u([0-9a-f]{4})`)
	return regexp.MustCompile(escape.ReplaceAllStringFunc(text(t, v), func(e string) string {
		n, err := strconv.ParseUint(e[2:], 16, 32)
		require.NoError(t, err)
		return `\x{` + strconv.FormatUint(n, 16) + `}`
	}))
}

// The page about policies shows what is so.
func TestPolicyPage(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("docs/policy.md")
	require.NoError(t, err)
	page := string(data)

	_, rest, found := strings.Cut(page, "```json\n")
	require.True(t, found)
	file, _, _ := strings.Cut(rest, "```")
	_, err = ParsePolicy([]byte(file))
	require.NoError(t, err)

	_, err = parse([]byte(`{"max_attempts":"4","rules":[{"match":"/","jitter":"some"}]}`), `policy file "policy.json"`)
	assert.Contains(t, page, "\n"+err.Error()+"\n")

	for _, f := range policyFields {
		assert.Contains(t, page, "\n| `"+f.name+"` |")
	}
	for _, f := range budgetFields {
		assert.Contains(t, page, "\n| `budget."+f.name+"` |")
	}

	_, patterns, _ := strings.Cut(page, "| pattern | matches |")
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]*)` \\|").FindAllStringSubmatch(patterns, -1) {
		assert.NoError(t, (&Policy{Rules: []Rule{{Match: row[1]}}}).Validate())
	}
}
