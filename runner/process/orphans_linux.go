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

// This file finds and reaps orphans: processes whose parent has died. This process is a child
// subreaper, so the kernel makes them children of its main thread. The kernel lists these children in
// one small file, and normally one read of the file shows that there are no orphans.
//
// The list may also contain main processes. Each must be reaped by the worker that forked it, so reapAndList
// must recognise it. While a fork is under way, the pid of its child is unknown. The fork may hang, so
// no lock can be held until it returns. Instead, every fork has a number. Suppose that reapAndList finds an
// ended process that is not a known main process. It reaps the process only after all forks that are
// under way at that time have returned. For example, reapAndList finds the ended process P while forks 7 and
// 8 are under way. It reaps P after 7 and 8 have returned, even if fork 9 has begun.

// orphans finds the orphans of this process. See docs/decisions/0040.
var orphans = newOrphanTable()

func newOrphanTable() *orphanTable {
	o := &orphanTable{mainProcesses: map[int]bool{}, sparedProcesses: map[int]int64{}, ignoredPIDs: map[int]bool{},
		forks: map[int]time.Time{}}
	o.forksChanged.L = &o.mu
	return o
}

// orphanTable keeps track of main processes, orphans, and forks under way. It holds no lock during a
// fork, because a user's file system or file lease can make a fork hang indefinitely.
type orphanTable struct {
	reapedCount atomic.Int64 // number of orphans that were reaped or are about to be

	mu              sync.Mutex        // guards all fields below
	mainProcesses   map[int]bool      // pids of the main processes that are not reaped yet
	sparedProcesses map[int]int64     // processes that may live on, by pid, with their start time in ticks
	ignoredPIDs     map[int]bool      // pids of orphans without a cookie; the search for leftovers skips them
	nextFork        int               // number of the next fork
	forks           map[int]time.Time // start times of the forks under way, by their number
	forksPaused     bool              // new forks must wait
	forksChanged    sync.Cond         // forksPaused has changed, or the last fork under way has returned
	endedProcesses  map[int]zombie    // ended processes that may be the child of a fork under way, by pid
}

// zombie is a process that has ended and may be the child of a fork under way.
type zombie struct {
	startTicks int64 // start time, in clock ticks since boot
	nextFork   int   // number of the next fork when the zombie was first seen; no later fork created it
}

// beginFork returns the number of a fork that is about to start. It waits while forks are paused.
func (o *orphanTable) beginFork() (fork int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.forksPaused {
		o.forksChanged.Wait()
	}
	fork = o.nextFork
	o.nextFork++
	o.forks[fork] = time.Now()
	return fork
}

// endFork records that a fork has returned. If pid is not 0, it is a new main process, which its worker
// reaps.
func (o *orphanTable) endFork(fork, pid int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.forks, fork)
	if o.forksPaused && len(o.forks) == 0 {
		o.forksChanged.Broadcast()
	}
	if pid != 0 {
		o.mainProcesses[pid] = true
		delete(o.ignoredPIDs, pid)
	}
}

// oldestFork returns the number of the oldest fork under way, or of the next fork if none is under way.
// The caller holds mu.
func (o *orphanTable) oldestFork() int {
	oldest := o.nextFork
	for fork := range o.forks {
		oldest = min(oldest, fork)
	}
	return oldest
}

// reap collects the exit status of a main process. It returns ok=false if the process has not ended. As
// soon as the process is reaped, a new fork may get its pid. So reap holds the lock, without which no fork
// can record its pid.
func (o *orphanTable) reap(pid int) (status unix.WaitStatus, usage unix.Rusage, ok bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	status, usage, ok, err = tryReap(pid)
	if ok {
		delete(o.mainProcesses, pid)
	}
	return status, usage, ok, err
}

// childrenPath returns the path of the kernel's list of children of the main thread.
func childrenPath() string { return fmt.Sprintf("/proc/%d/task/%[1]d/children", os.Getpid()) }

