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

// Store implements store.Store and loses all data when the process ends. Its methods scan all jobs wherever
// that makes the code simpler. mu guards all fields except now, promoteHints and watchers.
type Store struct {
	order            queue.Order
	maxLeasedPerUser int // maximum number of leased jobs of one user; 0 means unlimited
	now              func() queue.Millis
	promoteHints     chan struct{}
	endedParents     []parentEnd // ended parents for which it is not decided yet whether their dependants may run

	queueRules     map[string]store.QueueRule // rules by queue name
	firstUIDs      map[string]int             // for each queue, the uid that enqueued its first job
	nextTurns      map[string]int64           // by queue, the number of its next turn; used while weights differ
	lastServedTurn int64                      // number of the turn of the queue that was served last
	lastUserClaims map[queueUser]int64        // by user and queue: number of the last claim of a job of that user
	claimCount     int64                      // number of jobs ever claimed; a job counts once per claim
	turnsResetAt   map[string]int64           // by queue: the value of claimCount when resetTurns was called
	node           store.Node
	hooks          store.Hooks
	gateRules      map[gate]queue.Demand   // the current rule of each lock and rate
	rateStarts     map[gate][]queue.Millis // by rate, the times of its starts; forgetStarts deletes old ones
	fixedGates     map[gate]bool           // gates (locks and rates) whose rule jobs cannot change

	mu             sync.Mutex
	closed         bool
	jobs           map[int64]*job               // by seq
	lastSeq        int64                        // the last seq assigned
	enqueuedTotal  int64                        // number of jobs ever enqueued
	epoch          int64                        // epoch (number of the service start), raised by NextEpoch
	events         []queue.Event                // event n is at index n-1-trimmedCount
	trimmedCount   int64                        // number of deleted events
	batchCount     int64                        // number of batches ever begun
	batches        []*batch                     // batches that have jobs that are not in the queue yet
	discardTimes   map[requestKey]queue.Millis  // by user and name, the times when batches were discarded
	storedReceipts map[requestKey]storedReceipt // by user and key, the receipts of requests with an idempotency key
	settings       map[string]store.Setting     // by key
	owners         map[int]string               // by uid, the owner's name; uids below 0 are of former owners
	garbage        []string                     // output files to delete, because their attempts were removed
	// examinedCount is the number of outputs and inputs that the current call of update has examined in order
	// to free space.
	examinedCount int
	runnerDirs    []string      // directories that were last passed to StoreRunnerDirs
	nextDueAt     queue.Millis  // time when the last call of Promote expected the next work
	newEvent      chan struct{} // closed by the next event; nil if no caller waits for it
	waiters       []*waiter     // calls of Await that are waiting
	watchers      store.Watchers

	samples          []sample          // all starts and ends of attempts
	runtimeEstimates []runtimeEstimate // typical run times; the command that completed last is at the end

	schedules       map[string]*schedule // by name
	generationCount int64                // number of versions of schedules ever stored
}

var _ store.Store = (*Store)(nil)

// job is a stored job, with values that no method returns.
type job struct {
	queue.Job
	rank      int64
	isLeased  bool
	lastClaim int64 // number of the last claim of this job, counted by Store.claimCount
	// previousUserClaim is the value of Store.lastUserClaims for the user before this job was claimed.
	// takeBackTurn restores that value if the job is returned before it has started.
	previousUserClaim   int64
	disownToUID         int              // uid that the job gets when its lease ends; 0 means no change
	pendingHookEvents   queue.HookEvents // event of the job for which hook jobs must still be created
	notYetDue           bool             // the job has not been due yet, so it does not gain ageing points
	links               []link           // dependencies of the job, including satisfied and broken ones
	onDependencyFailure queue.OnDependencyFailure
	attempts            []queue.Attempt
	recordBytes         int64 // bytes of the attempts' records that count toward the byte quota
}

// link is a dependency of a job, with its status.
type link struct {
	queue.Dependency
	status store.DependencyStatus
}

// hasLink reports whether a dependency of the job has the given status.
func (j *job) hasLink(status store.DependencyStatus) bool {
	return slices.ContainsFunc(j.links, func(l link) bool { return l.status == status })
}

// requestKey identifies a request by its user and idempotency key, or a discarded batch by its user and name.
type requestKey struct {
	uid  int
	name string
}

