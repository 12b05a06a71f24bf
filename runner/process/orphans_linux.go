package process

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/runner/procfs"
)

// This file finds and reaps orphans: processes of commands whose parent has died. This process is a child
// subreaper (prctl(2)), so the kernel makes orphans children of its main thread. The kernel lists these
// children in one small file. Normally one read of this file shows that there are no orphans.
//
// The list may also contain main processes of commands. Only the worker that forked a main process may reap it, so
// reapAndListOrphans must skip main processes. But during a fork, the pid of the child is unknown. So an ended process
// that is not a known main process may be the child of a fork that is in progress. A lock cannot prevent this, because
// a fork may hang for long. Instead, every fork has a number. When reapAndListOrphans first sees an unknown ended
// process, some forks may be in progress. It reaps the process only after all of these forks have returned. For
// example, it finds the ended process P while forks 7 and 8 are in progress. It reaps P after 7 and 8 have returned,
// even if fork 9 has begun.

// globalOrphanTable keeps track of the orphans and the forks of this process. See docs/decisions/0040.
var globalOrphanTable = newOrphanTable()

func newOrphanTable() *orphanTable {
	o := &orphanTable{mainPIDs: map[int]bool{}, backgroundStartTicksByPID: map[int]int64{},
		ignoredOrphanPIDs: map[int]bool{}, activeForkStartTimes: map[int]time.Time{}}
	o.forksChanged.L = &o.mu
	return o
}

// orphanTable keeps track of main processes, orphans, and forks that are in progress. A user's file system or file
// lease can make a fork hang indefinitely, so no lock is held during a fork.
type orphanTable struct {
	reapedCount atomic.Int64 // number of orphans that were reaped or are just being reaped

	mu                        sync.Mutex        // guards all fields below
	mainPIDs                  map[int]bool      // pids of the main processes that are not reaped yet
	backgroundStartTicksByPID map[int]int64     // processes that may live on, by pid, with their start time in ticks
	ignoredOrphanPIDs         map[int]bool      // pids of living orphans without a cookie, which belong to no known tree
	nextForkNumber            int               // number of the next fork
	activeForkStartTimes      map[int]time.Time // start times of the forks that are in progress, by their number
	forksPaused               bool              // new forks must wait
	// broadcast when forksPaused changes and when the last fork in progress returns
	forksChanged sync.Cond
	zombieByPID  map[int]zombie // ended processes that may be the child of a fork in progress, by pid
}

// zombie is a process that has ended and may be the child of a fork that is in progress.
type zombie struct {
	startTicks int64 // start time, in clock ticks since boot
	// nextForkNumberWhenSeen is the number of the next fork at the time when the process was first seen. Neither this fork
	// nor a later one can have created the process.
	nextForkNumberWhenSeen int
}

// beginFork registers a fork that is about to start, and returns its number. It waits while forks are
// paused.
func (o *orphanTable) beginFork() (forkNumber int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.forksPaused {
		o.forksChanged.Wait()
	}
	forkNumber = o.nextForkNumber
	o.nextForkNumber++
	o.activeForkStartTimes[forkNumber] = time.Now()
	return forkNumber
}

// endFork records that a fork has returned. pid is the new main process, which its worker reaps, or 0 if
// the fork failed.
func (o *orphanTable) endFork(forkNumber, pid int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.activeForkStartTimes, forkNumber)
	if o.forksPaused && len(o.activeForkStartTimes) == 0 {
		o.forksChanged.Broadcast()
	}
	if pid != 0 {
		o.mainPIDs[pid] = true
		delete(o.ignoredOrphanPIDs, pid)
	}
}

// oldestForkNumber returns the number of the oldest fork that is in progress, or nextForkNumber if no fork is in
// progress. The caller holds mu.
func (o *orphanTable) oldestForkNumber() int {
	oldest := o.nextForkNumber
	for fork := range o.activeForkStartTimes {
		oldest = min(oldest, fork)
	}
	return oldest
}

// reapMainProcess collects the exit status of a main process. It returns ok=false if the process has not ended. When a
// process is reaped, a new fork may get its pid. So reapMainProcess holds mu until it has removed the pid from
// mainPIDs.
func (o *orphanTable) reapMainProcess(pid int) (status unix.WaitStatus, usage unix.Rusage, ok bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	status, usage, ok, err = tryReapChild(pid)
	if ok {
		delete(o.mainPIDs, pid)
	}
	return status, usage, ok, err
}

// ownChildrenPath returns the path of the kernel's list of children of the main thread.
func ownChildrenPath() string { return fmt.Sprintf("/proc/%d/task/%[1]d/children", os.Getpid()) }

