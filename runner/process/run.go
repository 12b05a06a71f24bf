//go:build linux || windows

package process

import (
	"sync/atomic"
	"time"
)

// runState is the part of a run that is the same on all systems.
type runState struct {
	worker    *Worker
	command   *Command
	result    *Result
	startedAt time.Time
	// lastOutputNanos is the time from the start of the command to its last output, in nanoseconds (see elapsed). At the
	// end of a pause, the length of the pause is added, because a pause does not count as time without output.
	lastOutputNanos   atomic.Int64
	onStartedCalled   bool // OnStarted was called
	pause             pauseState
	mainProcessExited bool
	// time of the next read of progress notes; on Linux, zero if poll(2) will report new notes
	nextProgressReadAt time.Time

	// Times of the steps that end the tree. The time of a step is zero while the step is not planned.
	sigtermSentAt       time.Time // time when SIGTERM (on Windows, CTRL_BREAK) was sent
	sigkillDueAt        time.Time // time to send SIGKILL, or on Windows to terminate the job object
	treeFirstKilledAt   time.Time // time when the tree was first killed
	leftoverGraceEndsAt time.Time // time when leftover processes get SIGKILL or, on Windows, are ended
}

// killRequest holds the request of the latest Kill.
type killRequest struct {
	wasRequested bool
	cause        int
	gracePeriod  time.Duration
}

// Kill ends the tree of the running command. It sends SIGTERM (CTRL_BREAK on Windows) and, after gracePeriod, SIGKILL.
// The grace period is for the whole tree, and continues after the end of the main process. Kill returns true if Run had
// not seen the end of the command before. The result then contains the killCause of the first Kill. A later Kill can
// shorten the grace period.
func (w *Worker) Kill(killCause int, gracePeriod time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.isRunning {
		return false
	}
	if !w.kill.wasRequested {
		w.kill.cause = killCause
	}
	w.kill.wasRequested, w.kill.gracePeriod = true, gracePeriod
	w.wakeRun()
	return true
}

// Run starts a command. It returns when the whole tree has ended, with the exceptions in the package
// documentation.
func (w *Worker) Run(c *Command) (result Result) {
	result.ExitCode = -1
	r := w.newRun(c, &result)
	defer c.OutputLog.Close()
	defer r.close()
	if err := w.openResources(); err != nil {
		r.startedAt = time.Now()
		result.StartedAt = r.startedAt
		r.recordStartFailure(err)
		return result
	}
	w.markRunning(c)
	if !r.start() {
		w.markCommandEnded()
		return result
	}
	r.superviseMainProcess()
	r.finishRun()
	return result
}

// AwaitStuckProcesses waits until the processes that SIGKILL did not end in the last Run are gone, or until stop is
// closed. Only the goroutine that called Run may call it.
func (w *Worker) AwaitStuckProcesses(stop <-chan struct{}) {
	for pause := 10 * time.Millisecond; w.isStuck(); pause = min(2*pause, time.Second) {
		select {
		case <-time.After(pause):
		case <-stop:
			return
		}
	}
}

// executeKillAndPauseRequests carries out the latest requests of Kill and SetAttemptPaused, and returns the request of
// Kill. If the main process has ended and the tree is not being ended, later calls of Kill have no effect.
func (r *runningCommand) executeKillAndPauseRequests(now time.Time) killRequest {
	r.worker.mu.Lock()
	killed, paused := r.worker.kill, r.worker.pause
	r.worker.pause.onDoneCallbacks = nil
	if r.mainProcessExited && r.sigtermSentAt.IsZero() && !killed.wasRequested {
		r.worker.isRunning = false
	}
	r.worker.mu.Unlock()
	if killed.wasRequested && (r.sigtermSentAt.IsZero() || now.Add(killed.gracePeriod).Before(r.sigkillDueAt)) {
		r.terminateTree(now, killed.gracePeriod)
	}
	r.applyPause(paused)
	return killed
}

// leftoverSigkillTime returns when leftover processes get SIGKILL. If the tree has been sent SIGTERM, this is
// sigkillDueAt, and otherwise leftoverGraceEndsAt. If the tree has already been killed once, it is the earlier of the
// two.
func (r *runningCommand) leftoverSigkillTime() time.Time {
	if r.sigtermSentAt.IsZero() || !r.treeFirstKilledAt.IsZero() && r.leftoverGraceEndsAt.Before(r.sigkillDueAt) {
		return r.leftoverGraceEndsAt
	}
	return r.sigkillDueAt
}

