package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/oncemore-go/oncemore/internal/faultproxy"
)

// shown is how many findings of a kind are listed.
const shown = 5

// printResume says, where the ledger is not new, what of the batch is in it.
func (s *settlement) printResume(out io.Writer, opt *options) {
	if s.charges > 0 && !opt.quiet {
		fmt.Fprintf(out, "the ledger has %d of %d payments already, %d to pay\n",
			s.payments-len(s.missing), s.payments, len(s.missing))
	}
}

// print writes the settlement: what was paid, how, and whether it is right.
func (s *settlement) print(out io.Writer, opt *options, paid *tally) {
	file := cmp.Or(opt.in, sampleName)
	fmt.Fprintf(out, "Settlement of %s, seed %d\n\n", file, opt.seed)
	row := func(what string, n int, note string) {
		fmt.Fprintln(out, strings.TrimRight(fmt.Sprintf("  %-10s %6d   %s", what, n, note), " "))
	}
	row("payments", s.payments, "")
	row("attempts", paid.attempts, fmt.Sprintf("%s, %s", count(paid.calls, "call"), retried(paid.retries())))
	row("replays", paid.replays, "charged by an earlier attempt, answered once more")
	row("charges", s.charges, "")
	row("duplicates", s.surplus(), "")
	row("missing", len(s.missing), "")
	if len(s.different) > 0 {
		row("different", len(s.different), "")
	}
	if len(s.foreign) > 0 {
		row("foreign", len(s.foreign), "")
	}
	s.printSums(out)
	fmt.Fprintf(out, "  a payment took p50 %s, p99 %s\n", rounded(paid.percentile(0.50)), rounded(paid.percentile(0.99)))
	fmt.Fprintf(out, "  the network: %s\n\n", network(paid.network))
	s.printFindings(out, file, paid)
}

// printSums writes a row for each currency: its sums must agree.
func (s *settlement) printSums(out io.Writer) {
	row := func(currency, sent, charged, note string) {
		fmt.Fprintln(out, strings.TrimRight(fmt.Sprintf("  %-8s %20s %20s   %s", currency, sent, charged, note), " "))
	}
	fmt.Fprintln(out)
	row("currency", "sum sent", "sum charged", "")
	currencies := slices.Collect(maps.Keys(s.sent))
	for currency := range s.charged {
		if _, ok := s.sent[currency]; !ok {
			currencies = append(currencies, currency)
		}
	}
	slices.Sort(currencies)
	for _, c := range currencies {
		row(c, money(s.sent[c], c), money(s.charged[c], c), surplusOf(s.charged[c]-s.sent[c], c))
	}
	fmt.Fprintln(out)
}

// surplusOf says by how much two sums disagree.
func surplusOf(diff int64, currency string) string {
	switch {
	case diff > 0:
		return money(diff, currency) + " too much"
	case diff < 0:
		return money(-diff, currency) + " too little"
	}
	return ""
}

// printFindings lists what is not as it should be, with its line.
func (s *settlement) printFindings(out io.Writer, file string, paid *tally) {
	list(out, s.duplicates, func(d duplicate) string {
		return fmt.Sprintf("%s:%d: %s: charged %d times", file, d.Line, d.name(), d.charges)
	})
	missing := s.missing
	if paid.stopped {
		missing = nil // nobody has tried to pay most of them
	}
	list(out, missing, func(p Payment) string {
		line := fmt.Sprintf("%s:%d: %s: not charged", file, p.Line, p.name())
		if err := paid.failed[p.name()]; err != nil {
			line += fmt.Sprintf(": %v", err)
		}
		return line
	})
	list(out, s.different, func(d difference) string {
		return fmt.Sprintf("%s:%d: %s: the ledger has another payment under this id: %s", file, d.Line, d.name(), d.what)
	})
	list(out, s.foreign, func(e foreign) string {
		return fmt.Sprintf("ledger: %s: charged, and not in the batch", name{e.Tenant, e.Order})
	})
}

// list writes the first findings of a kind, and how many more there are.
func list[T any](out io.Writer, findings []T, text func(T) string) {
	for _, f := range findings[:min(shown, len(findings))] {
		fmt.Fprintf(out, "  %s\n", text(f))
	}
	if more := len(findings) - shown; more > 0 {
		fmt.Fprintf(out, "  ... and %d more like these\n", more)
	}
	if len(findings) > 0 {
		fmt.Fprintln(out)
	}
}

// network says what the proxy did.
func network(c faultproxy.Counts) string {
	parts := []string{count(c.Requests, "request")}
	for _, f := range faultproxy.Faults() {
		if n := c.Faults[f]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d × %s", n, f))
		}
	}
	if c.Broken > 0 {
		parts = append(parts, fmt.Sprintf("%d × no API", c.Broken))
	}
	return strings.Join(parts, ", ")
}

// verdict is the last line: all is well, or what to do.
func (s *settlement) verdict(stopped bool, ledger string) string {
	switch {
	case s.equal():
		return "The ledger equals the batch: every payment was charged exactly once."
	case stopped:
		return fmt.Sprintf("Interrupted: %d of %d payments are settled; go on with -ledger %s", s.settled, s.payments, ledger)
	}
	return "The ledger does NOT equal the batch."
}

func rounded(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
