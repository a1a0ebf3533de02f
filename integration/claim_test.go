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
		switch {
		case err != nil:
			return "", false, fmt.Errorf("complete: %w", err)
		case !ok:
			return "", false, errors.New("complete: the key is somebody else's")
		}
		return string(result(c).Data), true, nil
	}
	end := time.Now().Add(20 * time.Second)
	for pause := 5 * time.Millisecond; row.State != server.Done; pause = min(2*pause, 20*time.Millisecond) {
		if time.Now().After(end) {
			return "", false, errors.New("nobody ends it")
		}
		time.Sleep(pause)
		if row, _, err = s.Lookup(ctx, c.ID); err != nil {
			return "", false, fmt.Errorf("lookup: %w", err)
		}
	}
	return string(row.Data), false, nil
}

// raced is how many keys a race is for.
func raced() int {
	switch {
	case testing.Short():
		return 20
	case raceDetector:
		return 30
	default:
		return 1000
	}
}

// race sends each key from 64 goroutines at once, which go through all keys in
// the same order and so meet at each: one of them runs, nobody sees an error,
// and all get the winner's bytes. arrive is one arrival, see once.
func race(t *testing.T, keys int, arrive func(worker int, op server.Claim) (data string, won bool, err error)) {
	t.Helper()
	ops := make([]server.Claim, keys)
	for i := range ops {
		ops[i] = newClaim()
	}
	const arrivals = 64
	got := make([][]string, arrivals)
	won := make([]atomic.Pointer[string], len(ops))
	all(t, arrivals, func(worker int) error {
		got[worker] = make([]string, len(ops))
		for i, op := range ops {
			data, mine, err := arrive(worker, rival(op))
			if err != nil {
				return fmt.Errorf("key %d: %w", i, err)
			}
			got[worker][i] = data
			if mine && !won[i].CompareAndSwap(nil, &data) {
				return fmt.Errorf("key %d has two winners", i)
			}
		}
		return nil
	})
	for i := range ops {
		winner := won[i].Load()
		require.NotNil(t, winner, "key %d has no winner", i)
		for worker := range got {
			require.Equal(t, *winner, got[worker][i], "key %d", i)
		}
	}
}

// On each database, at each level, in a transaction and without: 1,000 keys. What
// else a DSN of MariaDB may say is tried with fewer: found rows and prepared
// statements the other way round. B209, B220, B224, B268.
func TestOneWinnerAKey(t *testing.T) {
	for _, tt := range []struct {
		name    string
		dialect sqlstore.Dialect
		options string
		fewer   bool
	}{
		{"PostgreSQL, read committed", sqlstore.Postgres, "default_transaction_isolation=read%20committed", false},
		{"PostgreSQL, repeatable read", sqlstore.Postgres, "default_transaction_isolation=repeatable%20read", false},
		{"PostgreSQL, serializable", sqlstore.Postgres, "default_transaction_isolation=serializable", false},
		{"MariaDB, read committed, found rows", sqlstore.MySQL, mariaDBLevel("READ-COMMITTED") + interpolated + foundRows, false},
		{"MariaDB, repeatable read", sqlstore.MySQL, mariaDBLevel("REPEATABLE-READ") + interpolated, false},
		{"MariaDB, serializable, found rows", sqlstore.MySQL, mariaDBLevel("SERIALIZABLE") + interpolated + foundRows, false},
		{"MariaDB, read committed, prepared", sqlstore.MySQL, mariaDBLevel("READ-COMMITTED"), true},
		{"MariaDB, repeatable read, found rows, prepared", sqlstore.MySQL, mariaDBLevel("REPEATABLE-READ") + foundRows, true},
		{"MariaDB, serializable, prepared", sqlstore.MySQL, mariaDBLevel("SERIALIZABLE"), true},
		{"MariaDB, repeatable read, a snapshot that a change ends", sqlstore.MySQL, mariaDBLevel("REPEATABLE-READ") + "&" + snapshotIsolation + interpolated, true},
		{"MariaDB, serializable, a snapshot that a change ends", sqlstore.MySQL, mariaDBLevel("SERIALIZABLE") + "&" + snapshotIsolation, true},
	} {
		for _, inTx := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, in a transaction %t", tt.name, inTx), func(t *testing.T) {
				var s *sqlstore.Store
				if tt.dialect == sqlstore.Postgres {
					s = migrated(t, open(t, "pgx", newPostgres(t)(tt.options)), tt.dialect)
				} else {
					s = migrated(t, open(t, "mysql", newMariaDB(t)(tt.options)), tt.dialect)
				}
				keys := raced()
				if tt.fewer {
					keys = max(keys/50, 10)
				}
				race(t, keys, func(_ int, c server.Claim) (string, bool, error) { return once(t.Context(), s, c, inTx) })
			})
		}
	}
}

// What the DSN of a MariaDB server may say.
const (
	interpolated = "&interpolateParams=true"
	foundRows    = "&clientFoundRows=true"
	// Whoever locks a row that is newer than its snapshot gets a 1020. Later
	// versions have it on.
	snapshotIsolation = "innodb_snapshot_isolation=ON"
)

func mariaDBLevel(name string) string { return "tx_isolation=%27" + name + "%27" }
