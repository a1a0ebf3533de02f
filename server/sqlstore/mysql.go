package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"github.com/oncemore-go/oncemore/server"
)

// mysql decides every claim by the affected rows of an INSERT IGNORE. Nothing
// else is right everywhere: a RETURNING row of an autocommitted statement can
// be that of an attempt which Galera has undone, and the affected rows of
// INSERT ... ON DUPLICATE KEY UPDATE depend on clientFoundRows in the DSN.
func mysql(d *dialect) {
	d.name = "mysql"
	d.schema = mysqlSchema
	d.savepoint = true
	d.autocommit = true
	d.slots = 2
	d.few = 8
	d.runBatch = runRows
	d.maxData = 256 << 20
	d.purgeBatch = 500
	d.kindOf = mysqlKind
	d.syntax = syntax{
		// NOW() would be the session's zone, and DATETIME has none.
		now:    `UTC_TIMESTAMP(6)`,
		stable: `UTC_TIMESTAMP(6)`,
		after:  `UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND`,
		at:     `TIMESTAMP'1970-01-01 00:00:00' + INTERVAL ? MICROSECOND`,
		never:  `TIMESTAMP'1970-01-01 00:00:00'`,
		// Integers, so that parseTime and loc in the DSN make no difference.
		micros: `TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', COLUMN)`,
		insert: `INSERT IGNORE INTO`,
		batch:  `purge_at <= {stable} AND state = 2 ORDER BY purge_at LIMIT ?`,
	}

	// After an insert that was ignored. Assignments run from left to right; none
	// reads a column.
	d.sql.replace = `UPDATE oncemore_keys SET fingerprint = ?, owner = ?, origin = ?, lease_until = {after},
 created_at = {now}, expires_at = {after}, purge_at = {after}, scope = ?, method = ?, route = ?,
 generation = 1, attempt = 1, state = 1, status = 0, executed_at = NULL, data = NULL
 WHERE id = ? AND ` + lapsed
	d.sql.version = `SELECT table_comment FROM information_schema.tables
 WHERE table_schema = DATABASE() AND table_name = 'oncemore_keys'`

	d.sql.claims = rows{
		first: boundStatement + `INSERT IGNORE INTO oncemore_keys ` + insertColumns + ` VALUES `,
		row:   `(` + insertValues + `)`, between: `, `,
	}
	// The batch is named first and joined by the primary key, whatever the
	// planner makes of a young table: rows are locked in the batch's order, and
	// no others.
	d.sql.completions = rows{
		first: boundStatement + `UPDATE (`,
		row: `SELECT CAST(? AS SIGNED) AS state, CAST(? AS SIGNED) AS status, CAST(? AS BINARY) AS data,
 CAST(? AS SIGNED) AS executed, CAST(? AS BINARY) AS id, CAST(? AS BINARY) AS owner, CAST(? AS SIGNED) AS generation`,
		between: ` UNION ALL `,
		last: `) AS batch STRAIGHT_JOIN oncemore_keys AS k FORCE INDEX (PRIMARY) ON k.id = batch.id
 SET k.state = batch.state, k.status = batch.status, k.data = batch.data,
 k.executed_at = TIMESTAMP'1970-01-01 00:00:00' + INTERVAL batch.executed MICROSECOND, k.lease_until = {never}
 WHERE k.owner = batch.owner AND k.generation = batch.generation AND k.state <> 2`,
	}
	d.sql.owners = rows{first: `SELECT id, owner FROM oncemore_keys WHERE id IN (`, row: `?`, between: `, `, last: `)`}
}

// boundStatement bounds how long a statement waits for a lock, in seconds. Only
// MariaDB reads it; on MySQL the deadline of the batch is the bound.
const boundStatement = `/*M!100300 SET STATEMENT innodb_lock_wait_timeout = 1 FOR */ `

// rows is a statement for any number of rows.
type rows struct{ first, row, between, last string }

func (r rows) text(n int) string {
	return r.first + strings.Repeat(r.row+r.between, n-1) + r.row + r.last
}

// runRows is dialect.runBatch by one statement for the claims and one for the
// completions. Each commits by itself, which costs less than a transaction
// around them would.
func runRows(ctx context.Context, s *Store, take func() []*op) ([]verdict, error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	batch := take()
	var claims, completions []any
	nClaims := 0
	for _, o := range batch {
		if o.claim != nil {
			claims = append(claims, insertArgs(o.claim)...)
			nClaims++
		} else {
			completions = append(completions, o.completeArgs()...)
		}
	}
	nCompletions := len(batch) - nClaims
	created, err := execRows(ctx, conn, s.d.sql.claims, nClaims, claims)
	if err != nil {
		return nil, err
	}
	completed, err := execRows(ctx, conn, s.d.sql.completions, nCompletions, completions)
	if err != nil {
		return nil, err
	}
	verdicts := make([]verdict, len(batch))
	mine := map[server.ID]server.Token{}
	if !created {
		if mine, err = owners(ctx, conn, s.d.sql.owners, batch, nClaims); err != nil {
			return nil, err
		}
	}
	for i, o := range batch {
		switch {
		case o.claim == nil && completed, o.claim != nil && (created || mine[o.id] == o.owner):
			verdicts[i] = settled
		case o.claim != nil:
			verdicts[i] = refused
		}
	}
	return verdicts, nil
}

// execRows runs the statement for n rows, and reports whether it changed all.
func execRows(ctx context.Context, conn *sql.Conn, r rows, n int, args []any) (bool, error) {
	if n == 0 {
		return true, nil
	}
	res, err := conn.ExecContext(ctx, r.text(n), args...)
	if err != nil {
		return false, err
	}
	changed, err := res.RowsAffected()
	return changed == int64(n), err
}

// owners reads who owns the rows that the claims of a batch ask for.
func owners(ctx context.Context, conn *sql.Conn, r rows, batch []*op, n int) (map[server.ID]server.Token, error) {
	args := make([]any, 0, n)
	for _, o := range batch {
		if o.claim != nil {
			args = append(args, o.id[:])
		}
	}
	found, err := conn.QueryContext(ctx, r.text(n), args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = found.Close() }()
	m := make(map[server.ID]server.Token, n)
	for found.Next() {
		var id, owner sql.RawBytes
		if err := found.Scan(&id, &owner); err != nil {
			return nil, err
		}
		if len(id) == len(server.ID{}) && len(owner) == len(server.Token{}) {
			m[server.ID(id)] = server.Token(owner)
		}
	}
	return m, errors.Join(found.Err(), found.Close())
}
