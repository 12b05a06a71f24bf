package engine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/dependencies"
	"github.com/queuectl/queuectl/store/gates"
	"github.com/queuectl/queuectl/store/lanes"
	"github.com/queuectl/queuectl/store/readahead"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
	"github.com/queuectl/queuectl/store/statistics"
	"github.com/queuectl/queuectl/store/writequeue"
)

// Limits of the writer.
const (
	maxCommitGroupBytes   = 1 << 20 // bytes that one commit reads and writes; the last operation may exceed it
	maxCommitGroupRetries = 3       // retries of a group while another program has the database locked
)

// Tx is the transaction of one group of operations. It begins a database transaction only with its first
// statement. Operations that need only the engine's cache begin none.
//
// Like a bufio.Writer, a Tx keeps the first error of its statements in its field statementErr. Later statements do
// nothing and return the same error, and the transaction is rolled back. So a function that executes several statements
// need not check the error of each statement. After an error, queries find nothing, and no result computed from them is
// used.
type Tx struct {
	database.Conn
	hasBegun         bool
	engine           *Engine          // the engine that runs the transaction
	*databaseCache                    // the engine's cache
	startTime        queue.UnixMillis // time at the start of the transaction
	rules            rules.Rules      // rules that carry out the operations
	memoryAtStart    databaseCache    // copy of the engine's cache at the start; shares its leases
	undoFuncs        []func()         // functions that restore the engine's cache
	afterCommitFuncs []func()         // functions to call after the commit
	earliestTimerAt  queue.UnixMillis // earliest time passed to WakeServiceAt; 0 if none
	// first error of a statement; the transaction is rolled back if there is one
	statementErr error

	changedJobSeqs []int64 // jobs that changed
	// attemptMeasurements lists the starts and ends of attempts, for the statistics.
	attemptMeasurements    []rules.AttemptMeasurement
	userCountsBefore       map[int]userCounts                   // users that changed, as they were before the transaction
	queueCountsBefore      map[*lanes.Queue]records.QueueCounts // counts of changed queues before the transaction
	queuesWithChangedTurns []*lanes.Queue                       // queues in which the turns of users have changed

	draftState
	gateTables
	edgeTables
	leaseChanges
	operationForecast
	txWorkCounters
	laneCache
	serverTx
}

// draftState describes the jobs that are being enqueued.
type draftState struct {
	draftTexts        []records.EncodedTexts // encoded texts of the jobs, by draft number
	submissionNumber  int64                  // number of the submission that is being enqueued
	stagedBatchNumber int64                  // number of the batch to which stageFrame is adding jobs; 0 if none or new
}

// gateTables and edgeTables are the names under which a Tx embeds the tables of the packages gates and
// dependencies.
type (
	gateTables = gates.GateTables
	edgeTables = dependencies.Tables
)

// leaseChanges are the leases that a transaction has changed.
type leaseChanges struct {
	reservationsChanged          bool    // true if the list of reserved leases may have changed
	changedLeaseJobSeqs          []int64 // jobs whose leases changed
	nodesWithChangedReservations []int64 // nodes whose reserved leases changed
}

// operationForecast holds what is known of an operation before it runs. Its transaction uses this to send statements
// early.
type operationForecast struct {
	expectedSettlements []store.Settlement // ends of attempts that the operation will record
	// maxBytesPerUser limits the bytes that the jobs of each user may hold when ended attempts are recorded. 0
	// means unlimited.
	maxBytesPerUser   int64
	expectedClaimJobs int // number of jobs that the operation wants, if known
}

// txWorkCounters measures how much work a transaction has done.
type txWorkCounters struct {
	removedRows          int   // number of attempts and dependency rows removed
	examinedTrimParts    int   // number of outputs and inputs that TrimUserData has read to free space
	readJobBytes         int   // bytes of the rows of jobs that were read
	argumentBytesAtStart int64 // value of Conn.TotalArgumentBytes at the start of the transaction
}

