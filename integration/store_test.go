package integration_test

import (
	"testing"

	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
	"github.com/oncemore-go/oncemore/server/storetest"
)

// The suite through each driver, at each isolation level, in other time zones.
// B141, B224, B240, B268.
func TestPostgresIsAStore(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, driver string
		options      []string
	}{
		{"pgx", "pgx", nil},
		{"pgx without prepared statements", "pgx", []string{"default_query_exec_mode=exec"}},
		{"pgx with the simple protocol", "pgx", []string{"default_query_exec_mode=simple_protocol"}},
		{"pgx, repeatable read", "pgx", []string{"default_transaction_isolation=repeatable%20read"}},
		{"pgx, serializable, Kathmandu", "pgx", []string{"default_transaction_isolation=serializable", "timezone=Asia%2FKathmandu"}},
		{"lib/pq", "postgres", nil},
		{"lib/pq, binary, serializable, Los Angeles", "postgres", []string{"binary_parameters=yes", "default_transaction_isolation=serializable", "timezone=America%2FLos_Angeles"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			store := migrated(t, open(t, tt.driver, newPostgres(t)(tt.options...)), sqlstore.Postgres)
			storetest.Run(t, func(testing.TB) server.Store { return store })
		})
	}
}

// The suite with what may be in a DSN. B209 (found rows), B212, B214 (times), B216
// (identities), B240, B245 (snapshots).
func TestMariaDBIsAStore(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		options []string
	}{
		{"as it comes", nil},
		{"found rows", []string{"clientFoundRows=true"}},
		{"interpolated, found rows", []string{"interpolateParams=true", "clientFoundRows=true"}},
		{"interpolated, times parsed in Tokyo", []string{"interpolateParams=true", "parseTime=true", "loc=Asia%2FTokyo"}},
		{"times parsed, session in Kathmandu", []string{"parseTime=true", "time_zone=%27%2B05%3A45%27"}},
		{"read committed", []string{"tx_isolation=%27READ-COMMITTED%27"}},
		{"serializable, interpolated", []string{"tx_isolation=%27SERIALIZABLE%27", "interpolateParams=true"}},
		{"a snapshot that a change ends", []string{snapshotIsolation}}, // 1020
		{"a snapshot that a change ends, serializable", []string{snapshotIsolation, mariaDBLevel("SERIALIZABLE"), "interpolateParams=true"}},
		{"latin1", []string{"charset=latin1", "interpolateParams=true"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			store := migrated(t, open(t, "mysql", newMariaDB(t)(tt.options...)), sqlstore.MySQL)
			storetest.Run(t, func(testing.TB) server.Store { return store })
		})
	}
}
