package engine

import (
	"time"

	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/readahead"
	"github.com/queuectl/queuectl/store/reads"
	"github.com/queuectl/queuectl/store/rules"
)

// Backend provides what differs between the databases that an engine can use, apart from their connections and their
// disk space. Any goroutine may call the methods of reads.ReadDatabase. Only the writer, the goroutine that has the
// right to write, calls the other methods. It calls them outside of a transaction, unless the comment of the method
// says otherwise.
type Backend interface {
	reads.ReadDatabase
	// BeforeCommitGroup is called before the writer executes a group of operations, which one transaction will commit. If
	// it returns an error, the engine fails and cannot be used any more.
	BeforeCommitGroup() error
	// BeginTx begins a transaction. Afterwards the writer's cache contains all changes that other nodes have
	// committed. After an error, the group of operations is rolled back, and the kind of the error decides
	// whether the group is tried again.
	BeginTx(t *Tx) error
	// A lease is reserved while its attempt is not known to have started. AddReservationQuery adds to the batch a query
	// for reserved leases that are stored outside of the table meta. WriteReservations stores the reserved leases. If the
	// list of reserved leases in the table meta must change, metaListChanged is true and metaListText is the new list.
	// Both methods are called inside a transaction, or while the writer loads its cache.
	AddReservationQuery(queries *database.QueryBatch, readRow func(database.Row))
	WriteReservations(t *Tx) (metaListText string, metaListChanged bool, err error)
	// AfterCommit is called after each commit. metaRowChanged reports whether the commit changed the row of the
	// table meta.
	AfterCommit(metaRowChanged bool)
	// RefusedRequestError returns the error for callers whose requests fail because the disk is full or the database
	// is busy.
	RefusedRequestError(kind database.ErrorKind, err error) error
	// MayStemFromEarlierStatement reports whether err, which a statement has returned, may have been caused by an
	// earlier statement of the transaction. It is called after the transaction was rolled back.
	MayStemFromEarlierStatement(err error) bool
	// OnEngineFailure is called once, when the engine has failed and can no longer be used.
	OnEngineFailure()
	// Close closes the database. The engine calls it once, after all writes and reads have ended. Engine.Close
	// returns its error.
	Close() error
}

// DefaultReadTimeout is the usual time limit of a read.
const DefaultReadTimeout = 2 * time.Second

// DiskSpace provides what differs between the databases in the use of disk space. Any goroutine may call
// DatabaseBytes and OnSpaceFreed. Only the writer, the goroutine that has the right to write, calls the other
// methods.
type DiskSpace interface {
	// DatabaseBytes returns the size of the database, or 0 if it is unknown.
	DatabaseBytes() int64
	// CheckDiskSpace returns an error if there is no disk space for new jobs. The caller that wants to enqueue jobs gets
	// this error. MaintainDiskReserve creates the reserve, which is disk space that is kept free for running jobs, if it
	// is missing. Both methods are called inside a transaction.
	CheckDiskSpace() error
	MaintainDiskReserve()
	// ReleaseDiskReserve frees disk space of the reserve, and reports whether it has freed any. If wholeReserve
	// is false, it keeps the last part of the reserve for operations that remove data.
	ReleaseDiskReserve(wholeReserve bool) bool
	// OnSpaceFreed is called after jobs or outputs were removed.
	OnSpaceFreed()
}

// SharedDatabase provides what the engine needs of a database that several nodes share. The writer calls its
// methods inside a transaction. After an error, the transaction is rolled back, and the kind of the error
// decides what happens next. A call may take a round trip to the server, so the engine makes no separate call
// for each job.
type SharedDatabase interface {
	// SendLaneQuery sends a query for the next jobs of a lane before the rows are needed. (A lane holds the
	// jobs of one queue and user that need the same locks and other limits.) If readRowsNow is true, it also
	// reads the rows immediately, because later statements would delay them.
	SendLaneQuery(query string, args []any, expectedRows int, readRowsNow bool) (PrefetchedRows, error)
	// ReadLaneJobs reads the next jobs of several lanes in one round trip. (A lane holds the jobs of one queue and user
	// that need the same locks and other limits.) For each element of starts, it returns up to jobsPerLane jobs with the
	// columns records.AllJobColumns, and the position of the job after these.
	ReadLaneJobs(t *Tx, laneStarts []readahead.LaneStart, jobsPerLane int) ([]readahead.LaneJobs, error)
	// ReadOpenLanes reads, in one query, the lanes of a queue whose jobs need locks or other limits and can
	// start now. It passes the first lanesPerUser lanes of each user to the callback, and skips the lanes in
	// closedLaneIDs. If uids is nil, it reads the lanes of all users.
	ReadOpenLanes(t *Tx, queueName string, uids []int, lanesPerUser int, closedLaneIDs []int64,
		visitLane func(rules.Lane)) error
	// SaveThisNodeProperties stores the labels and resources of this node, for the other nodes.
	SaveThisNodeProperties(t *Tx, n *store.Node) error
	// StoreCacheDelta stores, for the other nodes, the changes that a commit made to the cached data. commitNumber is the
	// number of that commit. An empty delta makes the other nodes read their caches again from the tables.
	StoreCacheDelta(t *Tx, commitNumber int64, delta []byte) error
	// A submission is a job that a client has written to the database itself. EnqueueSubmission calls enqueue
	// for it and deletes the submission. If another node has already enqueued the submission,
	// EnqueueSubmission reports a duplicate.
	EnqueueSubmission(t *Tx, r *store.EnqueueRequest, enqueue func() (store.Receipt, error)) (store.Receipt, error)
	// DeletableOutputsOfThisNode returns up to limit output files that this node must delete: its own, and those of
	// nodes that were removed.
	DeletableOutputsOfThisNode(t *Tx, limit int) (refs []string, err error)
}
