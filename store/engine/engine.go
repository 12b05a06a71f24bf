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
	"github.com/queuectl/queuectl/store/estimates"
	"github.com/queuectl/queuectl/store/reads"
	"github.com/queuectl/queuectl/store/rules"
)

// Engine keeps jobs in the tables of a database. One goroutine at a time writes: the one that took the token
// from writerToken, called the writer below. It commits the operations of all waiting callers together, one
// group per transaction.
// See docs/decisions/0013.
type Engine struct {
	backend Backend             // what differs between SQLite and PostgreSQL
	space   DiskSpace           // the disk space of the database
	shared  SharedDatabase      // nil if only this process uses the database
	now     func() queue.Millis // the engine's clock
	db      database.Conn       // the writer's connection
	log     *slog.Logger

	writerToken   chan struct{} // holds one token; the goroutine that takes it is the writer
	writesStopped bool          // no more writes are allowed; writer only
	readOnly      bool          // the engine is read-only and has no writer
	broken        chan struct{} // closed when the engine has failed
	dueSooner     chan struct{} // receives a hint when Promote must be called earlier than it reported
	watchers      store.Watchers
	copying       atomic.Bool // a backup, or a copy for doctor --verify, is being made

	rng *rand.Rand // source of random numbers; writer only
	mem memory     // the writer's cache of the database; writer only
	// rechecks lists the gates that the rules must check again. Rolling back a transaction does not shrink
	// it. Writer only.
	rechecks rules.Memory

	*reads.Reads
	thresholds
	identity
	commitClock
	txCarryover
	statistics
	foreignWork
	writeFairness
	publishedState
}

// identity identifies the database, and this node of it.
type identity struct {
	node       int64  // number of this node in the database; 0 if only one process uses the database
	databaseID string // identifier of the database; differs from that of every copy
	isCopy     bool   // the stored identifier differs, so the database is a copy
	// otherNodes is the number of other active nodes, as of the last transaction.
	otherNodes atomic.Int64
}

// thresholds are limits above which the engine behaves differently. Only tests change them.
type thresholds struct {
	// lanesKept is the number of empty lanes that are kept for later jobs. Creating a lane costs more than
	// keeping it.
	lanesKept         int64
	prefetchThreshold int // a claim that wants at least this number of jobs sends its query early
}

// commitClock measures how long the current commit takes.
type commitClock struct {
	createdAt time.Time // start of the clock of commitStart
	// commitStart is when the current transaction, or work between transactions, started, in nanoseconds since
	// createdAt; 0 between transactions.
	commitStart atomic.Int64
}

// txCarryover holds memory and findings of a transaction that the next ones use. Only the writer uses it.
type txCarryover struct {
	group           []*op   // memory for the operations of the current commit
	leaseBuffer     []int64 // memory for Tx.leases of the next transaction
	lastClaimQueue  string  // name of the queue that was last claimed from
	typicalJobBytes int     // recent size of a claimed job in bytes
	prewriteFailed  bool    // the last transaction ended with errPrewrite
}

// statistics holds cached statistics of attempts and run times.
type statistics struct {
	minute           minuteStatistics    // statistics of the current minute; writer only
	runtimeEstimates estimates.Estimates // typical run times of commands
}

// foreignWork holds what this node must still do because of the changes of other nodes. Only the writer uses it.
type foreignWork struct {
	// jobsReadied reports that another node's changes may have made jobs runnable, and that no claim has
	// followed yet.
	jobsReadied bool
	// closedHereStale reports that the lanes closed only for this node must be checked again.
	closedHereStale     bool
	closedHereCheckedAt queue.Millis // time of the last check of the lanes closed only for this node
	// foreignTimerAt is the time at which this node checks for timers that another node has not served.
	foreignTimerAt queue.Millis
	// foreignChanges lists jobs changed by other nodes whose watchers have not been notified yet.
	foreignChanges foreignChanges
}

