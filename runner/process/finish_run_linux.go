package process

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/procfs"
)

// finishRun completes the run after the main process has ended. It reads the rest of the output, ends leftover
// processes (those that the main process left behind), and reaps the main process.
func (r *runningCommand) finishRun() {
	if r.result.StuckPID != 0 {
		r.worker.abandonCgroup()
		return
	}
	forced := !r.sigtermSentAt.IsZero()
	if !forced {
		r.resumeTree() // a pause may have frozen the tree, and no kill has resumed it
	}
	r.leftoverGraceEndsAt = time.Now().Add(r.command.LeftoverGracePeriod)
	switch {
	case forced || !r.hasTreeEnded():
		r.endLeftoversIfAny(forced)
	case !r.pipesEmptyAtLastPoll || r.reapedCountBeforePoll != globalOrphanTable.reapedCount.Load():
		r.readRemainingOutput() // no process of the tree is alive, so no more output can follow
	}
	usage, ok := r.reapMainProcess()
	if !ok {
		r.worker.abandonCgroup()
		return
	}
	if b := r.worker.cgroup; b != nil {
		r.recordOutOfMemory(b.takeOOMKills())
		if r.command.Limits.Tasks != 0 {
			r.result.PeakTasks = b.peakTasks()
		}
		if r.result.HasBackgroundProcesses || b.wasKilled {
			r.worker.abandonCgroup()
		}
	}
	r.result.CPUTime = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	if exceedsRunnerPeakMemory(usage.Maxrss) {
		r.result.PeakRSSBytes = usage.Maxrss << 10
	}
}

// exceedsRunnerPeakMemory reports whether a command's memory peak, in KiB, is above the peak of this process. A lower
// peak is meaningless, and the command's real peak is then unknown. The reason is that a child shares this process's
// memory before its exec, and the kernel counts this memory for the child (setmax_mm_hiwater_rss).
func exceedsRunnerPeakMemory(peakKiB int64) bool {
	var ownUsage unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &ownUsage) // this call cannot fail
	return peakKiB > ownUsage.Maxrss
}

// reapMainProcess collects the exit status of the main process, which has ended. It returns ok=false if a tracer
// (ptrace) withholds the status for longer than SigkillTimeout.
func (r *runningCommand) reapMainProcess() (usage unix.Rusage, ok bool) {
	notExecuted, executed, limit := false, r.limiter.hasExecutedProgram(r.pid), ""
	// Most commands end with an exit code. For these commands, the system call in childExitState is enough.
	if signal, _ := childExitState(r.pid); signal != 0 {
		p, ok := procfs.Stat(r.pid)
		notExecuted, limit = ok && p.KernelFlags&procfs.FlagForkNoExec != 0, signalLimitHint(r.pid, signal)
	}
	start := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		status, usage, ok, err := globalOrphanTable.reapMainProcess(r.pid)
		switch {
		case err != nil:
			r.result.ExitStatusUnknown, r.result.Error = true,
				fmt.Sprintf("the job's exit status is unknown, because waiting for its process failed: %v", err)
		case ok && !executed:
			r.recordLimiterFailure(status)
		case ok && notExecuted:
			r.result.StartHung, r.result.ExitCode, r.result.Error = true, 126, r.notStartedReason(status.Signal())
		case ok && status.Exited():
			r.result.ExitCode = int64(status.ExitStatus())
		case ok && status.Signaled():
			r.result.Signal = int(status.Signal())
			if limit != "" {
				r.result.Error = "ended by " + queue.SignalText(r.result.Signal) + limit
			}
		case time.Since(start) > r.command.SigkillTimeout:
			r.abandonTracedMainProcess()
			return usage, false
		default:
			time.Sleep(pause)
			continue
		}
		return usage, true
	}
}

// recordOutOfMemory records in the result whether the kernel killed the main process for lack of memory,
// possibly before its program began, and whether the command had reached its own memory limit.
func (r *runningCommand) recordOutOfMemory(report oomReport) {
	r.result.ReachedMemoryLimit = report.ownLimitReached
	if !report.processKilled || r.result.Signal != int(unix.SIGKILL) && !r.result.StartHung {
		return
	}
	r.result.OutOfMemory = true
	if r.result.StartHung {
		r.result.StartHung, r.result.ExitCode, r.result.Signal, r.result.Error = false, -1, int(unix.SIGKILL), ""
	}
}

