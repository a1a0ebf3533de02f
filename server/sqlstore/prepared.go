package sqlstore

import (
	"context"
	"database/sql"
	"sync"
)

// prepared is a pool whose statements are parsed once for each connection, and
// not for each call. On SQLite parsing is most of what a read costs. Elsewhere
// it would be state that a pooler can't keep.
//
// The statements are a dozen, and are closed with the pool.
type prepared struct {
	db         *sql.DB
	mu         sync.Mutex
	statements map[string]*sql.Stmt
}

func (p *prepared) statement(ctx context.Context, text string) (*sql.Stmt, error) {
	p.mu.Lock()
	s := p.statements[text]
	p.mu.Unlock()
	if s != nil {
		return s, nil
	}
	// Not under the lock: this may wait for a connection.
	s, err := p.db.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if first := p.statements[text]; first != nil {
		_ = s.Close() //nolint:sqlclosecheck // only where somebody else was first
		return first, nil
	}
	p.statements[text] = s
	return s, nil
}

func (p *prepared) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	s, err := p.statement(ctx, text) //nolint:sqlclosecheck // kept for the next call
	if err != nil {
		return nil, err
	}
	return s.ExecContext(ctx, args...)
}

func (p *prepared) QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row {
	s, err := p.statement(ctx, text) //nolint:sqlclosecheck // kept for the next call
	if err != nil {
		return p.db.QueryRowContext(ctx, text, args...) // a *sql.Row with the error in it
	}
	return s.QueryRowContext(ctx, args...)
}

// preparedTx is a transaction in which the statements of the pool need not be
// parsed again.
type preparedTx struct {
	pool       querier
	tx         *sql.Tx
	statements map[string]*sql.Stmt // the transaction's own, which end with it
}

func (p *preparedTx) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	s := p.statements[text]
	if s == nil {
		// A statement that is new is not prepared here: that may take a second
		// connection, which a pool of one does not have.
		s = p.known(text)
		if s == nil {
			return p.tx.ExecContext(ctx, text, args...)
		}
		s = p.tx.StmtContext(ctx, s) //nolint:sqlclosecheck // closed with the transaction
		p.statements[text] = s
	}
	return s.ExecContext(ctx, args...)
}

// known returns the pool's statement, or nil.
func (p *preparedTx) known(text string) *sql.Stmt {
	pool, ok := p.pool.(*prepared)
	if !ok {
		return nil
	}
	pool.mu.Lock()
	defer pool.mu.Unlock()
	return pool.statements[text]
}

func (p *preparedTx) QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row {
	return p.tx.QueryRowContext(ctx, text, args...)
}