// writeFairness holds what decides whose operations are committed next. Only the writer uses it.
type writeFairness struct {
	// lastServed holds when operations of each user and class were last carried out, as values of serveClock.
	lastServed   map[userClass]int64
	serveClock   int64        // number of operations carried out for users
	slowUsers    map[int]bool // users whose last operation took slowOp or longer
	lastSharedAt time.Time    // last time that operations of several users waited
	nextSolo     *op          // a slow user's operation, committed next and alone
}

// publishedState holds what callers and readers see of the writer's work, and the operations that wait for it.
type publishedState struct {
	order        atomic.Pointer[queue.Order] // the order as of the last commit
	mu           sync.Mutex                  // guards the following fields
	err          error                       // the reason why the engine has failed
	closing      bool
	waitingOps   [classes][]*op                 // operations that wait for a commit, by class
	counts       store.Counts                   // counts as of the last commit
	usage        map[int]userUsage              // by uid
	reservedJobs map[int64]database.Reservation // by seq of the job
	waiter       *waiter                        // the claim that waits for a runnable job
	lastEvent    int64                          // number of the newest stored event
	// publishedTurns holds queueState.lastTurns of each queue as of the last commit. The inner maps never
	// change.
	publishedTurns map[string]map[int]int64
	newEvent       chan struct{} // closed when the next event is stored; nil if no caller waits
}

// foreignChanges lists the jobs that other nodes have changed. If the field any is true, every job may have
// changed.
type foreignChanges struct {
	seqs []int64
	uids []int // users whose counts changed with the jobs
	any  bool
}

// memory is the writer's cache of the database, so that most operations need no query.
type memory struct {
	storedCounts
	metaLists
	rankOrder
	nextDue queue.Millis           // the earliest timer as of the last Promote
	lanes   *lanes                 // lanes and queues
	leases  map[int64]*rules.Lease // by seq of the job
	// usedUnits counts the units that leases hold, by gate. For a rate it counts only leases that are not known
	// to have started.
	usedUnits        map[int64]int
	lastPass         int64           // Pass of the queue that was served last, while weights differ
	turnCount        int64           // number of jobs that this node has claimed; orders the turns of users
	hasDependencies  bool            // a job waits, or once waited, for another job
	lastDecidedUID   int64           // uid of the user whose ended job was decided last
	recheckedUpTo    int64           // gates up to this one have been checked again; 0 if all have
	lastPromote      queue.Millis    // time of the last call of Promote
	hooks            store.Hooks     // hooks that are made for jobs at certain moments
	users            map[int]user    // users who have waiting or leased jobs
	maxLeasedPerUser int             // maximum number of leased jobs per user; 0 means unlimited
	owners           map[int]string  // account names by uid, without former owners
	disownments      []disownment    // unfinished moves of jobs to former owners; replaced, not changed
	batches          map[int64]batch // by number, without forgotten ones
	// reservedInMeta reports that meta lists leases that are not known to have started, although each node
	// has its own row for them.
	reservedInMeta bool
	// summedUpTo holds, for hours and days, the end of the last period whose statistics were summed up from
	// finer ones. lastTidyHour is the hour in which tidyFigures last finished.
	summedUpTo   [store.Day + 1]queue.Millis
	lastTidyHour queue.Millis
}

// storedCounts are counts and numbers that the database stores.
type storedCounts struct {
	commits       int64 // number of commits of all nodes that this cache reflects
	nextSeq       int64 // seq of the next job
	nextEvent     int64 // number of the next event
	enqueuedTotal int64 // number of jobs ever enqueued
	counts        [queue.Cancelled + 1]int64
	undecidedJobs int64 // number of ended jobs whose dependants are not decided yet
	emptyLanes    int64 // number of lanes without jobs
	committedJobs int64 // number of jobs in committed batches
	outputs       int64 // total size of all outputs in bytes
	keptJobs      int64 // number of jobs that ended while their queue had its own retention
}

// metaLists are the lists in the row of meta. A transaction replaces a list, and does not change it.
type metaLists struct {
	listedUsers  []int    // users listed in meta.users
	userList     string   // content of meta.users
	listedQueues []string // queues listed in meta.queues
	queueList    string   // content of meta.queues
}

