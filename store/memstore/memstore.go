// Package memstore implements store.Store in memory. Tests compare the other stores with this one, which they
// call the model. So its code is simple rather than fast.
package memstore

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Store implements store.Store and loses all data when the process ends. Its methods scan all jobs wherever that makes
// the code simpler. mu guards all fields except now, dueChangeHints and jobWatchers.
type Store struct {
	order            queue.RankPolicy
	maxLeasedPerUser int // maximum number of leased jobs of one user; 0 means unlimited
	now              func() queue.UnixMillis
	dueChangeHints   chan struct{}
	// ended parents for which it is not decided yet whether their dependants may run
	pendingParentStateChanges []parentStateChange

	queueRules            map[string]store.QueueRule // rules by queue name
	queueCreatorUIDs      map[string]int             // for each queue, the uid that enqueued its first job
	nextQueueTurns        map[string]int64           // by queue, the number of its next turn; used while weights differ
	lastServedQueueTurn   int64                      // number of the turn of the queue that was served last
	lastClaimByQueueUser  map[queueUser]int64        // by user and queue: number of the last claim of a job of that user
	claimCount            int64                      // number of jobs ever claimed; a job counts once per claim
	claimCountAtTurnReset map[string]int64           // by queue: the value of claimCount when resetUserTurns was called
	node                  store.Node
	hookSettings          store.HookSettings
	gateRules             map[gate]queue.Demand // the current rule of each lock and rate
	// by rate, the times of its starts; deleteExpiredRateStarts deletes old ones
	rateStarts map[gate][]queue.UnixMillis
	fixedGates map[gate]bool // gates (locks and rates) whose rule jobs cannot change

	mu                sync.Mutex
	isClosed          bool
	jobs              map[int64]*job                  // by seq
	lastSeq           int64                           // the last seq assigned
	enqueuedTotal     int64                           // number of jobs ever enqueued
	epoch             int64                           // epoch (number of the service start), raised by AdvanceEpoch
	events            []queue.Event                   // event n is at index n-1-trimmedEventCount
	trimmedEventCount int64                           // number of deleted events
	begunBatchCount   int64                           // number of batches ever begun
	batches           []*batch                        // batches that have jobs that are not in the queue yet
	batchDiscardTimes map[requestKey]queue.UnixMillis // by user and name, the times when batches were discarded
	storedReceipts    map[requestKey]storedReceipt    // by user and key, the receipts of requests with an idempotency key
	settings          map[string]store.Setting        // by key
	ownerNames        map[int]string                  // by uid, the owner's name; uids below 0 are of former owners
	deletableOutputs  []string                        // output files to delete, because their attempts were removed
	// examinedPartCount is the number of outputs and inputs that the current call of runUpdateTx has examined in order to
	// free space.
	examinedPartCount int
	runnerDirs        []string         // directories that were last passed to StoreRunnerDirs
	nextDueAt         queue.UnixMillis // time when the last ApplyDueChanges expected the next work
	newEventSignal    chan struct{}    // closed by the next event; nil if no caller waits for it
	awaitCalls        []*awaitCall     // calls of AwaitJobs that are waiting
	jobWatchers       store.JobWatches

	statisticsSamples []statisticsSample // all starts and ends of attempts
	runtimeEstimates  []runtimeEstimate  // typical run times; the command that completed last is at the end

	schedules            map[string]*schedule // by name
	scheduleVersionCount int64                // number of versions of schedules ever stored
}

var _ store.Store = (*Store)(nil)

// job is a stored job, with values that no method returns.
type job struct {
	queue.Job
	rank            int64
	isLeased        bool
	lastClaimNumber int64 // number of the last claim of this job, counted by Store.claimCount
	// previousUserClaimNumber is the value of Store.lastClaimByQueueUser for the user before this job was claimed.
	// undoUserTurn restores that value if the job is returned before it has started.
	previousUserClaimNumber int64
	uidAfterLease           int              // uid that the job gets when its lease ends; 0 means no change
	pendingHookEvents       queue.HookEvents // event of the job for which hook jobs must still be created
	hasNeverBeenDue         bool             // the job has not been due yet, so it does not gain ageing points
	dependencyLinks         []dependencyLink // dependencies of the job, including satisfied and broken ones
	onDependencyFailure     queue.OnDependencyFailure
	attempts                []queue.Attempt
	attemptRecordBytes      int64 // bytes of the attempts' records that count toward the byte quota
}

