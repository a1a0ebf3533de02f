package main

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Payment is one line of the batch.
type Payment struct {
	Line     int    // of the file, from 1
	Tenant   string // whose payment this is; the id is the tenant's own
	ID       string
	Payer    string
	Payee    string
	Amount   int64 // in minor units
	Currency string
	Memo     string
}

// name is a payment's identity: two tenants may use one id.
type name struct{ tenant, id string }

func (p *Payment) name() name { return name{p.Tenant, p.ID} }

func (n name) String() string { return n.tenant + " " + n.id }

// The columns of a batch, in any order. Without a tenant column all payments
// are defaultTenant's.
var (
	required = []string{"id", "payer", "payee", "amount", "currency"}
	optional = []string{"tenant", "memo"}
)

const (
	defaultTenant = "default"
	maxAmount     = 1_000_000_000_000 // minor units, so that a sum can't overflow
	maxName       = 200
	maxMemo       = 1000
)

// problem is something wrong with a line.
type problem struct {
	line int
	text string
}

// batchError is everything that is wrong with a file.
type batchError struct {
	file     string
	problems []problem
}

func (b *batchError) Error() string {
	var s strings.Builder
	for _, p := range b.problems {
		fmt.Fprintf(&s, "%s:%d: %s\n", b.file, p.line, p.text)
	}
	fmt.Fprintf(&s, "%s: %s, nothing was paid", b.file, count(len(b.problems), "problem"))
	return s.String()
}

// count is "1 problem", "2 problems".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// reader collects what it reads and what it finds wrong.
type reader struct {
	csv      *csv.Reader
	columns  map[string]int
	payments []Payment
	problems []problem
	lines    map[name]int // where a payment was seen first
}

// readBatch reads a whole batch. A batch with problems is refused with all of
// them at once, as a *batchError.
func readBatch(file string, data []byte) ([]Payment, error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff")) // spreadsheets put it there
	r := &reader{csv: csv.NewReader(bytes.NewReader(data)), lines: map[name]int{}}
	if r.header() {
		r.rows()
	}
	if len(r.problems) > 0 {
		slices.SortStableFunc(r.problems, func(a, b problem) int { return a.line - b.line })
		return nil, &batchError{file: file, problems: r.problems}
	}
	return r.payments, nil
}

func (r *reader) wrong(line int, format string, args ...any) {
	r.problems = append(r.problems, problem{line, fmt.Sprintf(format, args...)})
}

// header reads the first line. False: without it no other line can be read.
func (r *reader) header() bool {
	head, err := r.csv.Read()
	if errors.Is(err, io.EOF) {
		r.wrong(1, "the file is empty")
		return false
	}
	if err != nil {
		r.malformed(err)
		return false
	}
	r.columns = map[string]int{}
	for i, column := range head {
		column = strings.ToLower(strings.TrimSpace(column))
		_, twice := r.columns[column]
		switch {
		case twice:
			r.wrong(1, "column %q is there twice", column)
		case !slices.Contains(required, column) && !slices.Contains(optional, column):
			r.wrong(1, "unknown column %q", column)
		}
		r.columns[column] = i
	}
	for _, column := range required {
		if _, ok := r.columns[column]; !ok {
			r.wrong(1, "no column %q", column)
		}
	}
	return len(r.problems) == 0
}

func (r *reader) rows() {
	for {
		row, err := r.csv.Read()
		switch {
		case errors.Is(err, io.EOF):
			if len(r.payments) == 0 && len(r.problems) == 0 {
				r.wrong(1, "there are no payments in the file")
			}
			return
		case err != nil:
			r.malformed(err)
		default:
			r.row(row)
		}
	}
}

// malformed notes a line that is no CSV. The reader goes on behind it.
func (r *reader) malformed(err error) {
	parse, ok := errors.AsType[*csv.ParseError](err)
	switch {
	case !ok:
		r.wrong(1, "%v", err)
	case errors.Is(err, csv.ErrFieldCount):
		r.wrong(parse.StartLine, "the line does not have %s", count(len(r.columns), "field"))
	case parse.Line != parse.StartLine:
		r.wrong(parse.StartLine, "%v, at line %d", parse.Err, parse.Line)
	default:
		r.wrong(parse.StartLine, "%v, at byte %d", parse.Err, parse.Column)
	}
}

