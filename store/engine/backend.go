package engine

import (
	"time"

	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/readahead"
	"github.com/queuectl/queuectl/store/reads"
	"github.com/queuectl/queuectl/store/rules"
)

// Backend provides what differs between the databases of an engine, apart from their connections and their disk
// space. Goroutines that read call the methods of reads.Database. The writer, which is the goroutine that holds
// the right to write, calls all other methods. A call is outside of any transaction, unless the method's
// comment says otherwise.
type Backend interface {
	reads.Database
	// BeforeCommit is called by the writer before it carries out a group of operations, which is committed in
	// one transaction. An error makes the engine fail for good.
	BeforeCommit() error
	// BeginTx is called by the writer to begin a transaction. Afterwards the writer's cache contains all
	// changes that other nodes have committed. After an error, the group is rolled back; the kind of the error
	// decides whether it is tried again.
	BeginTx(t *Tx) error
	// A lease is reserved while its attempt is not known to have started. ReadReservations adds to
	// the batch a statement that reads the reserved leases that are stored outside of the table meta.
	// WriteReservations stores the reserved leases. If the list in meta must change, metaChanged is true and
	// metaText is the new list. The writer calls both inside a transaction, or while it loads its cache.
	ReadReservations(batch *database.QueryBatch, readRow func(database.Row))
	WriteReservations(t *Tx) (metaText string, metaChanged bool, err error)
	// OnCommit is called by the writer after each commit; metaChanged reports whether the row of meta changed.
	OnCommit(metaChanged bool)
	// RefusalError returns the error for callers whose request fails because the disk is full or the database is
	// busy. The writer calls it.
	RefusalError(kind database.ErrorKind, err error) error
	// MayBlameOtherStatement reports whether an earlier statement of the transaction may have caused an error
	// that the failed statement has returned. The writer calls it after it has rolled back the transaction.
	MayBlameOtherStatement(err error) bool
	// OnFailure is called by the writer once, when the engine has failed.
	OnFailure()
	// Close closes the database. The engine calls it once, after all writes and reads have ended. Engine.Close
	// returns its error.
	Close() error
}

// ReadTimeout is the usual time limit of a read.
const ReadTimeout = 2 * time.Second

// DiskSpace provides what differs between the databases in the use of disk space. Any goroutine may call
// DatabaseBytes and OnSpaceFreed. Only the writer calls the other methods.
type DiskSpace interface {
	// DatabaseBytes returns the size of the database, or 0 if it is unknown.
	DatabaseBytes() int64
	// CheckSpace returns an error while there is no disk space for new jobs. The caller of the request gets
	// this error. MaintainReserve creates the reserve if it is missing. The reserve is disk space that is kept
	// free for running jobs. Both are called inside a transaction.
	CheckSpace() error
	MaintainReserve()
	// ReleaseReserve releases disk space from the reserve, and reports whether it has released any. If
	// wholeReserve is false, the last part of the reserve remains, for operations that free space.
	ReleaseReserve(wholeReserve bool) bool
	// OnSpaceFreed is called after jobs or outputs were removed.
	OnSpaceFreed()
}

// SharedDatabase provides what the engine needs only of a database that several nodes share. The writer calls
// its methods inside a transaction. An error rolls the transaction back, and its kind decides what happens
// next. Each call may take a round trip to the server, so the engine does not make one call per job.
type SharedDatabase interface {
	// StartLaneQuery sends the query for the next jobs of a lane before its rows are needed. If readNow is
	// true, it also reads the rows immediately, because later statements would delay them.
	StartLaneQuery(query string, args []any, expectedRows int, readNow bool) (EarlyRows, error)
	// ReadLanes reads the next jobs of several lanes in one round trip. For each element of starts, it returns
	// the columns records.WholeColumns of up to jobsPerLane jobs, and the readahead.Head of the job after these.
	ReadLanes(t *Tx, starts []readahead.LaneStart, jobsPerLane int) ([]readahead.LaneJobs, error)
	// ReadOpenLanes reads the open lanes with demands of a queue in one query, and passes the first lanesPerUser lanes
	// of each user to the callback. It skips lanes whose ids are in closedLaneIDs. If uids is nil,
	// it reads the lanes of all users.
	ReadOpenLanes(t *Tx, queue string, uids []int, lanesPerUser int, closedLaneIDs []int64,
		visitLane func(rules.Lane)) error
	// StoreNode stores the labels and resources of this node, for the other nodes.
	StoreNode(t *Tx, n *store.Node) error
	// StoreDelta stores the cache delta of the commit with the given number, for the other nodes. An empty delta
	// makes them reload.
	StoreDelta(t *Tx, commit int64, delta []byte) error
	// A submission is a job that a client has written to the database. EnqueueSubmission calls enqueue for it, and
	// deletes the submission. If the submission no longer exists, another service has enqueued it, and
	// EnqueueSubmission reports a duplicate.
	EnqueueSubmission(t *Tx, r *store.Request, enqueue func() (store.Receipt, error)) (store.Receipt, error)
	// OwnDeletableOutputs returns up to limit output files that this node must delete: its own files, and those of
	// nodes that are no longer members.
	OwnDeletableOutputs(t *Tx, limit int) (refs []string, err error)
}