// serverTx is the part of a transaction that only an engine on a server uses.
type serverTx struct {
	delta         *pendingDelta           // parts of the cache delta; nil if no other node is active
	claimPrefetch *claimPrefetch          // claim query that was sent early and whose rows are unused; nil if none
	readAhead     readahead.ReadAheadJobs // rows of waiting jobs that were read before they were needed
	prewrite      prewrite                // rows that were written before the writer lock was held
}

// commitNextGroup takes a group of waiting operations, commits them in one transaction and sends the replies.
// The caller holds the right to write.
func (e *Engine) commitNextGroup() {
	defer e.exitOnPanic()
	group := e.waitingOps.TakeGroup()
	switch {
	case len(group) == 0:
	case e.writesStopped:
		e.refuseGroup(group, cmp.Or(e.Err(), error(ErrClosed)))
	default:
		remaining, err := e.commitGroup(group)
		if err != nil {
			e.failEngine(err, remaining)
			remaining = nil
		}
		e.waitingOps.PutBack(remaining)
	}
}

// failEngine stops the engine for good. Each operation of group gets an error, which says that it is unknown
// whether its changes are stored. The caller holds the right to write.
func (e *Engine) failEngine(err error, group []*queuedOperation) {
	e.backend.OnEngineFailure()
	unknown := queue.Errorf(queue.CodeOutcomeUnknown,
		"the service ends, because it cannot use its database: %v; it is unknown whether the last changes were stored; "+
			"see the service's log and queuectl doctor, and check with queuectl list before you repeat a request", err)
	e.mu.Lock()
	e.failure = unknown
	e.mu.Unlock()
	close(e.failedSignal)
	e.writesStopped = true
	e.refuseGroup(group, unknown)
	e.endClaimWaiter(unknown)
}

// FailAfterReadError stops the engine for good because of an error in a read, such as damage.
func (e *Engine) FailAfterReadError(err error) {
	e.RunAsWriter(func() {
		if !e.writesStopped {
			e.failEngine(err, nil)
		}
	})
}

// commitGroup carries out a group in one transaction and replies to each operation. It returns the operations that got
// no reply. If err is nil, these operations belong in the next commit. Otherwise the database is broken.
func (e *Engine) commitGroup(group []*queuedOperation) (remaining []*queuedOperation, err error) {
	if err := e.backend.BeforeCommitGroup(); err != nil {
		return group, err
	}
	busyTries, fullTries := 0, 0
	for len(group) > 0 {
		n, grant, failedOp, err := e.tryCommitGroup(group)
		if err == nil {
			e.replyToGroup(group[:n], grant)
			return group[n:], nil
		}
		e.lastPrewriteFailed = errors.Is(err, errPrewriteMismatch)
		k := database.ErrorKindOf(err)
		isFromEarlierStatement := k == database.RequestFailed && e.backend.MayStemFromEarlierStatement(err)
		switch {
		case e.lastPrewriteFailed: // the next try writes no rows early, so it cannot fail again for this reason
		case k == database.DiskFull && fullTries == 0 && e.diskSpace.ReleaseDiskReserve(false):
			fullTries++
		case k == database.DiskFull:
			refusal := e.backend.RefusedRequestError(k, err)
			last := slices.DeleteFunc(slices.Clone(group), func(o *queuedOperation) bool { return !o.mayUseWholeDiskReserve })
			others := slices.DeleteFunc(slices.Clone(group), func(o *queuedOperation) bool { return o.mayUseWholeDiskReserve })
			e.refuseGroup(others, refusal)
			if len(others) == 0 && !e.diskSpace.ReleaseDiskReserve(true) {
				e.refuseGroup(last, refusal)
				return nil, nil
			}
			group = last // only the operations that may use the whole reserve: they write little and free space
		case k == database.DatabaseBusy && busyTries < maxCommitGroupRetries:
			busyTries++
		case k == database.DatabaseBusy:
			e.refuseGroup(group, e.backend.RefusedRequestError(k, err))
			return nil, nil
		// It is unknown which operation caused the error. Commit the operations one by one to find it.
		case isFromEarlierStatement && len(group) > 1:
			for i := range group {
				if _, err := e.commitGroup(group[i : i+1 : i+1]); err != nil {
					return group[i:], err
				}
			}
			return nil, nil
		case isFromEarlierStatement:
			e.log.Error("the database refused a change, so nothing of the request that made it was stored; this is a bug in "+
				"queuectl, please report it", "error", err)
			group[0].resultChan <- queue.Errorf(queue.CodeInternal, "the database refused this request, and nothing of it was "+
				"stored; see the log of the service")
			return nil, nil
		case failedOp != nil && (k == database.RequestFailed || k == database.RequestRejected):
			if k == database.RequestFailed {
				err = queue.Errorf(queue.CodeInternal, "the database refused this request, and nothing of it was "+
					"stored (%v); this is a bug in queuectl, please report it", err)
			}
			failedOp.resultChan <- err
			group = slices.DeleteFunc(slices.Clone(group), func(o *queuedOperation) bool { return o == failedOp })
		default:
			return group, err
		}
	}
	return nil, nil
}

