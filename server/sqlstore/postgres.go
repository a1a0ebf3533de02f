package sqlstore

func postgres(d *dialect) {
	d.name = "postgres"
	d.schema = postgresSchema
	d.numbered = true
	d.oneStatement = true
	d.upserts = true
	d.boundedInsert = true
	d.maxData = 256 << 20 // a bytea is sent as text of twice its length, and a value ends at 1 GiB
	d.purgeBatch = 2000
	d.kindOf = postgresKind
	d.syntax = syntax{
		// now() stands still within a transaction, and a lease must not.
		now: `clock_timestamp()`,
		// But a volatile function can't be looked up in an index.
		stable: `now()`,
		after:  `clock_timestamp() + ?::bigint * interval '1 microsecond'`,
		at:     `timestamptz 'epoch' + ?::bigint * interval '1 microsecond'`,
		never:  `timestamptz 'epoch'`,
		micros: `(extract(epoch FROM COLUMN) * 1000000)::bigint`,
		insert: `INSERT INTO`,
		ignore: `ON CONFLICT (id) DO NOTHING`,
		// The predicate is repeated outside: a row may change between the two.
		batch: `ctid = ANY (ARRAY(SELECT ctid FROM oncemore_keys
 WHERE purge_at <= {stable} AND state = 2 ORDER BY purge_at LIMIT ? FOR UPDATE SKIP LOCKED))
 AND purge_at <= {stable} AND state = 2`,
	}

	// The row is read if it is there, else created; who loses the race for it
	// sees neither, because the winner is younger than its snapshot, and asks
	// again. A replay is a read alone, a new key one round trip.
	d.sql.claimOrRead = `WITH found AS (SELECT ` + rowColumns + ` FROM oncemore_keys WHERE id = ?),
created AS (INSERT INTO oncemore_keys ` + insertColumns + `
 SELECT ` + typedValues + ` WHERE NOT EXISTS (SELECT 1 FROM found)
 ON CONFLICT (id) DO NOTHING RETURNING ` + rowColumns + `)
SELECT * FROM found UNION ALL SELECT * FROM created`
	d.sql.lapseOrRead = `WITH found AS (SELECT ` + rowColumns + ` FROM oncemore_keys WHERE id = ? AND NOT ` + lapsed + `),
created AS (INSERT INTO oncemore_keys ` + insertColumns + `
 SELECT ` + typedValues + ` WHERE NOT EXISTS (SELECT 1 FROM found)
 ` + replaceOnConflict + ` RETURNING ` + rowColumns + `)
SELECT * FROM found UNION ALL SELECT * FROM created`

	// In a transaction the insert waits for whoever has the key. lock_timeout
	// bounds that wait, and only that: it is put back as the row is returned,
	// so that the handler's statements wait as long as they always do. It is
	// local to the transaction, as a pooler needs it, and costs no round trip.
	// A claim that loses leaves it set, and is rolled back.
	d.sql.insertTx = boundedInsert(`ON CONFLICT (id) DO NOTHING`)
	d.sql.replaceTx = boundedInsert(replaceOnConflict)
	d.sql.version = `SELECT coalesce(obj_description(to_regclass('oncemore_keys'), 'pg_class'), '')
 WHERE to_regclass('oncemore_keys') IS NOT NULL`
}

// typedValues is insertValues for a SELECT, where the types are not known from
// the columns.
const typedValues = `?::bytea, ?::bytea, ?::bytea, ?::bytea, {after}, {now}, {after}, {after},
 ?::text, ?::text, ?::text, 1, 1, 1, 0`

func boundedInsert(onConflict string) string {
	return `WITH bound AS MATERIALIZED (SELECT current_setting('lock_timeout') AS old,
 set_config('lock_timeout', '` + bound(lockWait) + `', true) AS new)
INSERT INTO oncemore_keys ` + insertColumns + `
 SELECT ` + typedValues + ` FROM bound WHERE bound.new IS NOT NULL
 ` + onConflict + ` RETURNING (SELECT set_config('lock_timeout', bound.old, true) FROM bound)`
}
