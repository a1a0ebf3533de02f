package sqlstore

import (
	"context"
	"database/sql"
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
// get their turn. Rows that a transaction has locked are left for the next call
// (MariaDB before 10.6 waits for them). Any number of processes may purge at once.
func (s *Store) Purge(ctx context.Context) (int64, error) {
	var total, end int64
	for {
		var n int64
		var took time.Duration // without the wait for this process's other writes
		err := s.run(ctx, "purge", writes, func(ctx context.Context) (err error) {
			begin := time.Now()
			n, end, err = s.purge(ctx, end)
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

// purge removes a batch of those that are due since from, and returns where the
// next one goes on. If each began at the beginning, it would go through the rows
// that are spared again, and through all that the earlier ones have removed and an
// old transaction may still see.
func (s *Store) purge(ctx context.Context, from int64) (n, end int64, err error) {
	tx, err := s.db.BeginTx(ctx, s.d.readCommitted())
	if err != nil {
		return 0, from, err
	}
	defer func() { _ = tx.Rollback() }()
	ids, end, err := due(ctx, tx, s.d.sql.purge, from, s.d.purgeBatch)
	if err != nil || len(ids) == 0 {
		return 0, from, err
	}
	if s.d.sql.purged.first != "" {
		if _, err := exec(ctx, tx, s.d.sql.purged.text(len(ids)), ids...); err != nil {
			return 0, from, err
		}
	}
	if s.d.autocommit { // its driver's Commit would wait for a server that hangs for ever
		_, err = tx.ExecContext(ctx, "COMMIT")
	} else {
		err = tx.Commit()
	}
	if err != nil {
		return 0, from, err
	}
	return int64(len(ids)), end, nil
}

// due reads the ids that statements.purge returns, and the last of their times.
func due(ctx context.Context, tx *sql.Tx, text string, from, batch int64) (ids []any, end int64, err error) {
	rows, err := tx.QueryContext(ctx, text, from, batch)
	if err != nil {
		return nil, from, err
	}
	defer func() { _ = rows.Close() }()
	for end = from; rows.Next(); {
		var id []byte
		var at int64
		if err := rows.Scan(&id, &at); err != nil {
			return nil, from, err
		}
		ids, end = append(ids, id), max(end, at)
	}
	return ids, end, errors.Join(rows.Err(), rows.Close())
}

// RunPurger purges at once and then every so often, until ctx ends; then it
// returns an error that matches ctx.Err(). A round that fails is made up for by
// the next one; if the last one failed, the returned error wraps its error too.
// Only where the table is missing does it return before ctx ends.
//
// Every process may run it. Once an hour is often enough for most.
func (s *Store) RunPurger(ctx context.Context, every time.Duration) error {
	if every <= 0 {
		return fmt.Errorf("sqlstore: purge every %v: want a positive interval", every)
	}
	for {
		_, err := s.Purge(ctx)
		if s.d.classify(err) == missing && ctx.Err() == nil {
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
