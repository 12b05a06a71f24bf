package worker

import (
	"log/slog"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// lease is one lease of this service. phase.go has its phases.
type lease struct {
	job          queue.Job // does not change
	claimNumber  int64     // position of the lease in the order of claims
	log          *slog.Logger
	startSignal  chan struct{} // closed when the attempt is known to have started
	storedSignal chan struct{} // closed when the end of the lease is recorded

	// The pool's mu guards all fields below.

	phase         leasePhase    // advanceLocked changes it
	leaseLocation               // the runner that has the job; zero if none has it, or if it is not known
	sentAt        time.Time     // when the job was sent to the runner; before that, when it was claimed
	lastMessageAt time.Time     // time of the runner's last message before it was disconnected
	attempt       attemptInfo   // what is known of the attempt; zero until it is known to have started
	progress      progressState // what the attempt has reported
	endRequest    *endRequest   // how the service ends the attempt; nil if it has not requested an end
	pause         pauseState
	// pendingChanges are the changes that callers wait for while the job has not started, the oldest
	// first.
	pendingChanges []*pendingChange
	reportedChange *pendingChange // the change that is in session.pendingReport
}

// leaseLocation identifies the runner that holds leases: a live connection, or the directory of a
// disconnected runner. dir is "" if the runner is not known.
type leaseLocation struct {
	conn *runnerConn
	dir  string
}

// attemptInfo describes an attempt that has started.
type attemptInfo struct {
	workerID  string
	pid       int
	startedAt queue.Millis
}

// progressState is the progress of an attempt.
type progressState struct {
	last *queue.Progress // last reported progress; nil if none was reported
	// recordedAt is when progress was last recorded, or skipped because the attempt was not known to
	// run.
	recordedAt time.Time
}

// endRequest describes how the service ends an attempt.
type endRequest struct {
	cause     queue.EndCause
	grace     time.Duration // time between SIGTERM and SIGKILL
	endedBy   *int          // uid of the user who ended the attempt; nil if no user did
	auditVerb string        // action with which the attempt was ended, such as "cancel"
}

// pauseState says whether the job of a lease is paused.
type pauseState struct {
	isRecorded         bool // the store has recorded the job as paused
	exemptFromPauseAll bool // the job was resumed while all jobs are paused
	// turn holds a value while a caller pauses or resumes the job. It keeps the order of frames to the
	// runner the same as the order of records in the store.
	turn chan struct{}
}

// newLease returns a lease of a claimed job.
func newLease(j *queue.Job, claimNumber int64, initial leasePhase, log *slog.Logger) *lease {
	now := time.Now()
	return &lease{
		job: *j, claimNumber: claimNumber, log: log, startSignal: make(chan struct{}), storedSignal: make(chan struct{}),
		phase: initial, sentAt: now, lastMessageAt: now,
		pause: pauseState{isRecorded: j.PausedAt != 0, turn: make(chan struct{}, 1)},
	}
}

func (l *lease) wireLease() wire.Lease { return wire.Lease(l.job.Lease()) }

// advanceLocked moves the lease to the phase that follows an event. If the event does not fit the
// phase, advanceLocked logs the event and returns false; the caller then must not act on the event.
func (l *lease) advanceLocked(e leaseEvent) bool {
	next, ok := l.phase.next(e)
	if !ok {
		l.log.Error("an event does not fit the phase of a job, so the service ignores the event, and the job keeps its "+
			"phase; please report this as a bug", "job", l.job.ID, "phase", l.phase.String(), "event", e.String())
		return false
	}
	l.phase = next
	return true
}

// hasStarted reports whether the attempt is known to have started. It remains true when the attempt
// has ended.
func (l *lease) hasStarted() bool { return isClosed(l.startSignal) }

// isClosed reports whether a channel to which nothing is sent is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// mayHaveStartedLocked reports whether the runner has recorded the attempt. From then on the runner
// rejects a Drop of the job.
func (l *lease) mayHaveStartedLocked() bool { return l.phase.mayHaveStarted() || l.hasStarted() }

// isOrphanLocked reports whether the lease is open and belongs to a disconnected or unknown runner.
func (l *lease) isOrphanLocked() bool {
	return l.conn == nil && !l.phase.neverSent() && !l.phase.isEndDecided()
}

// isOrphanInLocked reports whether the lease is open and belongs to the disconnected runner with
// directory dir. With dir "", it reports whether the runner of the lease is unknown.
func (l *lease) isOrphanInLocked(dir string) bool { return l.isOrphanLocked() && l.dir == dir }

// assignToLocked assigns the lease to a connection. It keeps endRequest and pendingChanges.
func (l *lease) assignToLocked(conn *runnerConn) {
	l.leaseLocation, l.sentAt = leaseLocation{conn, conn.Dir}, time.Now()
}

// markStartedLocked records that the attempt has started. It returns false if the job of the lease cannot
// have started.
func (l *lease) markStartedLocked() bool {
	if !l.advanceLocked(eventStarted) {
		return false
	}
	if !l.hasStarted() {
		close(l.startSignal)
	}
	return true
}

// recallDueLocked returns when a job that has not started is recalled from its runner.
func (l *lease) recallDueLocked() deadline { return deadlineAfter(l.sentAt, recallAfter) }

// startDueLocked returns when the pool takes the job back from a runner that does not answer. By
// then the job's start deadline has passed.
func (l *lease) startDueLocked() deadline {
	return deadlineAfter(l.sentAt, startDeadline+startDeadlineMargin)
}

// setEndedByLocked records in the settlement which user ended the attempt.
func (l *lease) setEndedByLocked(s *store.Settlement) {
	reason, request := s.Decision.Reason, l.endRequest
	if request != nil && request.endedBy != nil && (reason == queue.ReasonCancelled || reason == queue.ReasonStopped) {
		s.EndedBy, s.Verb = request.endedBy, request.auditVerb
	}
}
