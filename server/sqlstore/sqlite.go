package sqlstore

import "time"

// sqlite keeps its times as integers: it has no type for them, and drivers
// disagree about the text that a time becomes.
func sqlite(d *dialect) {
	// Milliseconds are what SQLite's clock has; it stands still within a
	// statement.
	const now = `CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000`

	d.name = "sqlite"
	d.schema = sqliteSchema
	d.upserts = true
	d.readFirst = true
	d.prepares = true
	d.oneWriter = true
	d.slots = 1
	d.runBatch = runInTx
	d.savepoint = true
	d.maxData = 256 << 20
	d.purgeBatch = 50 // the only writer waits for it
	d.kindOf = sqliteKind
	d.syntax = syntax{
		now:    now,
		stable: now,
		after:  now + ` + ?`,
		at:     `?`,
		never:  `0`,
		micros: `COLUMN`,
		insert: `INSERT INTO`,
		ignore: `ON CONFLICT (id) DO NOTHING`,
	}
	d.sql.purge = `DELETE FROM oncemore_keys WHERE rowid IN (SELECT rowid FROM oncemore_keys
 WHERE purge_at >= {at} AND purge_at <= {stable} AND state = 2 ORDER BY purge_at LIMIT ?) RETURNING id, purge_at`
	d.sql.version = `SELECT group_concat(sql, char(10)) FROM sqlite_master
 WHERE tbl_name = 'oncemore_keys' COLLATE NOCASE AND type IN ('table', 'index') HAVING count(*) > 0`
}

// busyTimeout is how long a transaction waits for the only writer, until
// Migrate has read what the DSN says.
const busyTimeout = 5 * time.Second