// row checks one payment, every field of it.
func (r *reader) row(row []string) {
	line, _ := r.csv.FieldPos(0)
	before := len(r.problems)
	p := Payment{Line: line, Tenant: defaultTenant}
	r.text(row, "id", 64, &p.ID)
	r.text(row, "payer", maxName, &p.Payer)
	r.text(row, "payee", maxName, &p.Payee)
	r.tenant(row, &p.Tenant)
	r.memo(row, &p.Memo)
	r.currency(row, &p.Currency)
	r.amount(row, &p.Amount)
	r.unique(&p)
	if len(r.problems) == before {
		r.payments = append(r.payments, p)
	}
}

// unique keeps the identities apart. It knows those of bad lines too, so that
// nothing is left to be found when the others are mended.
func (r *reader) unique(p *Payment) {
	if p.ID == "" {
		return
	}
	if first, ok := r.lines[p.name()]; ok {
		r.wrong(p.Line, "id %q is in line %d already: one payment, one id", p.ID, first)
		return
	}
	r.lines[p.name()] = p.Line
}

// field returns a column's value, and the line that it is in.
func (r *reader) field(row []string, column string) (value string, line int, ok bool) {
	i, ok := r.columns[column]
	if !ok {
		return "", 0, false
	}
	line, _ = r.csv.FieldPos(i)
	return strings.TrimSpace(row[i]), line, true
}

// text takes a value that must be there, on one line.
func (r *reader) text(row []string, column string, longest int, to *string) {
	value, line, _ := r.field(row, column)
	switch {
	case value == "":
		r.wrong(line, "%s is empty", column)
	case !utf8.ValidString(value):
		r.wrong(line, "%s %q is not UTF-8", column, value)
	case utf8.RuneCountInString(value) > longest:
		r.wrong(line, "%s is longer than %d characters", column, longest)
	case strings.ContainsFunc(value, unicode.IsControl):
		r.wrong(line, "%s %q has a control character in it", column, value)
	}
	*to = value
}

// tenant goes into a request header, so its form is narrower.
func (r *reader) tenant(row []string, to *string) {
	value, line, ok := r.field(row, "tenant")
	if !ok {
		return
	}
	bad := func(c rune) bool { return c <= ' ' || c > '~' }
	if value == "" || len(value) > 64 || strings.ContainsFunc(value, bad) {
		r.wrong(line, "tenant %q is not 1 to 64 visible ASCII characters", value)
	}
	*to = value
}

// memo may be empty, and may have several lines.
func (r *reader) memo(row []string, to *string) {
	value, line, _ := r.field(row, "memo")
	switch {
	case !utf8.ValidString(value):
		r.wrong(line, "memo is not UTF-8")
	case utf8.RuneCountInString(value) > maxMemo:
		r.wrong(line, "memo is longer than %d characters", maxMemo)
	}
	*to = value
}

func (r *reader) currency(row []string, to *string) {
	value, line, _ := r.field(row, "currency")
	if _, ok := minorDigits[value]; !ok {
		r.wrong(line, "currency %q is no code of ISO 4217", value)
	}
	*to = value
}

func (r *reader) amount(row []string, to *int64) {
	value, line, _ := r.field(row, "amount")
	notDigit := func(c rune) bool { return c < '0' || c > '9' }
	n, err := strconv.ParseInt(value, 10, 64)
	switch {
	case value == "" || strings.ContainsFunc(value, notDigit):
		r.wrong(line, "amount %q is not a whole number of minor units", value)
	case err != nil || n > maxAmount:
		r.wrong(line, "amount %q is over %d", value, int64(maxAmount))
	case n == 0:
		r.wrong(line, "amount is zero")
	}
	*to = n
}
