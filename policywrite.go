package oncemore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// MarshalJSON writes what [ParsePolicy] reads. Zero fields are left out.
func (p Policy) MarshalJSON() ([]byte, error) {
	var w objectWriter
	w.fields(policyFields, &p)
	if p.Budget != (BudgetPolicy{}) {
		var budget objectWriter
		budget.fields(budgetFields, &p)
		w.member("budget", json.RawMessage(budget.bytes()))
	}
	if p.Rules != nil {
		w.member("rules", p.Rules)
	}
	return w.bytes(), w.err
}

// MarshalJSON writes the rule as it stands in a policy.
func (r Rule) MarshalJSON() ([]byte, error) {
	var w objectWriter
	w.member("match", r.Match)
	policy, err := r.Policy.MarshalJSON()
	if members := bytes.TrimPrefix(policy, []byte("{")); len(members) > len("}") {
		w.buf.WriteByte(',')
		w.buf.Write(bytes.TrimSuffix(members, []byte("}")))
	}
	return w.bytes(), errors.Join(w.err, err)
}

// objectWriter writes a JSON object member by member.
type objectWriter struct {
	buf bytes.Buffer
	err error
}

func (w *objectWriter) bytes() []byte {
	if w.buf.Len() == 0 {
		return []byte("{}")
	}
	return append(bytes.Clone(w.buf.Bytes()), '}')
}

func (w *objectWriter) member(name string, value any) {
	text, err := json.Marshal(value)
	if err != nil {
		w.err = errors.Join(w.err, err)
		return
	}
	separator := ","
	if w.buf.Len() == 0 {
		separator = "{"
	}
	fmt.Fprintf(&w.buf, "%s%q:%s", separator, name, text)
}

// fields writes those fields of p that are not zero.
func (w *objectWriter) fields(fields []field, p *Policy) {
	for _, f := range fields {
		if value := jsonValue(f.in(p)); value != nil {
			w.member(f.name, value)
		}
	}
}

// jsonValue returns the value of a field as JSON has it, nil for a zero one.
func jsonValue(ptr any) any {
	switch v := ptr.(type) {
	case *string:
		return orNil(*v)
	case *Jitter:
		return orNil(*v)
	case *float64:
		return orNil(*v)
	case *int:
		return numberOrNone(*v)
	case *int64:
		return numberOrNone(*v)
	case *time.Duration:
		if *v > 0 {
			return v.String()
		}
		return numberOrNone(*v)
	case *[]int:
		return listOrNil(*v)
	case *[]string:
		return listOrNil(*v)
	}
	panic(fmt.Sprintf("oncemore: no JSON for a %T", ptr))
}

func orNil[T comparable](v T) any {
	var zero T
	if v == zero {
		return nil
	}
	return v
}

func listOrNil[T any](list []T) any {
	if list == nil {
		return nil
	}
	return list
}

func numberOrNone[T int | int64 | time.Duration](n T) any {
	if n < 0 {
		return none
	}
	return orNil(n)
}
