package process

import (
	"time"

	"golang.org/x/sys/unix"
)

// A process may lock a pipe indefinitely: splice(2) does that while it waits for a socket. A read or
// close of the pipe then blocks, and cannot be interrupted. So Run's goroutine releases the baton, a
// mutex that guards the run, before each call that may block. If the call takes longer than
// standInAfter, the goroutine of standIn takes the baton and enforces the run's deadlines every
// standInEvery.

const (
	standInAfter = 100 * time.Millisecond
	standInEvery = 50 * time.Millisecond
)

// mayWait runs a call that reads or closes a pipe, without the baton. The caller holds the baton before
// and after. See docs/decisions/0054.
func (r *run) mayWait(call func()) {
	if r.guard == nil {
		r.guard = time.AfterFunc(standInAfter, r.standIn)
	} else {
		r.guard.Reset(standInAfter)
	}
	r.baton.Unlock()
	call()
	r.baton.Lock()
	r.guard.Stop()
}

// standIn enforces what is due while a call blocks.
func (r *run) standIn() {
	if !r.baton.TryLock() {
		return // the call has returned
	}
	defer r.baton.Unlock()
	fds := [2]unix.PollFd{{Fd: int32(r.pidfd), Events: unix.POLLIN}, {Fd: int32(r.w.wake), Events: unix.POLLIN}}
	unix.Poll(fds[:], 0)
	if fds[1].Revents != 0 {
		var drain [8]byte
		unix.Read(r.w.wake, drain[:])
	}
	if !r.exited {
		r.exited = fds[0].Revents != 0
		r.standing = true
		r.enforce()
		r.standing = false
		if r.over = r.exited; r.over {
			r.graceEnd, r.empty = time.Now().Add(r.c.OutputGrace), false
		}
	} else if now := time.Now(); now.After(r.letUntil(now)) {
		left := r.left() // the process that has locked the pipe is one of them
		r.r.Leftovers = max(r.r.Leftovers, len(left))
		r.kill(left)
	}
	r.guard.Reset(standInEvery)
}

// letUntil returns until when leftover processes may keep a pipe locked, after the main process has
// ended.
func (r *run) letUntil(now time.Time) time.Time {
	switch {
	case !r.termAt.IsZero():
		r.obey(now)
		return r.due()
	case r.c.Background:
		return r.graceEnd.Add(r.c.Patience)
	}
	return r.graceEnd
}