// dependencyLink is a dependency of a job, with its status.
type dependencyLink struct {
	queue.Dependency
	status store.DependencyStatus
}

// hasDependencyWithStatus reports whether a dependency of the job has the given status.
func (j *job) hasDependencyWithStatus(status store.DependencyStatus) bool {
	return slices.ContainsFunc(j.dependencyLinks, func(l dependencyLink) bool { return l.status == status })
}

// requestKey identifies a request by its user and idempotency key, or a discarded batch by its user and name.
type requestKey struct {
	uid            int
	keyOrBatchName string
}

// storedReceipt is the receipt of a request with an idempotency key. A repeated request gets the same receipt.
type storedReceipt struct {
	storedAt        queue.UnixMillis
	requestChecksum [32]byte
	receipt         store.Receipt
}

// New creates an empty store. The order determines in which order jobs start.
func New(order queue.RankPolicy) *Store {
	return NewWithClock(order, func() queue.UnixMillis { return queue.UnixMillisOf(time.Now()) })
}

// NewWithClock is like New, but uses the given clock. The clock may return the same time several times.
func NewWithClock(order queue.RankPolicy, now func() queue.UnixMillis) *Store {
	return &Store{
		order:                 order,
		now:                   now,
		dueChangeHints:        make(chan struct{}, 1),
		jobs:                  map[int64]*job{},
		storedReceipts:        map[requestKey]storedReceipt{},
		batchDiscardTimes:     map[requestKey]queue.UnixMillis{},
		settings:              map[string]store.Setting{},
		ownerNames:            map[int]string{},
		queueRules:            map[string]store.QueueRule{},
		queueCreatorUIDs:      map[string]int{},
		nextQueueTurns:        map[string]int64{},
		lastClaimByQueueUser:  map[queueUser]int64{},
		claimCountAtTurnReset: map[string]int64{},
		gateRules:             map[gate]queue.Demand{},
		rateStarts:            map[gate][]queue.UnixMillis{},
		fixedGates:            map[gate]bool{},
		nextDueAt:             math.MaxInt64,

		schedules: map[string]*schedule{},
	}
}

// Now returns the time of the store's clock.
func (s *Store) Now() queue.UnixMillis { return s.now() }

// RankOrder returns the settings that determine the order in which jobs start.
func (s *Store) RankOrder() queue.RankPolicy {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.order
}

// StoreFailed returns a nil channel, because a store in memory never fails.
func (s *Store) StoreFailed() <-chan struct{} { return nil }

// Err returns nil, because a store in memory never fails.
func (s *Store) Err() error { return nil }

// Close closes the store. Calls of AwaitJobs that are waiting and all later calls return ErrUnavailable.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isClosed = true
	for _, w := range s.awaitCalls {
		close(w.claimedJobs)
	}
	s.awaitCalls = nil
	return nil
}

// runReadTx runs a function as a transaction that changes nothing.
func (s *Store) runReadTx(ctx context.Context, view func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed {
		return queue.ErrUnavailable
	}
	return view()
}

// runUpdateTx runs change as a transaction, and passes the time to it. If change returns an error, it must not have
// changed anything. Otherwise runUpdateTx decides dependencies and gives runnable jobs to waiting calls of AwaitJobs.
// It sends a hint if ApplyDueChanges must be called before nextDueAt.
func (s *Store) runUpdateTx(ctx context.Context, change func(now queue.UnixMillis) error) error {
	return s.runReadTx(ctx, func() error {
		now := s.now()
		s.rankNewlyDueJobs(now)
		s.examinedPartCount = 0
		if err := change(now); err != nil {
			return err
		}
		s.resolveChangedDependencies(now)
		s.serveAwaitCalls(now)
		if next, found := s.nextDueChangeTime(now); found && next < s.nextDueAt {
			queue.TrySend(s.dueChangeHints, struct{}{})
		}
		return nil
	})
}

