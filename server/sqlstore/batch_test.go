package sqlstore_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/sqlitetest"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// together runs the calls so that all of them are in the queue, in their order,
// before the first one gets a slot, and then waits for them.
func together(t *testing.T, s *sqlstore.Store, calls ...func()) {
	t.Helper()
	release := s.HoldSlots()
	var wg sync.WaitGroup
	for i, call := range calls {
		wg.Go(call)
		require.Eventually(t, func() bool { return s.Queued() == i+1 }, 5*time.Second, 10*time.Microsecond)
	}
	release()
	wg.Wait()
	assert.Zero(t, s.Queued())
	assert.Equal(t, 1, s.Free(), "slots")
}

// noError is for goroutines that are not the test's own.
func noError(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Error(err)
	}
}

// statements counts what is sent, by its first word.
func (f *faults) statements() func(word string) int {
	var mu sync.Mutex
	count := map[string]int{}
	f.set(func(statement string) error {
		word, _, _ := strings.Cut(statement, " ")
		mu.Lock()
		defer mu.Unlock()
		count[word]++
		return nil
	}, nil)
	return func(word string) int {
		mu.Lock()
		defer mu.Unlock()
		return count[word]
	}
}

// Claims and completions that come together share one commit, whatever their
// outcome: new, lost, completed, already completed, not held.
func TestThoseWhoComeTogetherShareACommit(t *testing.T) {
	t.Parallel()
	f := &faults{}
	s := migrated(t, openFaulty(t, f))
	ctx := t.Context()
	held := make([]server.Claim, 20)
	for i := range held {
		held[i] = newClaim()
		win(t, s, held[i])
	}
	foreign := newClaim()
	win(t, s, foreign)
	sent := f.statements()
	var calls []func()
	for _, c := range held {
		calls = append(calls, func() {
			ok, err := s.Complete(ctx, holdOf(c), done())
			noError(t, err)
			assert.True(t, ok)
		})
	}
	fresh := make([]server.Claim, 20)
	for i := range fresh {
		c := newClaim()
		fresh[i] = c
		calls = append(calls, func() {
			row, found, err := s.Claim(ctx, c)
			noError(t, err)
			assert.True(t, found)
			assert.Equal(t, c.Owner, row.Owner)
			assert.True(t, row.Live)
		})
	}
	calls = append(calls, func() {
		ok, err := s.Complete(ctx, server.Hold{ID: foreign.ID, Owner: server.Token{1}, Generation: 1}, done())
		noError(t, err)
		assert.False(t, ok, "it holds nothing")
	}, func() {
		ok, err := s.Complete(ctx, holdOf(newClaim()), done())
		noError(t, err)
		assert.False(t, ok, "there is no row")
	})
	together(t, s, calls...)
	assert.Positive(t, sent("COMMIT"))
	assert.Less(t, sent("COMMIT"), 4, "one batch, where the machine is not too busy")
	for _, c := range held {
		row, _, err := s.Lookup(ctx, c.ID)
		require.NoError(t, err)
		assert.Equal(t, server.Done, row.State)
		assert.Equal(t, "result", string(row.Data))
	}
	for _, c := range fresh {
		row, _, err := s.Lookup(ctx, c.ID)
		require.NoError(t, err)
		assert.Equal(t, server.Running, row.State)
	}
	row, _, err := s.Lookup(ctx, foreign.ID)
	require.NoError(t, err)
	assert.Equal(t, server.Running, row.State)
}

// Who is alone sends what it always did.
func TestWhoIsAloneOpensNoTransaction(t *testing.T) {
	t.Parallel()
	f := &faults{}
	s := migrated(t, openFaulty(t, f))
	sent := f.statements()
	require.NoError(t, once(t.Context(), s, newClaim()))
	together(t, s, func() { assert.NoError(t, once(t.Context(), s, newClaim())) }) // queued, but still alone
	assert.Zero(t, sent("BEGIN"))
	assert.Equal(t, 2, sent("INSERT"))
	assert.Equal(t, 2, sent("UPDATE"))
}

// Two claims of one key, and its completion, are never in one batch.
func TestDuplicatesGoIntoTheNextBatch(t *testing.T) {
	t.Parallel()
	s := migrated(t, sqlitetest.Open(t))
	same := newClaim()
	var wins atomic.Int32
	var calls []func()
	for i := range 60 {
		c := newClaim()
		if i%2 == 0 {
			c.ID = same.ID
		}
		calls = append(calls, func() {
			row, found, err := s.Claim(t.Context(), c)
			noError(t, err)
			assert.True(t, found)
			if row.Owner == c.Owner && c.ID == same.ID {
				wins.Add(1)
			}
			assert.True(t, row.Owner == c.Owner || c.ID == same.ID)
		})
	}
	together(t, s, calls...)
	assert.EqualValues(t, 1, wins.Load())
}

