package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/oncemore-go/oncemore/examples/internal/paymentapi"
	"github.com/oncemore-go/oncemore/internal/faultproxy"
)

func testBatch() []Payment {
	return []Payment{
		{Line: 2, Tenant: "acme", ID: "1", Payer: "a", Payee: "b", Amount: 1000, Currency: "EUR", Memo: "m"},
		{Line: 3, Tenant: "acme", ID: "2", Payer: "a", Payee: "b", Amount: 500, Currency: "EUR"},
		{Line: 4, Tenant: "sakura", ID: "1", Payer: "山田", Payee: "b", Amount: 70, Currency: "JPY"},
	}
}

func entry(p Payment) paymentapi.Entry {
	return paymentapi.Entry{Tenant: p.Tenant, Order: p.ID, Payer: p.Payer, Payee: p.Payee, Amount: p.Amount, Currency: p.Currency, Memo: p.Memo}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	b := testBatch()
	e := []paymentapi.Entry{entry(b[0]), entry(b[1]), entry(b[2])}
	changed := func(change func(*paymentapi.Entry)) []paymentapi.Entry {
		c := entry(b[1])
		change(&c)
		return []paymentapi.Entry{e[0], c, e[2]}
	}

	for _, tt := range []struct {
		name                                     string
		ledger                                   []paymentapi.Entry
		settled, missing, surplus, diff, foreign int
	}{
		{"equal", []paymentapi.Entry{e[2], e[0], e[1]}, 3, 0, 0, 0, 0},
		{"empty", nil, 0, 3, 0, 0, 0},
		{"one missing", []paymentapi.Entry{e[0], e[2]}, 2, 1, 0, 0, 0},
		{"twice and thrice", []paymentapi.Entry{e[0], e[1], e[0], e[2], e[2], e[2]}, 1, 0, 3, 0, 0},
		{"one twice, one missing: the numbers agree", []paymentapi.Entry{e[0], e[0], e[1]}, 1, 1, 1, 0, 0},
		{"foreign", append([]paymentapi.Entry{{Tenant: "acme", Order: "9", Currency: "USD", Amount: 1}}, e...), 3, 0, 0, 0, 1},
		{"another tenant's", []paymentapi.Entry{e[0], {Tenant: "sakura", Order: "2", Payer: "a", Payee: "b", Amount: 500, Currency: "EUR"}, e[2]}, 2, 1, 0, 0, 1},
		{"other amount", changed(func(c *paymentapi.Entry) { c.Amount++ }), 2, 0, 0, 1, 0},
		{"other currency", changed(func(c *paymentapi.Entry) { c.Currency = "USD" }), 2, 0, 0, 1, 0},
		{"other payer", changed(func(c *paymentapi.Entry) { c.Payer = "A" }), 2, 0, 0, 1, 0},
		{"other payee", changed(func(c *paymentapi.Entry) { c.Payee = "B" }), 2, 0, 0, 1, 0},
		{"other memo", changed(func(c *paymentapi.Entry) { c.Memo = "M" }), 2, 0, 0, 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := compare(b, tt.ledger)
			assert.Equal(t, tt.settled, s.settled, "settled")
			assert.Len(t, s.missing, tt.missing, "missing")
			assert.Equal(t, tt.surplus, s.surplus(), "duplicates")
			assert.Len(t, s.different, tt.diff, "different")
			assert.Len(t, s.foreign, tt.foreign, "foreign")
			assert.Equal(t, tt.name == "equal", s.equal())
			assert.Equal(t, map[string]int64{"EUR": 1500, "JPY": 70}, s.sent)
		})
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	b := testBatch()
	wrong := entry(b[2])
	wrong.Amount = 71
	s := compare(b, []paymentapi.Entry{entry(b[0]), entry(b[0]), wrong, {Tenant: "acme", Order: "9", Amount: 1, Currency: "USD"}})
	paid := &tally{
		calls: 3, attempts: 7, replays: 1, failed: map[name]error{b[1].name(): errors.New("it rained")},
		took:    []time.Duration{time.Millisecond, 2 * time.Millisecond, 3 * time.Second},
		network: faultproxy.Counts{Requests: 7, Broken: 1, Faults: map[faultproxy.Fault]int{faultproxy.LostAnswer: 2}},
	}
	var out strings.Builder
	s.print(&out, &options{in: "b.csv", seed: 42}, paid)
	assert.Equal(t, `Settlement of b.csv, seed 42

  payments        3
  attempts        7   3 calls, 4 retries
  replays         1   charged by an earlier attempt, answered once more
  charges         4
  duplicates      1
  missing         1
  different       1
  foreign         1

  currency             sum sent          sum charged
  EUR                     15.00                20.00   5.00 too much
  JPY                        70                   71   1 too much
  USD                      0.00                 0.01   0.01 too much

  a payment took p50 2ms, p99 3s
  the network: 7 requests, 2 × answer lost, 1 × no API

  b.csv:2: acme 1: charged 2 times

  b.csv:3: acme 2: not charged: it rained

  b.csv:4: sakura 1: the ledger has another payment under this id: amount is 71 in the ledger, 70 in the batch

  ledger: acme 9: charged, and not in the batch

`, out.String())
	assert.Equal(t, "The ledger does NOT equal the batch.", s.verdict(false, "l.db"))

	out.Reset()
	paid.stopped = true
	s.print(&out, &options{in: "b.csv", seed: 42}, paid)
	assert.NotContains(t, out.String(), "not charged", "what was not tried is not listed")
	assert.Equal(t, "Interrupted: 0 of 3 payments are settled; go on with -ledger l.db", s.verdict(true, "l.db"))
}

func TestProgressLines(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	paid := newTally(20, &options{}, &out)
	for i := range 20 {
		paid.attempt()
		if i == 3 {
			paid.attempt()
			paid.answer(Payment{ID: "x"}, false, errors.New("no"), 0)
			continue
		}
		paid.answer(Payment{}, i == 4, nil, 0)
	}
	paid.end(false, faultproxy.Counts{})
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	assert.Len(t, lines, 10, "a line for each tenth")
	assert.Contains(t, lines[0], "2 of 20 paid, 0 retries")
	assert.Contains(t, lines[9], "19 of 20 paid, 1 retry, 0s, 1 failed")
	assert.Equal(t, 1, paid.replays)

	out.Reset()
	quiet := newTally(1, &options{quiet: true}, &out)
	quiet.answer(Payment{}, false, nil, 0)
	quiet.end(false, faultproxy.Counts{})
	assert.Empty(t, out.String())
}

func TestProgressBar(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	p := progress{out: &out, total: 10, bar: true, start: time.Now()}
	p.show(5, 2, 0)
	p.show(6, 2, 0)
	p.show(10, 3, 1)
	p.end()
	assert.Equal(t, "\r[###############...............] 5 of 10 paid, 2 retries, 0s\x1b[K"+
		"\r[##############################] 9 of 10 paid, 3 retries, 0s, 1 failed\x1b[K\n", out.String(),
		"drawn over itself, not too often, and in any case at the end")
}
