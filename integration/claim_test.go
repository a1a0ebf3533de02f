package integration_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// newClaim is a claim of an identity of its own, for long.
func newClaim() server.Claim {
	c := server.Claim{
		Scope: "tenant", Method: "POST", Route: "POST /payments",
		Lease: time.Minute, TTL: time.Hour, Keep: 24 * time.Hour,
	}
	_, _ = rand.Read(c.ID[:])
	_, _ = rand.Read(c.Fingerprint[:])
	_, _ = rand.Read(c.Owner[:])
	return c
}

// rival is the same operation from another arrival.
func rival(c server.Claim) server.Claim {
	_, _ = rand.Read(c.Owner[:])
	return c
}

func holdOf(c server.Claim) server.Hold {
	return server.Hold{ID: c.ID, Owner: c.Owner, Generation: 1}
}

// result names its run, so that everybody can tell whose it is.
func result(c server.Claim) server.Result {
	return server.Result{State: server.Done, Status: 201, Data: fmt.Appendf(nil, "%x", c.Owner), ExecutedAt: time.Now()}
}

// all runs n calls at once, and fails if one of them did.
func all(t *testing.T, n int, call func(i int) error) {
	t.Helper()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = call(i) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
}

// once runs c to its end, as the middleware does, and returns what its client
// would get: from its own run, or from the one that won.
func once(ctx context.Context, s *sqlstore.Store, c server.Claim, inTx bool) (data string, won bool, err error) {
	var tx server.Tx
	var row server.Row
	if inTx {
		tx, row, _, err = s.BeginTx(ctx, &c)
	} else {
		row, _, err = s.Claim(ctx, c)
	}
	if err != nil {
		return "", false, fmt.Errorf("claim: %w", err)
	}
	if won = row.Owner == c.Owner; won {
		var ok bool
		if inTx {
			defer func() { _ = tx.Rollback() }()
			if ok, err = tx.Complete(ctx, holdOf(c), result(c)); ok && err == nil {
				err = tx.Commit(ctx)
			}
		} else {
			ok, err = s.Complete(ctx, holdOf(c), result(c))
		}
		if !ok || err != nil {
			return "", false, fmt.Errorf("complete: %t, %w", ok, err)
		}
		return string(result(c).Data), true, nil
	}
	for row.State != server.Done {
		time.Sleep(5 * time.Millisecond)
		if row, _, err = s.Lookup(ctx, c.ID); err != nil {
			return "", false, fmt.Errorf("lookup: %w", err)
		}
	}
	return string(row.Data), false, nil
}

// 64 arrivals a key at once: one of them runs, nobody sees an error, and all
// get its bytes. B220, B224, B268.
func TestOneWinnerAKey(t *testing.T) {
	for _, tt := range []struct {
		name    string
		dialect sqlstore.Dialect
		options string
	}{
		{"PostgreSQL, read committed", sqlstore.Postgres, "default_transaction_isolation=read%20committed"},
		{"PostgreSQL, repeatable read", sqlstore.Postgres, "default_transaction_isolation=repeatable%20read"},
		{"PostgreSQL, serializable", sqlstore.Postgres, "default_transaction_isolation=serializable"},
		{"MariaDB, read committed", sqlstore.MySQL, "tx_isolation=%27READ-COMMITTED%27"},
		{"MariaDB, repeatable read, found rows", sqlstore.MySQL, "clientFoundRows=true"},
		{"MariaDB, serializable", sqlstore.MySQL, "tx_isolation=%27SERIALIZABLE%27&interpolateParams=true"},
	} {
		for _, inTx := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, in a transaction %t", tt.name, inTx), func(t *testing.T) {
				db := tt.dialect
				var s *sqlstore.Store
				if db == sqlstore.Postgres {
					s = migrated(t, open(t, "pgx", newPostgres(t)(tt.options)), db)
				} else {
					s = migrated(t, open(t, "mysql", newMariaDB(t)(tt.options)), db)
				}
				keys := 40
				if testing.Short() {
					keys = 5
				}
				const arrivals = 64
				winners := make([]atomic.Int32, keys)
				var mu sync.Mutex
				answers := make([]map[string]bool, keys)
				ops := make([]server.Claim, keys)
				for i := range ops {
					ops[i], answers[i] = newClaim(), map[string]bool{}
				}
				// Every worker goes through all keys, so that all meet at each.
				all(t, arrivals, func(int) error {
					for i := range keys {
						data, won, err := once(t.Context(), s, rival(ops[i]), inTx)
						if err != nil {
							return err
						}
						if won {
							winners[i].Add(1)
						}
						mu.Lock()
						answers[i][data] = true
						mu.Unlock()
					}
					return nil
				})
				for i := range keys {
					assert.EqualValues(t, 1, winners[i].Load(), "winners of key %d", i)
					assert.Len(t, answers[i], 1, "answers of key %d", i)
				}
			})
		}
	}
}