// refuseGroup replies to each operation of a group with an error.
func (e *Engine) refuseGroup(group []*queuedOperation, err error) {
	for _, o := range group {
		o.resultChan <- err
	}
}

// replyToGroup sends the operations of a committed group their results, and the waiting claim its jobs.
func (e *Engine) replyToGroup(group []*queuedOperation, claimGrant *claimResult) {
	for _, o := range group {
		o.resultChan <- o.runError
	}
	if claimGrant != nil {
		claimGrant.waiter.resultChan <- *claimGrant
	}
}

// startCommitClock records, for RunningCommitTime, when a write starts. The returned function records its
// end. The caller holds the right to write.
func (e *Engine) startCommitClock() (stopClock func()) {
	e.commitStartedAt.Store(new(time.Now()))
	return func() { e.commitStartedAt.Store(nil) }
}

// tryCommitGroup runs the transaction of a group once. n is the number of operations that it ran; if the operations
// are large, it runs only the first ones. grant holds the jobs for the waiting claim, or is nil. After an
// error nothing is stored, unless the database is broken. failedOp is the operation that caused the error, or
// nil if that is unknown.
func (e *Engine) tryCommitGroup(group []*queuedOperation) (executedOps int, claimGrant *claimResult,
	failedOp *queuedOperation, err error) {
	defer e.startCommitClock()()
	t := &Tx{Conn: e.writerConn, engine: e, databaseCache: &e.cache, startTime: e.clock(), memoryAtStart: e.cache}
	t.gateTables, t.edgeTables = gates.New(t, &e.cache.gates), dependencies.New(t, &e.cache.dependencies)
	t.rules.Init(t, &e.gateRecheckState)
	defer func() {
		e.clearClaimBuffer()
		if err != nil {
			t.rollback()
		}
	}()
	if t.operationForecast = group[0].operationForecast; e.lastPrewriteFailed {
		t.expectedSettlements = nil
	}
	e.lastPrewriteFailed = false
	if err = e.backend.BeginTx(t); err != nil {
		// If the database rejects a row that was written before the writer lock was held, another node may have
		// taken over that job. The next try writes no such row.
		if t.prewrite.wasMade() && database.ErrorKindOf(err) == database.RequestFailed {
			err = errPrewriteMismatch
		}
		return 0, nil, nil, err
	}
	t.argumentBytesAtStart = e.writerConn.TotalArgumentBytes()
	t.OnRollback(e.gateRecheckState.SaveDirtyGates())
	if executedOps, failedOp, err = t.runOps(group); err != nil {
		return executedOps, nil, failedOp, err
	}
	for _, step := range []func() error{
		func() error { _, err := t.rules.ResolveChangedDependencies(); return err },
		t.rules.OpenLanes,
		func() (err error) { claimGrant, err = t.serveClaimWaiter(); return err },
		t.rules.OpenLanes,
		t.prewrite.checkAllConfirmed,
		t.WriteGateJobCounts, t.writeStatistics, t.writeCachedLanes, t.writeMetaRow,
	} {
		err = step()
		if err = cmp.Or(t.statementErr, err); err != nil {
			return executedOps, nil, nil, err
		}
	}
	if t.hasBegun {
		if err := t.Conn.Commit(); err != nil {
			if database.ErrorKindOf(err) == database.RequestFailed {
				err = fmt.Errorf("commit: %w", err)
			}
			return executedOps, nil, nil, err
		}
		failpoint.Hit("commit")
		e.backend.AfterCommit(e.cache.commitCount != t.memoryAtStart.commitCount)
	}
	t.publishCommittedState()
	return executedOps, claimGrant, nil, nil
}

