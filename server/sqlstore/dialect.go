package sqlstore

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Dialect is a kind of database: [SQLite], [Postgres] or [MySQL].
type Dialect struct{ *dialect }

// String returns the name of the dialect.
func (d Dialect) String() string {
	if d.dialect == nil {
		return "no dialect"
	}
	return d.name
}

// The databases that a store can be over.
var (
	// SQLite is version 3.42 or later, through any driver; see the package
	// comment for how to open it.
	SQLite = Dialect{newDialect(sqlite)}
	// Postgres is PostgreSQL 12 or later.
	Postgres = Dialect{newDialect(postgres)}
	// MySQL is MySQL 8 or later and MariaDB 10.5 or later, Galera included.
	MySQL = Dialect{newDialect(mysql)}
)

// The schemas, as [Store.Migrate] runs them.
var (
	//go:embed schema/sqlite.sql
	sqliteSchema string
	//go:embed schema/postgres.sql
	postgresSchema string
	//go:embed schema/mysql.sql
	mysqlSchema string
)

// Schema returns the DDL of d for teams that run their own migrations: one
// statement for MySQL, statements that each end in ";\n" elsewhere. It is what
// [Store.Migrate] runs for a new table, always of the newest version, and a table
// made by it passes Migrate's check. Nothing is created twice, and an older table
// is not upgraded by it.
func Schema(d Dialect) string {
	if d.dialect == nil {
		return ""
	}
	return d.schema
}

// dialect is what differs between the databases.
type dialect struct {
	name   string
	schema string
	syntax syntax
	sql    statements

	// numbered placeholders are $1, $2; else they are question marks.
	numbered bool
	// oneStatement: a claim that is not in a transaction creates or reads the
	// row in one statement (statements.claimOrRead), unless it is likely to create.
	oneStatement bool
	// upserts: statements.replace inserts too, else it follows an insert that
	// found a row.
	upserts bool
	// boundedInsert: statements.insertTx bounds its own wait, and returns a row
	// if it won.
	boundedInsert bool
	// readFirst: looking before claiming costs next to nothing, and keeps a
	// replay from asking for the only writer. A claim that is likely to create
	// the row does not look all the same.
	readFirst bool
	// prepares: statements outside of transactions are prepared once.
	prepares bool
	// oneWriter: the writes of a process line up before they reach the database.
	oneWriter bool
	// slots is how many transactions of claims and completions may be under way
	// before others have to share one. 0: none ever does.
	slots int
	// few is how many claims and completions go straight through all the same,
	// where the database commits several at a time.
	few int
	// alike: a batch has claims or completions, not both. Each is one statement,
	// and one commit.
	alike bool
	// savepoint: a database that ends the transaction under the handler says so
	// only by having forgotten its savepoints.
	savepoint bool
	// autocommit: a statement on a transaction that the database has ended is
	// committed at once, unless autocommit is off.
	autocommit bool

	maxData    int // more bytes than this are never sent
	purgeBatch int64

	kindOf func(error) kind
	// runBatch runs what take returns in one transaction, and returns what became
	// of each after it is committed. It leaves alone what it can't tell, and all
	// of it after an error. It takes the batch when nothing is left to wait for.
	runBatch func(ctx context.Context, s *Store, take func() []*op) ([]verdict, error)
}

// syntax is the spelling of what the statements have in common.
type syntax struct {
	now    string // this instant, within a statement
	stable string // the same, where an index is to be used
	after  string // ? microseconds from now
	at     string // ? microseconds after 1970
	never  string // the lease of a row that nobody holds
	micros string // COLUMN as microseconds since 1970
	insert string // the beginning of an insert that leaves what is there alone
	ignore string // its end
}

// statements are the texts, ready for the driver.
type statements struct {
	lookup, insert, replace  string
	insertTx, replaceTx      string // where the dialect has boundedInsert
	claimOrRead, lapseOrRead string // where the dialect has oneStatement
	takeover, ask, renew     string
	complete, release        string
	settle, forget           string
	unsettled, version       string

	// purge takes where to begin and how many, and returns the id and the time of
	// each row that it has deleted; or locked, where there is purged to delete them.
	purge  string
	purged rows

	many string // where runBatch is runMany

	claims, completions, owners rows // where it is runRows
}

const (
	// insertColumns is filled by insertValues, from the arguments of insertArgs.
	insertColumns = `(id, fingerprint, owner, origin, lease_until, created_at, expires_at, purge_at,
 scope, method, route, generation, attempt, state, status)`
	insertValues = `?, ?, ?, ?, {after}, {now}, {after}, {after}, ?, ?, ?, 1, 1, 1, 0`

	// rowColumns is what query reads. Times are microseconds since 1970, all by
	// the same clock: whether a lease has ended is decided by the last column.
	rowColumns = `state, owner, origin, generation, attempt, fingerprint, status, data,
 {created_at} AS created, {executed_at} AS executed, {expires_at} AS expires, {lease_until} AS lease, {clock} AS clock`

	// lapsed is true of a row that counts as absent for a claim that lapses.
	lapsed = `(oncemore_keys.expires_at <= {now} AND (oncemore_keys.state <> 1 OR oncemore_keys.lease_until <= {now}))`

	insert = `{insert} oncemore_keys ` + insertColumns + ` VALUES (` + insertValues + `) {ignore}`

	// upsert begins a lapsed row anew, and leaves any other alone.
	upsert = `INSERT INTO oncemore_keys ` + insertColumns + ` VALUES (` + insertValues + `) ` + replaceOnConflict

	replaceOnConflict = `ON CONFLICT (id) DO UPDATE SET fingerprint = excluded.fingerprint,
 owner = excluded.owner, origin = excluded.origin, lease_until = excluded.lease_until, created_at = excluded.created_at,
 expires_at = excluded.expires_at, purge_at = excluded.purge_at, scope = excluded.scope, method = excluded.method,
 route = excluded.route, generation = 1, attempt = 1, state = 1, status = 0, executed_at = NULL, data = NULL
 WHERE ` + lapsed
)

