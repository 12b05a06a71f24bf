package process

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/procfs"
)

// end finishes the run once the main process has ended. It reads the rest of the output, ends leftover
// processes, and reaps the main process.
func (r *run) end() {
	if r.r.StuckPID != 0 {
		r.w.dropCgroup()
		return
	}
	forced := !r.termAt.IsZero()
	if !forced {
		r.resumeTree() // no kill has resumed the tree, which may still be frozen
	}
	r.graceEnd = time.Now().Add(r.c.OutputGrace)
	switch {
	case forced || !r.noneRemain():
		r.endRemaining(forced)
	case !r.pipesEmpty || r.reapedBefore != orphans.reapedCount.Load():
		r.readRemaining() // no process of the tree lives, so no more output can follow
	}
	usage, ok := r.reap()
	if !ok {
		r.w.dropCgroup()
		return
	}
	if b := r.w.cgroup; b != nil {
		r.outOfMemory(b.oomKills())
		if r.c.Limits.Tasks != 0 {
			r.r.PeakTasks = b.peakTasks()
		}
		if r.r.HasBackground || b.killed {
			r.w.dropCgroup()
		}
	}
	r.r.CPU = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	if aboveOwnPeak(usage.Maxrss) {
		r.r.PeakRSS = usage.Maxrss << 10
	}
}

// aboveOwnPeak reports whether a command's peak of memory, in KiB, is above the peak of this process.
// The kernel counts the memory that a child shares with this process before its exec
// (setmax_mm_hiwater_rss). So a command's peak is never below that of this process, and its own peak is
// known only if it is higher.
func aboveOwnPeak(peak int64) bool {
	var self unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &self) // this call cannot fail
	return peak > self.Maxrss
}

// reap collects the exit status of the main process, which has ended. It returns ok=false if a tracer
// withholds the status for longer than Patience.
func (r *run) reap() (usage unix.Rusage, ok bool) {
	notExecuted, executed, limit := false, r.limiter.executed(r.pid), ""
	// Most commands end with an exit code. They need only this one system call.
	if signal, _ := exitState(r.pid); signal != 0 {
		notExecuted, limit = endedBeforeExec(r.pid), limitSignalHint(r.pid, signal)
	}
	start := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		status, usage, ok, err := orphans.reap(r.pid)
		switch {
		case err != nil:
			r.r.EndUnknown, r.r.Error = true, fmt.Sprintf("the job's exit status is unknown, because waiting for "+
				"its process failed: %v", err)
		case ok && !executed:
			r.limiterFailed(status)
		case ok && notExecuted:
			r.r.HungStart, r.r.ExitCode, r.r.Error = true, 126, r.notStartedReason(status.Signal())
		case ok && status.Exited():
			r.r.ExitCode = int64(status.ExitStatus())
		case ok && status.Signaled():
			r.r.Signal = int(status.Signal())
			if limit != "" {
				r.r.Error = "ended by " + queue.SignalText(r.r.Signal) + limit
			}
		case time.Since(start) > r.c.Patience:
			r.abandonTraced()
			return usage, false
		default:
			time.Sleep(pause)
			continue
		}
		return usage, true
	}
}

// endedBeforeExec reports whether a child that was ended by a signal, and is not reaped yet, had not
// executed its program.
func endedBeforeExec(pid int) bool {
	p, ok := procfs.Stat(pid)
	return ok && p.Flags&procfs.ForkNoExec != 0
}

// outOfMemory records the kernel's out-of-memory kills: whether the kernel killed the main process,
// perhaps before its program began, and whether the command had reached its own limit.
func (r *run) outOfMemory(kills oomKills) {
	r.r.MemoryLimit = kills.atLimit
	if !kills.killed || r.r.Signal != int(unix.SIGKILL) && !r.r.HungStart {
		return
	}
	r.r.OutOfMemory = true
	if r.r.HungStart {
		r.r.HungStart, r.r.ExitCode, r.r.Signal, r.r.Error = false, -1, int(unix.SIGKILL), ""
	}
}

// notStartedReason returns the reason why a program never began.
func (r *run) notStartedReason(signal unix.Signal) string {
	limit := StartWithin
	if r.limiter != nil {
		limit = r.w.limiterWithin
	}
	if elapsed := r.r.EndedAt.Sub(r.startedAt); elapsed >= limit {
		return fmt.Sprintf("cannot start %s: it did not start within %v, because the disk or file server of the program, "+
			"or of a file that it needs, does not respond", r.c.Argv[0], limit)
	}
	return fmt.Sprintf("cannot start %s: %s ended the new process before it could run the program; to see whether the "+
		"kernel sent it, run: dmesg", r.c.Argv[0], queue.SignalText(int(signal)))
}