// storedReceipt is the receipt of a request with an idempotency key. A repeated request gets the same receipt.
type storedReceipt struct {
	storedAt queue.Millis
	checksum [32]byte
	receipt  store.Receipt
}

// New creates an empty store. The order determines in which order jobs start.
func New(order queue.Order) *Store {
	return NewAt(order, func() queue.Millis { return queue.MillisOf(time.Now()) })
}

// NewAt is like New, but uses the given clock. The clock may return the same time several times.
func NewAt(order queue.Order, now func() queue.Millis) *Store {
	return &Store{
		order:          order,
		now:            now,
		promoteHints:   make(chan struct{}, 1),
		jobs:           map[int64]*job{},
		storedReceipts: map[requestKey]storedReceipt{},
		discardTimes:   map[requestKey]queue.Millis{},
		settings:       map[string]store.Setting{},
		owners:         map[int]string{},
		queueRules:     map[string]store.QueueRule{},
		firstUIDs:      map[string]int{},
		nextTurns:      map[string]int64{},
		lastUserClaims: map[queueUser]int64{},
		turnsResetAt:   map[string]int64{},
		gateRules:      map[gate]queue.Demand{},
		rateStarts:     map[gate][]queue.Millis{},
		fixedGates:     map[gate]bool{},
		nextDueAt:      math.MaxInt64,

		schedules: map[string]*schedule{},
	}
}

// Now returns the time of the store's clock.
func (s *Store) Now() queue.Millis { return s.now() }

// Order returns the settings that determine the order in which jobs start.
func (s *Store) Order() queue.Order {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.order
}

// Broken returns a nil channel, because a store in memory never fails.
func (s *Store) Broken() <-chan struct{} { return nil }

// Err returns nil, because a store in memory never fails.
func (s *Store) Err() error { return nil }

// Close closes the store. Calls of Await that are waiting and all later calls return ErrUnavailable.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, w := range s.waiters {
		close(w.claimedJobs)
	}
	s.waiters = nil
	return nil
}

// read runs a function as a transaction that changes nothing.
func (s *Store) read(ctx context.Context, view func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return queue.ErrUnavailable
	}
	return view()
}

// update runs change as a transaction, and passes the time to it. If change returns an error, it must not
// have changed anything. Otherwise update decides dependencies and gives runnable jobs to waiting calls of
// Await. It sends a hint if Promote must be called before nextDueAt.
func (s *Store) update(ctx context.Context, change func(now queue.Millis) error) error {
	return s.read(ctx, func() error {
		now := s.now()
		s.rankNewlyDue(now)
		s.examinedCount = 0
		if err := change(now); err != nil {
			return err
		}
		s.decideDependencies(now)
		s.serveWaiters(now)
		if next, found := s.earliestDue(now); found && next < s.nextDueAt {
			queue.TrySend(s.promoteHints, struct{}{})
		}
		return nil
	})
}

// rankNewlyDue ranks the jobs that are due for the first time. From then on they gain ageing points.
func (s *Store) rankNewlyDue(now queue.Millis) {
	for _, j := range s.jobs {
		if j.notYetDue && j.DueAt <= now {
			j.notYetDue = false
			if j.State == queue.Pending {
				s.setRank(j, j.AgingSince, s.enqueuedTotal)
			}
		}
	}
}

// setState changes a job's state. It panics if the state table does not allow the transition.
func (s *Store) setState(j *job, newState queue.State, now queue.Millis) {
	if newState != j.State && !j.State.CanChangeTo(newState) {
		panic("memstore: " + j.State.String() + " cannot change to " + newState.String())
	}
	ends := newState.Ended() && !j.State.Ended()
	j.State = newState
	if newState != queue.Processing {
		j.PausedAt, j.PausedBy = 0, 0
	}
	j.OwnRetention = (newState == queue.Completed || newState == queue.Cancelled) &&
		s.queueRule(j.Queue).Retention != store.Retention{}
	j.UpdatedAt = now
	j.EndedAt = 0
	if newState.Ended() {
		j.EndedAt = now
	}
	s.watchers.Notify(j.Seq)
	if ends {
		s.endedParents = append(s.endedParents, parentEnd{seq: j.Seq, state: newState})
		j.pendingHookEvents = queue.HookEventsOf(newState)
	}
}

