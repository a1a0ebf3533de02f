package integration_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	theKey = "one" // of all of them

	// Those who wait for another process ask the database less often after a
	// while. The operation takes longer than that.
	often       = 5 * time.Second
	lately      = 2 * time.Second
	busyFor     = often + 2*lately
	oftenEnough = 30 // in any one second
)

// Four processes over one database, 200 duplicates of one key at each: one of
// them runs, all are answered the same, and those who wait for another process
// ask the database 30 times a second at most, and less often after five seconds.
func TestFourApplicationsRunOnce(t *testing.T) {
	t.Parallel()
	fleets := newFleets(t, application{Lease: 30 * time.Second, Takes: busyFor}, claimFirst, wrapRecover, wrapTx)
	all(t, len(fleets), func(i int) error { return fleets[i].run(t.Context(), (*fleet).runsOnce) })
	for _, f := range fleets {
		for _, r := range f.rates {
			t.Logf("%s: %s", f.name, r)
		}
	}
}

// The process that runs is killed while the others wait for it. One of them goes
// on when the lease ends, and all who wait get its answer.
func TestFourApplicationsOutliveOne(t *testing.T) {
	t.Parallel()
	fleets := newFleets(t, application{Lease: 2 * time.Second, Takes: time.Second}, claimFirst, wrapRecover, wrapRerun, wrapTx)
	all(t, len(fleets), func(i int) error { return fleets[i].run(t.Context(), (*fleet).runsTwice) })
}

// fleet is one application in several processes, each with a way of its own to
// the database.
type fleet struct {
	name       string
	duplicates int // to each process
	db         *sql.DB
	apps       []application
	queries    []tally
	processes  []*process
	rates      []rate // of those who waited
}

// newFleets makes a fleet for each mode on each database; for the first of them
// alone where the machine has enough to do.
func newFleets(t *testing.T, a application, of ...mode) (fleets []*fleet) {
	t.Helper()
	duplicates := 200
	if raceDetector || testing.Short() {
		of, duplicates = of[:1], 50
	}
	for _, e := range engines {
		for _, m := range of {
			a.Driver, a.Mode = e.driver, m
			f := newFleet(t, a, e)
			f.duplicates = duplicates
			fleets = append(fleets, f)
		}
	}
	return fleets
}

func newFleet(t *testing.T, a application, e engine) *fleet {
	t.Helper()
	const processes = 4
	dsn := e.create(t)
	f := &fleet{name: e.name + ", " + string(a.Mode), db: open(t, e.driver, dsn), queries: make([]tally, processes)}
	prepare(t, f.db, e.dialect)
	for i := range processes {
		p := newCountingProxy(t, e.server.get(t).Addr(), f.queries[i].counter(e.dialect))
		a.Name, a.DSN = fmt.Sprintf("process-%d", i), through(dsn, p.port())
		f.apps = append(f.apps, a)
	}
	return f
}

// run starts the processes for a test.
func (f *fleet) run(ctx context.Context, test func(*fleet, context.Context) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	defer func() {
		var logs strings.Builder
		for _, p := range f.processes {
			err = errors.Join(err, p.kill())
			logs.WriteString(p.stderr.String())
		}
		if err != nil {
			err = fmt.Errorf("%s: %w\n%s", f.name, err, &logs)
		}
	}()
	for _, a := range f.apps {
		p, err := a.start(ctx)
		if err != nil {
			return err
		}
		f.processes = append(f.processes, p)
	}
	return test(f, ctx)
}

// send sends all requests at once, and returns the answers of each process.
func (f *fleet) send(ctx context.Context) (answers [][]answer, errs []error) {
	answers, errs = make([][]answer, len(f.processes)), make([]error, len(f.processes))
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i, p := range f.processes {
		for range f.duplicates {
			wg.Go(func() {
				got, err := p.post(ctx, theKey)
				mu.Lock()
				defer mu.Unlock()
				answers[i] = append(answers[i], got)
				errs[i] = errors.Join(errs[i], err)
			})
		}
	}
	wg.Wait()
	return answers, errs
}

