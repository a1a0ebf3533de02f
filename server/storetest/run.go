package storetest

import (
	"testing"

	"github.com/oncemore-go/oncemore/server"
)

// spec is one duty of a store.
type spec struct {
	name string
	test func(f *fixture)
}

// Run says whether a store is right: each subtest states a duty of
// [server.Store], and, where the store is one, of [server.TxStore]. A store
// with a method Purge(context.Context) (int64, error) is asked about that too.
//
// open is called for every subtest, and cleans up by tb.Cleanup. The stores may
// share one database: all identities are random, and nothing but what a purge
// may take is taken from others. The subtests run one after the other, in a
// few seconds, one of them as long as the store waits for a transaction that
// has the key; several Runs may run at once.
//
// The clock of the store has to be within five minutes of this process's own.
func Run(t *testing.T, open func(testing.TB) server.Store) {
	t.Helper()
	run := func(specs []spec) {
		for _, s := range specs {
			t.Run(s.name, func(t *testing.T) {
				s.test(newFixture(t, open(t)))
			})
		}
	}
	run(claimSpecs)
	run(lapseSpecs)
	run(takeoverSpecs)
	run(resultSpecs)
	run(settleSpecs)
	run(valueSpecs)

	probe := newFixture(t, open(t))
	if probe.purger != nil {
		run(purgeSpecs)
	}
	if probe.txs != nil {
		run(txSpecs)
	}
}