// markCommandEnded records that the command has ended, so that later calls of Kill have no effect.
func (w *Worker) markCommandEnded() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isRunning = false
}

// jobFieldError says which field of a job prevented the start of its command, and why. Its text contains no
// secret values.
type jobFieldError struct {
	fieldName string
	error
	isPermanent bool // another attempt would fail in the same way
}

// Error returns the name of the job's field and the reason.
func (e *jobFieldError) Error() string { return e.fieldName + ": " + e.error.Error() }

// Unwrap returns the error without the name of the field.
func (e *jobFieldError) Unwrap() error { return e.error }

// timeUntilNextAction returns the time until Run must act without being woken by an event, for example at a timeout. It
// returns a negative duration if no action is planned.
func (r *runningCommand) timeUntilNextAction() time.Duration {
	next, runTime := time.Duration(-1), r.runTime()
	dueIn := func(d time.Duration) {
		if d = max(0, d); next < 0 || d < next {
			next = d
		}
	}
	if !r.onStartedCalled && !r.isLimiterStarting() {
		dueIn(StartReportDelay - runTime)
	}
	if r.command.Timeout > 0 && r.areTimeoutsActive() {
		dueIn(r.command.Timeout - runTime)
	}
	if r.command.IdleTimeout > 0 && r.areTimeoutsActive() {
		dueIn(r.command.IdleTimeout - r.timeSinceLastOutput())
	}
	if retryAt := r.pause.freezeRetryAt; !retryAt.IsZero() && r.sigtermSentAt.IsZero() {
		dueIn(time.Until(retryAt))
	}
	if !r.sigkillDueAt.IsZero() {
		dueIn(time.Until(r.sigkillDueAt))
	}
	if due := r.timeUntilNextProgressRead(); due >= 0 {
		dueIn(due)
	}
	return next
}

// timeSinceLastOutput returns the time since the last output.
func (r *runningCommand) timeSinceLastOutput() time.Duration {
	return r.elapsed() - time.Duration(r.lastOutputNanos.Load())
}

// areTimeoutsActive reports whether the command's timeouts are counting.
func (r *runningCommand) areTimeoutsActive() bool {
	return r.sigtermSentAt.IsZero() && !r.pause.isPaused
}

// ceilMilliseconds converts a duration to milliseconds for poll(2), rounded up.
func ceilMilliseconds(d time.Duration) time.Duration {
	return min((d+time.Millisecond-1)/time.Millisecond, 1<<30)
}

// performDueActions does what is due while the main process runs: it carries out kills, pauses and timeouts, and
// reads progress notes. Only performDueActions decides whether a kill or a timeout came before the end of the
// command.
func (r *runningCommand) performDueActions() {
	now := time.Now()
	killed := r.executeKillAndPauseRequests(now)
	if r.mainProcessExited {
		r.result.EndedAt = now
		if killed.wasRequested && !r.result.TimedOut {
			r.result.KillCause = killed.cause
		}
		return
	}
	r.readProgress(now)
	if r.mainProcessExited { // performActionsWhileBlocked saw the end of the main process while readProgress blocked
		return
	}
	runTime := r.runTime()
	if !r.onStartedCalled && !r.isLimiterStarting() && (runTime >= StartReportDelay || r.pause.isPaused) {
		r.onStartedCalled = true
		r.command.OnStarted(r.result.PID, r.startedAt)
	}
	if r.command.Timeout > 0 && r.areTimeoutsActive() && runTime >= r.command.Timeout {
		r.result.TimedOut = true
		r.terminateTree(now, r.command.KillAfter)
	}
	if r.command.IdleTimeout > 0 && r.areTimeoutsActive() && r.timeSinceLastOutput() >= r.command.IdleTimeout {
		r.result.TimedOut, r.result.IdleTimedOut = true, true
		r.terminateTree(now, r.command.KillAfter)
	}
	if !r.sigkillDueAt.IsZero() && !now.Before(r.sigkillDueAt) {
		if r.treeFirstKilledAt.IsZero() {
			r.treeFirstKilledAt = now
		}
		remaining := r.killTree()
		// Kill again after this delay, because this kill may miss processes that are being forked.
		r.sigkillDueAt = now.Add(min(time.Second, r.command.SigkillTimeout))
		if now.Sub(r.treeFirstKilledAt) >= r.command.SigkillTimeout {
			r.recordStuckMainProcess(remaining)
			r.mainProcessExited, r.result.EndedAt, r.result.KillCause = true, now, killed.cause
			r.worker.markCommandEnded()
		}
	}
}
