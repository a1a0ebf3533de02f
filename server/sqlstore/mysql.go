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
	d.alike = true
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
	}

	// After an insert that was ignored. Assignments run from left to right; none
	// reads a column.
	d.sql.replace = `UPDATE oncemore_keys SET fingerprint = ?, owner = ?, origin = ?, lease_until = {after},
 created_at = {now}, expires_at = {after}, purge_at = {after}, scope = ?, method = ?, route = ?,
 generation = 1, attempt = 1, state = 1, status = 0, executed_at = NULL, data = NULL
 WHERE id = ? AND ` + lapsed
	d.sql.version = `SELECT table_comment FROM information_schema.tables
 WHERE table_schema = DATABASE() AND table_name = 'oncemore_keys'`

	// A DELETE that meets a locked row waits for it, and all who want those that it
	// has locked by then wait too. SKIP LOCKED is MariaDB's since 10.6.
	d.sql.purge = `SELECT id, {purge_at} FROM oncemore_keys
 WHERE purge_at >= {at} AND purge_at <= {stable} AND state = 2 ORDER BY purge_at LIMIT ?
 FOR UPDATE /*M!100600 SKIP LOCKED */ /*!80001 SKIP LOCKED */`

	d.sql.claims = rows{
		first: boundStatement + `INSERT IGNORE INTO oncemore_keys ` + insertColumns + ` VALUES `,
		row:   `(` + insertValues + `)`, between: `, `,
	}
	// In these two the batch is named first and joined by the primary key,
	// whatever the planner makes of a young table: rows are locked in the batch's
	// order, and no others.
	d.sql.purged = rows{
		first: `DELETE k FROM (`, row: `SELECT CAST(? AS BINARY) AS id`, between: ` UNION ALL `,
		last: `) AS batch STRAIGHT_JOIN oncemore_keys AS k FORCE INDEX (PRIMARY) ON k.id = batch.id`,
	}
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

// runRows is dialect.runBatch by one statement for all, which commits by itself.
func runRows(ctx context.Context, s *Store, take func() []*op) ([]verdict, error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	batch := take()
	claims := batch[0].claim != nil // as all of them
	text := s.d.sql.completions.text(len(batch))
	if claims {
		text = s.d.sql.claims.text(len(batch))
	}
	var args []any
	for _, o := range batch {
		if claims {
			args = append(args, insertArgs(o.claim)...)
		} else {
			args = append(args, o.completeArgs()...)
		}
	}
	n, err := exec(ctx, conn, text, args...)
	if err != nil {
		return nil, err
	}
	verdicts := make([]verdict, len(batch))
	var owner map[server.ID]server.Token
	if claims && n != int64(len(batch)) {
		if owner, err = owners(ctx, conn, s.d.sql.owners, batch); err != nil {
			return nil, err
		}
	}
	for i, o := range batch {
		switch {
		case n == int64(len(batch)), claims && owner[o.id] == o.owner:
			verdicts[i] = settled
		case claims:
			verdicts[i] = refused
		}
	}
	return verdicts, nil
}

// owners reads who owns the rows that a batch of claims asks for.
func owners(ctx context.Context, conn *sql.Conn, text rows, batch []*op) (map[server.ID]server.Token, error) {
	args := make([]any, len(batch))
	for i, o := range batch {
		args[i] = o.id[:]
	}
	found, err := conn.QueryContext(ctx, text.text(len(batch)), args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = found.Close() }()
	owner := make(map[server.ID]server.Token, len(batch))
	for found.Next() {
		var id, token sql.RawBytes
		if err := found.Scan(&id, &token); err != nil {
			return nil, err
		}
		if len(id) == len(server.ID{}) && len(token) == len(server.Token{}) {
			owner[server.ID(id)] = server.Token(token)
		}
	}
	return owner, errors.Join(found.Err(), found.Close())
}
