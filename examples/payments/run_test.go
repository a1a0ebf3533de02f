package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/examples/internal/paymentapi"
)

// result is a run that has ended.
type result struct {
	exit           int
	stdout, stderr string
}

// row is a number of the settlement.
func (r result) row(t *testing.T, name string) int {
	t.Helper()
	m := regexp.MustCompile(`(?m)^  ` + name + ` +(\d+)`).FindStringSubmatch(r.stdout)
	require.NotNil(t, m, "no %s in:\n%s%s", name, r.stdout, r.stderr)
	n, err := strconv.Atoi(m[1])
	require.NoError(t, err)
	return n
}

func (r result) retries(t *testing.T) int {
	t.Helper()
	return r.row(t, "attempts") - r.row(t, "payments")
}

// exactlyOnce checks that the run says so, and the ledger too.
func (r result) exactlyOnce(t *testing.T, ledger string, payments int) {
	t.Helper()
	require.Equal(t, exitEqual, r.exit, "%s%s", r.stdout, r.stderr)
	assert.Equal(t, payments, r.row(t, "payments"))
	assert.Equal(t, payments, r.row(t, "charges"))
	assert.Zero(t, r.row(t, "duplicates"))
	assert.Zero(t, r.row(t, "missing"))
	assert.Contains(t, r.stdout, "every payment was charged exactly once")
	if ledger != "" {
		assert.Len(t, entries(t, ledger), payments)
	}
}

// quick are the flags, and those that make a run of short waits.
func quick(args ...string) []string {
	return append([]string{"-quiet", "-retry-after", "0", "-latency", "2ms"}, args...)
}

// do runs the program within the test.
func do(t *testing.T, args ...string) result {
	t.Helper()
	var stdout, stderr strings.Builder
	exit := run(t.Context(), args, &stdout, &stderr)
	return result{exit, stdout.String(), stderr.String()}
}

// batchFile writes a batch of n payments. Those after the first changed ones
// are the same in every batch.
func batchFile(t *testing.T, n, changed int) string {
	t.Helper()
	var s strings.Builder
	s.WriteString("tenant,id,payer,payee,amount,currency,memo\n")
	for i := range n {
		amount := 1000 + i
		if i < changed {
			amount++
		}
		fmt.Fprintf(&s, "tenant-%d,%d,Müller,山田,%d,%s,\"a\nb\"\n", i%3, i, amount, []string{"EUR", "JPY", "KWD"}[i%3])
	}
	return writeFile(t, "batch.csv", s.String())
}

func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func entries(t *testing.T, ledger string) []paymentapi.Entry {
	t.Helper()
	db, err := paymentapi.OpenLedger(t.Context(), ledger)
	require.NoError(t, err)
	defer db.Close()
	entries, err := paymentapi.Entries(t.Context(), db)
	require.NoError(t, err)
	return entries
}

func TestRun(t *testing.T) {
	t.Parallel()
	ledger := filepath.Join(t.TempDir(), "ledger.db")
	in := batchFile(t, 60, 0)
	args := quick("-in", in, "-seed", "7")

	got := do(t, append(args, "-ledger", ledger)...)
	got.exactlyOnce(t, ledger, 60)
	assert.Positive(t, got.retries(t))
	assert.Positive(t, got.row(t, "replays"))
	assert.Regexp(t, `(?m)^  EUR +205\.70 +205\.70$`, got.stdout)
	assert.Regexp(t, `(?m)^  JPY +20,590 +20,590$`, got.stdout)
	assert.Regexp(t, `(?m)^  KWD +20\.610 +20\.610$`, got.stdout)

	same := do(t, append(args, "-workers", "3")...)
	same.exactlyOnce(t, "", 60)
	assert.Equal(t, got.row(t, "attempts"), same.row(t, "attempts"), "the seed repeats the run")
	assert.Equal(t, got.row(t, "replays"), same.row(t, "replays"))

	other := do(t, append(args, "-seed", "8")...)
	other.exactlyOnce(t, "", 60)
	assert.NotEqual(t, got.row(t, "attempts"), other.row(t, "attempts"))
}