// notStartedReason returns the reason why the command's program never began. signal is the signal that ended
// the new process.
func (r *runningCommand) notStartedReason(signal unix.Signal) string {
	limit := ExecTimeout
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

// hasTreeEnded reports whether all processes of the tree have ended. Call it after the end of the main process.
// If the run has a control group, hasTreeEnded also reaps ended orphans.
func (r *runningCommand) hasTreeEnded() bool {
	none := hasNoOrphans()
	if r.worker.cgroup == nil {
		return none
	}
	if !none {
		r.pipesEmptyAtLastPoll = false // an orphan may have printed since the last poll
		reapOrphans()
	}
	return r.worker.cgroup.isEmpty()
}

func (r *runningCommand) remainingProcesses() []procfs.Process {
	return r.worker.otherTreeProcesses(r.pid, r.command.Cookie)
}

// mayHaveOrphans reports whether an orphan may belong to this tree. With a control group, this is never the case.
// Without one, it is the case if the account of the command has orphans that could not be assigned to any tree.
func (r *runningCommand) mayHaveOrphans() bool {
	return r.worker.cgroup == nil && len(unidentifiedOrphans(r.command.uid())) > 0
}

// killRemaining kills the remaining processes of the tree. With a control group, it also kills processes that
// are not in the list because they are just being forked.
func (r *runningCommand) killRemaining(remaining []procfs.Process) {
	if b := r.worker.cgroup; b == nil || !b.kill() {
		killProcesses(remaining)
	}
}

// readRemainingOutput reads the output that is left in the pipes. After the output grace period, it reads only what the
// pipes contain at that moment, because a process outside the tree may have a pipe open and print endlessly.
func (r *runningCommand) readRemainingOutput() {
	if !r.drainPipes(0) || time.Now().Before(r.leftoverGraceEndsAt) {
		return
	}
	for i, unread := range r.maxUnreadBytesPerPipe() {
		for unread > 0 {
			n := r.readPipe(i)
			if n == 0 {
				break // the terminal contained less than the upper bound
			}
			unread -= n
		}
	}
}

// maxUnreadTerminalBytes is an upper bound for the unread output of a terminal, in bytes. The kernel keeps up to 4
// KiB in the line discipline. The buffer in front of the line discipline holds 8 KiB plus one write.
const maxUnreadTerminalBytes = 32 << 10

// maxUnreadBytesPerPipe returns how many unread bytes each pipe contains. For a terminal, it returns an upper
// bound.
func (r *runningCommand) maxUnreadBytesPerPipe() (unreadBytesByPipe [2]int) {
	if r.command.TTY {
		return [2]int{maxUnreadTerminalBytes, 0} // TIOCINQ counts only the bytes in the line discipline
	}
	for i, fd := range r.outputPipes {
		if fd >= 0 {
			r.callPipeOperation(func() { unreadBytesByPipe[i], _ = unix.IoctlGetInt(fd, unix.TIOCINQ) })
		}
	}
	return unreadBytesByPipe
}

// endLeftoversIfAny ends the leftover processes of the tree. To save time, it searches for them only if
// there is a hint that some exist: afterTreeKill is true, a pipe is still open, or a process of the tree may be
// alive.
func (r *runningCommand) endLeftoversIfAny(afterTreeKill bool) {
	r.callPipeOperation(r.closeWriteEnds)
	open := r.drainPipes(0)
	// A child that this process is starting for another command may have a copy of the pipe until its exec.
	if open && !afterTreeKill {
		open = r.drainPipes(min(maxExecWait, r.command.LeftoverGracePeriod))
	}
	if open || afterTreeKill || r.worker.cgroup == nil && r.mayOwnAnyOrphan(reapOrphans()) || r.worker.cgroup != nil &&
		!r.worker.cgroup.isEmpty() {
		r.endLeftoverProcesses(afterTreeKill)
	}
	if r.result.StuckPID == 0 {
		r.readRemainingOutput()
	}
}

// mayOwnAnyOrphan reports whether any of the orphans may belong to this tree, because it runs under the account of this
// command.
func (r *runningCommand) mayOwnAnyOrphan(orphanPIDs []int) bool {
	return slices.ContainsFunc(orphanPIDs, func(pid int) bool { return IsOwnedBy(r.command.uid(), pid) })
}

// readReadyPipes reads once from each pipe that poll(2) has reported as readable or closed. fds is the result of
// poll(2) for the two output pipes.
func (r *runningCommand) readReadyPipes(fds []unix.PollFd) {
	for i, fd := range fds {
		if fd.Revents != 0 {
			r.readPipe(i)
		}
	}
}

// drainPipes reads until both pipes are at end of file, but not longer than the given time. It reports whether a
// pipe is still open.
func (r *runningCommand) drainPipes(maxWait time.Duration) bool {
	deadline := time.Now().Add(maxWait)
	for !r.arePipesClosed() {
		fds := [2]unix.PollFd{pollIn(r.outputPipes[0]), pollIn(r.outputPipes[1])}
		n, err := unix.Poll(fds[:], int(ceilMilliseconds(max(0, time.Until(deadline)))))
		if err == unix.EINTR {
			continue
		}
		if n == 0 {
			return true
		}
		r.readReadyPipes(fds[:])
		// Stop at the deadline even if a process prints endlessly.
		if now := time.Now(); maxWait > 0 && now.After(deadline) || maxWait == 0 && now.After(r.leftoverGraceEndsAt) {
			return true
		}
	}
	return false
}

// endLeftoverProcesses ends leftover processes. If the command allows background processes and afterTreeKill is false,
// it lets them live on instead. Processes that have already received SIGTERM keep the rest of their grace period.
func (r *runningCommand) endLeftoverProcesses(afterTreeKill bool) {
	if r.command.AllowBackground && !afterTreeKill {
		r.waitForTreeEnd(r.arePipesClosed)
		if r.keepTreeInBackground() {
			return
		}
	}
	r.waitForTreeEnd(func() bool { return false })
	r.worker.markCommandEnded()
	start, firstScan := time.Now(), time.Time{}
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		remaining := r.remainingProcesses()
		if firstScan.IsZero() {
			firstScan = time.Now()
		}
		if len(remaining) == 0 && time.Since(firstScan) < maxExecWait && r.mayHaveOrphans() {
			time.Sleep(pause)
			continue
		}
		if len(remaining) == 0 {
			if r.worker.cgroup == nil {
				globalOrphanTable.ignoreOrphans(unidentifiedOrphans(r.command.uid()))
			}
			break
		}
		if time.Since(start) > r.command.SigkillTimeout {
			r.recordStuckProcesses(remaining)
			break
		}
		r.result.EndedLeftoverCount = max(r.result.EndedLeftoverCount, len(remaining))
		r.killRemaining(remaining)
		time.Sleep(pause)
		reapOrphans()
	}
	if afterTreeKill {
		r.result.EndedAt = time.Now() // after a kill, the command ends when the last process of its tree has ended
	}
}

