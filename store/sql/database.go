package sql

import (
	"context"
	"errors"
	"time"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// conn is a connection to the database, for one goroutine at a time. Statements use the syntax of SQLite,
// with placeholders ? or ?N; arguments are int64, string, []byte or nil. Connections to other databases
// leave out SQLite-only syntax such as INDEXED BY.
type conn interface {
	// exec executes a statement immediately, or together with later ones. count executes it immediately and
	// returns the number of changed rows.
	exec(sql string, args ...any) error
	count(sql string, args ...any) (int64, error)
	// row executes a statement that inserts one row, or changes only the row named by its last argument. No
	// other statement of the transaction may depend on it. It is executed at the latest before the next
	// statement that is not executed by row.
	row(sql string, args ...any) error
	// query calls each with every row until each returns false. The row is valid during the call only, and
	// each must not execute another statement.
	query(each func(r row) (more bool, err error), sql string, args ...any) error
	// among returns the condition that a column equals one of the numbers in a text argument, separated by
	// spaces.
	among(column string) string
	// amongWords returns the condition that a column equals one of the words in a text argument, separated
	// by spaces. The words must not contain quotes.
	amongWords(column string) string
	// ahead returns the LIMIT for a statement of which about want rows of about the given size in bytes
	// will be read. A server also sends rows that are not read.
	ahead(want, bytes int) int
	// queries executes statements in order, each as query does. No statement may depend on the rows of
	// another one.
	queries(list []asked) error
	// number returns the integer in the first row, or 0 if there is no row.
	number(sql string, args ...any) (int64, error)
	// begin begins the writer's transaction, commit commits it and rollback rolls it back.
	begin() error
	commit() error
	rollback()
	// beginReading starts a snapshot that all reads see until endReading. A connection on which either
	// fails must not be used again.
	beginReading() error
	endReading() error
	// hasWritten reports whether the number of commits must be raised even if nothing in meta has changed.
	hasWritten() bool
	// carried returns the total size in bytes of the texts and blobs passed to statements.
	carried() int64
	// endWith interrupts running statements when ctx ends, until release is called. interrupted reports
	// whether err comes from such an interruption.
	endWith(ctx context.Context) (release func())
	interrupted(err error) bool
	close() error
}

// asked is a statement and the function that receives its rows.
type asked struct {
	each func(r row) (more bool, err error)
	sql  string
	args []any
}

// reads is a list of statements that are executed together.
type reads struct{ list []asked }

func (r *reads) add(each func(r row) (more bool, err error), sql string, args ...any) {
	r.list = append(r.list, asked{each, sql, args})
}

// host provides what differs between the databases of an engine, apart from their connections.
type host interface {
	// reader opens a connection for reading.
	reader() (conn, error)
	// ready is called before each commit. An error breaks the store.
	ready() error
	// enter begins a transaction. Afterwards the writer's cache contains all changes that other nodes have
	// committed.
	enter(t *tx) error
	// readReserved adds a statement that reads the leases that are not known to have started and are stored
	// outside of meta. writeReserved stores these leases, and returns the new text for meta if that
	// changes.
	readReserved(all *reads, each func(row) (bool, error))
	writeReserved(t *tx) (inMeta string, changed bool, err error)
	// committed is called after each commit; changed reports whether the row of meta changed.
	committed(changed bool)
	// relieve releases disk space from the reserve, and reports whether it could. Without whole it keeps
	// the last part for operations with wholeReserve.
	relieve(whole bool) bool
	// freed is called after jobs or outputs were removed.
	freed()
	// refusal returns the error for callers whose request fails because the disk is full or the database is
	// busy.
	refusal(k kind, err error) error
	// blames reports whether an error may be about another row of the transaction than that of the failed
	// statement.
	blames(err error) bool
	// broke is called once, when the store has failed.
	broke()
	// room returns an error while there is no disk space for new jobs. keepRoom keeps some space in reserve
	// for running jobs.
	room() error
	keepRoom()
	// bytes returns the size of the database.
	bytes() int64
	// budget returns how long a read may take now, and late the error for a read that took longer.
	budget() time.Duration
	late(budget time.Duration) error
	// readable returns an error once a read may no longer show the stored state.
	readable() error
	// cannotRead returns the caller's error for a failed read. It breaks the store if err says that the
	// database is damaged.
	cannotRead(err error) error
	// close closes the database.
	close() error
}

// row is the current row of a statement. A column that holds another type than the requested one reads as
// zero.
type row struct {
	tls *libc.TLS
	p   uintptr
	of  *serverRow // set for PostgreSQL instead of the other fields
}

func (r row) num(column int) int64 {
	if r.of != nil {
		return r.of.num(column)
	}
	if sqlite3.Xsqlite3_column_type(r.tls, r.p, int32(column)) != sqlite3.SQLITE_INTEGER {
		return 0
	}
	return sqlite3.Xsqlite3_column_int64(r.tls, r.p, int32(column))
}

// text returns a text or the bytes of a blob.
func (r row) text(column int) string { return string(r.view(column)) }

// view returns a text or blob in the database's memory. The slice must not be used after the row.
func (r row) view(column int) []byte {
	if r.of != nil {
		return r.of.view(column)
	}
	switch sqlite3.Xsqlite3_column_type(r.tls, r.p, int32(column)) {
	case sqlite3.SQLITE_TEXT, sqlite3.SQLITE_BLOB:
	default:
		return nil
	}
	from := sqlite3.Xsqlite3_column_blob(r.tls, r.p, int32(column))
	n := sqlite3.Xsqlite3_column_bytes(r.tls, r.p, int32(column))
	if n == 0 {
		return nil
	}
	return view(from, int(n))
}

// value returns the value of a column: nil, an int64, a string, or a copy of a blob's bytes.
func (r row) value(column int) any {
	if r.of != nil {
		return r.of.value(column)
	}
	switch sqlite3.Xsqlite3_column_type(r.tls, r.p, int32(column)) {
	case sqlite3.SQLITE_INTEGER:
		return r.num(column)
	case sqlite3.SQLITE_TEXT:
		return r.text(column)
	case sqlite3.SQLITE_BLOB:
		return append([]byte{}, r.view(column)...)
	}
	return nil
}

// kind classifies errors by how the writer must react.
type kind uint8

const (
	refusal  kind = iota // the request was refused before it wrote anything
	mistake              // only this request failed, and it is rolled back
	full                 // the disk is full, and the transaction is rolled back
	busy                 // the database is unavailable now, and the transaction is rolled back
	breakage             // the database failed, and the outcome may be unknown
)

// kindOf returns the kind of an error.
func kindOf(err error) kind {
	var known interface{ kind() kind }
	var refused *queue.Error
	switch {
	case errors.As(err, &known):
		return known.kind()
	case errors.As(err, &refused), errors.Is(err, store.ErrLeased), errors.Is(err, store.ErrMoved), errors.Is(err, store.ErrChanged):
		return refusal
	}
	return mistake
}

// damage is an error about damaged data in the database.
type damage string

// Error implements error.
func (d damage) Error() string { return string(d) }

func (d damage) kind() kind { return breakage }
