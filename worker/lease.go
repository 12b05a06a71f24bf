package worker

import (
	"log/slog"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// lease is one lease of this service: its right to run one job. phase.go lists the phases of a lease.
type lease struct {
	job             queue.Job // never changes
	claimNumber     int64     // number of this lease; leases are numbered in the order of the pool's claims
	log             *slog.Logger
	startedSignal   chan struct{} // closed when the attempt is known to have started
	endStoredSignal chan struct{} // closed when the end of the lease is recorded

	// The pool's mu guards all fields below.

	phase           leasePhase      // advancePhaseLocked changes it
	leaseLocation                   // the runner that has the job; zero if no runner has it or the runner is unknown
	claimedOrSentAt time.Time       // when the job was sent to the runner, or when it was claimed if it was not sent yet
	lastMessageAt   time.Time       // time of the runner's last message before its connection ended
	attempt         startedAttempt  // facts about the attempt; zero until the attempt is known to have started
	progress        attemptProgress // progress that the attempt has reported
	endRequest      *endRequest     // how the service ends the attempt; nil if it has not requested an end
	pause           pauseState
	// pendingChanges lists the changes of the job that callers wait for, the oldest first. It is empty once
	// the job has started.
	pendingChanges []*pendingChange
	changeInReport *pendingChange // the element of pendingChanges that the next report to the store contains; nil if none
}

// leaseLocation identifies the runner that has a job. runnerConn is the connection to the runner, or nil if the runner
// is disconnected. runnerDir is the runner's directory, or "" if the runner is not known.
type leaseLocation struct {
	runnerConn *runnerConn
	runnerDir  string
}

// startedAttempt describes an attempt that has started.
type startedAttempt struct {
	workerID  string
	pid       int
	startedAt queue.UnixMillis
}

// attemptProgress is the progress of an attempt.
type attemptProgress struct {
	lastReported *queue.Progress // last reported progress; nil if none was reported
	// lastRecordTriedAt is the time of the last try to record progress. A try fails if the start of the attempt is
	// not recorded yet.
	lastRecordTriedAt time.Time
}

// endRequest describes how the service ends an attempt.
type endRequest struct {
	cause      queue.EndCause
	killGrace  time.Duration // grace period between SIGTERM and SIGKILL
	endedByUID *int          // uid of the user who ended the attempt; nil if no user did
	auditVerb  string        // action that ended the attempt, such as "cancel", for the audit log
}

// pauseState says whether the job of a lease is paused.
type pauseState struct {
	isRecordedAsPaused   bool // the store has recorded the job as paused
	isExemptFromPauseAll bool // the job runs although all jobs are paused, because it was resumed for a signal
	// changeLock is a lock: it contains a value while a caller pauses or resumes the job. With this lock, the runner gets
	// the changes in the order in which the store records them.
	changeLock chan struct{}
}

// newLease returns the lease of a claimed job. initialPhase is the phase in which the lease begins.
func newLease(j *queue.Job, claimNumber int64, initialPhase leasePhase, log *slog.Logger) *lease {
	now := time.Now()
	return &lease{
		job: *j, claimNumber: claimNumber, log: log, startedSignal: make(chan struct{}), endStoredSignal: make(chan struct{}),
		phase: initialPhase, claimedOrSentAt: now, lastMessageAt: now,
		pause: pauseState{isRecordedAsPaused: j.PausedAt != 0, changeLock: make(chan struct{}, 1)},
	}
}

func (l *lease) wireLease() wire.Lease { return wire.Lease(l.job.Lease()) }

// advancePhaseLocked moves the lease to the phase that follows after an event. If the event does not fit the
// current phase, advancePhaseLocked logs it and returns false. The caller must then ignore the event.
func (l *lease) advancePhaseLocked(event leaseEvent) bool {
	next, ok := l.phase.phaseAfter(event)
	if !ok {
		l.log.Error("an event does not fit the phase of a job, so the service ignores the event, and the job keeps its "+
			"phase; please report this as a bug", "job", l.job.ID, "phase", l.phase.String(), "event", string(event))
		return false
	}
	l.phase = next
	return true
}

// hasStarted reports whether the attempt is known to have started. It also returns true after the attempt has ended.
func (l *lease) hasStarted() bool { return isChannelClosed(l.startedSignal) }

// isChannelClosed reports whether a channel is closed. It is only for channels to which no values are sent.
func isChannelClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// isOrphanLocked reports whether the lease is an orphan: its runner is disconnected or unknown, and its end
// is not decided.
func (l *lease) isOrphanLocked() bool {
	return l.runnerConn == nil && !l.phase.wasNeverSent() && !l.phase.isEndDecided()
}

// isOrphanOfRunnerLocked reports whether the lease is an orphan (see isOrphanLocked) of the runner in the directory
// runnerDir. If runnerDir is "", it selects the orphans whose runner is unknown.
func (l *lease) isOrphanOfRunnerLocked(runnerDir string) bool {
	return l.isOrphanLocked() && l.runnerDir == runnerDir
}

// assignToRunnerLocked records that a connected runner has the job. It keeps endRequest and pendingChanges, so that the
// pool can send these requests to the runner.
func (l *lease) assignToRunnerLocked(conn *runnerConn) {
	l.leaseLocation, l.claimedOrSentAt = leaseLocation{conn, conn.RunnerDir}, time.Now()
}

// markStartedLocked records that the attempt has started. It returns false and changes nothing if
// an attempt cannot start in the current phase.
func (l *lease) markStartedLocked() bool {
	if !l.advancePhaseLocked(eventStarted) {
		return false
	}
	if !l.hasStarted() {
		close(l.startedSignal)
	}
	return true
}

// recallDeadlineLocked returns the time at which the pool asks the runner to give the job back, if the job has not
// started by then.
func (l *lease) recallDeadlineLocked() deadline {
	return deadlineAfter(l.claimedOrSentAt, unstartedRecallDelay)
}

// takeBackDeadlineLocked returns the time at which the pool takes the job back from a runner that does not answer. At
// that time, the start deadline of the job has passed, so the runner cannot start it any more.
func (l *lease) takeBackDeadlineLocked() deadline {
	return deadlineAfter(l.claimedOrSentAt, startDeadline+startDeadlineMargin)
}

// recordEndingUserLocked records in the settlement which user ended the attempt, if a user did.
func (l *lease) recordEndingUserLocked(s *store.Settlement) {
	reason, request := s.Decision.Reason, l.endRequest
	if request != nil && request.endedByUID != nil && (reason == queue.ReasonCancelled || reason == queue.ReasonStopped) {
		s.EndedByUID, s.EndedByVerb = request.endedByUID, request.auditVerb
	}
}