func TestNaive(t *testing.T) {
	t.Parallel()
	in := batchFile(t, 60, 0)
	args := quick("-in", in, "-seed", "7")
	got := do(t, append(args, "-naive")...)
	assert.Equal(t, exitDiffers, got.exit)
	assert.Positive(t, got.row(t, "duplicates"))
	assert.Equal(t, got.row(t, "charges"), 60+got.row(t, "duplicates"))
	assert.Contains(t, got.stdout, "charged 2 times")
	assert.Contains(t, got.stdout, "too much")
	assert.Contains(t, got.stdout, "NOT")

	keyed := do(t, args...)
	assert.Equal(t, keyed.row(t, "attempts"), got.row(t, "attempts"), "the faults are the same, with keys and without")
}

func TestCalmNetwork(t *testing.T) {
	t.Parallel()
	args := quick("-in", batchFile(t, 10, 0), "-slow", "0")
	for _, f := range faultFlags {
		args = append(args, "-"+f.name, "0")
	}
	got := do(t, args...)
	got.exactlyOnce(t, "", 10)
	assert.Equal(t, 10, got.row(t, "attempts"))
	assert.Zero(t, got.row(t, "replays"))
	naive := do(t, append(args, "-naive")...)
	naive.exactlyOnce(t, "", 10)
}

func TestAgainOnTheSameLedger(t *testing.T) {
	t.Parallel()
	ledger := filepath.Join(t.TempDir(), "a ledger #1.db")
	first := do(t, quick("-ledger", ledger, "-in", batchFile(t, 20, 0))...)
	first.exactlyOnce(t, ledger, 20)

	again := do(t, quick("-ledger", ledger, "-in", batchFile(t, 20, 0))...)
	again.exactlyOnce(t, ledger, 20)
	assert.Zero(t, again.row(t, "attempts"))

	more := do(t, "-retry-after", "0", "-ledger", ledger, "-in", batchFile(t, 30, 0))
	more.exactlyOnce(t, ledger, 30)
	assert.Contains(t, more.stderr, "the ledger has 20 of 30 payments already, 10 to pay")
}

// A payment that the ledger has otherwise is told, and nothing is charged.
func TestLedgerHasAnotherPayment(t *testing.T) {
	t.Parallel()
	ledger := filepath.Join(t.TempDir(), "ledger.db")
	do(t, quick("-ledger", ledger, "-in", batchFile(t, 20, 0))...).exactlyOnce(t, ledger, 20)

	in := batchFile(t, 25, 2)
	got := do(t, quick("-ledger", ledger, "-in", in)...)
	assert.Equal(t, exitDiffers, got.exit)
	assert.Equal(t, 25, got.row(t, "charges"), "the five new ones were charged")
	assert.Equal(t, 2, got.row(t, "different"))
	assert.Contains(t, got.stdout, in+`:2: tenant-0 0: the ledger has another payment under this id: amount is 1000 in the ledger, 1001 in the batch`)
	assert.Len(t, entries(t, ledger), 25)

	fewer := do(t, quick("-ledger", ledger, "-in", batchFile(t, 24, 0))...)
	assert.Equal(t, exitDiffers, fewer.exit)
	assert.Equal(t, 1, fewer.row(t, "foreign"))
	assert.Contains(t, fewer.stdout, "ledger: tenant-0 24: charged, and not in the batch")
}

// trigger is an output that does something when it is written to first.
type trigger struct {
	strings.Builder
	once sync.Once
	do   func()
}

func (w *trigger) Write(p []byte) (int, error) {
	w.once.Do(w.do)
	return w.Builder.Write(p)
}

