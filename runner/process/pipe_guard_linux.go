package process

import (
	"time"

	"golang.org/x/sys/unix"
)

// A command may make the kernel lock an output pipe indefinitely. For example, splice(2) locks a pipe while
// it waits for a socket. If this process then reads or closes the pipe, the call blocks and cannot be
// interrupted. So before each of these calls, Run's goroutine unlocks runLock, the mutex that guards the run.
// If the call takes longer than blockedCallDelay, another goroutine runs performActionsWhileBlocked, and
// repeats it every blockedCheckInterval. It locks runLock, and ends the command when a timeout or a kill
// requires this.

const (
	blockedCallDelay     = 100 * time.Millisecond
	blockedCheckInterval = 50 * time.Millisecond
)

// callBlocking runs a function that reads or closes a pipe. The caller holds runLock. callBlocking unlocks
// it while the function runs, and locks it again. See docs/decisions/0054.
func (r *run) callBlocking(call func()) {
	if r.blockTimer == nil {
		r.blockTimer = time.AfterFunc(blockedCallDelay, r.performActionsWhileBlocked)
	} else {
		r.blockTimer.Reset(blockedCallDelay)
	}
	r.runLock.Unlock()
	call()
	r.runLock.Lock()
	r.blockTimer.Stop()
}

// performActionsWhileBlocked ends the command when a timeout or a kill requires this, while the function that
// callBlocking runs is blocked.
func (r *run) performActionsWhileBlocked() {
	if !r.runLock.TryLock() {
		return // the blocking call has returned
	}
	defer r.runLock.Unlock()
	fds := [2]unix.PollFd{{Fd: int32(r.pidfd), Events: unix.POLLIN}, {Fd: int32(r.worker.wakeEvent), Events: unix.POLLIN}}
	unix.Poll(fds[:], 0)
	if fds[1].Revents != 0 {
		r.worker.clearWakeEvent()
	}
	if !r.mainExited {
		r.mainExited = fds[0].Revents != 0
		r.performingWhileBlocked = true
		r.performDueActions()
		r.performingWhileBlocked = false
		if r.endSeenWhileBlocked = r.mainExited; r.endSeenWhileBlocked {
			r.graceEndsAt, r.pipesEmpty = time.Now().Add(r.command.OutputGrace), false
		}
	} else if now := time.Now(); now.After(r.pipeDeadline(now)) {
		remaining := r.remainingProcesses() // one of these processes may have locked the pipe
		r.result.Leftovers = max(r.result.Leftovers, len(remaining))
		r.killRemaining(remaining)
	}
	r.blockTimer.Reset(blockedCheckInterval)
}

// pipeDeadline returns the time when leftover processes that keep a pipe locked get SIGKILL. If they may live on
// (AllowBackground) and no kill or timeout ends them, this time is later. Call it after the main process has ended.
func (r *run) pipeDeadline(now time.Time) time.Time {
	switch {
	case !r.termAt.IsZero():
		r.handleRequests(now)
		return r.killDueTime()
	case r.command.AllowBackground:
		return r.graceEndsAt.Add(r.command.UnkillableAfter)
	}
	return r.graceEndsAt
}
