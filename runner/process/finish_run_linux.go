package process

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/procfs"
)

// finish finishes the run once the main process has ended. It reads the rest of the output, ends leftover
// processes, and reaps the main process.
func (r *run) finish() {
	if r.result.StuckPID != 0 {
		r.worker.abandonCgroup()
		return
	}
	forced := !r.termAt.IsZero()
	if !forced {
		r.resumeTree() // no kill has resumed the tree, which may still be frozen
	}
	r.graceEndsAt = time.Now().Add(r.command.OutputGrace)
	switch {
	case forced || !r.isTreeGone():
		r.endRemainingProcesses(forced)
	case !r.pipesEmpty || r.reapedBefore != orphans.reapedCount.Load():
		r.readRemaining() // no process of the tree lives, so no more output can follow
	}
	usage, ok := r.reapMain()
	if !ok {
		r.worker.abandonCgroup()
		return
	}
	if b := r.worker.cgroup; b != nil {
		r.recordOutOfMemory(b.takeOOMKills())
		if r.command.Limits.Tasks != 0 {
			r.result.PeakTasks = b.peakTasks()
		}
		if r.result.HasBackground || b.wasKilled {
			r.worker.abandonCgroup()
		}
	}
	r.result.CPU = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	if exceedsOwnPeak(usage.Maxrss) {
		r.result.PeakRSSBytes = usage.Maxrss << 10
	}
}

// exceedsOwnPeak reports whether a command's peak of memory, in KiB, is above the peak of this process.
// The kernel counts the memory that a child shares with this process before its exec
// (setmax_mm_hiwater_rss). So a command's peak is never below that of this process, and its own peak is
// known only if it is higher.
func exceedsOwnPeak(peak int64) bool {
	var self unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &self) // this call cannot fail
	return peak > self.Maxrss
}

