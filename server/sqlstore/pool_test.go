package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/sqlitetest"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// once runs c to its end, as the middleware does: the winner completes it, the
// others wait for that without a connection.
func once(ctx context.Context, s *sqlstore.Store, c server.Claim) error {
	row, found, err := s.Claim(ctx, c)
	switch {
	case err != nil:
		return err
	case !found:
		return errors.New("no row")
	case row.Owner == c.Owner:
		if ok, err := s.Complete(ctx, holdOf(c), done()); !ok || err != nil {
			return fmt.Errorf("complete: %t, %w", ok, err)
		}
	}
	for row.State != server.Done {
		time.Sleep(5 * time.Millisecond)
		if row, _, err = s.Lookup(ctx, c.ID); err != nil {
			return err
		}
	}
	if string(row.Data) != "result" {
		return fmt.Errorf("read %q", row.Data)
	}
	return nil
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

// allReturned waits until the pool has its connections back. A new one that is on
// its way counts as in use, though whoever asked for it has got another.
func allReturned(tb testing.TB, db *sql.DB) {
	tb.Helper()
	assert.Eventually(tb, func() bool { return db.Stats().InUse == 0 }, 10*time.Second, time.Millisecond)
}

// B205, B207: a pool smaller than the number of requests.
func TestSmallPoolIsEnough(t *testing.T) {
	t.Parallel()
	for _, conns := range []int{1, 2, 10} {
		db := sqlitetest.Open(t)
		db.SetMaxOpenConns(conns)
		s := migrated(t, db)
		same := newClaim()
		all(t, 40, func(i int) error {
			c := newClaim()
			if i%2 == 0 {
				c.ID, c.Fingerprint = same.ID, same.Fingerprint
			}
			return once(t.Context(), s, c)
		})
		allReturned(t, db)
	}
}

// B197: another process holds the writer for a while.
func TestBusyWriterIsWaitedFor(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/a.db"
	s := migrated(t, sqlitetest.OpenFile(t, path))
	foreign, err := sqlitetest.OpenFile(t, path).BeginTx(t.Context(), nil)
	require.NoError(t, err)
	time.AfterFunc(time.Second, func() { assert.NoError(t, foreign.Rollback()) })
	begin := time.Now()
	require.NoError(t, once(t.Context(), s, newClaim()))
	assert.Greater(t, time.Since(begin), 900*time.Millisecond, "it was held")
}

// A handler that holds the writer holds up writes, but nobody who reads.
func TestReadsPassAnOpenTransaction(t *testing.T) {
	t.Parallel()
	s := migrated(t, sqlitetest.Open(t))
	c, held := newClaim(), newClaim()
	require.NoError(t, once(t.Context(), s, c))
	tx, _, _, err := s.BeginTx(t.Context(), &held)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	row, found, err := s.Claim(ctx, c)
	require.NoError(t, err, "a replay")
	assert.True(t, found)
	assert.Equal(t, server.Done, row.State)
	require.NoError(t, tx.Rollback())
}

// Whoever waits for the writer can leave, and leaves nothing behind.
func TestWaitForTheWriterEndsWithTheContext(t *testing.T) {
	t.Parallel()
	db := sqlitetest.Open(t)
	s := migrated(t, db)
	held := newClaim()
	tx, _, _, err := s.BeginTx(t.Context(), &held)
	require.NoError(t, err)
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, _, err := s.Claim(ctx, newClaim())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, server.ErrBusy, "which is no lost database")
		cancel()
	}
	assert.Equal(t, 1, db.Stats().InUse, "the transaction's own")
	require.NoError(t, tx.Rollback())
	require.NoError(t, once(t.Context(), s, newClaim()))
	allReturned(t, db)
}

