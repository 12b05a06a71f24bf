package process

import (
	"time"

	"golang.org/x/sys/unix"
)

// A process may lock a pipe for as long as it likes: splice(2) does while it waits for its socket. Who reads the pipe then, or closes an
// end of it, waits with it, whatever comes. So meanwhile Run's goroutine lets go of the run, and another one stands in for it if that takes
// long.

const (
	standInAfter = 100 * time.Millisecond
	standInEvery = 50 * time.Millisecond
)

// mayWait calls what reads or closes a pipe. Who calls it has the baton.
// See docs/decisions/0054.
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

// standIn enforces what is due while a call waits.
func (r *run) standIn() {
	if !r.baton.TryLock() {
		return // it does not wait any more
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
		left := r.left() // what has locked the pipe is there
		r.r.Leftovers = max(r.r.Leftovers, len(left))
		r.kill(left)
	}
	r.guard.Reset(standInEvery)
}

// letUntil is until when what is left of the tree may have a pipe locked, once the main process has ended.
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
