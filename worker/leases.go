package worker

import (
	"cmp"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// leases holds the leases of this service. Callers of its methods, and of methods of leaseState,
// hold the pool's mu.
type leases struct {
	byLease    map[queue.Lease]*leaseState
	claimCount int64                 // number of leases ever added
	bySeq      map[int64]*leaseState // the leases in byLease, by job number
	// Number of watchers of each job, by job number; runners send results of watched jobs
	// immediately.
	watchers map[int64]int
	changed  chan struct{} // closed and replaced by notifyChange
}

// leaseState is one lease of this service. A lease passes through these steps; some may be skipped:
//
//  1. unsent: the job waits for a separate runner or, with readingDeps, for its dependencies'
//     results.
//  2. conn is set: the job was sent to a runner, which may or may not start it. A Drop takes it back.
//  3. mayHaveStarted: the runner has recorded the attempt and may have started it.
//  4. running: the attempt is known to have started.
//  5. settling: the result, or the job's return to the queue, is in session.pending.
//  6. done is closed: the store has recorded that, and the lease is gone.
//
// If the connection of the runner ends, conn is nil until the pool has reconnected to the runner or
// recovered it.
type leaseState struct {
	job           queue.Job
	claimNumber   int64       // position of the lease in the order of claims
	conn          *runnerConn // the runner's connection; nil while not connected or not known
	runnerDir     string      // directory of the runner; "" if not known
	unsent        bool        // the job was sent to no runner yet: it waits for a separate runner or for readingDeps
	readingDeps   bool        // the job waits for the results of its dependencies
	sentAt        time.Time   // when the job was sent to the runner; before that, when it was claimed
	dropSent      bool        // a Drop was sent and not answered yet
	recalled      bool        // the Drop is part of a recall, so it returns the job unchanged
	lastMessageAt time.Time   // last message of the runner, while it is disconnected
	running       bool        // the attempt is known to have started
	// mayHaveStarted is set if a Drop came too late: the runner has recorded the attempt, and
	// perhaps started it.
	mayHaveStarted bool
	hasProcess     bool // the runner's files name the process or hold the result
	workerID       string
	pid            int
	startedAt      queue.Millis
	// progress is the last reported progress; nil if none was reported.
	progress *queue.Progress
	// progressRecordedAt is when progress was last recorded, or skipped because the attempt was not
	// known to run.
	progressRecordedAt time.Time
	requestedEnd       *queue.End // how the service ends the attempt; nil if it has not requested an end
	grace              time.Duration
	endedBy            *int   // uid of the user who ended the attempt; nil if no user did
	endVerb            string // action with which the attempt was ended, such as "cancel"
	paused             bool   // the store has recorded the job as paused
	exemptFromPauseAll bool   // the job was resumed while all jobs are paused
	// pauseDone is closed when the caller that is pausing or resuming the job has finished. It is
	// nil if there is no such caller.
	pauseDone chan struct{}
	settling  bool // the end or return of the lease is in session.pending
	// The job was returned to the queue unchanged, or its attempt was stopped in order to requeue
	// it.
	requeued       bool
	pendingChanges []*pendingChange // changes that callers wait for while the job has not started, oldest first
	reportedChange *pendingChange   // the change that is in session.pending
	started        chan struct{}    // closed when the attempt is known to have started
	done           chan struct{}    // closed when the end of the lease is recorded
}

// pendingChange is a change of a leased job that a caller waits for.
type pendingChange struct {
	store.Change
	releaseOnly bool       // only return the lease; change nothing
	answer      chan error // has a buffer of one, so that answering does not block
}

func newLeases() leases {
	return leases{
		byLease: map[queue.Lease]*leaseState{}, bySeq: map[int64]*leaseState{},
		watchers: map[int64]int{}, changed: make(chan struct{}),
	}
}

// add adds the lease of a claimed job.
func (s *leases) add(j *queue.Job) *leaseState {
	now := time.Now()
	s.claimCount++
	h := &leaseState{
		job: *j, claimNumber: s.claimCount, paused: j.PausedAt != 0, sentAt: now, lastMessageAt: now,
		started: make(chan struct{}), done: make(chan struct{}),
	}
	s.byLease[j.Lease()], s.bySeq[j.Seq] = h, h
	return h
}

// remove removes a lease that has ended and wakes all callers that wait for it.
func (s *leases) remove(lease queue.Lease) {
	h := s.byLease[lease]
	if h == nil {
		return
	}
	delete(s.byLease, lease)
	if s.bySeq[lease.Seq] == h {
		delete(s.bySeq, lease.Seq)
	}
	close(h.done)
	s.notifyChange()
}

// notifyChange wakes the callers that wait for a change of the leases, such as the end of one.
func (s *leases) notifyChange() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// countOpen returns how many leases remain after the pending events are recorded.
func (s *leases) countOpen() (n int) {
	for _, h := range s.byLease {
		if !h.settling {
			n++
		}
	}
	return n
}

// startable returns the leases whose jobs may still start, in the order of their claims. These are
// the jobs that are not known to have started or ended.
func (s *leases) startable() (list []*leaseState) {
	for _, h := range s.byLease {
		if !h.running && !h.hasProcess && !h.settling {
			list = append(list, h)
		}
	}
	slices.SortFunc(list, func(a, b *leaseState) int { return cmp.Compare(a.claimNumber, b.claimNumber) })
	return list
}

// oldestFirst returns all leases, the oldest first. The clock may be too coarse to distinguish
// leases of one claim, so job numbers break ties.
func (s *leases) oldestFirst() []*leaseState {
	list := make([]*leaseState, 0, len(s.byLease))
	for _, h := range s.byLease {
		list = append(list, h)
	}
	slices.SortFunc(list, func(a, b *leaseState) int {
		return cmp.Or(a.sentAt.Compare(b.sentAt), cmp.Compare(a.job.Seq, b.job.Seq))
	})
	return list
}

// anyHeldBy reports whether a runner holds any lease.
func (s *leases) anyHeldBy(conn *runnerConn) bool {
	for _, h := range s.byLease {
		if h.conn == conn {
			return true
		}
	}
	return false
}

// orphansOf returns two lists: list has all leases that a dead runner may hold, and known has those
// that were certainly sent to it. A lease that is only in list may belong to a living runner, and its
// process may run there.
func (s *leases) orphansOf(dir string) (list, known []wire.Attempt) {
	for _, h := range s.byLease {
		isKnown := h.isOrphanOf(dir)
		if !isKnown && !h.isOrphanOf("") {
			continue
		}
		a := wire.Attempt{Lease: h.wireLease(), PID: int64(h.pid), StartedAt: int64(h.startedAt)}
		list = append(list, a)
		if isKnown {
			known = append(known, a)
		}
	}
	return list, known
}

// anyOrphanIn reports whether a disconnected runner with one of these directories may hold a lease.
func (s *leases) anyOrphanIn(dirs []string) bool {
	for _, h := range s.byLease {
		if h.conn == nil && !h.unsent && (h.runnerDir == "" || slices.Contains(dirs, h.runnerDir)) {
			return true
		}
	}
	return false
}

// awaitingRunner returns the selected leases whose jobs wait for a separate runner and are not
// being returned to the queue.
func (s *leases) awaitingRunner(selects func(*queue.Job) bool) (list []*leaseState) {
	for _, h := range s.byLease {
		if h.unsent && !h.readingDeps && !h.settling && selects(&h.job) {
			list = append(list, h)
		}
	}
	return list
}

// closeAwaitingRunner ends the selected leases whose separate runner could not be started, and
// returns their jobs.
func (s *leases) closeAwaitingRunner(selects func(*queue.Job) bool) (jobs []queue.Job) {
	for _, h := range s.awaitingRunner(selects) {
		h.settling = true
		jobs = append(jobs, h.job)
	}
	return jobs
}

func (h *leaseState) wireLease() wire.Lease { return wire.Lease(h.job.Lease()) }

// isOrphanOf reports whether the lease is open and belongs to the disconnected runner with
// directory dir. With dir "", it reports whether the runner of the lease is unknown.
func (h *leaseState) isOrphanOf(dir string) bool {
	return h.conn == nil && !h.settling && !h.unsent && h.runnerDir == dir
}

// assignTo assigns the lease to a connection. It keeps requestedEnd and pendingChanges.
func (h *leaseState) assignTo(conn *runnerConn) {
	h.conn, h.runnerDir, h.sentAt = conn, conn.Dir, time.Now()
	h.dropSent, h.recalled, h.unsent = false, false, false
}

// markRunning records that the attempt has started.
func (h *leaseState) markRunning() {
	if !h.running {
		h.running = true
		close(h.started)
	}
}

// recallDueLocked returns when a job that has not started is recalled from its runner.
func (h *leaseState) recallDueLocked() deadline { return deadlineAfter(h.sentAt, recallAfter) }

// startDueLocked returns when the pool takes the job back if its runner does not answer. Its start
// deadline has passed by then.
func (h *leaseState) startDueLocked() deadline {
	return deadlineAfter(h.sentAt, startDeadline+startDeadlineMargin)
}

// recordEndedBy records in the settlement which user ended the attempt.
func (h *leaseState) recordEndedBy(s *store.Settlement) {
	reason := s.Decision.Reason
	if h.endedBy != nil && (reason == queue.ReasonCancelled || reason == queue.ReasonStopped) {
		s.By, s.Verb = h.endedBy, h.endVerb
	}
}
