package sqlstore_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/sqlitetest"
)

// floor is the least that two durable writes of the same width cost.
const (
	floorTable  = `CREATE TABLE floor (id BLOB PRIMARY KEY, pad BLOB, state INTEGER, data BLOB)`
	floorInsert = `INSERT INTO floor VALUES (?, ?, 1, NULL)`
	floorUpdate = `UPDATE floor SET state = 2, data = ? WHERE id = ?`
	floorSelect = `SELECT pad, state, data FROM floor WHERE id = ?`
)

func BenchmarkSQLite(b *testing.B) {
	db := sqlitetest.Open(b)
	s := migrated(b, db)
	ctx := b.Context()
	_, err := db.ExecContext(ctx, floorTable)
	require.NoError(b, err)
	pad, data := make([]byte, 200), make([]byte, 512)

	b.Run("new key/floor", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			c := newClaim()
			_, err := db.ExecContext(ctx, floorInsert, c.ID[:], pad)
			require.NoError(b, err)
			_, err = db.ExecContext(ctx, floorUpdate, data, c.ID[:])
			require.NoError(b, err)
		}
	})
	b.Run("new key/store", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			c := newClaim()
			_, _, err := s.Claim(ctx, c)
			require.NoError(b, err)
			r := done()
			r.Data = data
			_, err = s.Complete(ctx, holdOf(c), r)
			require.NoError(b, err)
		}
	})
	c := newClaim()
	_, _, err = s.Claim(ctx, c)
	require.NoError(b, err)
	r := done()
	r.Data = data
	_, err = s.Complete(ctx, holdOf(c), r)
	require.NoError(b, err)
	_, err = db.ExecContext(ctx, floorInsert, c.ID[:], pad)
	require.NoError(b, err)
	_, err = db.ExecContext(ctx, floorUpdate, data, c.ID[:])
	require.NoError(b, err)
	b.Run("replay/floor", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var pad, data []byte
			var state int
			require.NoError(b, db.QueryRowContext(ctx, floorSelect, c.ID[:]).Scan(&pad, &state, &data))
		}
	})
	b.Run("replay/store", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _, err := s.Claim(ctx, c)
			require.NoError(b, err)
		}
	})
}
