package process

import (
	"time"

	"golang.org/x/sys/unix"
)

// A command may make the kernel lock an output pipe indefinitely. For example, splice(2) locks a pipe while it waits
// for a socket. If this process then reads or closes the pipe, the call blocks and cannot be interrupted. So before
// each of these calls, Run's goroutine unlocks runLock, the mutex that guards the run. If the call takes longer than
// blockedPipeCallDelay, another goroutine calls performActionsWhileBlocked, and again every blockedCheckInterval.
// performActionsWhileBlocked locks runLock, and ends the command when a timeout or a kill requires this.

const (
	blockedPipeCallDelay = 100 * time.Millisecond
	blockedCheckInterval = 50 * time.Millisecond
)

// callPipeOperation calls pipeOperation, a function that reads or closes a pipe. The caller holds runLock.
// callPipeOperation unlocks runLock while the function runs, and locks it again. See docs/decisions/0054.
func (r *runningCommand) callPipeOperation(pipeOperation func()) {
	if r.blockedCallTimer == nil {
		r.blockedCallTimer = time.AfterFunc(blockedPipeCallDelay, r.performActionsWhileBlocked)
	} else {
		r.blockedCallTimer.Reset(blockedPipeCallDelay)
	}
	r.runLock.Unlock()
	pipeOperation()
	r.runLock.Lock()
	r.blockedCallTimer.Stop()
}

// performActionsWhileBlocked ends the command when a timeout or a kill requires this, while the function that
// callPipeOperation runs is blocked.
func (r *runningCommand) performActionsWhileBlocked() {
	if !r.runLock.TryLock() {
		return // the blocking call has returned
	}
	defer r.runLock.Unlock()
	fds := [2]unix.PollFd{pollIn(r.pidfd), pollIn(r.worker.wakeEventHandle)}
	unix.Poll(fds[:], 0)
	if fds[1].Revents != 0 {
		r.worker.clearWakeEvent()
	}
	if !r.mainProcessExited {
		r.mainProcessExited = fds[0].Revents != 0
		r.performsActionsWhileBlocked = true
		r.performDueActions()
		r.performsActionsWhileBlocked = false
		if r.mainExitSeenWhileBlocked = r.mainProcessExited; r.mainExitSeenWhileBlocked {
			r.leftoverGraceEndsAt, r.pipesEmptyAtLastPoll = time.Now().Add(r.command.LeftoverGracePeriod), false
		}
	} else if now := time.Now(); now.After(r.lockedPipeKillTime(now)) {
		remaining := r.remainingProcesses() // one of these processes may have locked the pipe
		r.result.EndedLeftoverCount = max(r.result.EndedLeftoverCount, len(remaining))
		r.killRemaining(remaining)
	}
	r.blockedCallTimer.Reset(blockedCheckInterval)
}

// lockedPipeKillTime returns the time when leftover processes that keep a pipe locked get SIGKILL. The time is later if
// the processes may live on (AllowBackground) and no kill or timeout ends them. Call it after the main process has
// ended.
func (r *runningCommand) lockedPipeKillTime(now time.Time) time.Time {
	switch {
	case !r.sigtermSentAt.IsZero():
		r.executeKillAndPauseRequests(now)
		return r.leftoverSigkillTime()
	case r.command.AllowBackground:
		return r.leftoverGraceEndsAt.Add(r.command.SigkillTimeout)
	}
	return r.leftoverGraceEndsAt
}
