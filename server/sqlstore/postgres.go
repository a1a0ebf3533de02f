package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
)

func postgres(d *dialect) {
	d.name = "postgres"
	d.schema = postgresSchema
	d.numbered = true
	d.oneStatement = true
	d.upserts = true
	d.boundedInsert = true
	d.slots = 2
	d.few = 8
	d.runBatch = runMany
	d.maxData = 256 << 20 // a bytea is sent as text of twice its length, and a value ends at 1 GiB
	d.purgeBatch = 250
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
	d.sql.many = many
	// The predicate is repeated outside: a row may change between the two. There it
	// has the clock that can't be looked up in the index, or the planner might do
	// that, and compare what it finds with the whole array.
	d.sql.purge = `DELETE FROM oncemore_keys WHERE ctid = ANY (ARRAY(SELECT ctid FROM oncemore_keys
 WHERE purge_at >= {at} AND purge_at <= {stable} AND state = 2 ORDER BY purge_at LIMIT ? FOR UPDATE SKIP LOCKED))
 AND purge_at <= {now} AND state = 2 RETURNING id, {purge_at}`
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

// many runs a batch: all of it in one statement, one round trip and one commit.
// The rows are JSON, so that their number makes no other statement, and no
// driver's arrays are needed; what they have in bytes is in the first argument,
// at the places that they say, because a driver and the server would take longer
// to encode and decode it than to write it.
//
// A completion is written as an insert that always finds its row. An update
// would join the table with the batch, and how is up to the planner: before it
// has seen a young table full it reads all of it. The insert asks the primary
// key. Should it really insert, because the row is gone, its attempt 0 makes the
// statement fail, and nothing of the batch is done.
var many = `WITH bound AS MATERIALIZED (SELECT set_config('lock_timeout', '` + bound(batchWait) + `', true) AS new, ?::bytea AS heap),
claimed AS (INSERT INTO oncemore_keys ` + insertColumns + `
 SELECT substring(heap FROM at FOR 32), substring(heap FROM at + 32 FOR 32),
 substring(heap FROM at + 64 FOR 16), substring(heap FROM at + 64 FOR 16),
 clock_timestamp() + lease * interval '1 microsecond', clock_timestamp(),
 clock_timestamp() + ttl * interval '1 microsecond', clock_timestamp() + keep * interval '1 microsecond',
 scope, method, route, 1, 1, 1, 0
 FROM bound, json_to_recordset(?::text::json) AS batch(at integer,
 lease bigint, ttl bigint, keep bigint, scope text, method text, route text) WHERE bound.new IS NOT NULL
 ON CONFLICT (id) DO NOTHING RETURNING id, owner, 1),
completed AS (INSERT INTO oncemore_keys (id, fingerprint, owner, origin, lease_until, created_at, expires_at, purge_at,
 scope, method, route, generation, attempt, state, status, data, executed_at)
 SELECT substring(heap FROM at FOR 32), '', substring(heap FROM at + 32 FOR 16), '', {never}, {never}, {never}, {never},
 '', '', '', generation, 0, state, status, substring(heap FROM at + 48 FOR size), timestamptz 'epoch' + executed * interval '1 microsecond'
 FROM bound, json_to_recordset(?::text::json) AS batch(at integer, size integer, generation bigint,
 state smallint, status integer, executed bigint) WHERE bound.new IS NOT NULL
 ON CONFLICT (id) DO UPDATE SET state = excluded.state, status = excluded.status, data = excluded.data,
 executed_at = excluded.executed_at, lease_until = excluded.lease_until
 WHERE oncemore_keys.owner = excluded.owner AND oncemore_keys.generation = excluded.generation
 AND oncemore_keys.state <> 2 RETURNING id, owner, 1 / attempt)
SELECT * FROM claimed UNION ALL SELECT * FROM completed`

// manyClaim and manyCompletion are the rows of many. At is where their bytes
// begin, counted from 1: id, fingerprint, owner; id, owner, data.
type manyClaim struct {
	At     int    `json:"at"`
	Lease  int64  `json:"lease"`
	TTL    int64  `json:"ttl"`
	Keep   int64  `json:"keep"`
	Scope  string `json:"scope"`
	Method string `json:"method"`
	Route  string `json:"route"`
}

type manyCompletion struct {
	At         int   `json:"at"`
	Size       *int  `json:"size"` // of the data; nil for NULL
	Generation int64 `json:"generation"`
	State      any   `json:"state"`
	Status     any   `json:"status"`
	Executed   any   `json:"executed"`
}

// manyArgs are the arguments of many.
func manyArgs(batch []*op) ([]any, error) {
	claims, completions := []manyClaim{}, []manyCompletion{}
	total := 0
	for _, o := range batch {
		total += 80 + len(o.data())
	}
	heap := make([]byte, 0, total)
	for _, o := range batch {
		at := len(heap) + 1
		if c := o.claim; c != nil {
			heap = append(append(append(heap, c.ID[:]...), c.Fingerprint[:]...), c.Owner[:]...)
			claims = append(claims, manyClaim{
				at, micros(c.Lease), micros(c.TTL), micros(c.Keep), label(c.Scope), label(c.Method), label(c.Route),
			})
			continue
		}
		data := o.data()
		heap = append(append(append(heap, o.id[:]...), o.owner[:]...), data...)
		var size *int
		if data != nil {
			size = new(len(data))
		}
		completions = append(completions, manyCompletion{at, size, o.generation, o.result[0], o.result[1], o.result[3]})
	}
	first, err := json.Marshal(claims)
	if err != nil {
		return nil, err
	}
	second, err := json.Marshal(completions)
	return []any{heap, string(first), string(second)}, err
}

// runMany is dialect.runBatch by the statement many.
func runMany(ctx context.Context, s *Store, take func() []*op) ([]verdict, error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	batch := take()
	args, err := manyArgs(batch)
	if err != nil {
		return nil, err
	}
	rows, err := conn.QueryContext(ctx, s.d.sql.many, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	changed := map[string]bool{}
	for rows.Next() {
		var id, owner sql.RawBytes
		var one int
		if err := rows.Scan(&id, &owner, &one); err != nil {
			return nil, err
		}
		changed[string(id)+string(owner)] = true
	}
	// Only what comes after the rows says that they are committed.
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return nil, err
	}
	verdicts := make([]verdict, len(batch))
	for i, o := range batch {
		switch {
		case changed[string(o.id[:])+string(o.owner[:])]:
			verdicts[i] = settled
		case o.claim != nil:
			verdicts[i] = refused
		}
	}
	return verdicts, nil
}
