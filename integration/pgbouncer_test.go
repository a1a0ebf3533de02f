package integration_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/integration/dbtest"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// B227, B229: PgBouncer hands every transaction to another session.
func TestPgBouncerInTransactionMode(t *testing.T) {
	t.Parallel()
	upstream := servers.postgres.get(t)
	bouncer, err := dbtest.NewPgBouncer(upstream)
	installed(t, "PgBouncer", err)
	t.Cleanup(func() { require.NoError(t, bouncer.Remove()) })
	require.NoError(t, bouncer.Start())
	for _, tt := range []struct{ driver, options string }{
		{"pgx", "default_query_exec_mode=exec"},
		{"pgx", "default_query_exec_mode=simple_protocol"},
		{"postgres", "binary_parameters=yes"},
	} {
		t.Run(tt.driver+" "+tt.options, func(t *testing.T) {
			url := newPostgres(t)
			s := migrated(t, open(t, tt.driver, through(url(tt.options), bouncer.Port)), sqlstore.Postgres)
			var total atomic.Int64
			keys := make([]server.Claim, 10)
			for i := range keys {
				keys[i] = newClaim()
			}
			all(t, 24, func(worker int) error {
				for _, c := range keys {
					data, won, err := once(t.Context(), s, rival(c), worker%2 == 0)
					if err != nil {
						return err
					}
					if won {
						total.Add(1)
					}
					if data == "" {
						return errors.New("no answer")
					}
				}
				return nil
			})
			assert.EqualValues(t, len(keys), total.Load())
			_, err := s.Purge(t.Context())
			require.NoError(t, err)
		})
	}
}