// reapMain collects the exit status of the main process, which has ended. It returns ok=false if a tracer
// withholds the status for longer than UnkillableAfter.
func (r *run) reapMain() (usage unix.Rusage, ok bool) {
	notExecuted, executed, limit := false, r.limiter.hasExecuted(r.pid), ""
	// Most commands end with an exit code. They need only this one system call.
	if signal, _ := exitState(r.pid); signal != 0 {
		notExecuted, limit = endedBeforeExec(r.pid), limitSignalHint(r.pid, signal)
	}
	start := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		status, usage, ok, err := orphans.reap(r.pid)
		switch {
		case err != nil:
			r.result.EndUnknown, r.result.Error = true, fmt.Sprintf("the job's exit status is unknown, because waiting for "+
				"its process failed: %v", err)
		case ok && !executed:
			r.recordLimiterFailure(status)
		case ok && notExecuted:
			r.result.HungStart, r.result.ExitCode, r.result.Error = true, 126, r.notStartedReason(status.Signal())
		case ok && status.Exited():
			r.result.ExitCode = int64(status.ExitStatus())
		case ok && status.Signaled():
			r.result.Signal = int(status.Signal())
			if limit != "" {
				r.result.Error = "ended by " + queue.SignalText(r.result.Signal) + limit
			}
		case time.Since(start) > r.command.UnkillableAfter:
			r.abandonTracedMain()
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
	return ok && p.Flags&procfs.FlagForkNoExec != 0
}

// recordOutOfMemory records the kernel's out-of-memory kills: whether the kernel killed the main process,
// perhaps before its program began, and whether the command had reached its own limit.
func (r *run) recordOutOfMemory(kills oomKills) {
	r.result.AtMemoryLimit = kills.atLimit
	if !kills.processKilled || r.result.Signal != int(unix.SIGKILL) && !r.result.HungStart {
		return
	}
	r.result.OutOfMemory = true
	if r.result.HungStart {
		r.result.HungStart, r.result.ExitCode, r.result.Signal, r.result.Error = false, -1, int(unix.SIGKILL), ""
	}
}

// notStartedReason returns the reason why a program never began.
func (r *run) notStartedReason(signal unix.Signal) string {
	limit := StartTimeout
	if r.limiter != nil {
		limit = r.worker.limiterTimeout
	}
	if elapsed := r.result.EndedAt.Sub(r.startedAt); elapsed >= limit {
		return fmt.Sprintf("cannot start %s: it did not start within %v, because the disk or file server of the program, "+
			"or of a file that it needs, does not respond", r.command.Argv[0], limit)
	}
	return fmt.Sprintf("cannot start %s: %s ended the new process before it could run the program; to see whether the "+
		"kernel sent it, run: dmesg", r.command.Argv[0], queue.SignalText(int(signal)))
}

// isTreeGone reports whether no process of the tree is left except the main process, which has ended.
// With control groups, it also reaps orphans that have ended.
func (r *run) isTreeGone() bool {
	none := hasNoOrphans()
	if r.worker.cgroup == nil {
		return none
	}
	if !none {
		r.pipesEmpty = false // an orphan may have printed since the last poll
		reapOrphans()
	}
	return r.worker.cgroup.isEmpty()
}

// remainingProcesses lists the living processes of the tree, except the main process.
func (r *run) remainingProcesses() []procfs.Process { return r.worker.tree(r.pid, r.command.Cookie) }

// mayHaveOrphans reports whether orphans exist that may belong to this tree or to another one.
func (r *run) mayHaveOrphans() bool {
	return r.worker.cgroup == nil && len(unidentifiedOrphans(r.command.uid())) > 0
}

// killRemaining ends the rest of the tree. With a control group, it also reaches processes that are being
// forked.
func (r *run) killRemaining(remaining []procfs.Process) {
	if b := r.worker.cgroup; b == nil || !b.kill() {
		killAll(remaining)
	}
}

// readRemaining reads what the pipes hold. A process outside the tree may have one of the pipes open
// and print without end. After the output grace period, readRemaining reads only what the pipes hold at
// that time.
func (r *run) readRemaining() {
	if !r.drainPipes(0) || time.Now().Before(r.graceEndsAt) {
		return
	}
	for i, unread := range r.maxPendingBytes() {
		for unread > 0 {
			n := r.readPipe(i)
			if n == 0 {
				break // a terminal contained less
			}
			unread -= n
		}
	}
}

// maxTerminalBytes is an upper bound for the unread output of a terminal, in bytes. The kernel keeps 4
// KiB in the line discipline, and 8 KiB plus one write in the buffer before the line discipline.
const maxTerminalBytes = 32 << 10

// maxPendingBytes returns the number of bytes in each pipe, or an upper bound for a terminal.
func (r *run) maxPendingBytes() (n [2]int) {
	if r.command.TTY {
		return [2]int{maxTerminalBytes, 0} // TIOCINQ counts only the bytes in the line discipline
	}
	for i, fd := range r.pipes {
		if fd >= 0 {
			r.callBlocking(func() { n[i], _ = unix.IoctlGetInt(fd, unix.TIOCINQ) })
		}
	}
	return n
}

// endRemainingProcesses ends the rest of a tree that may have leftover processes. If forced is true (after a
// kill), it always searches for them. Otherwise it searches only if a pipe is still open or an orphan
// exists.
func (r *run) endRemainingProcesses(forced bool) {
	r.callBlocking(r.closeWriteEnds)
	open := r.drainPipes(0)
	if open && !forced { // a concurrent fork of this process may hold a copy of the pipe until its exec
		open = r.drainPipes(min(maxExecTime, r.command.OutputGrace))
	}
	if open || forced || r.worker.cgroup == nil && r.ownsAnyOrphan(reapOrphans()) || r.worker.cgroup != nil &&
		!r.worker.cgroup.isEmpty() {
		r.endLeftovers(forced)
	}
	if r.result.StuckPID == 0 {
		r.readRemaining()
	}
}

// ownsAnyOrphan reports whether an orphan may belong to this tree. Orphans of other accounts belong to
// other commands.
func (r *run) ownsAnyOrphan(orphans []int) bool {
	return slices.ContainsFunc(orphans, func(pid int) bool { return IsOwnedBy(r.command.uid(), pid) })
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
			r.readPipe(i)
		}
	}
}

// drainPipes reads until both pipes are at end of file, at most for the duration wait. It reports whether a
// pipe is still open.
func (r *run) drainPipes(wait time.Duration) bool {
	deadline := time.Now().Add(wait)
	for r.pipes[0] >= 0 || r.pipes[1] >= 0 {
		fds := r.pollFds()
		n, err := unix.Poll(fds[:], int(ceilMilliseconds(max(0, time.Until(deadline)))))
		if err == unix.EINTR {
			continue
		}
		if n == 0 {
			return true
		}
		r.readReady(fds)
		// A process may print without end.
		if now := time.Now(); wait > 0 && now.After(deadline) || wait == 0 && now.After(r.graceEndsAt) {
			return true
		}
	}
	return false
}

