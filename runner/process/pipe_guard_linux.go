package process

import (
	"time"

	"golang.org/x/sys/unix"
)

// A process may lock a pipe indefinitely: for example, splice(2) locks a pipe while it waits for a
// socket. A read or close of the pipe then blocks, and cannot be interrupted. So Run's goroutine
// unlocks runLock, the mutex that guards the run, before each call that may block. If the call
// takes longer than blockedAfter, the goroutine of enforceWhileBlocked locks runLock and enforces
// the run's deadlines every blockedInterval.

const (
	blockedAfter    = 100 * time.Millisecond
	blockedInterval = 50 * time.Millisecond
)

// callBlocking runs a call that reads or closes a pipe, and unlocks runLock during the call. The
// caller holds runLock before and after. See docs/decisions/0054.
func (r *run) callBlocking(call func()) {
	if r.blockTimer == nil {
		r.blockTimer = time.AfterFunc(blockedAfter, r.enforceWhileBlocked)
	} else {
		r.blockTimer.Reset(blockedAfter)
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
	fds := [2]unix.PollFd{{Fd: int32(r.pidfd), Events: unix.POLLIN}, {Fd: int32(r.w.wake), Events: unix.POLLIN}}
	unix.Poll(fds[:], 0)
	if fds[1].Revents != 0 {
		var drain [8]byte
		unix.Read(r.w.wake, drain[:])
	}
	if !r.exited {
		r.exited = fds[0].Revents != 0
		r.blocked = true
		r.enforce()
		r.blocked = false
		if r.endSeen = r.exited; r.endSeen {
			r.graceEnd, r.pipesEmpty = time.Now().Add(r.c.OutputGrace), false
		}
	} else if now := time.Now(); now.After(r.pipeDeadline(now)) {
		remaining := r.remaining() // one of these processes has locked the pipe
		r.r.Leftovers = max(r.r.Leftovers, len(remaining))
		r.kill(remaining)
	}
	r.blockTimer.Reset(blockedInterval)
}

// pipeDeadline returns the time until which leftover processes may keep a pipe locked after the main
// process has ended.
func (r *run) pipeDeadline(now time.Time) time.Time {
	switch {
	case !r.termAt.IsZero():
		r.handleRequests(now)
		return r.killDue()
	case r.c.Background:
		return r.graceEnd.Add(r.c.Patience)
	}
	return r.graceEnd
}
