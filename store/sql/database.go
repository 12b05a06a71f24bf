package sql

import (
	"context"
	"errors"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// statements executes statements on a connection to the database, for one goroutine at a time. Statements use
// the syntax of SQLite, with placeholders ? or ?N; arguments are int64, string, []byte or nil. Connections to
// other databases leave out SQLite-only syntax such as INDEXED BY.
type statements interface {
	// exec executes a statement immediately, or together with later ones. count executes it immediately and
	// returns the number of changed rows.
	exec(sql string, args ...any) error
	count(sql string, args ...any) (int64, error)
	// query calls the callback each for every row, until it returns false. The row is valid only during this
	// call. The callback must not execute another statement.
	query(each func(r row) (more bool, err error), sql string, args ...any) error
	// queries executes statements in order, each as query does. No statement may depend on the rows of
	// another one.
	queries(list []batchQuery) error
	// number returns the integer in the first row, or 0 if there is no row.
	number(sql string, args ...any) (int64, error)
	// isOneOf returns the condition that a column equals one of the numbers in a text argument, separated by
	// spaces.
	isOneOf(column string) string
	// isOneOfWords returns the condition that a column equals one of the words in a text argument, separated
	// by spaces. The words must not contain quotes.
	isOneOfWords(column string) string
	// readLimit returns the LIMIT for a statement of which about want rows of about the given size in bytes
	// will be read. A server also sends rows that are not read.
	readLimit(want, bytes int) int
	close() error
}

// conn is a connection that writes.
type conn interface {
	statements
	// begin begins the writer's transaction, commit commits it and rollback rolls it back.
	begin() error
	commit() error
	rollback()
	// writeRow executes a statement that inserts one row, or changes only the row named by its last argument.
	// No other statement of the transaction may depend on it. It may be delayed until the next statement that
	// does not use writeRow.
	writeRow(sql string, args ...any) error
	// hasWritten reports whether the number of commits must be raised even if nothing in meta has changed.
	hasWritten() bool
	// argumentBytes returns the total size in bytes of the texts and blobs passed to statements.
	argumentBytes() int64
}

// readConn is a connection that only reads.
type readConn interface {
	statements
	// beginReading starts a snapshot that all reads see until endReading. A connection on which either
	// fails must not be used again.
	beginReading() error
	endReading() error
	// interruptWhenDone interrupts running statements when ctx ends, until release is called. isInterruption
	// reports whether err comes from such an interruption.
	interruptWhenDone(ctx context.Context) (release func())
	isInterruption(err error) bool
}

// batchQuery is a statement and the function that receives its rows.
type batchQuery struct {
	each func(r row) (more bool, err error)
	sql  string
	args []any
}

// queryBatch is a list of statements that are executed together.
type queryBatch struct{ queries []batchQuery }

func (r *queryBatch) add(each func(r row) (more bool, err error), sql string, args ...any) {
	r.queries = append(r.queries, batchQuery{each, sql, args})
}

// backend provides what differs between the databases of an engine, apart from their connections and their
// disk space.
type backend interface {
	// reader opens a connection for reading.
	reader() (readConn, error)
	// beforeCommit is called before each commit. An error breaks the store.
	beforeCommit() error
	// beginTx begins a transaction. Afterwards the writer's cache contains all changes that other nodes have
	// committed.
	beginTx(t *tx) error
	// readReserved adds a statement that reads the reserved leases (not known to have started) that are
	// stored outside of meta. writeReserved stores the reserved leases, and returns the new text for meta if
	// it changes.
	readReserved(all *queryBatch, each func(row) (bool, error))
	writeReserved(t *tx) (inMeta string, changed bool, err error)
	// onCommit is called after each commit; changed reports whether the row of meta changed.
	onCommit(changed bool)
	// refusal returns the error for callers whose request fails because the disk is full or the database is
	// busy.
	refusal(k kind, err error) error
	// blameUncertain reports whether an error may be about another row of the transaction than that of the
	// failed statement.
	blameUncertain(err error) bool
	// onFailure is called once, when the store has failed.
	onFailure()
	// readBudget returns how long a read may take now, and readTooLong the error for a read that took longer.
	readBudget() time.Duration
	readTooLong(budget time.Duration) error
	// checkReadable returns an error once a read may no longer show the stored state.
	checkReadable() error
	// readError returns the caller's error for a failed read. It breaks the store if err says that the
	// database is damaged.
	readError(err error) error
	// close closes the database.
	close() error
}

// diskSpace provides what differs between the databases in the use of disk space.
type diskSpace interface {
	// bytes returns the size of the database.
	bytes() int64
	// checkSpace returns an error while there is no disk space for new jobs. maintainReserve keeps some space
	// in reserve for running jobs.
	checkSpace() error
	maintainReserve()
	// releaseReserve releases disk space from the reserve, and reports whether it could. Without whole it
	// keeps the last part for operations with wholeReserve.
	releaseReserve(whole bool) bool
	// onSpaceFreed is called after jobs or outputs were removed.
	onSpaceFreed()
}

// row is the current row of a statement. A column that holds another type than the requested one reads as
// zero.
type row interface {
	num(column int) int64
	// text returns a text or the bytes of a blob.
	text(column int) string
	// view returns a text or blob in the database's memory. The slice must not be used after the row.
	view(column int) []byte
	// value returns the value of a column: nil, an int64, a string, or a copy of a blob's bytes.
	value(column int) any
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
	case errors.As(err, &refused), errors.Is(err, store.ErrLeased), errors.Is(err, store.ErrStateChanged),
		errors.Is(err, store.ErrScheduleChanged):
		return refusal
	}
	return mistake
}

// damage is an error about damaged data in the database.
type damage string

// Error implements error.
func (d damage) Error() string { return string(d) }

func (d damage) kind() kind { return breakage }