// rankNewlyDueJobs ranks the jobs that are due for the first time. From then on, these jobs gain ageing points.
func (s *Store) rankNewlyDueJobs(now queue.UnixMillis) {
	for _, j := range s.jobs {
		if j.hasNeverBeenDue && j.DueAt <= now {
			j.hasNeverBeenDue = false
			if j.State == queue.Pending {
				s.setRank(j, j.AgingSince, s.enqueuedTotal)
			}
		}
	}
}

// setState changes a job's state. It panics if the state table does not allow the transition.
func (s *Store) setState(j *job, newState queue.State, now queue.UnixMillis) {
	if newState != j.State && !j.State.CanChangeTo(newState) {
		panic("memstore: " + j.State.String() + " cannot change to " + newState.String())
	}
	ends := newState.HasEnded() && !j.State.HasEnded()
	j.State = newState
	if newState != queue.Processing {
		j.PausedAt, j.PausedBy = 0, 0
	}
	j.UsesQueueRetention = (newState == queue.Completed || newState == queue.Cancelled) &&
		s.queueRule(j.Queue).Retention != store.Retention{}
	j.UpdatedAt = now
	j.EndedAt = 0
	if newState.HasEnded() {
		j.EndedAt = now
	}
	s.jobWatchers.NotifyOfChangedJobs(j.Seq)
	if ends {
		s.pendingParentStateChanges = append(s.pendingParentStateChanges,
			parentStateChange{parentSeq: j.Seq, parentState: newState})
		j.pendingHookEvents = queue.HookEventsOfState(newState)
	}
}

// parentStateChange records that a parent has ended in the given state, was removed (state 0), or runs again.
// resolveChangedDependencies uses it to decide whether the dependants of the parent may run.
type parentStateChange struct {
	parentSeq       int64
	parentState     queue.State
	parentRunsAgain bool
}

// resolveChangedDependencies decides whether the dependants of ended parents may run. It also decides about the
// dependants of the jobs that it cancels.
func (s *Store) resolveChangedDependencies(now queue.UnixMillis) {
	for ; len(s.pendingParentStateChanges) > 0; s.pendingParentStateChanges = s.pendingParentStateChanges[1:] {
		e := s.pendingParentStateChanges[0]
		for _, j := range s.jobsBySeq() {
			for i := range j.dependencyLinks {
				l := &j.dependencyLinks[i]
				switch {
				case l.ParentSeq != e.parentSeq:
				case e.parentRunsAgain:
					if l.status == store.Broken {
						l.status = store.Unresolved
						s.makeDependantWaitAgain(j, now)
					}
				case l.status == store.Unresolved:
					satisfied := l.Condition.SatisfiedBy(e.parentState) || j.onDependencyFailure == queue.DependencyFailureRun
					if l.status = store.Satisfied; !satisfied {
						l.status = store.Broken
					}
					s.applyResolvedDependency(j, satisfied, now)
				}
			}
		}
	}
}

// makeDependantWaitAgain makes a job that was cancelled because of a dependency wait again. It does nothing if a
// dependency is broken, if the job's input has been removed, or if an unfinished job has the same unique key.
func (s *Store) makeDependantWaitAgain(j *job, now queue.UnixMillis) {
	if j.State != queue.Cancelled || j.Reason != queue.ReasonDependency || j.InputRemoved != 0 ||
		j.hasDependencyWithStatus(store.Broken) {
		return
	}
	if other := s.newestJobWithUniqueKey(j.UID, j.Unique); other != nil && !other.State.HasEnded() {
		return
	}
	s.restartWaitingTime(j, now)
	s.applyDeclaredLimits(j, nil, now)
	j.Reason = ""
	s.setState(j, queue.Blocked, now)
	s.addEvent(j, queue.EventRetried, queue.EventDetail{Reason: queue.ReasonDependency}, now)
	s.pendingParentStateChanges = append(s.pendingParentStateChanges,
		parentStateChange{parentSeq: j.Seq, parentRunsAgain: true})
}

