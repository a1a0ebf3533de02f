package sqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/oncemore-go/oncemore/server"
)

// querier is a pool, or a transaction.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// record is a row, and what only the store needs of it.
type record struct {
	server.Row
	held bool // somebody has not given it back yet, though the lease may have ended
}

// heldBy reports whether h is the newest hold of the row.
func (r *record) heldBy(h server.Hold) bool {
	return r.Owner == h.Owner && r.Generation == h.Generation
}

// has reports whether the row was given this result.
func (r *record) has(res server.Result) bool {
	return r.State == res.State && r.Status == res.Status &&
		(res.State != server.Done || bytes.Equal(r.Data, res.Data))
}

// lapsed reports whether a claim that lapses may replace the row.
func (r *record) lapsed() bool {
	return r.Expired && (r.State != server.Running || !r.Live)
}

// created is the row of a claim that won.
func created(c server.Claim) server.Row {
	return server.Row{
		State:       server.Running,
		Owner:       c.Owner,
		Origin:      c.Owner,
		Generation:  1,
		Attempt:     1,
		Fingerprint: c.Fingerprint,
		Live:        true,
	}
}

// query reads one row by a statement that selects rowColumns.
func query(ctx context.Context, q querier, text string, args ...any) (*record, bool, error) {
	var (
		r                          record
		owner, origin, fingerprint []byte
		created, expires, lease    int64
		clock                      int64
		executed                   sql.NullInt64
	)
	err := q.QueryRowContext(ctx, text, args...).Scan(
		&r.State, &owner, &origin, &r.Generation, &r.Attempt, &fingerprint, &r.Status, &r.Data,
		&created, &executed, &expires, &lease, &clock)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	if copy(r.Owner[:], owner) != len(r.Owner) || copy(r.Origin[:], origin) != len(r.Origin) ||
		copy(r.Fingerprint[:], fingerprint) != len(r.Fingerprint) || r.State.String() == "invalid" || r.State == server.Expired {
		return nil, false, fmt.Errorf("a row that this store did not write: state %d", r.State)
	}
	r.Live, r.Expired, r.held = lease > clock, expires <= clock, lease > 0
	r.CreatedAt = time.UnixMicro(created).UTC()
	r.ExpiresAt = time.UnixMicro(expires).UTC()
	if executed.Valid {
		r.ExecutedAt = time.UnixMicro(executed.Int64).UTC()
	}
	return &r, true, nil
}

// exec returns how many rows a statement changed. Where a driver counts only
// those that got another value, none may mean that it was so before.
func exec(ctx context.Context, q querier, text string, args ...any) (int64, error) {
	res, err := q.ExecContext(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// insertArgs are the arguments of insertValues.
func insertArgs(c *server.Claim) []any {
	return []any{
		c.ID[:], c.Fingerprint[:], c.Owner[:], c.Owner[:], micros(c.Lease), micros(c.TTL), micros(c.Keep),
		label(c.Scope), label(c.Method), label(c.Route),
	}
}

// dataArg is where resultArgs has the data, a []byte.
const dataArg = 2

// resultArgs are the arguments that set a result.
func resultArgs(r server.Result) []any {
	var data []byte
	var executedAt any
	if r.State == server.Done {
		data = r.Data
		if !r.ExecutedAt.IsZero() {
			executedAt = r.ExecutedAt.UnixMicro()
		}
	}
	return []any{int64(r.State), int64(r.Status), data, executedAt}
}

// maxLabel is the size of the text columns in bytes.
const maxLabel = 255

// label makes text that every database takes: cut, valid UTF-8, without NUL.
func label(s string) string {
	if len(s) > maxLabel {
		cut := maxLabel
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?")
}