// reapAndList reaps orphans that have ended. It returns living orphans that may not live on, and living
// orphans that showed no cookie when last checked (ignored). A process that may be the child of a fork
// under way is left to the worker of that fork.
func (o *orphanTable) reapAndList() (living, ignored []int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	list, _ := os.ReadFile(childrenPath()) // at most 32 MiB: Linux has at most 4,194,304 processes
	oldest, before := o.oldestFork(), o.endedProcesses
	o.endedProcesses = map[int]zombie{}
	for field := range bytes.FieldsSeq(list) {
		pid, err := strconv.Atoi(string(field))
		if err != nil || o.mainProcesses[pid] {
			continue
		}
		_, kept := o.sparedProcesses[pid]
		_, ended := exitState(pid)
		switch {
		case ended:
			if oldest == o.nextFork || o.predatesForks(pid, oldest, before) {
				o.reapedCount.Add(1) // count the orphan before it disappears from the kernel's list
				tryReap(pid)
				delete(o.sparedProcesses, pid)
				delete(o.ignoredPIDs, pid)
			}
		case o.ignoredPIDs[pid]:
			ignored = append(ignored, pid)
		case !kept:
			living = append(living, pid)
		}
	}
	return living, ignored
}

// predatesForks reports whether an ended process is older than the oldest fork under way. If not, it
// records the process for the next scan. The caller holds mu.
func (o *orphanTable) predatesForks(pid, oldest int, before map[int]zombie) bool {
	p, ok := procfs.Stat(pid)
	z, known := before[pid]
	if !ok || !known || z.startTicks != p.StartTicks {
		z = zombie{p.StartTicks, o.nextFork}
	}
	if z.nextFork <= oldest {
		return true
	}
	o.endedProcesses[pid] = z
	return false
}

// addSpared records processes that may live on after their command.
func (o *orphanTable) addSpared(procs []procfs.Process) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range procs {
		o.sparedProcesses[p.PID] = p.StartTicks
	}
}

// removeEnded removes ended processes from sparedProcesses. Some of them were reaped by their own
// parents, so reapAndList did not see them end.
func (o *orphanTable) removeEnded() {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.sparedProcesses, func(pid int, ticks int64) bool {
		return !procfs.Process{PID: pid, StartTicks: ticks}.StillAlive()
	})
}

// isMain reports whether pid is a main process that is not reaped yet.
func (o *orphanTable) isMain(pid int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mainProcesses[pid]
}

// ignore makes reapAndList report these orphans as ignored instead of living, until unignore is called.
func (o *orphanTable) ignore(list []procfs.Process) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range list {
		o.ignoredPIDs[p.PID] = true
	}
}

func (o *orphanTable) unignore(pid int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.ignoredPIDs, pid)
}

// hasNoOrphans reports whether no process is an orphan of this process. It costs one system call.
func hasNoOrphans() bool {
	var buf [16]byte
	n, err := unix.Pread(childrenFD(), buf[:], 0)
	return err == nil && n == 0
}

// childrenFD returns a descriptor of the list of children; -1 if the kernel does not keep a list.
var childrenFD = sync.OnceValue(func() int {
	fd, _ := unix.Open(childrenPath(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	return fd
})

// reapOrphans reaps orphans that have ended. It returns living orphans that may not live on.
func reapOrphans() (living []int) {
	living, ignored := orphans.reapAndList()
	for _, pid := range ignored {
		if readCookie(pid) != "" { // the process was in the middle of an exec when it was ignored
			orphans.unignore(pid)
			living = append(living, pid)
		}
	}
	return living
}

// maxExecTime is how long to wait for the environment of a process that shows none. During an exec, a
// process has no environment for a moment.
const maxExecTime = 20 * time.Millisecond

// unidentifiedOrphans lists the living orphans of an account for which it is unknown to which tree they
// belong: they show no cookie, and are not in the session or group of any main process. They may be in
// the middle of an exec.
func unidentifiedOrphans(uid uint32) (list []procfs.Process) {
	for _, pid := range reapOrphans() {
		p, ok := procfs.Stat(pid)
		if ok && p.Alive() && !orphans.isMain(p.PGID) && !orphans.isMain(p.SID) && IsOwnedBy(uid, pid) &&
			readCookie(pid) == "" {
			list = append(list, p)
		}
	}
	return list
}

// ReapEnded reaps orphans that have ended, and drops the records of ended trees that could live on. Call it
// from time to time. It reports whether another call soon may reap more: it has reaped some, or an
// ended process may be the child of a fork under way.
func ReapEnded() (more bool) {
	before := orphans.reapedCount.Load()
	reapOrphans()
	orphans.mu.Lock()
	more = orphans.reapedCount.Load() != before || len(orphans.endedProcesses) > 0
	orphans.mu.Unlock()
	orphans.removeEnded()
	allSparedTrees.removeEnded()
	return more
}
