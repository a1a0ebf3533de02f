package sqlstore_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"strings"
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

func holdOf(c server.Claim) server.Hold {
	return server.Hold{ID: c.ID, Owner: c.Owner, Generation: 1}
}

func done() server.Result {
	return server.Result{State: server.Done, Status: 201, Data: []byte("result"), ExecutedAt: time.Now()}
}

// win claims, and fails unless the claim won.
func win(t *testing.T, s server.Store, c server.Claim) server.Hold {
	t.Helper()
	row, found, err := s.Claim(t.Context(), c)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, c.Owner, row.Owner)
	return holdOf(c)
}

// calls are all that change the table, each on a row that it may change, and
// what is true when it took effect once.
var calls = []struct {
	name      string
	lease     time.Duration
	statement string
	call      func(context.Context, *sqlstore.Store, server.Claim) (bool, error)
	effect    func(row server.Row, found bool) bool
}{
	{"claim", 0, "INSERT", func(ctx context.Context, s *sqlstore.Store, c server.Claim) (bool, error) {
		row, found, err := s.Claim(ctx, c)
		return found && row.Owner == c.Owner, err
	}, func(row server.Row, found bool) bool {
		return found && row.Generation == 1 && row.State == server.Running
	}},
	{"takeover", time.Millisecond, "UPDATE", func(ctx context.Context, s *sqlstore.Store, c server.Claim) (bool, error) {
		return s.Takeover(ctx, server.Takeover{ID: c.ID, Owner: server.Token{1}, From: c.Owner, Generation: 1, Lease: time.Minute})
	}, func(row server.Row, _ bool) bool { return row.Generation == 2 && row.Attempt == 2 && row.Live }},
	{"renew", time.Minute, "UPDATE", func(ctx context.Context, s *sqlstore.Store, c server.Claim) (bool, error) {
		return s.Renew(ctx, holdOf(c), time.Minute)
	}, func(row server.Row, _ bool) bool { return row.Generation == 1 && row.Live }},
	{"complete", time.Minute, "UPDATE", func(ctx context.Context, s *sqlstore.Store, c server.Claim) (bool, error) {
		return s.Complete(ctx, holdOf(c), done())
	}, func(row server.Row, _ bool) bool { return row.State == server.Done && string(row.Data) == "result" }},
	{"release", time.Minute, "DELETE", func(ctx context.Context, s *sqlstore.Store, c server.Claim) (bool, error) {
		return s.Release(ctx, holdOf(c))
	}, func(_ server.Row, found bool) bool { return !found }},
	{"settle", time.Millisecond, "UPDATE", func(ctx context.Context, s *sqlstore.Store, c server.Claim) (bool, error) {
		return s.Settle(ctx, c.ID, 1, done())
	}, func(row server.Row, _ bool) bool { return row.State == server.Done && row.Generation == 2 }},
	{"forget", time.Millisecond, "DELETE", func(ctx context.Context, s *sqlstore.Store, c server.Claim) (bool, error) {
		return s.Forget(ctx, c.ID)
	}, func(_ server.Row, found bool) bool { return !found }},
}

// B237, F2, F16: the statement has run, and nobody learns of it; then it, or
// the driver, sends it again.
func TestLostReplyIsFoundOut(t *testing.T) {
	t.Parallel()
	for _, lost := range []error{driver.ErrBadConn, io.ErrUnexpectedEOF} {
		for _, tt := range calls {
			t.Run(tt.name+", "+lost.Error(), func(t *testing.T) {
				t.Parallel()
				f := &faults{}
				s := migrated(t, openFaulty(t, f))
				c := newClaim()
				if tt.lease > 0 {
					c.Lease = tt.lease
					win(t, s, c)
				}
				require.Eventually(t, func() bool {
					row, found, err := s.Lookup(t.Context(), c.ID)
					return err == nil && (!found || row.Live == (tt.lease > time.Second))
				}, 5*time.Second, time.Millisecond)
				times := 0
				f.set(nil, func(statement string) error {
					if times++; times <= 3 && strings.HasPrefix(statement, tt.statement) {
						return lost
					}
					return nil
				})
				ok, err := tt.call(t.Context(), s, c)
				require.NoError(t, err)
				assert.True(t, ok)
				assert.Greater(t, times, 1, "the reply was lost")
				f.set(nil, nil)
				row, found, err := s.Lookup(t.Context(), c.ID)
				require.NoError(t, err)
				assert.True(t, tt.effect(row, found), "%+v", row)
			})
		}
	}
}

// B222: an error that is sure to be gone soon costs nobody his request.
func TestTransientErrorsAreRetried(t *testing.T) {
	t.Parallel()
	for _, tt := range calls {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := &faults{}
			s := migrated(t, openFaulty(t, f))
			c := newClaim()
			if tt.lease > 0 {
				c.Lease = time.Millisecond
				win(t, s, c)
				time.Sleep(3 * time.Millisecond)
			}
			failures := 0
			f.set(func(string) error {
				if failures++; failures <= 5 {
					return io.ErrUnexpectedEOF
				}
				return nil
			}, nil)
			ok, err := tt.call(t.Context(), s, c)
			require.NoError(t, err)
			assert.True(t, ok)
		})
	}
}