// noneRemain reports whether no process of the tree is left except the main process, which has ended.
// With control groups, it also reaps orphans that have ended.
func (r *run) noneRemain() bool {
	none := noOrphans()
	if r.w.cgroup == nil {
		return none
	}
	if !none {
		r.pipesEmpty = false // an orphan may have printed since the last poll
		reapOrphans()
	}
	return r.w.cgroup.empty()
}

// remaining lists the living processes of the tree, except the main process.
func (r *run) remaining() []procfs.Process { return r.w.tree(r.pid, r.c.Cookie) }

// mayHaveOrphans reports whether orphans exist that may belong to this tree or to another one.
func (r *run) mayHaveOrphans() bool {
	return r.w.cgroup == nil && len(unidentifiedOrphans(r.c.uid())) > 0
}

// kill ends the rest of the tree. With a control group, it also reaches processes that are being
// forked.
func (r *run) kill(remaining []procfs.Process) {
	if b := r.w.cgroup; b == nil || !b.kill() {
		endAll(remaining)
	}
}

// readRemaining reads what the pipes hold. A process outside the tree may have one of the pipes open
// and print without end. After the output grace period, readRemaining reads only what the pipes hold at
// that time.
func (r *run) readRemaining() {
	unread, counted := [2]int{}, false
	for !r.pipesClosed() {
		fds := r.pollFds()
		n, err := unix.Poll(fds[:], 0)
		if err == unix.EINTR {
			continue
		}
		if n == 0 {
			return
		}
		if !counted && time.Now().After(r.graceEnd) {
			unread, counted = r.pendingBytes(), true
		}
		more := !counted
		for i := range fds {
			if fds[i].Revents != 0 && (!counted || unread[i] > 0) {
				unread[i] -= r.read(i)
				more = more || unread[i] > 0
			}
		}
		if !more {
			return
		}
	}
}

// maxTerminalBytes is an upper bound for the unread output of a terminal, in bytes. The kernel keeps 4
// KiB in the line discipline, and 8 KiB plus one write in the buffer before the line discipline.
const maxTerminalBytes = 32 << 10

// pendingBytes returns an upper bound for the number of bytes in each pipe.
func (r *run) pendingBytes() (n [2]int) {
	if r.c.TTY {
		return [2]int{maxTerminalBytes, 0} // TIOCINQ counts only the bytes in the line discipline
	}
	for i, fd := range r.pipes {
		if fd >= 0 {
			r.callBlocking(func() { n[i], _ = unix.IoctlGetInt(fd, unix.TIOCINQ) })
		}
	}
	return n
}

// endRemaining ends the rest of a tree that may have leftover processes. If forced is true (after a
// kill), it always searches for them. Otherwise it searches only if a pipe is still open or an orphan
// exists.
func (r *run) endRemaining(forced bool) {
	r.callBlocking(r.closeWriteEnds)
	open := r.drain(0)
	if open && !forced { // a concurrent fork of this process may hold a copy of the pipe until its exec
		open = r.drain(min(execTime, r.c.OutputGrace))
	}
	if open || forced || r.w.cgroup == nil && r.ownsAny(reapOrphans()) || r.w.cgroup != nil && !r.w.cgroup.empty() {
		r.endLeftovers(forced)
	}
	if r.r.StuckPID == 0 {
		r.readRemaining()
	}
}

// ownsAny reports whether an orphan may belong to this tree. Orphans of other accounts belong to
// other commands.
func (r *run) ownsAny(orphans []int) bool {
	return slices.ContainsFunc(orphans, func(pid int) bool { return IsOwnedBy(r.c.uid(), pid) })
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

// drain reads until both pipes are at end of file, at most for the duration wait. It reports whether a
// pipe is still open.
func (r *run) drain(wait time.Duration) bool {
	deadline := time.Now().Add(wait)
	for r.pipes[0] >= 0 || r.pipes[1] >= 0 {
		fds := r.pollFds()
		n, err := unix.Poll(fds[:], int(milliseconds(max(0, time.Until(deadline)))))
		if err == unix.EINTR {
			continue
		}
		if n == 0 {
			return true
		}
		r.readReady(fds)
		if wait > 0 && time.Now().After(deadline) {
			return true // a process may print without end
		}
		if wait == 0 && time.Since(r.r.EndedAt) > r.c.OutputGrace {
			return true
		}
	}
	return false
}

// endLeftovers ends leftover processes, unless they may live on. Processes that have already got
// SIGTERM keep the rest of their grace period.
func (r *run) endLeftovers(forced bool) {
	if r.c.Background && !forced {
		r.waitTree(time.Until(r.graceEnd), r.pipesClosed)
		if r.spare() {
			return
		}
	}
	if forced {
		r.waitGrace()
	} else {
		r.waitTree(time.Until(r.graceEnd), func() bool { return false })
	}
	start, firstScan := time.Now(), time.Time{}
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		remaining := r.remaining()
		if firstScan.IsZero() {
			firstScan = time.Now()
		}
		if len(remaining) == 0 && time.Since(firstScan) < execTime && r.mayHaveOrphans() {
			time.Sleep(pause)
			continue
		}
		if len(remaining) == 0 {
			if r.w.cgroup == nil {
				orphans.ignore(unidentifiedOrphans(r.c.uid()))
			}
			break
		}
		if time.Since(start) > r.c.Patience {
			r.giveUp(remaining)
			break
		}
		r.r.Leftovers = max(r.r.Leftovers, len(remaining))
		r.kill(remaining)
		time.Sleep(pause)
		reapOrphans()
	}
	if forced {
		r.r.EndedAt = time.Now() // a tree that is being ended counts as ended when its last process has ended
	}
}

