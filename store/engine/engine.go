// Package engine stores the jobs of a queue durably in the tables of a SQL database.
//
// Start with Engine, which implements store.Store. A Backend provides what differs between the databases: package
// store/sqlite is the backend on an SQLite file, and package store/postgres the one on a PostgreSQL server that
// several nodes share. Package store/rules decides what happens to jobs; this package stores the results.
package engine

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/dependencies"
	"github.com/queuectl/queuectl/store/estimates"
	"github.com/queuectl/queuectl/store/gates"
	"github.com/queuectl/queuectl/store/lanes"
	"github.com/queuectl/queuectl/store/reads"
	"github.com/queuectl/queuectl/store/rules"
	"github.com/queuectl/queuectl/store/statistics"
	"github.com/queuectl/queuectl/store/writequeue"
)

// Engine keeps jobs in the tables of a database. Only one goroutine at a time writes: the one that has taken the token
// from writerToken. That goroutine is called the writer. The writer executes the operations of all waiting callers as
// one group, in one transaction. See docs/decisions/0013.
type Engine struct {
	backend        Backend                 // what differs between SQLite and PostgreSQL
	diskSpace      DiskSpace               // the disk space of the database
	sharedDatabase SharedDatabase          // nil if only this process uses the database
	clock          func() queue.UnixMillis // the engine's clock
	writerConn     database.Conn           // the writer's connection
	log            *slog.Logger

	writerToken   chan struct{} // holds one token; the goroutine that takes it is the writer
	writesStopped bool          // no more writes are allowed; used by the writer only
	readOnly      bool          // the engine is read-only and has no writer
	failedSignal  chan struct{} // closed when the engine has failed
	// gets a value when something is due earlier than the last ApplyDueChanges reported
	dueChangeHints         chan struct{}
	jobWatches             store.JobWatches
	databaseCopyInProgress atomic.Bool // a backup, or a copy for doctor --verify, is being made

	rng   *rand.Rand    // source of random numbers; used by the writer only
	cache databaseCache // the writer's cache of the database; used by the writer only
	// gateRecheckState lists the gates (locks and other limits) for which the rules must check again which jobs
	// can start. A rollback removes no gate from the list. Only the goroutine with the right to write uses
	// it.
	gateRecheckState rules.GateRecheckState

	*reads.JobReader
	thresholds
	identity
	// commitStartedAt is the time when the current transaction, or the current work between transactions,
	// started. It is nil if the writer is idle.
	commitStartedAt atomic.Pointer[time.Time]
	txCarryover
	statisticsCaches
	otherNodeChangeWork
	waitingOps writequeue.Queue[*queuedOperation] // operations that wait for a commit
	callerState
}

// identity identifies the database, and this node among its nodes.
type identity struct {
	nodeID         int64  // number of this node in the database; 0 in a database for one process
	databaseID     string // identifier of the database; differs from that of every copy
	isDatabaseCopy bool   // the stored identifier differs from databaseID, because the database is a copy or was moved
	// otherActiveNodeCount is the number of other active nodes, as of the last transaction.
	otherActiveNodeCount atomic.Int64
}

// thresholds are limits above which the engine behaves differently. Only tests change them.
type thresholds struct {
	// maxEmptyLanes is the number of lanes without jobs that are kept for later jobs, because creating a lane costs more
	// than keeping it. (A lane holds the jobs of one queue and user that need the same locks and other limits.)
	maxEmptyLanes      int64
	minJobsForPrefetch int // a claim that wants at least this number of jobs sends its query early
}

// txCarryover holds values that later transactions use. Only the goroutine with the right to write uses it.
type txCarryover struct {
	lastClaimQueue  string // name of the queue that was last claimed from
	typicalJobBytes int    // moving average of the sizes of claimed jobs, in bytes
	// claimBuffer is memory that claims reuse for the jobs that they read from a lane. Between transactions, it is empty.
	claimBuffer        []rules.Job
	lastPrewriteFailed bool // the last transaction failed because of rows that were written before the lock was held
}

// statisticsCaches holds cached statistics of attempts and run times.
type statisticsCaches struct {
	minuteStats      statistics.MinuteCache     // statistics of the current minute; used by the writer only
	runtimeEstimates estimates.RuntimeEstimates // typical run times of commands
}