// parentEnd records that a parent has ended in the given state, was removed (state 0), or runs again.
// decideDependencies uses it to decide whether the dependants of the parent may run.
type parentEnd struct {
	seq       int64
	state     queue.State
	runsAgain bool
}

// decideDependencies decides whether the dependants of ended parents may run. It also decides about the
// dependants of the jobs that it cancels.
func (s *Store) decideDependencies(now queue.Millis) {
	for ; len(s.endedParents) > 0; s.endedParents = s.endedParents[1:] {
		e := s.endedParents[0]
		for _, j := range s.jobsBySeq() {
			for i := range j.links {
				l := &j.links[i]
				switch {
				case l.JobSeq != e.seq:
				case e.runsAgain:
					if l.status == store.Broken {
						l.status = store.Unresolved
						s.reopenDependant(j, now)
					}
				case l.status == store.Unresolved:
					satisfied := l.Condition.SatisfiedBy(e.state) || j.onDependencyFailure == queue.DependencyFailureRun
					if l.status = store.Satisfied; !satisfied {
						l.status = store.Broken
					}
					s.applyDependency(j, satisfied, now)
				}
			}
		}
	}
}

// reopenDependant makes a job that was cancelled because of a dependency wait again. It does nothing if a
// dependency is broken, if the job's input has been removed, or if an unfinished job has the same unique key.
func (s *Store) reopenDependant(j *job, now queue.Millis) {
	if j.State != queue.Cancelled || j.Reason != queue.ReasonDependency || j.InputRemoved != 0 || j.hasLink(store.Broken) {
		return
	}
	if other := s.newestJobWithKey(j.UID, j.Unique); other != nil && !other.State.Ended() {
		return
	}
	s.restartWait(j, now)
	s.applyDeclaredLimits(j, nil, now)
	j.Reason = ""
	s.setState(j, queue.Blocked, now)
	s.addEvent(j, queue.EventRetried, queue.EventDetail{Reason: queue.ReasonDependency}, now)
	s.endedParents = append(s.endedParents, parentEnd{seq: j.Seq, runsAgain: true})
}

// applyDependency changes a job after one of its dependencies was decided. If satisfied is false, the job is
// cancelled or held, as its field onDependencyFailure says. If satisfied is true and it was the last undecided
// dependency, the job may run.
func (s *Store) applyDependency(j *job, satisfied bool, now queue.Millis) {
	detail := queue.EventDetail{Reason: queue.ReasonDependency}
	switch {
	case j.State != queue.Blocked && j.State != queue.Held:
	case satisfied && (j.State == queue.Held || j.hasLink(store.Unresolved)):
	case satisfied:
		s.restartWait(j, max(now, j.RunAt))
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
func (s *Store) addEvent(j *job, kind queue.EventKind, d queue.EventDetail, now queue.Millis) {
	if s.newEvent != nil {
		close(s.newEvent)
		s.newEvent = nil
	}
	s.events = append(s.events, queue.Event{
		Seq: s.trimmedCount + int64(len(s.events)) + 1, Time: now, Kind: kind, JobSeq: j.Seq, JobID: j.ID, State: j.State,
		Detail:          d,
		RestrictedToUID: j.RestrictedToUID(),
	})
	if moments := j.pendingHookEvents; moments != 0 {
		j.pendingHookEvents = 0
		s.createHooks(j, moments, now)
	}
}

// setRank sets the rank of a job. Its ageing points count from the time agingSince or, if ageing counts
// enqueued jobs, from arrivalNumber.
func (s *Store) setRank(j *job, agingSince queue.Millis, arrivalNumber int64) {
	j.AgingSince, j.ArrivalNumber = agingSince, arrivalNumber
	j.rank = s.order.Rank(j.Priority, agingSince, arrivalNumber)
}

// isExpired reports whether the job has expired, so that it must be cancelled instead of started.
func (j *job) isExpired(now queue.Millis) bool {
	return j.State.Waiting() && !j.isLeased && j.ExpiresAt != 0 && j.ExpiresAt <= now
}

func (s *Store) cancelExpired(j *job, now queue.Millis) {
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
	j.Secrets = slices.Clone(j.Secrets)
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
	if j.AsUID != nil {
		uid := *j.AsUID
		j.AsUID = &uid
	}
	return j
}
