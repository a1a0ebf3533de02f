package main

import (
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/oncemore-go/oncemore"
	"github.com/oncemore-go/oncemore/internal/faultproxy"
)

const usage = `Usage: payments [flags]

Settles a batch of payments through a faulty network: reads the batch, pays each
line with a client that retries under one key, and compares the ledger with the
batch.

The batch is a CSV file with a header line and the columns id, payer, payee,
amount (in minor units: cents, yen), currency (ISO 4217) and, if wanted, tenant
and memo. An id is its tenant's own, and names one payment.

Ctrl-C ends the run in order and says what is settled. Started again with the
same -ledger it goes on from there.

Exit status: 0 if the ledger equals the batch, 1 if not, 2 for bad input or flags.

Flags:
`

// options are the command line.
type options struct {
	in, ledger, policy string
	seed               uint64
	workers            int
	naive              bool
	quiet, verbose     bool

	faults faultproxy.Config

	serve, api string
}

// faultFlags are the rates. With their defaults about every third request fails.
var faultFlags = []struct {
	name  string
	rate  float64
	fault faultproxy.Fault
	usage string
}{
	{"lost", 0.12, faultproxy.LostAnswer, "`share` of the requests that are done and get a reset for an answer"},
	{"cut", 0.04, faultproxy.CutAnswer, "`share` that are done and get a part of the answer"},
	{"timeout", 0.03, faultproxy.GatewayTimeout, "`share` that are done and get a 504 for an answer"},
	{"reset", 0.06, faultproxy.ResetBefore, "`share` that get a reset and are not done"},
	{"unavailable", 0.04, faultproxy.Unavailable, "`share` that get a 503 and are not done"},
	{"unavailable-after", 0.02, faultproxy.UnavailableAfter, "`share` that get a 503 with Retry-After and are not done"},
	{"too-many", 0.03, faultproxy.TooManyRequests, "`share` that get a 429 with Retry-After and are not done"},
}

// parseFlags reads the command line. Help is printed to out, and is the error
// flag.ErrHelp.
func parseFlags(args []string, out io.Writer) (*options, error) {
	opt := &options{}
	fs := flag.NewFlagSet("payments", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // errors are printed once, by run

	fs.StringVar(&opt.in, "in", "", "the batch, a CSV `file` (default: a sample that is built in)")
	fs.StringVar(&opt.ledger, "ledger", "", "the ledger, an SQLite `file`; made if it is not there (default: a temporary one)")
	fs.StringVar(&opt.policy, "policy", "", "the retry policy, a JSON `file` (default: one that is built in)")
	fs.IntVar(&opt.workers, "workers", 8, "how many payments are under way at once")
	fs.BoolVar(&opt.naive, "naive", false, "pay with retries that carry no key, to see what comes of it")
	fs.BoolVar(&opt.quiet, "quiet", false, "show no progress")
	fs.BoolVar(&opt.verbose, "verbose", false, "log every retry")

	fs.Uint64Var(&opt.seed, "seed", 1, "what the network does: the same seed does the same")
	rates := make([]*float64, len(faultFlags))
	for i, f := range faultFlags {
		rates[i] = fs.Float64(f.name, f.rate, f.usage)
	}
	fs.Float64Var(&opt.faults.Slow, "slow", 0.3, "`share` of the requests that are delayed, beside the above")
	fs.DurationVar(&opt.faults.Latency, "latency", 40*time.Millisecond, "the longest delay")
	fs.IntVar(&opt.faults.RetryAfter, "retry-after", 1, "the `seconds` of Retry-After")

	fs.StringVar(&opt.serve, "serve", "", "only run the payment API, on this `host:port`, until Ctrl-C")
	fs.StringVar(&opt.api, "api", "", "use the payment API that runs on this `host:port`, over the same -ledger")

	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fs.SetOutput(out)
			fmt.Fprint(out, usage)
			fs.PrintDefaults()
		}
		return nil, err
	}
	opt.faults.Seed = opt.seed
	opt.faults.Rates = map[faultproxy.Fault]float64{}
	for i, f := range faultFlags {
		opt.faults.Rates[f.fault] = *rates[i]
	}
	return opt, opt.check(fs)
}

func (opt *options) check(fs *flag.FlagSet) error {
	switch {
	case fs.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case opt.workers < 1:
		return errors.New("-workers must be at least 1")
	case opt.serve != "" && opt.api != "":
		return errors.New("-serve and -api exclude each other")
	case (opt.serve != "" || opt.api != "") && opt.ledger == "":
		return errors.New("-serve and -api need -ledger")
	}
	return nil
}

// batch reads the file of -in, or the sample.
func (opt *options) batch() ([]Payment, error) {
	if opt.in == "" {
		return readBatch(sampleName, sample)
	}
	data, err := os.ReadFile(opt.in)
	if err != nil {
		return nil, err
	}
	return readBatch(opt.in, data)
}

const sampleName = "sample.csv"

//go:embed sample.csv
var sample []byte

// retryPolicy reads the file of -policy, or the built-in one.
func (opt *options) retryPolicy() (*oncemore.Policy, error) {
	if opt.policy == "" {
		return oncemore.ParsePolicy(builtinPolicy)
	}
	return oncemore.LoadPolicy(opt.policy)
}

//go:embed policy.json
var builtinPolicy []byte
