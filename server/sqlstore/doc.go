// Package sqlstore keeps the records of package server in a SQL database:
// SQLite, PostgreSQL, MySQL or MariaDB. It imports no driver; the caller opens
// the *sql.DB.
//
//	store, err := sqlstore.New(db, sqlstore.Postgres)
//	if err != nil { ... }
//	if err := store.Migrate(ctx); err != nil { ... }
//	go store.RunPurger(ctx, time.Hour)
//	m, err := server.New(store, server.Config{Scope: tenantOf})
//
// # What is promised
//
// A claim is decided by the primary key, and is durable when it is reported.
// Leases and expiry are set and compared by the database's clock. Every change
// names the token and the generation that it belongs to, so a statement can be
// sent again after a lost connection, and a process that was taken over changes
// nothing. A replay writes nothing. Transient errors (deadlocks, serialization
// failures, lost connections, a busy SQLite) are retried up to five times
// within ten seconds, and every statement has a deadline of five seconds, with
// one more for each MiB that it sends.
//
// Read from the primary only: a replica, or another node of a Galera cluster
// with wsrep_sync_wait=0, may not have a record yet. A claim is right there too,
// a Lookup may be late. With asynchronous replication a failover can forget the
// last commits, of records as of anything else.
//
// Claims and completions that a process makes at the same time share a
// transaction: up to 128 of them (on MySQL and MariaDB claims or completions, not
// both), never one of WrapTx, and no result of more than 16 KiB. Whoever finds the
// store idle goes straight through, alone, and so do the first eight where the
// database commits for several at a time; nobody waits for company. A success is
// told after the commit, and if the transaction fails each goes on by itself. One
// that has to wait for a row that somebody else has locked is given up after
// 100 ms (on MariaDB a second, on MySQL five), so that one key that is held does
// not hold up the others. Whoever leaves while it is under way waits for its end,
// for a quarter of a second at most.
//
// # SQLite
//
// The database is a file on a local disk, in WAL mode, and a transaction takes
// the writer as it begins. With modernc.org/sqlite:
//
//	sql.Open("sqlite", "file:app.db?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)"+
//		"&_pragma=synchronous(FULL)&_txlock=immediate")
//
// and with github.com/mattn/go-sqlite3:
//
//	sql.Open("sqlite3", "file:app.db?_busy_timeout=5000&_journal_mode=WAL"+
//		"&_synchronous=FULL&_txlock=immediate")
//
// Migrate checks each of these, but for _txlock in a pool of one connection,
// where it can't be seen. Under load, rarer checkpoints let more be written:
// "&_pragma=wal_autocheckpoint(10000)". The WAL grows to 10,000 pages then, and
// whoever is there when it is full waits for longer.
//
// synchronous(NORMAL) is faster and survives the death of the process, but not a
// power cut: the last records may be forgotten. The writes of a Store line up in
// the process before they reach the database, so use one Store for a file. A
// handler of WrapTx holds the only writer while it runs: keep it short, and let it
// return the errors of its statements. Where SQLite itself ends a transaction (a
// full disk, an interrupted statement) and the handler writes on all the same,
// those later writes are committed at once; the record is not, and the caller gets
// 503.
//
// # PostgreSQL
//
//	sql.Open("pgx", "postgres://app@db.example/app")
//
// Any isolation level as the default, any time zone, pgx's stdlib or lib/pq.
// PgBouncer in transaction mode works: no session state, lock or prepared
// statement outlives its transaction. The drivers prepare statements of their
// own accord, and have to be told not to: default_query_exec_mode=exec (or
// simple_protocol) for pgx, binary_parameters=yes for lib/pq. pgx reads bytes as
// text then, and bytea_output has to be hex, as it is. lib/pq does not return from
// a query to a server that hangs, so the deadline can't hold there.
//
// # MySQL and MariaDB
//
//	sql.Open("mysql", "app:secret@tcp(db.example)/app?interpolateParams=true")
//
// READ COMMITTED or any higher isolation level as the default: with READ
// UNCOMMITTED a result that is rolled back could be replayed, and Migrate refuses
// it. parseTime, loc, clientFoundRows and interpolateParams as you like.
// interpolateParams=true saves a round trip for every statement. Autocommit must
// be on, as it is.
//
// WrapTx switches autocommit off for its session, and back on at the end:
// MariaDB ends a transaction on a deadlock, and a handler that goes on writing
// would otherwise commit those writes one by one, without their record.
//
// Any node of a Galera cluster can be written to. A key has one winner over all
// of them; a transaction that certification undoes is answered 503, and its retry
// runs. Where two nodes are alike and one dies, the other refuses everything
// (error 1047) until there is a majority again: give it a third node, an
// arbitrator or a weight.
package sqlstore
