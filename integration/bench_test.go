package integration_test

import (
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// floor is the least that a new key costs without sharing transactions: two
// durable writes of the same width.
var floor = struct{ table, insert, update string }{
	`CREATE TABLE floor (id BYTES PRIMARY KEY, pad BLOB, state INTEGER, data BLOB)`,
	`INSERT INTO floor VALUES (?, ?, 1, NULL)`,
	`UPDATE floor SET state = 2, data = ? WHERE id = ?`,
}

// BenchmarkNewKeys compares claim and completion with the floor, interleaved,
// by servers that make every commit durable.
func BenchmarkNewKeys(b *testing.B) {
	b.Run("PostgreSQL", func(b *testing.B) {
		url := newPostgres(b)
		db := open(b, "pgx", url())
		run(b, db, "ALTER SYSTEM SET fsync = on", "SELECT pg_reload_conf()")
		numbered := strings.NewReplacer("?, ?", "$1, $2", "data = ?", "data = $1", "id = ?", "id = $2", "BYTES", "bytea", "BLOB", "bytea")
		benchNewKeys(b, db, sqlstore.Postgres, numbered.Replace)
		run(b, db, "ALTER SYSTEM RESET fsync", "SELECT pg_reload_conf()")
	})
	b.Run("MariaDB", func(b *testing.B) {
		db := open(b, "mysql", newMariaDB(b)("interpolateParams=true"))
		run(b, db, "SET GLOBAL innodb_flush_log_at_trx_commit = 1")
		benchNewKeys(b, db, sqlstore.MySQL, strings.NewReplacer("BYTES", "BINARY(32)").Replace)
	})
}

func benchNewKeys(b *testing.B, db *sql.DB, d sqlstore.Dialect, spell func(string) string) {
	b.Helper()
	ctx := b.Context()
	s := migrated(b, db, d)
	run(b, db, spell(floor.table))
	insert, update := spell(floor.insert), spell(floor.update)
	pad, data := make([]byte, 200), make([]byte, 512)
	ways := []struct {
		name string
		one  func(c server.Claim)
	}{
		{"floor", func(c server.Claim) {
			_, err := db.ExecContext(ctx, insert, c.ID[:], pad)
			noError(b, err)
			_, err = db.ExecContext(ctx, update, data, c.ID[:])
			noError(b, err)
		}},
		{"store", func(c server.Claim) {
			row, _, err := s.Claim(ctx, c)
			noError(b, err)
			assert.Equal(b, c.Owner, row.Owner)
			r := result(c)
			r.Data = data
			ok, err := s.Complete(ctx, holdOf(c), r)
			noError(b, err)
			assert.True(b, ok)
		}},
	}
	for _, workers := range []int{1, 4, 16, 64} {
		for range 2 {
			for _, way := range ways {
				b.Run(fmt.Sprintf("%d/%s", workers, way.name), func(b *testing.B) {
					var left atomic.Int64
					left.Store(int64(b.N))
					var wg sync.WaitGroup
					for range workers {
						wg.Go(func() {
							for left.Add(-1) >= 0 {
								way.one(newClaim())
							}
						})
					}
					wg.Wait()
				})
			}
		}
	}
	require.NoError(b, db.PingContext(ctx))
}