// otherNodeChangeWork holds what this node must do after changes by other nodes. Only the goroutine with the right to
// write uses it.
type otherNodeChangeWork struct {
	// otherNodesMayHaveReadiedJobs reports that changes by other nodes may have made jobs ready to start, and that no
	// claim has followed.
	otherNodesMayHaveReadiedJobs bool
	// otherNodeTimerCheckAt is when this node next checks whether other nodes have acted on their timers.
	otherNodeTimerCheckAt queue.UnixMillis
	// changesByOtherNodes lists jobs that other nodes have changed and whose watchers were not notified yet.
	changesByOtherNodes changesByOtherNodes
}

// callerState is shared by the goroutine that writes and the callers that wait for it.
type callerState struct {
	mu           sync.Mutex // guards the following fields
	failure      error      // the reason why the engine has failed
	isClosing    bool
	waitingClaim *claimWaiter // the claim that waits for a runnable job; nil if none waits
}

// changesByOtherNodes lists the jobs that other nodes have changed. If anyJobMayHaveChanged is true, any job may have
// changed.
type changesByOtherNodes struct {
	jobSeqs              []int64
	userUIDs             []int // users whose counts changed with the jobs
	anyJobMayHaveChanged bool
}

// databaseCache is the engine's cache of the database, so that most operations need no query. Only the goroutine
// with the right to write uses it.
type databaseCache struct {
	storedCounts
	metaLists
	rankOrder
	unstoredNodeState
	lanes        *lanes.LaneCache       // lanes and queues
	leases       map[int64]*rules.Lease // leases of all nodes, by seq of the job
	gates        gates.CachedState
	dependencies dependencies.CachedState
	statistics   statistics.RollUpProgress
	users        map[int]userCounts // by uid: users who have waiting or leased jobs
	changedUser  userCounts         // memory that changeUserCounts reuses
	ownerNames   map[int]string     // account names by uid; former owners are not included
	disownments  []disownment       // unfinished moves of jobs to former owners; the slice is replaced, not changed
	batches      map[int64]batch    // batches by number, without discarded ones
	// metaListsReservedLeases reports that the table meta lists reserved leases, whose attempts are not known to have
	// started. In a database on a server, each node normally lists its reserved leases in its own row of the
	// table nodes.
	metaListsReservedLeases bool
}

// unstoredNodeState is the part of the memory that is not stored in any table. It is kept when the memory is
// reloaded.
type unstoredNodeState struct {
	nextTimerAt    queue.UnixMillis // earliest timer as of the last ApplyDueChanges
	lastDueCheckAt queue.UnixMillis // time when ApplyDueChanges was last called
	// the current recheck has reached the gate (lock or other limit) with this number; 0 if no recheck is in progress
	recheckedUpToGateID int64
	lastServedQueueTurn int64 // turn number of the queue that was served last; used if queue weights differ
	claimedJobCount     int64 // number of jobs that this node has claimed; orders the turns of users
	// locallyClosedLanesStale reports that lanes (lists of jobs) which are closed only on this node may be able to open
	// now, because of changes by other nodes, so they must be checked again.
	locallyClosedLanesStale bool
	locallyClosedCheckedAt  queue.UnixMillis   // time of the last check by recheckLocallyClosedIfStale
	thisNode                store.Node         // labels, resources and unknown users of this node
	hookSettings            store.HookSettings // which hooks are made for jobs, and when
	maxLeasedPerUser        int                // maximum number of leased jobs per user; 0 means unlimited
}

// storedCounts are counts and numbers that the database stores.
type storedCounts struct {
	jobTotals
	commitCount    int64 // number of commits of all nodes that this cache reflects
	emptyLaneCount int64 // number of lanes without jobs
	// number of jobs of committed batches, without those already in the queue
	unqueuedCommittedJobs int64
	ownRetentionJobCount  int64 // number of jobs that ended while their queue had its own retention
}

