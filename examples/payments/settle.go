package main

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/oncemore-go/oncemore/examples/internal/paymentapi"
)

// settlement is the batch and the ledger, laid beside each other.
type settlement struct {
	payments int // lines of the batch
	charges  int // entries of the ledger
	settled  int // payments that were charged once, as the batch says

	missing    []Payment    // not charged
	duplicates []duplicate  // charged more than once
	different  []difference // charged otherwise than the batch says
	foreign    []foreign    // charges that the batch does not ask for

	sent, charged map[string]int64 // sums by currency
}

// duplicate is a payment with more charges than its one.
type duplicate struct {
	Payment
	charges int
}

// difference is a payment that the ledger has under its name, but not as it is.
type difference struct {
	Payment
	what string
}

// foreign is a charge that no line of the batch has a name for.
type foreign = paymentapi.Entry

// equal says whether each payment was charged exactly once, and nothing else.
func (s *settlement) equal() bool {
	return s.settled == s.payments && s.charges == s.payments
}

// surplus is the number of charges that are one too many.
func (s *settlement) surplus() int {
	n := 0
	for _, d := range s.duplicates {
		n += d.charges - 1
	}
	return n
}

// settle reads the ledger and compares it with the batch.
func settle(ctx context.Context, db *sql.DB, batch []Payment) (*settlement, error) {
	entries, err := paymentapi.Entries(ctx, db)
	if err != nil {
		return nil, err
	}
	return compare(batch, entries), nil
}

func compare(batch []Payment, entries []paymentapi.Entry) *settlement {
	s := &settlement{
		payments: len(batch),
		charges:  len(entries),
		sent:     map[string]int64{},
		charged:  map[string]int64{},
	}
	byName := map[name][]paymentapi.Entry{}
	for _, e := range entries {
		n := name{e.Tenant, e.Order}
		byName[n] = append(byName[n], e)
		s.charged[e.Currency] += e.Amount
	}
	for _, p := range batch {
		s.sent[p.Currency] += p.Amount
		s.line(p, byName[p.name()])
		delete(byName, p.name())
	}
	for _, e := range entries { // in the ledger's order
		if _, left := byName[name{e.Tenant, e.Order}]; left {
			s.foreign = append(s.foreign, e)
		}
	}
	return s
}

// line compares one payment with the charges under its name.
func (s *settlement) line(p Payment, charges []paymentapi.Entry) {
	if len(charges) == 0 {
		s.missing = append(s.missing, p)
		return
	}
	ok := len(charges) == 1
	if !ok {
		s.duplicates = append(s.duplicates, duplicate{p, len(charges)})
	}
	if i := slices.IndexFunc(charges, func(e paymentapi.Entry) bool { return differs(p, e) != "" }); i >= 0 {
		s.different = append(s.different, difference{p, differs(p, charges[i])})
		ok = false
	}
	if ok {
		s.settled++
	}
}

// differs says in what the charge is another one than the payment; "" if it is
// the same.
func differs(p Payment, e paymentapi.Entry) string {
	switch {
	case e.Currency != p.Currency:
		return fmt.Sprintf("currency is %s in the ledger, %s in the batch", e.Currency, p.Currency)
	case e.Amount != p.Amount:
		return fmt.Sprintf("amount is %d in the ledger, %d in the batch", e.Amount, p.Amount)
	case e.Payer != p.Payer:
		return fmt.Sprintf("payer is %q in the ledger, %q in the batch", e.Payer, p.Payer)
	case e.Payee != p.Payee:
		return fmt.Sprintf("payee is %q in the ledger, %q in the batch", e.Payee, p.Payee)
	case e.Memo != p.Memo:
		return fmt.Sprintf("memo is %q in the ledger, %q in the batch", e.Memo, p.Memo)
	}
	return ""
}
