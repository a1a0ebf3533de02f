package paymentapi

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// Entry is a charge in the ledger: money that has moved.
type Entry struct {
	ID       string // the API's own, new for each charge
	Tenant   string
	Order    string // the tenant's own
	Payer    string
	Payee    string
	Amount   int64 // in minor units
	Currency string
	Memo     string
	Created  time.Time
}

// OpenLedger opens the SQLite file at path, and creates it if it is not there.
// The idempotency records are to live in the same file, so that one transaction
// holds a charge and its record. Several processes may have it open at once.
// How it is opened is what package sqlstore asks for.
func OpenLedger(ctx context.Context, path string) (*sql.DB, error) {
	db, err := openLedger(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("ledger %q: %w", path, err)
	}
	return db, nil
}

func openLedger(ctx context.Context, path string) (*sql.DB, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	dsn := url.URL{
		Scheme: "file",
		Opaque: (&url.URL{Path: filepath.ToSlash(abs)}).EscapedPath(),
		RawQuery: url.Values{
			"_pragma": {"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(FULL)"},
			"_txlock": {"immediate"},
		}.Encode(),
	}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, err
	}
	if _, err := db.ExecContext(ctx, ledgerSchema); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// There is no unique constraint on (tenant, payment). A real ledger should have
// one as well; here nothing but the idempotency key stands between a payment
// and its second charge, so that the settlement shows what the key does.
const ledgerSchema = `
CREATE TABLE IF NOT EXISTS charges (
	id         TEXT    NOT NULL PRIMARY KEY,
	tenant     TEXT    NOT NULL,
	payment    TEXT    NOT NULL,
	payer      TEXT    NOT NULL,
	payee      TEXT    NOT NULL,
	amount     INTEGER NOT NULL CHECK (amount > 0),
	currency   TEXT    NOT NULL,
	memo       TEXT    NOT NULL,
	created_ms INTEGER NOT NULL
)`

// book writes the charge, in the transaction that holds its record.
func book(ctx context.Context, tx *sql.Tx, e Entry) error {
	const insert = `INSERT INTO charges (id, tenant, payment, payer, payee, amount, currency, memo, created_ms)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`
	_, err := tx.ExecContext(ctx, insert,
		e.ID, e.Tenant, e.Order, e.Payer, e.Payee, e.Amount, e.Currency, e.Memo, e.Created.UnixMilli())
	return err
}

// Entries reads the whole ledger, in the order in which it was written.
func Entries(ctx context.Context, db *sql.DB) (entries []Entry, err error) {
	rows, err := db.QueryContext(ctx, `SELECT id, tenant, payment, payer, payee, amount, currency, memo, created_ms
		FROM charges ORDER BY rowid`)
	if err != nil {
		return nil, fmt.Errorf("reading the ledger: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var e Entry
		var created int64
		if err := rows.Scan(&e.ID, &e.Tenant, &e.Order, &e.Payer, &e.Payee, &e.Amount, &e.Currency, &e.Memo, &created); err != nil {
			return nil, fmt.Errorf("reading the ledger: %w", err)
		}
		e.Created = time.UnixMilli(created).UTC()
		entries = append(entries, e)
	}
	return entries, rows.Err()
}

// find reads one of a tenant's charges.
func find(ctx context.Context, db *sql.DB, tenant, id string) (Entry, error) {
	e := Entry{ID: id, Tenant: tenant}
	var created int64
	err := db.QueryRowContext(ctx, `SELECT payment, payer, payee, amount, currency, memo, created_ms
		FROM charges WHERE tenant = ? AND id = ?`, tenant, id).
		Scan(&e.Order, &e.Payer, &e.Payee, &e.Amount, &e.Currency, &e.Memo, &created)
	e.Created = time.UnixMilli(created).UTC()
	return e, err
}