// applyResolvedDependency changes a job after one of its dependencies was decided. If isSatisfied is false, the job is
// cancelled or held, as its field onDependencyFailure says. If isSatisfied is true and this was the last undecided
// dependency, the job may run.
func (s *Store) applyResolvedDependency(j *job, isSatisfied bool, now queue.UnixMillis) {
	detail := queue.EventDetail{Reason: queue.ReasonDependency}
	switch {
	case j.State != queue.Blocked && j.State != queue.Held:
	case isSatisfied && (j.State == queue.Held || j.hasDependencyWithStatus(store.Unresolved)):
	case isSatisfied:
		s.restartWaitingTime(j, max(now, j.RunAt))
		s.setState(j, queue.Pending, now)
		j.Reason = ""
		s.addEvent(j, queue.EventReleased, detail, now)
	case j.onDependencyFailure == queue.DependencyFailureCancel:
		s.setState(j, queue.Cancelled, now)
		j.Reason = queue.ReasonDependency
		s.addEvent(j, queue.EventCancelled, detail, now)
	case j.State != queue.Held:
		s.setState(j, queue.Held, now)
		j.Reason = queue.ReasonDependency
		s.addEvent(j, queue.EventHeld, detail, now)
	}
}

// addEvent adds an event about a job, and creates the hook jobs that this event causes.
func (s *Store) addEvent(j *job, kind queue.EventKind, detail queue.EventDetail, now queue.UnixMillis) {
	if s.newEventSignal != nil {
		close(s.newEventSignal)
		s.newEventSignal = nil
	}
	s.events = append(s.events, queue.Event{
		Seq: s.trimmedEventCount + int64(len(s.events)) + 1, Time: now, Kind: kind, JobSeq: j.Seq, JobID: j.ID,
		State:           j.State,
		Detail:          detail,
		RestrictedToUID: j.RestrictedToUID(),
	})
	if moments := j.pendingHookEvents; moments != 0 {
		j.pendingHookEvents = 0
		s.createHookJobs(j, moments, now)
	}
}

// setRank sets the rank of a job. Its ageing points count from the time agingSince or, if ageing counts
// enqueued jobs, from arrivalNumber.
func (s *Store) setRank(j *job, agingSince queue.UnixMillis, arrivalNumber int64) {
	j.AgingSince, j.ArrivalNumber = agingSince, arrivalNumber
	j.rank = s.order.Rank(j.Priority, agingSince, arrivalNumber)
}

// isExpired reports whether the job has expired, so that it must be cancelled instead of started.
func (j *job) isExpired(now queue.UnixMillis) bool {
	return j.State.IsWaiting() && !j.isLeased && j.ExpiresAt != 0 && j.ExpiresAt <= now
}

func (s *Store) cancelExpiredJob(j *job, now queue.UnixMillis) {
	s.setState(j, queue.Cancelled, now)
	j.Reason = queue.ReasonExpired
	s.addEvent(j, queue.EventExpired, queue.EventDetail{Reason: queue.ReasonExpired}, now)
}

// jobsBySeq returns the stored jobs, ordered by seq.
func (s *Store) jobsBySeq() []*job {
	seqs := slices.Sorted(maps.Keys(s.jobs))
	jobs := make([]*job, len(seqs))
	for i, seq := range seqs {
		jobs[i] = s.jobs[seq]
	}
	return jobs
}

// copyJob returns a deep copy of j.
func copyJob(j queue.Job) queue.Job {
	j.Demands = slices.Clone(j.Demands)
	j.DependsOn = slices.Clone(j.DependsOn)
	j.DependencyResults = slices.Clone(j.DependencyResults)
	j.Argv = slices.Clone(j.Argv)
	j.Env = slices.Clone(j.Env)
	j.SecretReferences = slices.Clone(j.SecretReferences)
	j.OkCodes = slices.Clone(j.OkCodes)
	j.NoRetryCodes = slices.Clone(j.NoRetryCodes)
	j.DeferCodes = slices.Clone(j.DeferCodes)
	j.Labels = maps.Clone(j.Labels)
	if j.Backoff.Jitter != nil {
		jitter := *j.Backoff.Jitter
		j.Backoff.Jitter = &jitter
	}
	if j.Progress != nil {
		progress := *j.Progress
		j.Progress = &progress
	}
	if j.RunAsUID != nil {
		uid := *j.RunAsUID
		j.RunAsUID = &uid
	}
	return j
}
