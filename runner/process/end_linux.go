package process

import (
	"time"

	"golang.org/x/sys/unix"
)

// end brings the tree to its end once the main process has ended: it drains the
// pipes, ends what is left behind, and reaps.
func (r *run) end() {
	if r.r.StuckPID != 0 {
		r.w.dropBox()
		return
	}
	r.graceEnd = time.Now().Add(r.c.OutputGrace)
	forced := !r.termAt.IsZero()
	if !forced && r.alone() {
		r.rest() // nothing of the tree lives, so what the pipes hold is all
	} else {
		r.leave(forced)
	}
	var status unix.WaitStatus
	var usage unix.Rusage
	for {
		_, err := unix.Wait4(r.pid, &status, 0, &usage)
		if err != unix.EINTR {
			break
		}
	}
	own(r.pid, false)
	switch {
	case status.Exited():
		r.r.ExitCode = int64(status.ExitStatus())
	case status.Signaled():
		r.r.Signal = int(status.Signal())
	}
	if b := r.w.box; b != nil {
		r.r.OutOfMemory = b.ranOut() && r.r.Signal == int(unix.SIGKILL)
		if r.r.Spared || b.spent {
			r.w.dropBox()
		}
	}
	r.r.CPU = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	r.r.PeakRSS = usage.Maxrss << 10
}

// alone reports whether nothing is left of the tree but its main process, which has
// ended. What has ended of it is reaped.
func (r *run) alone() bool {
	none := noOrphans()
	if r.w.box == nil {
		return none
	}
	if !none {
		reapOrphans()
	}
	return r.w.box.empty()
}

// left lists what is left of the tree.
func (r *run) left() []proc { return r.w.tree(r.pid, r.c.Cookie) }

// unsure reports whether some process cannot be told to be of another tree.
func (r *run) unsure() bool { return r.w.box == nil && unsure() }

// kill ends what is left of the tree, and all that it may just be starting where there
// is a control group.
func (r *run) kill(left []proc) {
	if b := r.w.box; b == nil || !b.kill() {
		endAll(left)
	}
}

// rest reads what the pipes hold, within the output grace: a stranger may have
// been handed one of them.
func (r *run) rest() {
	for {
		fds := r.pollFds()
		if n, err := unix.Poll(fds[:], 0); err == nil && n == 0 || time.Now().After(r.graceEnd) {
			return
		}
		r.readReady(fds)
	}
}

// leave deals with a tree of which something may be left: an open pipe or an
// orphan tells. One that was killed is looked for everywhere.
func (r *run) leave(forced bool) {
	r.letGo()
	open := r.drain(0)
	if open && !forced { // a fork under way beside us may have a copy until its exec
		open = r.drain(max(0, time.Until(r.graceEnd)))
	}
	if open || forced || r.w.box == nil && len(reapOrphans()) > 0 || r.w.box != nil && !r.w.box.empty() {
		r.endLeftovers(forced)
	}
}

func (r *run) pollFds() [2]unix.PollFd {
	return [2]unix.PollFd{
		{Fd: int32(r.pipes[0]), Events: unix.POLLIN},
		{Fd: int32(r.pipes[1]), Events: unix.POLLIN},
	}
}

func (r *run) readReady(fds [2]unix.PollFd) {
	for i := range fds {
		if fds[i].Revents != 0 {
			r.read(i)
		}
	}
}

// drain reads until both pipes are at their end or wait has passed; it reports
// whether one is still open.
func (r *run) drain(wait time.Duration) bool {
	deadline := time.Now().Add(wait)
	for r.pipes[0] >= 0 || r.pipes[1] >= 0 {
		fds := r.pollFds()
		left := max(0, time.Until(deadline))
		n, err := unix.Poll(fds[:], int((left+time.Millisecond-1)/time.Millisecond))
		if err == unix.EINTR {
			continue
		}
		if n == 0 {
			return true
		}
		r.readReady(fds)
		if wait > 0 && time.Now().After(deadline) {
			return true // it prints without end
		}
		if wait == 0 && time.Since(r.r.EndedAt) > r.c.OutputGrace {
			return true
		}
	}
	return false
}

// endLeftovers ends what the main process has left behind, unless it may live
// on. What has been asked to end already is given no more time.
func (r *run) endLeftovers(forced bool) {
	switch {
	case forced:
		r.waitTree(min(time.Until(r.killAt), r.c.OutputGrace))
	case !r.c.Background:
		r.waitTree(time.Until(r.graceEnd))
	}
	if r.c.Background && !forced {
		r.r.Spared = spare(r.left())
		return
	}
	began := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		left := r.left()
		if len(left) == 0 && time.Since(began) < execTime && r.unsure() {
			time.Sleep(pause)
			continue
		}
		if len(left) == 0 {
			if r.w.box == nil {
				setAside()
			}
			break
		}
		if time.Since(began) > r.c.Patience {
			r.giveUp(left)
			return
		}
		r.r.Leftovers = max(r.r.Leftovers, len(left))
		r.kill(left)
		time.Sleep(pause)
		reapOrphans()
	}
	r.drain(0)
}

// waitTree gives what is left of the tree a moment to end by itself.
func (r *run) waitTree(limit time.Duration) {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		r.drain(0)
		reapOrphans()
		if len(r.left()) == 0 && !r.unsure() {
			return
		}
	}
}

// killTree ends the whole tree now, the main process too, and lists the others.
func (r *run) killTree() []proc {
	left := r.left()
	unix.Kill(-r.pid, unix.SIGKILL) // the main process is not reaped, so the group is ours
	r.kill(left)
	return left
}