// Whatever becomes of a batch, each of its calls gets its own answer.
func TestFailedBatchIsRetriedOneByOne(t *testing.T) {
	t.Parallel()
	const n = 10
	busy := busyError{}
	nth := func(statement string, which int, err error) func(string) error {
		seen := 0
		return func(text string) error {
			if strings.HasPrefix(text, statement) {
				if seen++; seen == which {
					return err
				}
			}
			return nil
		}
	}
	for _, tt := range []struct {
		name          string
		before, after func(string) error
	}{
		{"begin is busy", nth("BEGIN", 1, busy), nil},
		{"a claim fails", nth("INSERT", n/2, errors.New("what nobody knows")), nil},
		{"a claim is lost after it", nil, nth("INSERT", n/2, io.ErrUnexpectedEOF)},
		{"a completion fails", nth("UPDATE", n/2, errors.New("what nobody knows")), nil},
		{"the commit fails", nth("COMMIT", 1, driver.ErrBadConn), nil},
		{"the commit's reply is lost", nil, nth("COMMIT", 1, io.ErrUnexpectedEOF)},
		{"the commit's connection is lost after it", nil, nth("COMMIT", 1, driver.ErrBadConn)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := &faults{}
			db := openFaulty(t, f)
			s := migrated(t, db)
			claims := make([]server.Claim, 2*n)
			var calls []func()
			for i := range claims {
				c := newClaim()
				claims[i] = c
				if i < n {
					win(t, s, c)
					calls = append(calls, func() {
						ok, err := s.Complete(t.Context(), holdOf(c), done())
						noError(t, err)
						assert.True(t, ok)
					})
					continue
				}
				calls = append(calls, func() {
					row, found, err := s.Claim(t.Context(), c)
					noError(t, err)
					assert.True(t, found)
					assert.Equal(t, c.Owner, row.Owner)
				})
			}
			f.set(tt.before, tt.after)
			together(t, s, calls...)
			f.set(nil, nil)
			for i, c := range claims {
				row, found, err := s.Lookup(t.Context(), c.ID)
				require.NoError(t, err)
				require.True(t, found)
				assert.Equal(t, i < n, row.State == server.Done)
				assert.Equal(t, c.Owner, row.Owner)
			}
			assert.Equal(t, 2*n, count(t, db))
			allReturned(t, db)
		})
	}
}

// busyError is what a driver says that does not say more.
type busyError struct{}

func (busyError) Error() string   { return "busy" }
func (busyError) Temporary() bool { return true }

// What can't be written fails by itself, also where it ends the transaction.
func TestPoisonInABatchHarmsNobodyElse(t *testing.T) {
	t.Parallel()
	for _, raise := range []string{"ABORT", "ROLLBACK"} {
		t.Run(raise, func(t *testing.T) {
			t.Parallel()
			db := sqlitetest.Open(t)
			s := migrated(t, db)
			_, err := db.ExecContext(t.Context(), fmt.Sprintf(`CREATE TRIGGER poison AFTER INSERT ON oncemore_keys
 WHEN NEW.scope = 'poison' BEGIN SELECT RAISE(%s, 'poison'); END`, raise))
			require.NoError(t, err)
			var calls []func()
			for i := range 20 {
				c := newClaim()
				if i == 7 {
					c.Scope = "poison"
				}
				calls = append(calls, func() {
					row, found, err := s.Claim(t.Context(), c)
					if c.Scope == "poison" {
						assert.True(t, err != nil && strings.Contains(err.Error(), "poison"), "%v", err)
						return
					}
					noError(t, err)
					assert.True(t, found)
					assert.Equal(t, c.Owner, row.Owner)
				})
			}
			together(t, s, calls...)
			assert.Equal(t, 19, count(t, db))
		})
	}
}

// Nobody is told of a win before it is committed.
func TestWinIsToldAfterTheCommit(t *testing.T) {
	t.Parallel()
	f := &faults{}
	s := migrated(t, openFaulty(t, f))
	var told, early atomic.Int32
	f.set(func(statement string) error {
		if statement == "COMMIT" {
			time.Sleep(20 * time.Millisecond)
			early.Store(told.Load())
		}
		return nil
	}, nil)
	var calls []func()
	for range 10 {
		c := newClaim()
		calls = append(calls, func() {
			_, _, err := s.Claim(t.Context(), c)
			noError(t, err)
			told.Add(1)
		})
	}
	together(t, s, calls...)
	assert.EqualValues(t, 10, told.Load())
	assert.Zero(t, early.Load())
}

// Who leaves the queue has done nothing.
func TestWhoLeavesTheQueueIsNotClaimed(t *testing.T) {
	t.Parallel()
	db := sqlitetest.Open(t)
	s := migrated(t, db)
	release := s.HoldSlots()
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, _, err := s.Claim(ctx, newClaim())
		left <- err
	}()
	require.Eventually(t, func() bool { return s.Queued() == 1 }, 5*time.Second, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-left, context.Canceled)
	assert.Zero(t, s.Queued())
	release()
	assert.Equal(t, 1, s.Free())
	assert.Zero(t, count(t, db))
	ctx, cancel = context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	release = s.HoldSlots()
	_, _, err := s.Claim(ctx, newClaim())
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, server.ErrBusy)
	release()
	require.NoError(t, once(t.Context(), s, newClaim()))
}

