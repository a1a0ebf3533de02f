package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Purge removes the rows that are done and whose retention is over, and returns
// how many there were. It never removes a running or an unknown row; [Store.Unsettled]
// counts those.
//
// It works in batches (50 rows on SQLite, 500 on MySQL, 250 on PostgreSQL)
// and pauses four times as long as each took, so that those who serve requests
// get their turn. Any number of processes may purge at once.
func (s *Store) Purge(ctx context.Context) (int64, error) {
	var total, end int64
	for {
		var n int64
		var took time.Duration // without the wait for this process's other writes
		err := s.run(ctx, "purge", writes, func(ctx context.Context) (err error) {
			begin := time.Now()
			if s.d.purgesOn {
				err = s.db.QueryRowContext(ctx, s.d.sql.purge, end, s.d.purgeBatch).Scan(&n, &end)
			} else {
				n, err = exec(ctx, s.db, s.d.sql.purge, s.d.purgeBatch)
			}
			took = time.Since(begin)
			return err
		})
		if err != nil {
			return total, err
		}
		total += n
		if n < s.d.purgeBatch {
			return total, nil
		}
		if err := rest(ctx, 4*took); err != nil {
			return total, s.fail(ctx, "purge", err)
		}
	}
}

// RunPurger purges at once and then every so often, until ctx ends; then it
// returns an error that matches ctx.Err(). A round that fails is made up for by
// the next one; if the last one failed, the returned error wraps its error too.
// Only where no round can ever succeed, because the table is missing or the
// database takes no writes, does it return before ctx ends.
//
// Every process may run it. Once an hour is often enough for most.
func (s *Store) RunPurger(ctx context.Context, every time.Duration) error {
	if every <= 0 {
		return fmt.Errorf("sqlstore: purge every %v: want a positive interval", every)
	}
	for {
		_, err := s.Purge(ctx)
		if k := s.d.classify(err); err != nil && ctx.Err() == nil && (k == missing || k == readOnly) {
			return err
		}
		if ended := rest(ctx, every); ended != nil {
			if err != nil && !errors.Is(err, ended) {
				return fmt.Errorf("sqlstore: purger: %w: %w", ended, err)
			}
			return fmt.Errorf("sqlstore: purger: %w", ended)
		}
	}
}

// Unsettled counts the rows past their retention that the purge spares, because
// nobody knows what became of their run: they are there until they are settled
// or forgotten. A number that grows wants looking into.
func (s *Store) Unsettled(ctx context.Context) (n int64, err error) {
	err = s.run(ctx, "count unsettled", reads, func(ctx context.Context) error {
		return s.db.QueryRowContext(ctx, s.d.sql.unsettled).Scan(&n)
	})
	return n, err
}

// rest waits for d, or for the end of ctx.
func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
