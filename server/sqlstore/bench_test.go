package sqlstore_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/sqlitetest"
	"github.com/oncemore-go/oncemore/server"
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

// BenchmarkSQLiteWorkers compares 1 and 64 workers with the floor, which
// has the same pool and lines up for the writer as the store does.
func BenchmarkSQLiteWorkers(b *testing.B) {
	pad, data := make([]byte, 200), make([]byte, 512)
	for _, workers := range []int{1, 64} {
		db := sqlitetest.Open(b)
		db.SetMaxOpenConns(16)
		db.SetMaxIdleConns(16)
		s := migrated(b, db)
		ctx := b.Context()
		_, err := db.ExecContext(ctx, floorTable)
		require.NoError(b, err)
		writer := make(chan struct{}, 1)
		exec := func(text string, args ...any) {
			writer <- struct{}{}
			_, err := db.ExecContext(ctx, text, args...)
			<-writer
			noError(b, err)
		}
		run := func(name string, one func(c server.Claim)) {
			b.Run(fmt.Sprintf("%d/%s", workers, name), func(b *testing.B) {
				b.ReportAllocs()
				var left atomic.Int64
				left.Store(int64(b.N))
				var wg sync.WaitGroup
				for range workers {
					wg.Go(func() {
						for left.Add(-1) >= 0 {
							one(newClaim())
						}
					})
				}
				wg.Wait()
			})
		}
		for range 2 { // interleaved: a disk has its moods
			run("floor", func(c server.Claim) {
				exec(floorInsert, c.ID[:], pad)
				exec(floorUpdate, data, c.ID[:])
			})
			run("store", func(c server.Claim) {
				_, _, err := s.Claim(ctx, c)
				noError(b, err)
				r := done()
				r.Data = data
				ok, err := s.Complete(ctx, holdOf(c), r)
				noError(b, err)
				assert.True(b, ok)
			})
		}
	}
}