// rankOrder says how ranks are computed.
type rankOrder struct {
	order   queue.Order
	ranking ranking
	// rankedBy is the order by which all ranks were computed, as stored in meta. It is "" while ranks are
	// being recomputed.
	rankedBy string
}

// Now returns the time of the engine's clock.
func (s *Engine) Now() queue.Millis { return s.now() }

// Broken returns a channel that is closed when the engine has failed for good; Err returns the reason. The process
// that runs the engine should then exit. Committed changes are kept.
func (s *Engine) Broken() <-chan struct{} { return s.broken }

// Err returns the reason why the engine has failed, or nil.
func (s *Engine) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Close commits the operations that are already waiting, then closes the store.
func (s *Engine) Close() error {
	s.mu.Lock()
	first := !s.closing
	s.closing = true
	s.mu.Unlock()
	if !first {
		return nil
	}
	<-s.writerToken
	for !s.idle() {
		s.commitNextGroup()
	}
	var unwritten error
	if s.Err() == nil && !s.writesStopped { // after a failure or in read-only mode, nothing may be written
		// Losing the estimates is acceptable: an engine that cannot write them now closes without an error.
		unwritten = s.writeEstimates()
		if k := database.KindOf(unwritten); k == database.Full || k == database.Busy {
			unwritten = nil
		}
	}
	s.writesStopped = true
	s.mu.Lock()
	w := s.waiter
	s.waiter = nil
	s.mu.Unlock()
	if w != nil {
		w.result <- claimResult{err: ErrClosed}
	}
	s.writerToken <- struct{}{} // operations that arrive later are refused
	return errors.Join(unwritten, s.StopReading(), s.backend.Close())
}

// Log returns the engine's log.
func (s *Engine) Log() *slog.Logger { return s.log }

// CommitTime returns the time since the current commit, or work between transactions, started. If neither is in
// progress, it returns 0. It never blocks, and is safe for concurrent use.
func (s *Engine) CommitTime() time.Duration {
	start := time.Duration(s.commitStart.Load())
	if start == 0 {
		return 0
	}
	return time.Since(s.createdAt) - start
}

// StartCopy records that a copy of the database is being made. It returns false if another copy is being made.
// Until EndCopy, DeletableOutputs lists no files.
func (s *Engine) StartCopy() bool { return s.copying.CompareAndSwap(false, true) }

// EndCopy records that the copy is finished.
func (s *Engine) EndCopy() { s.copying.Store(false) }

// Copying reports whether a copy of the database is being made.
func (s *Engine) Copying() bool { return s.copying.Load() }

// DueSooner returns a channel that receives a hint when something is due earlier than the last Promote
// reported.
func (s *Engine) DueSooner() <-chan struct{} { return s.dueSooner }

// Watch returns hints about changes of the given jobs.
func (s *Engine) Watch(seqs []int64) *store.JobWatch { return s.watchers.Watch(seqs) }

// countsNow returns the counts as of the last commit.
func (s *Engine) countsNow() store.Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

// Counts returns the number of jobs in each state, and the size of the database.
func (s *Engine) Counts() store.Counts {
	c := s.countsNow()
	c.Bytes = s.space.Bytes()
	return c
}

// LastEvent returns the number of the newest event, and a channel that is closed when a newer one is
// stored.
func (s *Engine) LastEvent() (last int64, newer <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newEvent == nil {
		s.newEvent = make(chan struct{})
	}
	return s.lastEvent, s.newEvent
}

// publishCounts makes the writer's counts visible to readers after a load.
func (s *Engine) publishCounts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastEvent = s.mem.nextEvent - 1
	s.counts.States, s.counts.EnqueuedTotal = s.mem.counts, s.mem.enqueuedTotal
	s.counts.Reranking = s.mem.ranking.state != 0
	s.counts.Outputs, s.counts.UnderOwnRetention = s.mem.outputs, s.mem.keptJobs
	s.noteAllUsageLocked()
	s.listAllReserved()
}

var ErrClosed = queue.Errorf(queue.CodeUnavailable, "the service is stopping and has closed the queue; try again later")
