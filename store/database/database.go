// Package database defines the interface through which package store/engine uses a database: connections,
// rows and kinds of errors. It also contains the definitions of the tables.
//
// Start with Statements. Package store/sqlitedb implements the connections for SQLite, and package store/pgdb the
// connections for PostgreSQL.
package database

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Statements executes SQL statements on a connection to the database. Only one goroutine at a time may use it. The
// statements are written in the syntax of SQLite, with placeholders ? or ?N. Arguments are integers, booleans,
// string, []byte or nil; see IntegerArgument. Some parts of a statement are specific to SQLite, such as INDEXED BY. A
// connection to another database leaves these parts out.
type Statements interface {
	Querier
	// Exec executes a statement. It may delay the statement until a later statement is executed. An error of the delayed
	// statement is then returned by that later call. ExecRowsAffected executes a statement immediately and returns the
	// number of changed rows.
	Exec(sql string, args ...any) error
	ExecRowsAffected(sql string, args ...any) (int64, error)
	// QueryAll executes statements in order, each as Query does. No statement may depend on the rows of
	// another one.
	QueryAll(queries []Query) error
	// QueryNumber returns the integer in the first row, or 0 if there is no row.
	QueryNumber(sql string, args ...any) (int64, error)
	// ColumnInNumbersSQL returns an SQL condition: the column equals one of several numbers. The argument of the condition
	// is a text that contains these numbers, separated by spaces.
	ColumnInNumbersSQL(column string) string
	// ColumnInWordsSQL returns an SQL condition: the column equals one of several words. The argument of the
	// condition is a text that contains these words, separated by spaces. The words must not contain quotes.
	ColumnInWordsSQL(column string) string
	// QueryRowLimit returns the number for the LIMIT of a query. expectedRows is the number of rows that the caller will
	// probably read, and rowBytes is the typical size of a row. The limit is needed because a database server also sends
	// the rows that the caller does not read.
	QueryRowLimit(expectedRows, rowBytes int) int
	Close() error
}

// IntegerArgument returns the value of an argument of a statement, if the argument is a boolean or an integer of any
// type except time.Duration. The databases store true as 1 and false as 0. They store durations in different units, so
// the caller must convert a duration to a number.
func IntegerArgument(arg any) (value int64, isInteger bool) {
	if _, isDuration := arg.(time.Duration); isDuration {
		return 0, false
	}
	switch v := reflect.ValueOf(arg); {
	case v.CanInt():
		return v.Int(), true
	case v.CanUint():
		return int64(v.Uint()), true
	case v.Kind() == reflect.Bool && v.Bool():
		return 1, true
	default:
		return 0, v.Kind() == reflect.Bool
	}
}

// Querier executes queries.
type Querier interface {
	// Query calls handleRow for every row, until handleRow returns false. The row is valid only during this call of
	// handleRow. handleRow must not execute another statement.
	Query(handleRow func(r Row) (more bool, err error), sql string, args ...any) error
}

// Conn is a connection that writes.
type Conn interface {
	Statements
	// Begin begins the transaction of this connection, Commit commits it, and Rollback rolls it back.
	Begin() error
	Commit() error
	Rollback()
	// WriteRow executes a statement that inserts one row, or changes only the row named by its last argument. It may delay
	// the statement until the next call of a method other than WriteRow. So no later call of WriteRow may depend on the
	// statement.
	WriteRow(sql string, args ...any) error
	// HasUncountedChanges reports whether the transaction may have changed rows without changing a counter of the engine.
	// The engine must then record that there was a commit, although no counter has changed.
	HasUncountedChanges() bool
	// TotalArgumentBytes returns the total size in bytes of the texts and blobs passed to statements.
	TotalArgumentBytes() int64
}

// ReadConn is a connection that only reads.
type ReadConn interface {
	Statements
	// BeginSnapshot starts a snapshot. All reads until EndSnapshot see the data of the snapshot. If either method fails,
	// the connection must not be used again.
	BeginSnapshot() error
	EndSnapshot() error
	// InterruptWhenDone makes running statements stop with an error when ctx ends, until release is called. IsInterruption
	// reports whether err is the error of such a statement.
	InterruptWhenDone(ctx context.Context) (release func())
	IsInterruption(err error) bool
}

// MissingJobChecker is a connection that can find out whether a job was not found because the database is damaged. Only
// connections to SQLite files implement it. A PostgreSQL server has its own checksums. The check would also be wrong
// there, because it compares two reads, which may see different states of the data.
type MissingJobChecker interface {
	// CheckMissingJobID is called after a job with this id was not found. It returns a damage error if the database may
	// contain the job although it was not found. idAsNumber is the id as a job number, or 0 if the id is not a number.
	CheckMissingJobID(id string, idAsNumber int64) error
	// CheckMissingJobSeq is called after a job with this seq was not found. It returns a damage error if the database may
	// contain the job although it was not found.
	CheckMissingJobSeq(seq int64) error
}

// Query is a statement and the function that receives its rows.
type Query struct {
	HandleRow func(r Row) (more bool, err error)
	SQL       string
	Args      []any
}

// QueryBatch is a list of statements that are executed together.
type QueryBatch struct{ Queries []Query }