// The end of one's context, before or while the batch runs, is one's own
// affair, also the leader's.
func TestWhoLeavesABatchHarmsNobodyElse(t *testing.T) {
	t.Parallel()
	for _, leaver := range []int{0, 1, 5} { // the first one leads
		for _, when := range []string{"BEGIN", "INSERT", "COMMIT"} {
			t.Run(fmt.Sprintf("%d at %s", leaver, when), func(t *testing.T) {
				t.Parallel()
				f := &faults{}
				db := openFaulty(t, f)
				s := migrated(t, db)
				leaves, cancel := context.WithCancel(t.Context())
				defer cancel()
				var commits atomic.Int32
				f.set(func(statement string) error {
					if strings.HasPrefix(statement, when) {
						cancel()
						time.Sleep(5 * time.Millisecond)
					}
					if statement == "COMMIT" {
						commits.Add(1)
					}
					return nil
				}, nil)
				var calls []func()
				for i := range 10 {
					c, ctx := newClaim(), t.Context()
					if i == leaver {
						ctx = leaves
					}
					calls = append(calls, func() {
						row, _, err := s.Claim(ctx, c)
						if i == leaver && errors.Is(err, context.Canceled) {
							return
						}
						noError(t, err)
						assert.Equal(t, c.Owner, row.Owner)
					})
				}
				together(t, s, calls...)
				assert.Positive(t, commits.Load(), "the batch was not given up")
			})
		}
	}
}

// A leader whose context has ended does not stay with a database that hangs.
func TestLeaderLeavesADatabaseThatHangs(t *testing.T) {
	t.Parallel()
	f := &faults{}
	s := migrated(t, openFaulty(t, f))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var once sync.Once
	f.set(func(statement string) error {
		if strings.HasPrefix(statement, "INSERT") {
			once.Do(func() { cancel(); time.Sleep(time.Second) })
		}
		return nil
	}, nil)
	leader, other := newClaim(), newClaim()
	together(t, s, func() {
		_, _, err := s.Claim(ctx, leader)
		assert.ErrorIs(t, err, context.Canceled)
	}, func() {
		row, _, err := s.Claim(t.Context(), other)
		noError(t, err)
		assert.Equal(t, other.Owner, row.Owner)
	})
}

// A call that does not come back keeps its slot for a moment only.
func TestSlotOfWhoHangsIsHandedOn(t *testing.T) {
	t.Parallel()
	s := migrated(t, sqlitetest.Open(t))
	s.TakeSlot()
	begin := time.Now()
	all(t, 20, func(int) error { return once(t.Context(), s, newClaim()) })
	assert.Less(t, time.Since(begin), 4*time.Second, "a queue that nobody serves is left after five")
	assert.Equal(t, 1, s.Free())
}

// Large results, and claims that lapse, go by themselves.
func TestWhatDoesNotShare(t *testing.T) {
	t.Parallel()
	s := migrated(t, sqlitetest.Open(t))
	large, lapsing := newClaim(), newClaim()
	win(t, s, large)
	lapsing.Lapses = true
	release := s.HoldSlots()
	defer release()
	win(t, s, lapsing)
	r := done()
	r.Data = make([]byte, 100<<10)
	ok, err := s.Complete(t.Context(), holdOf(large), r)
	require.NoError(t, err)
	assert.True(t, ok)
}

// 64 goroutines at the same keys: one winner each, and nothing is left behind.
func TestManyRaceForTheSameKeys(t *testing.T) {
	keys := 100
	if testing.Short() {
		keys = 20
	}
	db := sqlitetest.Open(t)
	db.SetMaxOpenConns(16)
	s := migrated(t, db)
	before := runtime.NumGoroutine()
	ops := make([]server.Claim, keys)
	for i := range ops {
		ops[i] = newClaim()
	}
	wins := make([]atomic.Int32, keys)
	all(t, 64, func(worker int) error {
		for i := range keys {
			i = (i + worker%4*keys/4) % keys // four meet elsewhere than the others
			c := newClaim()
			c.ID = ops[i].ID
			row, found, err := s.Claim(t.Context(), c)
			if err != nil || !found {
				return fmt.Errorf("claim: %t, %w", found, err)
			}
			if row.Owner != c.Owner {
				continue
			}
			wins[i].Add(1)
			if ok, err := s.Complete(t.Context(), holdOf(c), done()); !ok || err != nil {
				return fmt.Errorf("complete: %t, %w", ok, err)
			}
		}
		return nil
	})
	for i := range wins {
		assert.EqualValues(t, 1, wins[i].Load())
	}
	assert.Equal(t, keys, count(t, db))
	var running int
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM oncemore_keys WHERE state <> 2").Scan(&running))
	assert.Zero(t, running)
	assert.Equal(t, 1, s.Free())
	allReturned(t, db)
	assert.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+2 }, 5*time.Second, 10*time.Millisecond)
}