// The writer is free again, however a transaction ends.
func TestWriterIsGivenBack(t *testing.T) {
	t.Parallel()
	db := sqlitetest.Open(t)
	s := migrated(t, db)
	for range 3 {
		for _, end := range []func(server.Tx, context.CancelFunc){
			func(tx server.Tx, _ context.CancelFunc) { assert.NoError(t, tx.Commit(t.Context())) },
			func(tx server.Tx, _ context.CancelFunc) { assert.NoError(t, tx.Rollback()) },
			func(_ server.Tx, cancel context.CancelFunc) { cancel() }, // and nobody rolls back
			func(tx server.Tx, _ context.CancelFunc) {
				require.NoError(t, tx.SQL().Commit())
				require.Error(t, tx.Commit(t.Context()))
			},
		} {
			ctx, cancel := context.WithCancel(t.Context())
			tx, _, _, err := s.BeginTx(ctx, nil)
			require.NoError(t, err)
			end(tx, cancel)
			require.NoError(t, once(t.Context(), s, newClaim()))
			cancel()
		}
	}
	allReturned(t, db)
}

// Invariant 5: the business row is there if and only if the record is done.
func TestBusinessAndRecordAreOne(t *testing.T) {
	t.Parallel()
	db := sqlitetest.Open(t)
	s := migrated(t, db)
	_, err := db.ExecContext(t.Context(), "CREATE TABLE charge (id BLOB PRIMARY KEY)")
	require.NoError(t, err)
	charged := func(c server.Claim) bool {
		var id []byte
		err := db.QueryRowContext(t.Context(), "SELECT id FROM charge WHERE id = ?", c.ID[:]).Scan(&id)
		if err != nil {
			require.ErrorIs(t, err, sql.ErrNoRows)
		}
		return err == nil
	}
	for _, commit := range []bool{true, false} {
		c := newClaim()
		tx, _, _, err := s.BeginTx(t.Context(), &c)
		require.NoError(t, err)
		_, err = tx.SQL().ExecContext(t.Context(), "INSERT INTO charge VALUES (?)", c.ID[:])
		require.NoError(t, err)
		ok, err := tx.Complete(t.Context(), holdOf(c), done())
		require.NoError(t, err)
		require.True(t, ok)
		if commit {
			require.NoError(t, tx.Commit(t.Context()))
		} else {
			require.NoError(t, tx.Rollback())
		}
		_, found, err := s.Lookup(t.Context(), c.ID)
		require.NoError(t, err)
		assert.Equal(t, commit, found)
		assert.Equal(t, commit, charged(c))
	}
}

// A transaction that the database has ended under the handler is not completed,
// also where the record is outside of it.
func TestEndedTransactionIsNotCompleted(t *testing.T) {
	t.Parallel()
	db := sqlitetest.Open(t)
	s := migrated(t, db)
	for _, first := range []bool{true, false} { // the claim in the transaction, and before it
		c := newClaim()
		claim := &c
		if !first {
			win(t, s, c)
			claim = nil
		}
		tx, _, _, err := s.BeginTx(t.Context(), claim)
		require.NoError(t, err)
		_, err = tx.SQL().ExecContext(t.Context(), "ROLLBACK")
		require.NoError(t, err)
		ok, err := tx.Complete(t.Context(), holdOf(c), done())
		require.NoError(t, err)
		assert.False(t, ok)
		_ = tx.Rollback()
		row, found, err := s.Lookup(t.Context(), c.ID)
		require.NoError(t, err)
		assert.Equal(t, !first, found)
		assert.NotEqual(t, server.Done, row.State)
	}
}

// A replay writes nothing: not a byte of the log, and no other connection sees
// a change.
func TestReplayWritesNothing(t *testing.T) {
	t.Parallel()
	db := sqlitetest.Open(t)
	s := migrated(t, db)
	c := newClaim()
	require.NoError(t, once(t.Context(), s, c))
	watcher, err := db.Conn(t.Context())
	require.NoError(t, err)
	defer func() { _ = watcher.Close() }()
	version := func() (n int64) {
		require.NoError(t, watcher.QueryRowContext(t.Context(), "PRAGMA data_version").Scan(&n))
		return n
	}
	before := version()
	for range 10 {
		again := newClaim()
		again.ID = c.ID
		require.NoError(t, once(t.Context(), s, again))
		_, _, _, err := s.BeginTx(t.Context(), &again)
		require.NoError(t, err)
	}
	assert.Equal(t, before, version())
	require.NoError(t, once(t.Context(), s, newClaim()))
	assert.NotEqual(t, before, version(), "a new key does write")
}
