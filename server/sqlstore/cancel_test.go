package sqlstore_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The context of a transaction may end at the very moment at which it begins.
func TestTransactionWhoseContextEndsAsItBegins(t *testing.T) {
	t.Parallel()
	f := &faults{}
	db := openFaulty(t, f)
	s := migrated(t, db)
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		f.set(nil, func(statement string) error {
			if strings.HasPrefix(statement, "SAVEPOINT") {
				cancel()
			}
			return nil
		})
		tx, _, _, err := s.BeginTx(ctx, nil)
		if err == nil {
			time.Sleep(time.Millisecond) // the end of the context is first
			require.NoError(t, tx.Rollback())
		}
		f.set(nil, nil)
	}
	_, err := s.Purge(t.Context())
	require.NoError(t, err, "the writer is free")
	allReturned(t, db)
}
