package process

import (
	"time"

	"golang.org/x/sys/unix"
)

// A process may lock a pipe indefinitely: for example, splice(2) locks a pipe while it waits for a
// socket. A read or close of the pipe then blocks, and cannot be interrupted. So Run's goroutine
// unlocks runLock, the mutex that guards the run, before each call that may block. If the call
// takes longer than blockedCallDelay, the goroutine of enforceWhileBlocked locks runLock and enforces
// the run's deadlines every blockedCheckInterval.

const (
	blockedCallDelay     = 100 * time.Millisecond
	blockedCheckInterval = 50 * time.Millisecond
)

// callBlocking runs a call that reads or closes a pipe, and unlocks runLock during the call. The
// caller holds runLock before and after. See docs/decisions/0054.
func (r *run) callBlocking(call func()) {
	if r.blockTimer == nil {
		r.blockTimer = time.AfterFunc(blockedCallDelay, r.enforceWhileBlocked)
	} else {
		r.blockTimer.Reset(blockedCallDelay)
	}
	r.runLock.Unlock()
	call()
	r.runLock.Lock()
	r.blockTimer.Stop()
}

// enforceWhileBlocked enforces what is due while a call blocks.
func (r *run) enforceWhileBlocked() {
	if !r.runLock.TryLock() {
		return // the call has returned
	}
	defer r.runLock.Unlock()
	fds := [2]unix.PollFd{{Fd: int32(r.pidfd), Events: unix.POLLIN}, {Fd: int32(r.worker.wakeEvent), Events: unix.POLLIN}}
	unix.Poll(fds[:], 0)
	if fds[1].Revents != 0 {
		r.worker.clearWakeEvent()
	}
	if !r.mainExited {
		r.mainExited = fds[0].Revents != 0
		r.enforcingWhileBlocked = true
		r.enforce()
		r.enforcingWhileBlocked = false
		if r.endSeenWhileBlocked = r.mainExited; r.endSeenWhileBlocked {
			r.graceEndsAt, r.pipesEmpty = time.Now().Add(r.command.OutputGrace), false
		}
	} else if now := time.Now(); now.After(r.pipeDeadline(now)) {
		remaining := r.remainingProcesses() // one of these processes has locked the pipe
		r.result.Leftovers = max(r.result.Leftovers, len(remaining))
		r.killRemaining(remaining)
	}
	r.blockTimer.Reset(blockedCheckInterval)
}

// pipeDeadline returns the time until which leftover processes may keep a pipe locked after the main
// process has ended.
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