// reapAndListOrphans reaps orphans that have ended, and lists the living ones. It does not reap a process that may be
// the child of a fork that is in progress. ignoredPIDs contains the living orphans in o.ignoredOrphanPIDs, which had no
// cookie when they were checked. livingPIDs contains the other living orphans, except those that are allowed to live
// on.
func (o *orphanTable) reapAndListOrphans() (livingPIDs, ignoredPIDs []int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	list, _ := os.ReadFile(ownChildrenPath()) // the list has at most 32 MiB, because Linux has at most 4,194,304 processes
	oldest, knownZombies := o.oldestForkNumber(), o.zombieByPID
	o.zombieByPID = map[int]zombie{}
	for field := range bytes.FieldsSeq(list) {
		pid, err := strconv.Atoi(string(field))
		if err != nil || o.mainPIDs[pid] {
			continue
		}
		_, kept := o.backgroundStartTicksByPID[pid]
		_, ended := childExitState(pid)
		switch {
		case ended:
			if oldest == o.nextForkNumber || o.predatesActiveForks(pid, oldest, knownZombies) {
				o.reapedCount.Add(1) // count the orphan before it disappears from the kernel's list
				tryReapChild(pid)
				delete(o.backgroundStartTicksByPID, pid)
				delete(o.ignoredOrphanPIDs, pid)
			}
		case o.ignoredOrphanPIDs[pid]:
			ignoredPIDs = append(ignoredPIDs, pid)
		case !kept:
			livingPIDs = append(livingPIDs, pid)
		}
	}
	return livingPIDs, ignoredPIDs
}

// predatesActiveForks reports whether an ended process existed before the oldest fork that is in progress began. If
// this is not certain, it records the process for the next call of reapAndListOrphans. knownZombies contains the
// records from the last call. The caller holds mu.
func (o *orphanTable) predatesActiveForks(pid, oldestForkNumber int, knownZombies map[int]zombie) bool {
	p, ok := procfs.Stat(pid)
	z, known := knownZombies[pid]
	if !ok || !known || z.startTicks != p.StartTicks {
		z = zombie{p.StartTicks, o.nextForkNumber}
	}
	if z.nextForkNumberWhenSeen <= oldestForkNumber {
		return true
	}
	o.zombieByPID[pid] = z
	return false
}

// addBackgroundProcesses records processes that are allowed to live on after their command.
func (o *orphanTable) addBackgroundProcesses(procs []procfs.Process) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range procs {
		o.backgroundStartTicksByPID[p.PID] = p.StartTicks
	}
}

// removeEndedBackgroundProcesses removes ended processes from backgroundStartTicksByPID. It is needed for processes
// that are reaped by their own parent: reapAndListOrphans removes only the processes that it reaps itself.
func (o *orphanTable) removeEndedBackgroundProcesses() {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.backgroundStartTicksByPID, func(pid int, startTicks int64) bool {
		return !procfs.Process{PID: pid, StartTicks: startTicks}.IsStillAlive()
	})
}

// isMainProcess reports whether pid is a main process that is not reaped yet.
func (o *orphanTable) isMainProcess(pid int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mainPIDs[pid]
}

// ignoreOrphans adds orphans to ignoredOrphanPIDs. unignoreOrphan removes one of them.
func (o *orphanTable) ignoreOrphans(procs []procfs.Process) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range procs {
		o.ignoredOrphanPIDs[p.PID] = true
	}
}

func (o *orphanTable) unignoreOrphan(pid int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.ignoredOrphanPIDs, pid)
}

// hasNoOrphans reports whether this process has no orphans. It is fast: it makes one system call.
func hasNoOrphans() bool {
	var buf [16]byte
	n, err := unix.Pread(ownChildrenFD(), buf[:], 0)
	return err == nil && n == 0
}

// ownChildrenFD returns a descriptor of the kernel's list of children. It returns -1 if the kernel does not
// keep this list.
var ownChildrenFD = sync.OnceValue(func() int {
	fd, _ := unix.Open(ownChildrenPath(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	return fd
})

// reapOrphans reaps orphans that have ended. It returns the living orphans, except those that are allowed to
// live on and those that belong to no known tree.
func reapOrphans() (livingPIDs []int) {
	livingPIDs, ignored := globalOrphanTable.reapAndListOrphans()
	for _, pid := range ignored {
		if readCookie(pid) != "" { // at the last check, its environment was empty, because of an exec
			globalOrphanTable.unignoreOrphan(pid)
			livingPIDs = append(livingPIDs, pid)
		}
	}
	return livingPIDs
}

// maxExecWait is how long to wait if the environment of a process is empty. During an exec, the environment is empty
// for a moment.
const maxExecWait = 20 * time.Millisecond

// unidentifiedOrphans lists the living orphans of an account that cannot be assigned to a tree: they have no
// cookie, and are not in the session or process group of any main process. Some may be in the middle of an
// exec, and have a cookie after it.
func unidentifiedOrphans(uid uint32) (procs []procfs.Process) {
	for _, pid := range reapOrphans() {
		p, ok := procfs.Stat(pid)
		if ok && p.WasAlive() && !globalOrphanTable.isMainProcess(p.PGID) && !globalOrphanTable.isMainProcess(p.SID) &&
			IsOwnedBy(uid, pid) &&
			readCookie(pid) == "" {
			procs = append(procs, p)
		}
	}
	return procs
}

// ReapEndedOrphans reaps orphans that have ended. It also removes the records of trees that were allowed to live on and
// have ended. The caller calls ReapEndedOrphans repeatedly. If callAgainSoon is true, other orphans may end soon, so
// the next call should come soon.
func ReapEndedOrphans() (callAgainSoon bool) {
	before := globalOrphanTable.reapedCount.Load()
	reapOrphans()
	globalOrphanTable.mu.Lock()
	callAgainSoon = globalOrphanTable.reapedCount.Load() != before || len(globalOrphanTable.zombieByPID) > 0
	globalOrphanTable.mu.Unlock()
	globalOrphanTable.removeEndedBackgroundProcesses()
	allBackgroundTrees.removeEndedTrees()
	return callAgainSoon
}