// jobTotals are counts and numbers in the row of the table meta. Cache deltas contain them too.
type jobTotals struct {
	NextJobSeq      int64                      `json:"s"` // seq of the next job
	NextEventNumber int64                      `json:"e"` // number of the next event
	EnqueuedTotal   int64                      `json:"q"` // number of jobs ever enqueued
	JobCountByState [queue.Cancelled + 1]int64 `json:"c"` // number of jobs by state
	OutputBytes     int64                      `json:"o"` // total size of all outputs in bytes
}

// metaLists holds the lists in the row of the table meta. A transaction replaces a list and never changes it
// in place.
type metaLists struct {
	metaUserUIDs   []int    // users listed in meta.users
	metaUsersText  string   // content of meta.users
	metaQueueNames []string // queues listed in meta.queues
	metaQueuesText string   // content of meta.queues
}

// rankOrder says how the ranks of jobs are computed. Jobs start in the order of their ranks.
type rankOrder struct {
	order          queue.RankPolicy
	rerankProgress rerankingProgress
	// storedRanksOrderText is the order with which all stored ranks were computed, as text; see formatRankOrder. It is
	// "" while ranks are being computed again.
	storedRanksOrderText string
}

// StoreFailed returns a channel that is closed when the engine has failed for good; Err returns the reason. The process
// that runs the engine should then exit. Committed changes are kept.
func (e *Engine) StoreFailed() <-chan struct{} { return e.failedSignal }

// Err returns the reason why the engine has failed, or nil.
func (e *Engine) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.failure
}

// Close commits the operations that already wait, and then closes the store.
func (e *Engine) Close() error {
	e.mu.Lock()
	first := !e.isClosing
	e.isClosing = true
	e.mu.Unlock()
	if !first {
		return nil
	}
	<-e.writerToken
	for e.waitingOps.Len() > 0 {
		e.commitNextGroup()
	}
	var writeErr error
	if e.Err() == nil && !e.writesStopped { // do not write after a failure or in read-only mode
		// Losing the estimates is acceptable, so Close succeeds even if they cannot be written now.
		writeErr = e.writeEstimates()
		if k := database.ErrorKindOf(writeErr); k == database.DiskFull || k == database.DatabaseBusy {
			writeErr = nil
		}
	}
	e.writesStopped = true
	e.endClaimWaiter(ErrClosed)
	e.writerToken <- struct{}{} // later operations take the token, and are refused
	return errors.Join(writeErr, e.StopReading(), e.backend.Close())
}

// Log returns the engine's log.
func (e *Engine) Log() *slog.Logger { return e.log }

// RunningCommitTime returns for how long the current commit, or the current work between transactions, has
// been running. It returns 0 if the writer is idle. It never blocks, and is safe for concurrent use.
func (e *Engine) RunningCommitTime() time.Duration {
	start := e.commitStartedAt.Load()
	if start == nil {
		return 0
	}
	return time.Since(*start)
}

// StartDatabaseCopy records that a copy of the database is being made, and returns true. It returns false if another
// copy is in progress. Until EndDatabaseCopy, DeletableOutputs lists no files, so that no output that the copy refers
// to is deleted.
func (e *Engine) StartDatabaseCopy() bool {
	return e.databaseCopyInProgress.CompareAndSwap(false, true)
}

// EndDatabaseCopy records that the copy is finished.
func (e *Engine) EndDatabaseCopy() { e.databaseCopyInProgress.Store(false) }

// DatabaseCopyInProgress reports whether a copy of the database is being made.
func (e *Engine) DatabaseCopyInProgress() bool { return e.databaseCopyInProgress.Load() }

// DueChangeHints returns a channel that gets a value when something is due earlier than the last call of
// ApplyDueChanges reported.
func (e *Engine) DueChangeHints() <-chan struct{} { return e.dueChangeHints }

// WatchJobs returns a JobWatch that reports changes of the given jobs.
func (e *Engine) WatchJobs(seqs []int64) *store.JobWatch { return e.jobWatches.WatchJobs(seqs) }

// Counts returns the number of jobs in each state, and the size of the database.
func (e *Engine) Counts() store.Counts {
	c := e.JobReader.Counts()
	c.DatabaseBytes = e.diskSpace.DatabaseBytes()
	return c
}

// ErrClosed is the error for operations that arrive after Close was called.
var ErrClosed = queue.Errorf(queue.CodeUnavailable, "the service is stopping and has closed the queue; try again later")
