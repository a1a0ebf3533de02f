package sqlstore

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"reflect"
	"slices"
	"strings"
	"syscall"
)

// kind is what the store makes of a driver's error. The drivers are not
// imported: their errors are known by the methods and fields that carry the
// code.
type kind int8

const (
	other     kind = iota // final: it would be the same again
	transient             // sure to be gone soon; what was sent is undone, or may be sent again
	locked                // transient too: somebody else held the row, or the writer, for too long
	aborted               // the transaction is dead
	missing               // the table is not there
	readOnly              // the database takes no writes
	tooLarge              // the statement is more than the database takes
)

var (
	// errAgain: the row was neither there nor could it be created, because
	// somebody else was just creating or removing it.
	errAgain = errors.New("the row comes and goes")

	// errWriterBusy: this process's other writes took too long.
	errWriterBusy = errors.New("the only writer is busy")

	errTooMany = errors.New("more bytes than a row can hold")
)

// classify says what kind of error it is.
func (d *dialect) classify(err error) kind {
	switch {
	case err == nil:
		return other
	case errors.Is(err, errAgain):
		return transient
	case errors.Is(err, errWriterBusy):
		return locked
	case errors.Is(err, errTooMany):
		return tooLarge
	}
	if k := d.kindOf(err); k != other {
		return k
	}
	if lostConnection(err) {
		return transient
	}
	return other
}

// postgresKind knows pgx and lib/pq by their SQLState method.
func postgresKind(err error) kind {
	type sqlState interface {
		error
		SQLState() string
	}
	e, ok := errors.AsType[sqlState](err)
	if !ok {
		return other
	}
	code := e.SQLState()
	switch code {
	case "55P03": // lock_not_available
		return locked
	case "40001", "40P01", // serialization_failure, deadlock_detected
		"57P01", "57P02", "57P03", "53300", // shutdowns, too_many_connections
		"42P05", "26000": // a pooler swapped the server under a prepared statement: nothing has run
		return transient
	case "25P02": // in_failed_sql_transaction
		return aborted
	case "42P01": // undefined_table
		return missing
	case "25006": // read_only_sql_transaction
		return readOnly
	case "54000": // program_limit_exceeded
		return tooLarge
	}
	if strings.HasPrefix(code, "08") { // connection_exception
		return transient
	}
	return other
}

// mysqlKind knows go-sql-driver by MySQLError's field Number.
func mysqlKind(err error) kind {
	var number uint64
	for e := range chain(err) {
		if v, ok := field(e, "Number"); ok && v.CanUint() {
			number = v.Uint()
		}
		// Errors that the driver makes itself have no type to know them by.
		switch e.Error() {
		case "invalid connection":
			return transient
		case "packet for query is too large. Try adjusting the `Config.MaxAllowedPacket`":
			return tooLarge
		}
	}
	switch number {
	case 1205: // ER_LOCK_WAIT_TIMEOUT
		return locked
	case 1213, 1020, // ER_LOCK_DEADLOCK, ER_CHECKREAD
		1047, 1180, // a node of a cluster that is not ready; certification failed
		1040, 1053, 1158, 1159, 1160, 1161, 1927: // connections
		return transient
	case 1146: // ER_NO_SUCH_TABLE
		return missing
	case 1290, 1792, 1836: // --read-only, READ ONLY transaction, read-only mode
		return readOnly
	case 1153, 1118, 1301, 1406: // packet, row, function result, column
		return tooLarge
	}
	return other
}

// sqliteKind knows modernc.org/sqlite by its method Code() int, and
// mattn/go-sqlite3 by its field Code. Other drivers' errors
// that say they are Temporary are taken for BUSY.
func sqliteKind(err error) kind {
	type coder interface {
		error
		Code() int
	}
	type temporary interface {
		error
		Temporary() bool
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return locked // there is nothing to wait for but the writer, or its connection
	}
	var code int64
	if e, ok := errors.AsType[coder](err); ok {
		code = int64(e.Code())
	} else {
		for e := range chain(err) {
			if v, ok := field(e, "Code"); ok && v.CanInt() {
				code = v.Int()
			}
		}
	}
	switch code & 0xff { // an extended code has the plain one in its low byte
	case 5: // BUSY, with BUSY_RECOVERY 261 and BUSY_SNAPSHOT 517
		return locked
	case 6: // LOCKED
		return transient
	case 8: // READONLY
		return readOnly
	case 18: // TOOBIG
		return tooLarge
	case 1: // ERROR
		if strings.Contains(err.Error(), "no such table: oncemore_keys") {
			return missing
		}
		return other
	}
	if e, ok := errors.AsType[temporary](err); ok && code == 0 && e.Temporary() {
		return locked
	}
	return other
}

// lostConnection reports whether the connection broke, or could not be made.
func lostConnection(err error) bool {
	if _, ok := errors.AsType[*net.OpError](err); ok {
		return true
	}
	type unsent interface { // pgx's, of a connection that it found closed
		error
		SafeToRetry() bool
	}
	if e, ok := errors.AsType[unsent](err); ok && e.SafeToRetry() {
		return true
	}
	return slices.ContainsFunc([]error{
		driver.ErrBadConn, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, context.DeadlineExceeded,
		syscall.ECONNRESET, syscall.ECONNREFUSED, syscall.ECONNABORTED, syscall.EPIPE,
	}, func(target error) bool { return errors.Is(err, target) })
}

// chain yields err and all that it wraps.
func chain(err error) func(yield func(error) bool) {
	return func(yield func(error) bool) { walk(err, yield) }
}

func walk(err error, yield func(error) bool) bool {
	if err == nil {
		return true
	}
	if !yield(err) {
		return false
	}
	switch e := err.(type) { //nolint:errorlint // this is what walks the chain
	case interface{ Unwrap() error }:
		return walk(e.Unwrap(), yield)
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if !walk(err, yield) {
				return false
			}
		}
	}
	return true
}

// field returns an exported field of the struct that err is or points to.
func field(err error, name string) (reflect.Value, bool) {
	v := reflect.ValueOf(err)
	if v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return reflect.Value{}, false
	}
	f := v.FieldByName(name)
	return f, f.IsValid() && f.CanInterface()
}
