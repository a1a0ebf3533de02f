package sqlstore

// mysql decides every claim by the affected rows of an INSERT IGNORE. Nothing
// else is right everywhere: a RETURNING row of an autocommitted statement can
// be that of an attempt which Galera has undone, and the affected rows of
// INSERT ... ON DUPLICATE KEY UPDATE depend on clientFoundRows in the DSN.
func mysql(d *dialect) {
	d.name = "mysql"
	d.schema = mysqlSchema
	d.savepoint = true
	d.autocommit = true
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
}