func TestRetriesEnd(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		err  error
		want int
	}{
		{"transient", io.ErrUnexpectedEOF, 6},
		{"final", errors.New("what nobody knows"), 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := &faults{}
			s := migrated(t, openFaulty(t, f))
			sent := 0
			f.set(func(string) error { sent++; return tt.err }, nil)
			_, _, err := s.Lookup(t.Context(), server.ID{})
			require.ErrorIs(t, err, tt.err)
			require.ErrorContains(t, err, "sqlstore: lookup: ")
			assert.Equal(t, tt.want, sent)
		})
	}
}

func TestRetryEndsWithTheContext(t *testing.T) {
	t.Parallel()
	f := &faults{}
	s := migrated(t, openFaulty(t, f))
	ctx, cancel := context.WithCancel(t.Context())
	f.set(func(string) error { cancel(); return io.ErrUnexpectedEOF }, nil)
	_, _, err := s.Lookup(ctx, server.ID{})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

// A transaction in which nothing of the handler's has run may be begun again.
func TestBeginIsRetried(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{"BEGIN", "INSERT", "SELECT"} {
		t.Run(statement, func(t *testing.T) {
			t.Parallel()
			f := &faults{}
			s := migrated(t, openFaulty(t, f))
			failures := 0
			f.set(func(text string) error {
				if strings.HasPrefix(text, statement) && failures < 3 {
					failures++
					return io.ErrUnexpectedEOF
				}
				return nil
			}, nil)
			c := newClaim()
			tx, _, found, err := s.BeginTx(t.Context(), &c)
			require.NoError(t, err)
			require.True(t, found)
			assert.Equal(t, 3, failures)
			ok, err := tx.Complete(t.Context(), holdOf(c), done())
			require.NoError(t, err)
			require.True(t, ok)
			require.NoError(t, tx.Commit(t.Context()))
		})
	}
}

// A commit whose reply is lost is an error, and the key says what became of it.
func TestLostCommitIsAnError(t *testing.T) {
	t.Parallel()
	for _, committed := range []bool{false, true} {
		f := &faults{}
		s := migrated(t, openFaulty(t, f))
		c := newClaim()
		tx, _, _, err := s.BeginTx(t.Context(), &c)
		require.NoError(t, err)
		ok, err := tx.Complete(t.Context(), holdOf(c), done())
		require.NoError(t, err)
		require.True(t, ok)
		lose := func(statement string) error {
			if statement == "COMMIT" {
				return io.ErrUnexpectedEOF
			}
			return nil
		}
		if committed {
			f.set(nil, lose)
		} else {
			f.set(lose, nil)
		}
		require.ErrorIs(t, tx.Commit(t.Context()), io.ErrUnexpectedEOF)
		require.NoError(t, tx.Rollback())
		f.set(nil, nil)
		if !committed {
			continue // the driver's transaction is still open there: nothing to read
		}
		row, found, err := s.Lookup(t.Context(), c.ID)
		require.NoError(t, err)
		require.True(t, found)
		assert.Equal(t, c.Owner, row.Owner)
		assert.Equal(t, server.Done, row.State)
	}
}

// B231, B233: the application's clock has no say; what it sends of it is the
// time of a run, which nothing is decided by.
func TestNoTimeOfTheApplicationIsSent(t *testing.T) {
	t.Parallel()
	f := &faults{}
	s := migrated(t, openFaulty(t, f))
	for _, tt := range calls {
		c := newClaim()
		if tt.lease > 0 {
			win(t, s, c)
		}
		_, err := tt.call(t.Context(), s, c)
		require.NoError(t, err)
	}
	now := time.Now().UnixMicro()
	for _, arg := range f.args {
		if _, ok := arg.Value.(time.Time); ok {
			t.Errorf("a time: %v", arg)
		}
		if n, ok := arg.Value.(int64); ok && n > now/2 && arg.Ordinal != 4 {
			t.Errorf("looks like a time: %v", arg)
		}
	}
}

func TestMissingTableSaysWhatToDo(t *testing.T) {
	t.Parallel()
	s, err := sqlstore.New(openFaulty(t, &faults{}), sqlstore.SQLite)
	require.NoError(t, err)
	c := newClaim()
	_, _, err = s.Claim(t.Context(), c)
	require.ErrorContains(t, err, "sqlstore: claim: table oncemore_keys is missing: run Migrate")
	_, _, _, err = s.BeginTx(t.Context(), &c)
	require.ErrorContains(t, err, "run Migrate")
	_, err = s.Purge(t.Context())
	require.ErrorContains(t, err, "run Migrate")
	require.ErrorContains(t, s.RunPurger(t.Context(), time.Hour), "run Migrate", "it can never succeed")
}

func TestNewRefusesWhatCanNotWork(t *testing.T) {
	t.Parallel()
	_, err := sqlstore.New(nil, sqlstore.SQLite)
	require.EqualError(t, err, "sqlstore: no database")
	_, err = sqlstore.New(new(sql.DB), sqlstore.Dialect{})
	require.EqualError(t, err, "sqlstore: no dialect: want SQLite, Postgres or MySQL")
}