// Add adds a statement to the list.
func (r *QueryBatch) Add(handleRow func(r Row) (more bool, err error), sql string, args ...any) {
	r.Queries = append(r.Queries, Query{handleRow, sql, args})
}

// AddForEachRow adds a query whose rows are passed to readRow, one by one.
func (r *QueryBatch) AddForEachRow(readRow func(r Row), sql string, args ...any) {
	r.Add(func(row Row) (bool, error) {
		readRow(row)
		return true, nil
	}, sql, args...)
}

// Row is the current row of a statement. If a column holds another type than a method returns, the method returns the
// zero value.
type Row interface {
	Int64(column int) int64
	// Text returns a text or the bytes of a blob.
	Text(column int) string
	// BytesView returns a text or blob in memory of the database connection, without copying it. The slice is valid only
	// while the row is valid.
	BytesView(column int) []byte
	// Value returns the value of a column: nil, an int64, a string, or a copy of a blob's bytes.
	Value(column int) any
}

// ErrorKind classifies errors by what the engine must do after them.
type ErrorKind uint8

const (
	RequestRejected ErrorKind = iota // the request was refused before it wrote anything
	RequestFailed                    // only this request failed, and the transaction is rolled back
	DiskFull                         // the disk is full, and the transaction is rolled back
	DatabaseBusy                     // the database is unavailable now, and the transaction is rolled back
	DatabaseFailed                   // the database failed, and the outcome may be unknown
)

// ErrorKindOf returns the kind of an error.
func ErrorKindOf(err error) ErrorKind {
	var errorWithKind interface{ Kind() ErrorKind }
	switch {
	case errors.As(err, &errorWithKind):
		return errorWithKind.Kind()
	case errors.As(err, new(*queue.Error)), errors.Is(err, store.ErrJobLeased), errors.Is(err, store.ErrJobStateChanged),
		errors.Is(err, store.ErrScheduleChanged):
		return RequestRejected
	}
	return RequestFailed
}

// InTransaction calls f in a transaction, which it rolls back if f returns an error.
func InTransaction(c Conn, f func() error) error {
	err := c.Begin()
	if err == nil {
		err = f()
	}
	if err == nil {
		err = c.Commit()
	}
	if err != nil {
		c.Rollback()
	}
	return err
}

// ReadFirstRow passes the first row of a query to readRow, and reports whether there is one.
func ReadFirstRow(c Querier, readRow func(r Row), sql string, args ...any) (found bool, err error) {
	err = c.Query(func(r Row) (bool, error) {
		readRow(r)
		found = true
		return false, nil
	}, sql, args...)
	return found, err
}

// ForEachRow passes each row of a query to readRow.
func ForEachRow(c Querier, readRow func(r Row), sql string, args ...any) error {
	return c.Query(func(r Row) (bool, error) {
		readRow(r)
		return true, nil
	}, sql, args...)
}

// ReadRows calls readRow for each row of a query, and returns the results.
func ReadRows[T any](c Querier, readRow func(r Row) T, sql string, args ...any) (results []T, err error) {
	err = ForEachRow(c, func(r Row) { results = append(results, readRow(r)) }, sql, args...)
	return results, err
}

// ScanRow stores the columns of a row in variables, in the order of the columns. Each pointer must point to an integer,
// bool, string or []byte, or to a value of a type that is based on one of these.
func ScanRow(r Row, pointers ...any) {
	for i, p := range pointers {
		switch v := reflect.ValueOf(p).Elem(); {
		case v.CanInt():
			v.SetInt(r.Int64(i))
		case v.CanUint():
			v.SetUint(uint64(r.Int64(i)))
		case v.Kind() == reflect.Bool:
			v.SetBool(r.Int64(i) != 0)
		case v.Kind() == reflect.String:
			v.SetString(r.Text(i))
		default:
			v.SetBytes(bytes.Clone(r.BytesView(i)))
		}
	}
}

// ScanFirstRow executes a query and stores the columns of its first row in variables; see ScanRow. If the query returns
// no row, the variables do not change.
func ScanFirstRow(c Querier, pointers []any, sql string, args ...any) (found bool, err error) {
	return ReadFirstRow(c, func(r Row) { ScanRow(r, pointers...) }, sql, args...)
}

// FirstColumnText returns the text in the first column of a row. It is an argument for ReadRows.
func FirstColumnText(r Row) string { return r.Text(0) }

// FirstColumnInt64 returns the integer in the first column of a row. It is an argument for ReadRows.
func FirstColumnInt64(r Row) int64 { return r.Int64(0) }

// QueryText returns the text in the first row, or "" if there is no row.
func QueryText(c Querier, sql string, args ...any) (text string, err error) {
	_, err = ReadFirstRow(c, func(r Row) { text = r.Text(0) }, sql, args...)
	return text, err
}

// QueryNumber returns the integer in the first row, or 0 if there is no row.
func QueryNumber(c Querier, sql string, args ...any) (n int64, err error) {
	_, err = ReadFirstRow(c, func(r Row) { n = r.Int64(0) }, sql, args...)
	return n, err
}

// DamageError is an error about damaged data in the database.
type DamageError string

// Error implements error.
func (d DamageError) Error() string { return string(d) }

// Kind returns DatabaseFailed.
func (d DamageError) Kind() ErrorKind { return DatabaseFailed }