// keepTreeInBackground lets the remaining processes of the tree live on. If too many trees of the account already live
// on, it returns false and records the reason in the result.
func (r *runningCommand) keepTreeInBackground() bool {
	remaining := r.remainingProcesses()
	if len(remaining) == 0 {
		return true
	}
	s := &backgroundTree{uid: r.command.uid(), cookie: r.command.Cookie}
	if b := r.worker.cgroup; b != nil {
		s.cgroupPath = b.path
	} else {
		s.procs = remaining[:min(len(remaining), maxRecordedProcesses)]
	}
	if !allBackgroundTrees.addTree(s) {
		r.result.Error = fmt.Sprintf(
			"allow_background: the job's background processes were ended, because %d earlier jobs of "+
				"this account still have background processes, which is the limit", maxBackgroundTreesPerUser)
		return false
	}
	globalOrphanTable.addBackgroundProcesses(remaining)
	r.result.HasBackgroundProcesses = true
	return true
}

// arePipesClosed reports whether both pipes are at end of file.
func (r *runningCommand) arePipesClosed() bool { return r.outputPipes[0] < 0 && r.outputPipes[1] < 0 }

// waitForTreeEnd waits until the remaining processes of the tree have ended, shouldStop returns true, or SIGKILL is
// due.
func (r *runningCommand) waitForTreeEnd(shouldStop func() bool) {
	// unsureSince is the time since which it is unknown whether any of the remaining processes belongs to this tree. It is
	// zero while at least one process certainly belongs to this tree.
	var unsureSince time.Time
	for time.Now().Before(r.leftoverSigkillTime()) && !shouldStop() {
		reapOrphans()
		remaining := r.remainingProcesses()
		for _, p := range remaining {
			r.awaitProcessEnd(p, shouldStop)
		}
		if len(remaining) > 0 {
			unsureSince = time.Time{}
			continue
		}
		now := time.Now()
		if unsureSince.IsZero() {
			unsureSince = now
		}
		if !r.mayHaveOrphans() || now.After(r.leftoverGraceEndsAt) && now.Sub(unsureSince) > maxExecWait {
			return
		}
		if !r.drainPipes(maxExecWait / 20) { // the orphans may print
			time.Sleep(maxExecWait / 20)
		}
	}
}

// awaitProcessEnd waits until process p has ended, shouldStop returns true, or SIGKILL is due. While it waits, it reads
// the output of the tree.
func (r *runningCommand) awaitProcessEnd(p procfs.Process, shouldStop func() bool) {
	pidfd, err := unix.PidfdOpen(p.PID, 0)
	if err == unix.ESRCH {
		return
	}
	if err != nil { // pidfds are unavailable, so check the process periodically
		r.drainPipes(0)
		r.executeKillAndPauseRequests(time.Now())
		time.Sleep(min(maxExecWait, time.Until(r.leftoverSigkillTime())))
		return
	}
	defer unix.Close(pidfd)
	for p.IsStillAlive() && !shouldStop() {
		fds := [4]unix.PollFd{pollIn(r.outputPipes[0]), pollIn(r.outputPipes[1]), pollIn(pidfd),
			pollIn(r.worker.wakeEventHandle)}
		wait := time.Until(r.leftoverSigkillTime())
		if wait <= 0 {
			return
		}
		n, err := unix.Poll(fds[:], int(ceilMilliseconds(wait)))
		if err != nil || n == 0 {
			continue
		}
		r.readReadyPipes(fds[:2])
		if fds[3].Revents != 0 {
			r.worker.clearWakeEvent()
			r.executeKillAndPauseRequests(time.Now())
		}
	}
}

// killTree sends SIGKILL to the whole tree, including the main process. It returns all processes of the
// tree except the main process.
func (r *runningCommand) killTree() []procfs.Process {
	remaining := r.remainingProcesses()
	unix.Kill(-r.pid, unix.SIGKILL) // the main process is not reaped yet, so its group id cannot be reused
	r.killRemaining(remaining)
	return remaining
}