// common is written once for all. {now} and the like are the dialect's syntax.
var common = statements{
	lookup: `SELECT ` + rowColumns + ` FROM oncemore_keys WHERE id = ?`,

	insert:  insert,
	replace: upsert,

	takeover: `UPDATE oncemore_keys SET owner = ?, generation = generation + 1, lease_until = {after},
 attempt = attempt + 1, state = 1, status = 0
 WHERE id = ? AND owner = ? AND generation = ? AND state <> 2 AND (owner = ? OR (state = 1 AND lease_until <= {now}))`,
	ask: `UPDATE oncemore_keys SET owner = ?, generation = generation + 1, lease_until = {after}
 WHERE id = ? AND owner = ? AND generation = ? AND state <> 2 AND (owner = ? OR lease_until <= {now})`,
	renew: `UPDATE oncemore_keys SET lease_until = {after}
 WHERE id = ? AND owner = ? AND generation = ? AND state <> 2 AND lease_until > {never}`,
	complete: `UPDATE oncemore_keys SET state = ?, status = ?, data = ?, executed_at = {at}, lease_until = {never}
 WHERE id = ? AND owner = ? AND generation = ? AND state <> 2`,
	release: `DELETE FROM oncemore_keys
 WHERE id = ? AND owner = ? AND generation = ? AND state <> 2 AND lease_until > {never}`,
	settle: `UPDATE oncemore_keys SET state = ?, status = ?, data = ?, executed_at = {at}, lease_until = {never},
 generation = generation + 1
 WHERE id = ? AND generation = ? AND (state <> 1 OR lease_until <= {now})`,
	forget: `DELETE FROM oncemore_keys WHERE id = ? AND lease_until <= {now}`,

	unsettled: `SELECT count(*) FROM oncemore_keys WHERE purge_at <= {stable} AND state <> 2`,
}

// newDialect spells the statements.
func newDialect(build func(*dialect)) *dialect {
	d := &dialect{sql: common}
	build(d)
	s := d.syntax
	spell := strings.NewReplacer(
		"{insert}", s.insert, "{ignore}", s.ignore,
		"{after}", s.after, "{at}", s.at, "{now}", s.now, "{stable}", s.stable, "{never}", s.never,
		"{created_at}", strings.ReplaceAll(s.micros, "COLUMN", "created_at"),
		"{executed_at}", strings.ReplaceAll(s.micros, "COLUMN", "executed_at"),
		"{expires_at}", strings.ReplaceAll(s.micros, "COLUMN", "expires_at"),
		"{purge_at}", strings.ReplaceAll(s.micros, "COLUMN", "purge_at"),
		"{lease_until}", strings.ReplaceAll(s.micros, "COLUMN", "lease_until"),
		"{clock}", strings.ReplaceAll(s.micros, "COLUMN", s.now),
	)
	q := &d.sql
	for _, text := range []*string{
		&q.lookup, &q.insert, &q.replace, &q.insertTx, &q.replaceTx, &q.claimOrRead, &q.lapseOrRead,
		&q.takeover, &q.ask, &q.renew, &q.complete, &q.release, &q.settle, &q.forget, &q.purge, &q.unsettled, &q.many,
		&q.claims.first, &q.claims.row, &q.completions.last,
	} {
		*text = spell.Replace(*text)
		if d.numbered {
			*text = number(*text)
		}
	}
	return d
}

// readCommitted are the options of a transaction: where there are levels, a higher
// one would not see what is committed while it waits, or would be undone for it.
func (d *dialect) readCommitted() *sql.TxOptions {
	if d.oneWriter {
		return nil
	}
	return &sql.TxOptions{Isolation: sql.LevelReadCommitted}
}

// number turns question marks into $1, $2 and so on. No statement has a
// question mark in a literal.
func number(text string) string {
	var b strings.Builder
	n := 0
	for {
		before, after, found := strings.Cut(text, "?")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		n++
		b.WriteString("$" + strconv.Itoa(n))
		text = after
	}
}

// micros is a duration as the statements take it: rounded up, so that nothing
// ends before its time.
func micros(d time.Duration) int64 {
	n := d.Microseconds()
	if time.Duration(n)*time.Microsecond < d {
		n++
	}
	return n
}

// bound is a duration as a setting of a session takes it, in milliseconds.
func bound(d time.Duration) string { return fmt.Sprintf("%dms", d.Milliseconds()) }