// begun is which processes ran the operation.
func (f *fleet) begun(ctx context.Context) (processes []string, err error) {
	rows, err := f.db.QueryContext(ctx, "SELECT process FROM begun")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		processes = append(processes, name)
	}
	return processes, rows.Err()
}

// alike looks whether all answers are the one of the one effect, executed by as
// many as said.
func (f *fleet) alike(ctx context.Context, answers []answer, executed int) error {
	words := map[string]int{}
	for _, a := range answers {
		words[a.word]++
		if a.status != http.StatusCreated || a.body != answers[0].body {
			return fmt.Errorf("answers %+v and %+v", answers[0], a)
		}
	}
	if words["executed"] != executed || words["replayed"] != len(answers)-executed {
		return fmt.Errorf("answers %v", words)
	}
	runs, _, err := f.apps[0].ledger(ctx, f.db, theKey)
	if err == nil && (len(runs) != 1 || runs[answers[0].body] != 1) {
		err = fmt.Errorf("answer %+v, effects %v", answers[0], runs)
	}
	return err
}

func (f *fleet) runsOnce(ctx context.Context) error {
	answers, errs := f.send(ctx)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := f.alike(ctx, slices.Concat(answers...), 1); err != nil {
		return err
	}
	begun, err := f.begun(ctx)
	if err != nil {
		return err
	}
	if len(begun) != 1 {
		return fmt.Errorf("run by %q", begun)
	}
	for i, a := range f.apps {
		if a.Name == begun[0] {
			continue
		}
		r := rateOf(f.queries[i].taken())
		f.rates = append(f.rates, r)
		if r.most > oftenEnough {
			return fmt.Errorf("%s asks too often: %s", a.Name, r)
		}
		if a.Mode != wrapTx && 2*r.late > float64(r.most) { // a lock is waited for without asking
			return fmt.Errorf("%s asks no less often later: %s", a.Name, r)
		}
	}
	return nil
}

func (f *fleet) runsTwice(ctx context.Context) error {
	killed := make(chan error, 1)
	victim := -1
	go func() {
		for ctx.Err() == nil {
			begun, err := f.begun(ctx)
			if err != nil || len(begun) == 0 {
				time.Sleep(20 * time.Millisecond)
				continue
			}
			time.Sleep(200 * time.Millisecond) // until the others wait
			victim = slices.IndexFunc(f.apps, func(a application) bool { return a.Name == begun[0] })
			killed <- f.processes[victim].cmd.Process.Kill()
			return
		}
		killed <- ctx.Err()
	}()
	answers, errs := f.send(ctx)
	if err := <-killed; err != nil {
		return err
	}
	if errs[victim] == nil {
		return errors.New("who was killed has answered")
	}
	answers, errs[victim] = slices.Delete(answers, victim, victim+1), nil
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := f.alike(ctx, slices.Concat(answers...), 1); err != nil {
		return err
	}
	begun, err := f.begun(ctx)
	if err == nil && (len(begun) != 2 || begun[0] == begun[1]) {
		err = fmt.Errorf("run by %q", begun)
	}
	return err
}

// rate is how often somebody asks.
type rate struct {
	most        int     // in any one second
	early, late float64 // a second, in the beginning and lately
}

func (r rate) String() string {
	return fmt.Sprintf("%d in a second at most, %.1f a second at first, %.1f lately", r.most, r.early, r.late)
}

func rateOf(times []time.Time) (r rate) {
	if len(times) == 0 {
		return r
	}
	begin, end := times[0], times[len(times)-1]
	first := 0
	for i, at := range times {
		for at.Sub(times[first]) >= time.Second {
			first++
		}
		r.most = max(r.most, i-first+1)
		if at.Sub(begin) < often {
			r.early += 1 / often.Seconds()
		}
		if end.Sub(at) < lately {
			r.late += 1 / lately.Seconds()
		}
	}
	return r
}
