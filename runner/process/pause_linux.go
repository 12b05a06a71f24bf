package process

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/runner/procfs"
)

// If the kernel cannot freeze a control group of the tree, freezeTree sends SIGSTOP to every process of the tree. It
// repeats this until scansWithoutRunningProcess scans in a row have found no running process. A tree that forks all
// the time can only be stopped by signals to whole process groups. A signal to a group also reaches a process that is
// being forked, because fork(2) starts again if a signal is pending. See docs/decisions/0048.
const (
	freezeFileName             = "cgroup.freeze" // file of a control group: 1 freezes its processes, 0 resumes them
	scansWithoutRunningProcess = 2
	// firstScanSignallingGroups is the number of a scan, counted from 0. From this scan on, freezeTree also signals whole
	// process groups. A process that still runs at that time belongs to a tree that forks faster than signals to single
	// processes can stop it.
	firstScanSignallingGroups = 2
)

// freezeTree freezes the tree. It returns how many processes still run at the deadline.
func (r *runningCommand) freezeTree(deadline time.Time) (runningCount int) {
	if b := r.worker.cgroup; b != nil && writeCgroupFile(b.path, freezeFileName, "1") == nil {
		r.cgroupFrozen = true
		for pause := time.Millisecond / 10; !b.hasEventLine("frozen 1"); pause = min(2*pause, 10*time.Millisecond) {
			if r.isKillRequested() || time.Now().After(deadline) {
				active, _ := runningProcesses(b.listProcesses(0), nil)
				return max(1, len(active))
			}
			time.Sleep(pause)
		}
		return 0
	}
	stopSent, unsureSince := map[procfs.Process]bool{}, time.Time{}
	for scan, calm := 0, 0; calm < scansWithoutRunningProcess; scan++ {
		unix.Kill(-r.pid, unix.SIGSTOP) // the main process is not reaped yet, so its group id is not reused
		seen, tree := r.scanTree()
		active, waiting := runningProcesses(tree, stopSent)
		if len(active) > 0 && (r.isKillRequested() || time.Now().After(deadline)) {
			return len(active)
		}
		if len(active) > 0 || unsureSince.IsZero() {
			unsureSince = time.Now()
		}
		// A process in the middle of a fork or an exec may have been invisible to the scan, so scan again.
		if len(active) == 0 && (waiting || r.mayHaveOrphans()) && time.Since(unsureSince) < 5*maxExecWait {
			time.Sleep(maxExecWait / 4)
			continue
		}
		calm++
		for _, p := range active {
			calm = 0
			sendSignal(p, unix.SIGSTOP, nil)
			stopSent[procfs.Process{PID: p.PID, StartTicks: p.StartTicks}] = true
		}
		if scan >= firstScanSignallingGroups {
			for _, group := range processGroupsInsideTree(active, tree, seen) {
				unix.Kill(-group, unix.SIGSTOP)
			}
		}
	}
	return 0
}

// thawTree resumes the tree. It returns how many processes are still stopped at the deadline.
func (r *runningCommand) thawTree(deadline time.Time) (stoppedCount int) {
	if b := r.worker.cgroup; r.cgroupFrozen && b != nil {
		r.cgroupFrozen = false
		writeCgroupFile(b.path, freezeFileName, "0")
		for pause := time.Millisecond / 10; !b.hasEventLine("frozen 0") &&
			time.Now().Before(deadline); pause = min(2*pause, 10*time.Millisecond) {
			time.Sleep(pause)
		}
		return 0
	}
	for calm := 0; calm < scansWithoutRunningProcess; calm++ {
		unix.Kill(-r.pid, unix.SIGCONT)
		_, tree := r.scanTree()
		stoppedCount = 0
		for _, p := range tree {
			if p.State == 'T' {
				sendSignal(p, unix.SIGCONT, nil)
				stoppedCount++
			}
		}
		if stoppedCount > 0 {
			calm = -1
		}
		if time.Now().After(deadline) {
			return stoppedCount // give up: some processes of the tree stop themselves repeatedly
		}
	}
	return 0
}

// scanTree lists the processes of the tree, including the main process. Without a control group, it must scan all
// processes of the machine, and also returns them, as allProcs.
func (r *runningCommand) scanTree() (allProcs, treeProcs []procfs.Process) {
	main, ok := procfs.Stat(r.pid)
	if b := r.worker.cgroup; b != nil {
		treeProcs = b.listProcesses(r.pid)
	} else {
		l := processScanner.freshSnapshot()
		allProcs, treeProcs = l.procs, listTreeInScan(l, r.pid, r.command.Cookie, r.command.uid())
	}
	if ok && main.WasAlive() {
		treeProcs = append(treeProcs, main)
	}
	return allProcs, treeProcs
}

// runningProcesses returns the processes in procs that run. stopSent contains the processes that have been sent
// SIGSTOP. A process that has been sent SIGSTOP, but waits in the kernel, does not count as running, because it stops
// before it continues its program. hasKernelWaiter reports whether procs contains such a process. The process may be in
// the middle of a fork: for example, the caller of vfork waits while its child is stopped.
func runningProcesses(procs []procfs.Process, sentSIGSTOP map[procfs.Process]bool) (
	running []procfs.Process, hasKernelWaiter bool) {
	for _, p := range procs {
		switch {
		case p.State == 'T' || p.State == 't':
		case p.State == 'D' && sentSIGSTOP[procfs.Process{PID: p.PID, StartTicks: p.StartTicks}]:
			hasKernelWaiter = true
		default:
			running = append(running, p)
		}
	}
	return running, hasKernelWaiter
}

// processGroupsInsideTree returns the process groups of activeProcs that have no member outside the tree. allProcs
// lists all processes of the machine.
func processGroupsInsideTree(activeProcs, treeProcs, allProcs []procfs.Process) (pgids []int) {
	inTree, excludedGroups := map[int]bool{}, map[int]bool{}
	for _, p := range treeProcs {
		inTree[p.PID] = true
	}
	for _, p := range allProcs {
		if p.WasAlive() && !inTree[p.PID] {
			excludedGroups[p.PGID] = true
		}
	}
	for _, p := range activeProcs {
		if p.PGID > 1 && !excludedGroups[p.PGID] {
			pgids = append(pgids, p.PGID)
			excludedGroups[p.PGID] = true
		}
	}
	return pgids
}

// elapsed returns the time since the command was started.
func (r *runningCommand) elapsed() time.Duration { return time.Since(r.startedAt) }
