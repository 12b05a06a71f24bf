package sql

import (
	"time"

	"github.com/queuectl/queuectl/store/database"
)

// backend provides what differs between the databases of an engine, apart from their connections and their
// disk space.
type backend interface {
	// reader opens a connection for reading.
	reader() (database.ReadConn, error)
	// beforeCommit is called before each commit. An error breaks the store.
	beforeCommit() error
	// beginTx begins a transaction. Afterwards the writer's cache contains all changes that other nodes have
	// committed.
	beginTx(t *tx) error
	// readReserved adds a statement that reads the reserved leases (not known to have started) that are
	// stored outside of meta. writeReserved stores the reserved leases, and returns the new text for meta if
	// it changes.
	readReserved(all *database.Batch, each func(database.Row) (bool, error))
	writeReserved(t *tx) (inMeta string, changed bool, err error)
	// onCommit is called after each commit; changed reports whether the row of meta changed.
	onCommit(changed bool)
	// refusal returns the error for callers whose request fails because the disk is full or the database is
	// busy.
	refusal(k database.Kind, err error) error
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

// readTimeout is the time limit of a read.
const readTimeout = 2 * time.Second

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
