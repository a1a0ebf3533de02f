// Command payments settles a batch of payments through a network that loses
// answers, resets connections and refuses requests, and shows that every payment
// was charged exactly once.
//
// It reads the batch from a CSV file, starts a payment API over a ledger in a
// SQLite file, puts a faulty proxy before it, pays each line with a client that
// retries under one key, and then compares the ledger with the batch, line by
// line. Whatever the client believes, the ledger decides.
//
//	go run ./examples/payments            the sample
//	go run ./examples/payments -naive     the same with retries that have no keys
//	go run ./examples/payments -h         everything else
//
// The exit status is 0 if the ledger equals the batch, 1 if it does not, and 2
// if the batch, a file or a flag is bad.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/oncemore-go/oncemore"
	"github.com/oncemore-go/oncemore/examples/internal/paymentapi"
)

// The exit statuses.
const (
	exitEqual = iota
	exitDiffers
	exitBadInput
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program: everything but the process around it.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	opt, err := parseFlags(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitEqual
	case err != nil:
		fmt.Fprintf(stderr, "payments: %v\nFor help: payments -h\n", err)
		return exitBadInput
	}

	job := settleBatch
	if opt.serve != "" {
		job = serve
	}
	equal, err := job(ctx, opt, stdout, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "payments: %v\n", err)
	}
	_, badInput := errors.AsType[*inputError](err)
	switch {
	case badInput:
		return exitBadInput
	case err != nil || !equal:
		return exitDiffers
	}
	return exitEqual
}

// inputError is something that the caller has to put right.
type inputError struct{ err error }

func (e *inputError) Error() string { return e.err.Error() }

func (e *inputError) Unwrap() error { return e.err }

// settleBatch is the job, in order.
func settleBatch(ctx context.Context, opt *options, stdout, stderr io.Writer) (equal bool, err error) {
	batch, err := opt.batch()
	if err != nil {
		return false, &inputError{err}
	}
	policy, err := opt.retryPolicy()
	if err != nil {
		return false, &inputError{err}
	}
	ledger, err := openLedger(ctx, opt)
	if err != nil {
		return false, &inputError{err}
	}
	defer func() { err = errors.Join(err, ledger.close()) }()

	// What the ledger has is not sent again. The keys would see to it that it is
	// not charged twice, but for as long as the API remembers them; the ledger
	// remembers for ever.
	before, err := settle(ctx, ledger.db, batch)
	if err != nil {
		return false, err
	}
	before.printResume(stderr, opt)

	paid, err := payBatch(ctx, opt, policy, ledger.db, before.missing, stderr)
	if err != nil {
		return false, err
	}
	after, err := settle(context.WithoutCancel(ctx), ledger.db, batch)
	if err != nil {
		return false, err
	}
	after.print(stdout, opt, paid)
	ledger.keep = paid.stopped && !after.equal()
	fmt.Fprintln(stdout, after.verdict(paid.stopped, ledger.path))
	return after.equal(), nil
}

// payBatch pays the payments, between starting and stopping what that needs.
func payBatch(ctx context.Context, opt *options, policy *oncemore.Policy, db *sql.DB, payments []Payment, stderr io.Writer) (paid *tally, err error) {
	addr := opt.api
	if addr == "" {
		api, err := startAPI(ctx, db, "127.0.0.1:0", opt.naive)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, api.stop(ctx)) }()
		addr = api.addr
	}
	network, err := startNetwork(addr, opt) //nolint:contextcheck // it lives until it is closed, also past a Ctrl-C
	if err != nil {
		return nil, &inputError{err}
	}
	defer func() { err = errors.Join(err, network.Close()) }()

	paid = newTally(len(payments), opt, stderr)
	pay(ctx, payments, opt.workers, newPayer(network.URL(), opt, policy, paid, stderr), paid)
	paid.end(ctx.Err() != nil, network.Counts())
	return paid, nil
}

// ledgerFile is the file in which the API keeps its charges.
type ledgerFile struct {
	db   *sql.DB
	path string
	dir  string // to be removed with the file; "" if the file is the caller's
	keep bool   // not to be removed after all
}

func openLedger(ctx context.Context, opt *options) (*ledgerFile, error) {
	l := &ledgerFile{path: opt.ledger}
	if l.path == "" {
		dir, err := os.MkdirTemp("", "payments-")
		if err != nil {
			return nil, err
		}
		l.dir, l.path = dir, filepath.Join(dir, "ledger.db")
	}
	db, err := paymentapi.OpenLedger(ctx, l.path)
	if err != nil {
		return nil, errors.Join(err, l.remove())
	}
	l.db = db
	return l, nil
}

func (l *ledgerFile) close() error { return errors.Join(l.db.Close(), l.remove()) }

func (l *ledgerFile) remove() error {
	if l.dir == "" || l.keep {
		return nil
	}
	return os.RemoveAll(l.dir)
}

// serve runs the payment API alone, until it is told to end.
func serve(ctx context.Context, opt *options, stdout, _ io.Writer) (bool, error) {
	ledger, err := openLedger(ctx, opt)
	if err != nil {
		return false, &inputError{err}
	}
	api, err := startAPI(ctx, ledger.db, opt.serve, opt.naive)
	if err != nil {
		return false, errors.Join(&inputError{err}, ledger.close())
	}
	fmt.Fprintf(stdout, "payment API on %s, ledger %s\n", api.addr, ledger.path)
	<-ctx.Done()
	return true, errors.Join(api.stop(ctx), ledger.close())
}
