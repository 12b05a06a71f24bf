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

// conn is a connection to the tables, for one goroutine at a time. Arguments of statements
// are int64, string, []byte or nil, as SQLite writes them: ?, or ?N. What else only SQLite
// has, like INDEXED BY, other databases are not told.
type conn interface {
	// exec carries out a statement, now or with what follows; count does so at once, and says how many rows it
	// has changed.
	exec(sql string, args ...any) error
	count(sql string, args ...any) (int64, error)
	// row carries out a statement that inserts a row, or changes the one that its last argument names, and no other one
	// of it needs: in its transaction, at the latest before what is not written so.
	row(sql string, args ...any) error
	// query calls each with every row until it says no. The row is valid during the
	// call only; no other statement may run in it.
	query(each func(r row) (more bool, err error), sql string, args ...any) error
	// among is the condition that a column is one of the numbers of a text, which a space parts.
	among(column string) string
	// amongWords is the condition that a column is one of the words of a text, which a space parts; they have no quotes.
	amongWords(column string) string
	// ahead is how many rows a statement is to have of which so many are wanted, of about so many bytes each: a server sends
	// also those that are not read.
	ahead(want, bytes int) int
	// queries carries out statements that do not wait for each other's rows, as query does one after the other.
	queries(list []asked) error
	// number reads the one integer of a statement's first row, 0 if there is none.
	number(sql string, args ...any) (int64, error)
	// begin begins the writer's transaction, commit stores it and rollback undoes it.
	begin() error
	commit() error
	rollback()
	// beginReading has what follows see one state of what is stored, until endReading; a connection on which
	// that fails is not sound.
	beginReading() error
	endReading() error
	// hasWritten says that the number of commits is to be raised, whatever else has changed.
	hasWritten() bool
	// carried is how many bytes of texts statements were given.
	carried() int64
	// endWith has the end of ctx end what runs, until release is called.
	endWith(ctx context.Context) (release func())
	interrupted(err error) bool // by that
	close() error
}

// asked is a statement, and what its rows are told to.
type asked struct {
	each func(r row) (more bool, err error)
	sql  string
	args []any
}

// reads are statements that are carried out together.
type reads struct{ list []asked }

func (r *reads) add(each func(r row) (more bool, err error), sql string, args ...any) {
	r.list = append(r.list, asked{each, sql, args})
}

// host is the database that an engine's tables are in, beside its connections.
type host interface {
	// reader opens a connection that reads.
	reader() (conn, error)
	// ready is called before each commit. An error breaks the store.
	ready() error
	// enter begins a transaction: what another node has changed since the last one is known from then on.
	enter(t *tx) error
	// readReserved adds a statement that reads which leases are not known to have started and do not stand in meta, and writeReserved writes them
	// where they belong: it says what meta is to have, if that changes.
	readReserved(all *reads, each func(row) (bool, error))
	writeReserved(t *tx) (inMeta string, changed bool, err error)
	// committed is called after one; changed says that what stands in meta has changed.
	committed(changed bool)
	// relieve releases disk space from the reserve, and reports whether it could. Without whole it leaves the last part
	// for operations with wholeReserve.
	relieve(whole bool) bool
	// freed is called after jobs or outputs were removed.
	freed()
	// refusal is the answer to those who meet a full disk or a busy database.
	refusal(k kind, err error) error
	// blames reports whether an error may be about a row of the transaction, though another statement met it.
	blames(err error) bool
	// broke is called once, when the store has failed.
	broke()
	// room is an error while there is none for new jobs, and keepRoom sees to it that there is some for what runs.
	room() error
	keepRoom()
	// bytes is how large the database is.
	bytes() int64
	// budget is how long a read may take now, and late the answer to one that took longer.
	budget() time.Duration
	late(budget time.Duration) error
	// readable is an error once what is read may not be what is stored.
	readable() error
	// cannotRead is the answer to a read that met an error, which may have broken the store.
	cannotRead(err error) error
	// close gives back what is open.
	close() error
}

// row is the row that a statement stands at. A column that holds another kind of value
// than is asked for is zero.
type row struct {
	tls *libc.TLS
	p   uintptr
	of  *serverRow // of PostgreSQL, in the place of these
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

// text is also the bytes of a blob.
func (r row) text(column int) string { return string(r.view(column)) }

// view is a text or blob in the database's memory: it must not be used after the row.
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

// value is what stands there: nil, an int64, a string or, of a blob, a copy of its bytes.
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

// kind sorts failures by what must follow.
type kind uint8

const (
	refusal  kind = iota // the request was refused before it wrote
	mistake              // of this request alone: it is undone
	full                 // the disk is full: nothing of the transaction holds
	busy                 // the database cannot be had now: nothing of the transaction holds
	breakage             // the database failed: the outcome may be unknown
)

// kindOf sorts an error.
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

// damage is an error of what is stored.
type damage string

// Error implements error.
func (d damage) Error() string { return string(d) }

func (d damage) kind() kind { return breakage }