// spare lets the rest of the tree live on. If too many trees of the account already live on, it returns
// false, and the result contains the reason.
func (r *run) spare() bool {
	remaining := r.remaining()
	if len(remaining) == 0 {
		return true
	}
	s := &sparedTree{cookie: r.c.Cookie}
	if b := r.w.cgroup; b != nil {
		s.group = b.path
	} else {
		s.procs = remaining[:min(len(remaining), maxRecorded)]
	}
	if !sparedByUser.add(r.c.uid(), s) {
		r.r.Error = fmt.Sprintf("allow_background: the job's background processes were ended, because %d earlier jobs of "+
			"this account still have background processes, which is the limit", maxBackground)
		return false
	}
	orphans.spare(remaining)
	r.r.HasBackground = true
	return true
}

// pipesClosed reports whether both pipes are at end of file.
func (r *run) pipesClosed() bool { return r.pipes[0] < 0 && r.pipes[1] < 0 }

// waitTree waits until the rest of the tree has ended by itself. It returns earlier when the function
// stop returns true or the duration limit has passed. It searches for the tree again only when all
// processes that it knows have ended.
func (r *run) waitTree(limit time.Duration, stop func() bool) {
	var known []procfs.Process
	deadline := time.Now().Add(limit)
	for pause := time.Millisecond; time.Now().Before(deadline); pause = min(2*pause, 20*time.Millisecond) {
		r.drain(0)
		reapOrphans()
		if stop() {
			return
		}
		for len(known) > 0 && !known[0].StillAlive() {
			known = known[1:]
		}
		if len(known) == 0 {
			if known = r.remaining(); len(known) == 0 && !r.mayHaveOrphans() {
				return
			}
		}
		time.Sleep(min(pause, time.Until(deadline)))
	}
}

// waitGrace waits until the tree has ended, at most for the rest of its grace period. Later calls
// of Kill have no effect.
func (r *run) waitGrace() {
	// unsureSince is the time from which on every remaining process may belong to another tree. It
	// is zero while a process certainly belongs to this tree.
	var unsureSince time.Time
	for time.Now().Before(r.killDue()) {
		reapOrphans()
		remaining := r.remaining()
		for _, p := range remaining {
			r.awaitEnd(p)
		}
		if len(remaining) > 0 {
			unsureSince = time.Time{}
			continue
		}
		now := time.Now()
		if unsureSince.IsZero() {
			unsureSince = now
		}
		if !r.mayHaveOrphans() || now.After(r.graceEnd) && now.Sub(unsureSince) > execTime {
			break
		}
		time.Sleep(execTime / 20)
	}
	r.w.markEnded()
}

// awaitEnd reads the output of the tree until process p has ended or SIGKILL is due.
func (r *run) awaitEnd(p procfs.Process) {
	pidfd, err := unix.PidfdOpen(p.PID, 0)
	if err == unix.ESRCH {
		return
	}
	if err != nil { // no descriptor is available
		r.drain(0)
		r.handleRequests(time.Now())
		time.Sleep(min(execTime, time.Until(r.killDue())))
		return
	}
	defer unix.Close(pidfd)
	for p.StillAlive() {
		pipes := r.pollFds()
		fds := [4]unix.PollFd{pipes[0], pipes[1], {Fd: int32(pidfd), Events: unix.POLLIN},
			{Fd: int32(r.w.wake), Events: unix.POLLIN}}
		wait := time.Until(r.killDue())
		if wait <= 0 {
			return
		}
		n, err := unix.Poll(fds[:], int(milliseconds(wait)))
		if err != nil || n == 0 {
			continue
		}
		r.readReady([2]unix.PollFd{fds[0], fds[1]})
		if fds[3].Revents != 0 {
			var drain [8]byte
			unix.Read(r.w.wake, drain[:])
			r.handleRequests(time.Now())
		}
	}
}

// killTree sends SIGKILL to the whole tree, including the main process. It returns the other processes.
func (r *run) killTree() []procfs.Process {
	remaining := r.remaining()
	unix.Kill(-r.pid, unix.SIGKILL) // the main process is not reaped, so its group id is not reused
	r.kill(remaining)
	return remaining
}