// endLeftovers ends leftover processes, unless they may live on. Processes that have already got
// SIGTERM keep the rest of their grace period.
func (r *run) endLeftovers(forced bool) {
	if r.command.AllowBackground && !forced {
		r.waitTree(r.pipesClosed)
		if r.spareTree() {
			return
		}
	}
	r.waitTree(func() bool { return false })
	r.worker.markEnded()
	start, firstScan := time.Now(), time.Time{}
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		remaining := r.remainingProcesses()
		if firstScan.IsZero() {
			firstScan = time.Now()
		}
		if len(remaining) == 0 && time.Since(firstScan) < maxExecTime && r.mayHaveOrphans() {
			time.Sleep(pause)
			continue
		}
		if len(remaining) == 0 {
			if r.worker.cgroup == nil {
				orphans.ignore(unidentifiedOrphans(r.command.uid()))
			}
			break
		}
		if time.Since(start) > r.command.UnkillableAfter {
			r.recordStuckProcesses(remaining)
			break
		}
		r.result.Leftovers = max(r.result.Leftovers, len(remaining))
		r.killRemaining(remaining)
		time.Sleep(pause)
		reapOrphans()
	}
	if forced {
		r.result.EndedAt = time.Now() // a tree that is being ended counts as ended when its last process has ended
	}
}

// spareTree lets the rest of the tree live on. If too many trees of the account already live on, it returns
// false, and the result contains the reason.
func (r *run) spareTree() bool {
	remaining := r.remainingProcesses()
	if len(remaining) == 0 {
		return true
	}
	s := &sparedTree{uid: r.command.uid(), cookie: r.command.Cookie}
	if b := r.worker.cgroup; b != nil {
		s.cgroupPath = b.path
	} else {
		s.procs = remaining[:min(len(remaining), maxRecorded)]
	}
	if !allSparedTrees.add(s) {
		r.result.Error = fmt.Sprintf(
			"allow_background: the job's background processes were ended, because %d earlier jobs of "+
				"this account still have background processes, which is the limit", maxSparedTreesPerUser)
		return false
	}
	orphans.addSpared(remaining)
	r.result.HasBackground = true
	return true
}

// pipesClosed reports whether both pipes are at end of file.
func (r *run) pipesClosed() bool { return r.pipes[0] < 0 && r.pipes[1] < 0 }

// waitTree waits until the rest of the tree has ended. It returns earlier when the function stop returns true
// or SIGKILL is due.
func (r *run) waitTree(stop func() bool) {
	// unsureSince is the time from which on every remaining process may belong to another tree. It
	// is zero while a process certainly belongs to this tree.
	var unsureSince time.Time
	for time.Now().Before(r.killDueTime()) && !stop() {
		reapOrphans()
		remaining := r.remainingProcesses()
		for _, p := range remaining {
			r.awaitEnd(p, stop)
		}
		if len(remaining) > 0 {
			unsureSince = time.Time{}
			continue
		}
		now := time.Now()
		if unsureSince.IsZero() {
			unsureSince = now
		}
		if !r.mayHaveOrphans() || now.After(r.graceEndsAt) && now.Sub(unsureSince) > maxExecTime {
			return
		}
		if !r.drainPipes(maxExecTime / 20) { // the orphans may print
			time.Sleep(maxExecTime / 20)
		}
	}
}

// awaitEnd reads the output of the tree until process p has ended, the function stop returns true, or SIGKILL
// is due.
func (r *run) awaitEnd(p procfs.Process, stop func() bool) {
	pidfd, err := unix.PidfdOpen(p.PID, 0)
	if err == unix.ESRCH {
		return
	}
	if err != nil { // no descriptor is available
		r.drainPipes(0)
		r.handleRequests(time.Now())
		time.Sleep(min(maxExecTime, time.Until(r.killDueTime())))
		return
	}
	defer unix.Close(pidfd)
	for p.StillAlive() && !stop() {
		pipes := r.pollFds()
		fds := [4]unix.PollFd{pipes[0], pipes[1], {Fd: int32(pidfd), Events: unix.POLLIN},
			{Fd: int32(r.worker.wakeEvent), Events: unix.POLLIN}}
		wait := time.Until(r.killDueTime())
		if wait <= 0 {
			return
		}
		n, err := unix.Poll(fds[:], int(ceilMilliseconds(wait)))
		if err != nil || n == 0 {
			continue
		}
		r.readReady([2]unix.PollFd{fds[0], fds[1]})
		if fds[3].Revents != 0 {
			r.worker.clearWakeEvent()
			r.handleRequests(time.Now())
		}
	}
}

// killTree sends SIGKILL to the whole tree, including the main process. It returns the other processes.
func (r *run) killTree() []procfs.Process {
	remaining := r.remainingProcesses()
	unix.Kill(-r.pid, unix.SIGKILL) // the main process is not reaped, so its group id is not reused
	r.killRemaining(remaining)
	return remaining
}