// An interrupted run without -ledger does not throw away what it has charged.
func TestInterruptedWithoutALedger(t *testing.T) {
	t.Parallel()
	in := batchFile(t, 50, 0)
	ctx, cancel := context.WithCancel(t.Context())
	var stdout strings.Builder
	exit := run(ctx, []string{"-in", in, "-retry-after", "0"}, &stdout, &trigger{do: cancel})
	require.Equal(t, exitDiffers, exit)
	m := regexp.MustCompile(`(?m)^Interrupted: (\d+) of 50 payments are settled; go on with -ledger (.*)$`).FindStringSubmatch(stdout.String())
	require.NotNil(t, m, stdout.String())
	ledger := m[2]
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(filepath.Dir(ledger))) })
	assert.Equal(t, m[1], strconv.Itoa(len(entries(t, ledger))))

	do(t, quick("-in", in, "-ledger", ledger)...).exactlyOnce(t, ledger, 50)
}

// A network that lets nothing through leaves a settlement that says so.
func TestNothingArrives(t *testing.T) {
	t.Parallel()
	policy := writeFile(t, "policy.json", `{"max_attempts": 2, "base_delay": "1ms"}`)
	in := batchFile(t, 7, 0)
	got := do(t, quick("-in", in, "-policy", policy, "-unavailable", "1", "-lost", "0", "-cut", "0",
		"-timeout", "0", "-reset", "0", "-unavailable-after", "0", "-too-many", "0")...)
	assert.Equal(t, exitDiffers, got.exit)
	assert.Equal(t, 7, got.row(t, "missing"))
	assert.Equal(t, 14, got.row(t, "attempts"))
	assert.Contains(t, got.stdout, in+":2: tenant-0 0: not charged: paymentclient: the outcome is not known: status 503")
	assert.Contains(t, got.stdout, "... and 2 more like these")
}

func TestVerbose(t *testing.T) {
	t.Parallel()
	got := do(t, quick("-verbose", "-in", batchFile(t, 20, 0))...)
	got.exactlyOnce(t, "", 20)
	assert.Contains(t, got.stderr, "level=WARN")
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	good := batchFile(t, 1, 0)
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"unknown flag", []string{"-nosuch"}, "flag provided but not defined: -nosuch"},
		{"bad number", []string{"-seed", "x"}, `invalid value "x" for flag -seed`},
		{"argument", []string{"batch.csv"}, `unexpected argument "batch.csv"`},
		{"no workers", []string{"-workers", "0"}, "-workers must be at least 1"},
		{"rate", []string{"-in", good, "-lost", "1.5"}, `rate of "answer lost" is 1.5`},
		{"sum of rates", []string{"-in", good, "-lost", "0.9"}, "add up to 1.12, more than 1"},
		{"no file", []string{"-in", "no/such/file.csv"}, "no/such/file.csv"},
		{"serve without a ledger", []string{"-serve", "127.0.0.1:0"}, "-serve and -api need -ledger"},
		{"serve and api", []string{"-serve", "127.0.0.1:0", "-api", "127.0.0.1:1"}, "exclude each other"},
		{"serve on a bad address", []string{"-serve", "127.0.0.1:nosuch", "-ledger", filepath.Join(t.TempDir(), "l.db")}, "nosuch"},
		{"no folder for the ledger", []string{"-in", good, "-ledger", filepath.Join(t.TempDir(), "no", "l.db")}, "ledger"},
		{"the ledger is no database", []string{"-in", good, "-ledger", writeFile(t, "l.db", strings.Repeat("no database ", 100))}, "not a database"},
		{"no policy", []string{"-in", good, "-policy", "no/such/policy.json"}, "no/such/policy.json"},
		{"bad policy", []string{"-in", good, "-policy", writeFile(t, "p.json", `{"max_attempts": "many", "x": 1}`)}, "max_attempts"},
		{"bad batch", []string{"-in", writeFile(t, "b.csv", "id,payer,payee,amount,currency\n1,,b,1.5,EUR\n")}, "b.csv:2: payer is empty\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := do(t, tt.args...)
			assert.Equal(t, exitBadInput, got.exit)
			assert.Contains(t, got.stderr, tt.want)
			assert.Empty(t, got.stdout)
		})
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	got := do(t, "-h")
	assert.Equal(t, exitEqual, got.exit)
	for _, want := range []string{"-in file", "-ledger file", "-seed", "-naive", "-workers", "-lost share", "-latency", "-quiet", "Exit status"} {
		assert.Contains(t, got.stdout, want)
	}
}