// runOps runs the operations of a group. It stops early if the transaction gets too large, or if it takes too
// long while other users wait. n is the number of operations that it ran. failedOp is the operation whose
// error ended the transaction.
func (t *Tx) runOps(group []*queuedOperation) (executedOps int, failedOp *queuedOperation, err error) {
	s, now := t.engine, time.Now()
	usersSince := now // start of the group, or end of its last urgent operation
	shared := s.waitingOps.HadSeveralUsersRecently(now)
	for executedOps < len(group) && t.transferredBytes() < maxCommitGroupBytes &&
		!(shared && now.Sub(usersSince) >= writequeue.MaxGroupTime) {
		o := group[executedOps]
		if executedOps > 0 && o.uid != group[executedOps-1].uid && s.waitingOps.IsOfSlowUser(o) {
			s.waitingOps.SetNextSolo(o)
			break
		}
		executedOps++
		o.runError = o.run(t)
		// such an error ends the transaction, even if o.run only rejects the request
		failed := cmp.Or(t.statementErr, t.rules.Err())
		o.runError = cmp.Or(failed, o.runError)
		ended := time.Now()
		if o.priorityClass == UrgentClass {
			usersSince = ended
		} else {
			s.waitingOps.RecordServedOp(o, ended.Sub(now))
		}
		if now = ended; failed != nil || o.runError != nil && database.ErrorKindOf(o.runError) != database.RequestRejected {
			return executedOps, o, o.runError
		}
	}
	return executedOps, nil, nil
}

// usesDatabaseServer reports whether the database is on a server, so that each query takes a round trip.
func (t *Tx) usesDatabaseServer() bool { return t.engine.sharedDatabase != nil }

// transferredBytes returns how many bytes the transaction has read and written.
func (t *Tx) transferredBytes() int {
	return int(t.Conn.TotalArgumentBytes()-t.argumentBytesAtStart) + t.readJobBytes + t.rules.ClaimBytesRead
}

// EnsureBegun begins the database transaction if it has not begun yet. After an error of an earlier statement,
// it returns that error.
func (t *Tx) EnsureBegun() error {
	if t.statementErr = cmp.Or(t.statementErr, t.rules.Err()); t.statementErr == nil && !t.hasBegun {
		t.statementErr = t.Conn.Begin()
		t.hasBegun = t.statementErr == nil
	}
	return t.statementErr
}

// Exec implements database.Statements. Like the other methods of this interface, it begins the transaction if
// necessary and keeps the first error.
func (t *Tx) Exec(sql string, args ...any) error {
	if t.writeCachedLanes() == nil {
		t.discardPrefetchedRows() // the statement may change any row
		t.statementErr = t.Conn.Exec(sql, args...)
	}
	return t.statementErr
}

func (t *Tx) WriteRow(sql string, args ...any) error {
	if t.EnsureBegun() == nil {
		t.statementErr = t.Conn.WriteRow(sql, args...)
	}
	return t.statementErr
}

func (t *Tx) ExecRowsAffected(sql string, args ...any) (n int64, err error) {
	if t.writeCachedLanes() == nil {
		t.discardPrefetchedRows()
		n, t.statementErr = t.Conn.ExecRowsAffected(sql, args...)
	}
	return n, t.statementErr
}

