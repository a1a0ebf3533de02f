package storetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"sync"
	"testing"
	"time"

	"github.com/oncemore-go/oncemore/server"
)

// patience is how long a subtest waits for what has to happen.
const patience = 20 * time.Second

// fixture is a store under test, and words for what is asked of it.
type fixture struct {
	*testing.T
	store  server.Store
	txs    server.TxStore // nil if the store is none
	purger purger         // nil if the store has no Purge
}

func newFixture(t *testing.T, store server.Store) *fixture {
	t.Helper()
	f := &fixture{T: t, store: store}
	f.txs, _ = store.(server.TxStore)
	f.purger, _ = store.(purger)
	return f
}

// newClaim is a claim of an identity that nobody else uses, for long.
func newClaim() server.Claim {
	c := server.Claim{
		Scope:  "tenant-1",
		Method: "POST",
		Route:  "POST /payments",
		Lease:  time.Minute,
		TTL:    time.Hour,
		Keep:   24 * time.Hour,
	}
	fill(c.ID[:])
	fill(c.Fingerprint[:])
	c.Owner = newToken()
	return c
}

// newToken is an arrival of its own.
func newToken() server.Token {
	var t server.Token
	fill(t[:])
	return t
}

// fill never fails: crypto/rand ends the process where it can't read.
func fill(b []byte) { _, _ = rand.Read(b) }

// rival is the same operation from another arrival.
func rival(c server.Claim) server.Claim {
	c.Owner = newToken()
	fill(c.Fingerprint[:])
	return c
}

// holdOf is the hold of the claim that created a row.
func holdOf(c server.Claim) server.Hold {
	return server.Hold{ID: c.ID, Owner: c.Owner, Generation: 1}
}

// done is a result with data.
func done(data string) server.Result {
	return server.Result{State: server.Done, Status: 201, Data: []byte(data), ExecutedAt: time.Now()}
}

// unknown is the result of a run that may have had an effect.
func unknown() server.Result { return server.Result{State: server.Unknown, Status: 500} }

// claim claims, and fails where there is no row then.
func (f *fixture) claim(c server.Claim) server.Row {
	f.Helper()
	row, found, err := f.store.Claim(f.Context(), c)
	switch {
	case err != nil:
		f.Fatalf("claim: %v", err)
	case !found:
		f.Fatal("claim: no row, although the claim creates one")
	}
	return row
}

// win claims, and fails unless the claim created the row.
func (f *fixture) win(c server.Claim) server.Hold {
	f.Helper()
	f.wins(f.claim(c), c)
	return holdOf(c)
}

// wins fails unless row is what a claim that won gets.
func (f *fixture) wins(row server.Row, c server.Claim) {
	f.Helper()
	if row.State != server.Running || row.Owner != c.Owner || row.Origin != c.Owner || row.Generation != 1 || row.Attempt != 1 {
		f.Fatalf("not the row of a claim that won: %s", show(row))
	}
}

// dead is a claim whose lease has ended.
func (f *fixture) dead() server.Claim {
	f.Helper()
	c := newClaim()
	c.Lease = time.Millisecond
	f.win(c)
	f.until("the lease has ended", func() bool { return !f.row(c.ID).Live })
	return c
}

// expired waits until the row is past its TTL.
func (f *fixture) expired(id server.ID) {
	f.Helper()
	f.until("the row has expired", func() bool { return f.row(id).Expired })
}

// row reads the row, and fails where there is none.
func (f *fixture) row(id server.ID) server.Row {
	f.Helper()
	row, found, err := f.store.Lookup(f.Context(), id)
	switch {
	case err != nil:
		f.Fatalf("lookup: %v", err)
	case !found:
		f.Fatal("lookup: the row is not there")
	}
	return row
}

// absent fails where there is a row.
func (f *fixture) absent(id server.ID) {
	f.Helper()
	row, found, err := f.store.Lookup(f.Context(), id)
	switch {
	case err != nil:
		f.Fatalf("lookup: %v", err)
	case found:
		f.Fatalf("lookup: there is a row: %s", show(row))
	}
}

// same fails unless the row is as it was read before.
func (f *fixture) same(before server.Row, id server.ID) {
	f.Helper()
	if after := f.row(id); show(after) != show(before) {
		f.Fatalf("the row has changed:\n before %s\n after  %s", show(before), show(after))
	}
}

// stands fails unless the row has this state, generation and attempt.
func (f *fixture) stands(id server.ID, state server.State, generation int64, attempt int) server.Row {
	f.Helper()
	row := f.row(id)
	if row.State != state || row.Generation != generation || row.Attempt != attempt {
		f.Fatalf("want %v, generation %d, attempt %d: %s", state, generation, attempt, show(row))
	}
	return row
}

// yes fails unless the store said so.
func (f *fixture) yes(ok bool, err error) {
	f.Helper()
	if err != nil {
		f.Fatalf("want true: %v", err)
	}
	if !ok {
		f.Fatal("want true, got false")
	}
}

// no fails unless the store said no.
func (f *fixture) no(ok bool, err error) {
	f.Helper()
	if err != nil {
		f.Fatalf("want false: %v", err)
	}
	if ok {
		f.Fatal("want false, got true")
	}
}

// holds fails unless the row has this result.
func (f *fixture) holds(row server.Row, r server.Result) {
	f.Helper()
	if row.State != r.State || row.Status != r.Status {
		f.Fatalf("want %v with status %d: %s", r.State, r.Status, show(row))
	}
	if !bytes.Equal(row.Data, r.Data) {
		f.Fatalf("want %d bytes of data as they were stored, got %d others", len(r.Data), len(row.Data))
	}
	if row.Live {
		f.Fatalf("a completed row has no lease: %s", show(row))
	}
}

// until polls for what only time can bring.
func (f *fixture) until(what string, ok func() bool) {
	f.Helper()
	end := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(end) {
			f.Fatalf("after %v: not yet so that %s", patience, what)
		}
		pause(f.Context(), 2*time.Millisecond)
	}
}

// race calls n functions at one moment, and waits for them.
func race(n int, call func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			call(i)
		})
	}
	close(start)
	wg.Wait()
}

// pause waits for d, or for the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