func (t *Tx) Query(handleRow func(r database.Row) (more bool, err error), sql string, args ...any) error {
	if t.writeCachedLanes() == nil {
		t.statementErr = t.Conn.Query(handleRow, sql, args...)
	}
	return t.statementErr
}

func (t *Tx) QueryNumber(sql string, args ...any) (n int64, err error) {
	if t.writeCachedLanes() == nil {
		n, t.statementErr = t.Conn.QueryNumber(sql, args...)
	}
	return n, t.statementErr
}

// queryInt returns the integer in the first row of a query, or 0 if there is no row.
func (t *Tx) queryInt(sql string, args ...any) int64 {
	n, _ := t.QueryNumber(sql, args...)
	return n
}

// rollback undoes the transaction, in the database and in memory.
func (t *Tx) rollback() {
	if t.hasBegun {
		t.Conn.Rollback()
	}
	t.undoCacheChanges(0, &t.memoryAtStart)
	t.engine.minuteStats = statistics.MinuteCache{}
}

// undoCacheChanges undoes the changes of the engine's cache since it was equal to memoryBefore. At that time, the
// transaction had undoCount undo functions, and userCountsBefore and queueCountsBefore were empty.
func (t *Tx) undoCacheChanges(undoCount int, memoryBefore *databaseCache) {
	for _, undo := range slices.Backward(t.undoFuncs[undoCount:]) {
		undo()
	}
	*t.databaseCache = *memoryBefore
	for uid, u := range t.userCountsBefore {
		t.putUserCounts(uid, u)
	}
	for q, old := range t.queueCountsBefore {
		q.SetStoredCounts(old)
	}
	t.recountLeasedJobs()
}

// writeMetaRow writes the totals and the next numbers, if the transaction has changed them, to the row of the
// table meta.
func (t *Tx) writeMetaRow() error {
	t.updateMetaUserList()
	t.updateMetaQueueList()
	b := &t.memoryAtStart
	if !(t.hasBegun && t.Conn.HasUncountedChanges()) && !t.reservationsChanged && t.jobTotals == b.jobTotals &&
		t.metaUsersText == b.metaUsersText && t.metaQueuesText == b.metaQueuesText {
		return nil
	}
	inMeta, changed := "", false
	if t.reservationsChanged {
		var err error
		if inMeta, changed, err = t.engine.backend.WriteReservations(t); err != nil {
			return err
		}
	}
	t.commitCount++
	c := &t.JobCountByState
	t.Exec(`UPDATE meta SET reserved = CASE WHEN ? <> 0 THEN ? ELSE reserved END, commits = ?, next_seq = ?,
		enqueued = ?, next_event = ?, users = ?, queues = ?, blocked = ?, held = ?,
		pending = ?, failed = ?, processing = ?, completed = ?, dead = ?, cancelled = ?, output_bytes = ?`,
		changed, inMeta, t.commitCount, t.NextJobSeq, t.EnqueuedTotal, t.NextEventNumber, t.metaUsersText,
		t.metaQueuesText, c[queue.Blocked], c[queue.Held], c[queue.Pending], c[queue.Failed], c[queue.Processing],
		c[queue.Completed], c[queue.Dead], c[queue.Cancelled], t.OutputBytes)
	if t.delta == nil {
		return t.statementErr
	}
	delta, err := t.buildDelta()
	if err != nil {
		return err
	}
	return t.engine.sharedDatabase.StoreCacheDelta(t, t.commitCount, delta)
}

// EncodedReservations returns the encoded list of the leases whose attempts are not known to have started. See
// docs/decisions/0003.
func (t *Tx) EncodedReservations() string {
	list := make([]byte, 0, 1024)
	for seq, l := range t.leases {
		if !l.AttemptStarted {
			list = database.AppendLeaseReservation(list, seq, l.Job.Fence, l.Job.LastLeasingNodeID)
		}
	}
	return string(list)
}
