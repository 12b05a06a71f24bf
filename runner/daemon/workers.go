package daemon

import (
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/queuectl/queuectl/runner/privdir"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/wire"
)

// workerGroup is the group of goroutines that execute attempts.
type workerGroup struct {
	workerCount        int        // number of workers, busy or idle
	targetWorkerCount  int        // number of workers that the service wants
	busyWorkerCount    int        // number of workers that are executing an attempt
	wakeUp             *sync.Cond // wakes workers that wait in awaitNextAttempt
	createdThreadCount int        // number of threads that createRuntimeThreads has made the Go runtime create
}

// setWorkerCountLocked sets the number of workers to target. Surplus workers end after their current attempts.
func (s *server) setWorkerCountLocked(targetCount int) {
	w := &s.workers
	w.targetWorkerCount = targetCount
	// A thread may keep its processor (P) of the Go scheduler during a system call, so each worker needs a P.
	procs := min(targetCount+1, 256)
	runtime.GOMAXPROCS(procs)
	// While the threads of all workers are in system calls, the Go runtime may need this many threads.
	if threads := max(8, min(2*procs, 256)) + min(targetCount, 256); threads > w.createdThreadCount {
		w.createdThreadCount = threads
		s.goroutines.Go(func() { createRuntimeThreads(threads) })
	}
	for w.workerCount < targetCount {
		w.workerCount++
		s.goroutines.Go(s.runWorker)
	}
	w.wakeUp.Broadcast()
}

// createRuntimeThreads makes the Go runtime create n threads, which the runtime keeps. Otherwise the runtime might need
// a new thread at a time when the system cannot create threads. The runtime would then end the runner and, with it, all
// jobs.
func createRuntimeThreads(n int) {
	var created sync.WaitGroup
	created.Add(n)
	release := make(chan struct{})
	for range n {
		go func() { // the goroutine ends when the channel is closed
			runtime.LockOSThread() // gives the goroutine its own thread
			defer runtime.UnlockOSThread()
			created.Done()
			<-release
		}()
	}
	created.Wait()
	close(release)
}

// runWorker runs one worker. The worker executes waiting attempts until it is a surplus worker or the runner is
// closing.
func (s *server) runWorker() {
	w := process.NewWorker(s.Cgroups)
	defer w.Close()
	dirName := strconv.FormatInt(s.lastWorkDirNumber.Add(1), 10)
	f := &workDir{Dir: privdir.New(filepath.Join(s.dir.workspacesDir, dirName))} // creates no directory yet
	defer f.Close()
	for {
		a := s.awaitNextAttempt(w, f)
		if a == nil {
			return
		}
		s.executeAttempt(w, f, a)
	}
}

// awaitNextAttempt waits until there is a waiting attempt, and returns the first one. It returns nil if the
// worker must end.
func (s *server) awaitNextAttempt(w *process.Worker, dir *workDir) *attempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		slot := s.tableSlots.firstFreeSlotLocked()
		switch {
		case s.workers.workerCount > s.workers.targetWorkerCount || s.lifetime.phase != runnerServing:
			s.workers.workerCount--
			return nil
		case len(s.waitingAttempts) == 0 || slot == 0 || s.leaseExpiry.awaitsWatchdogLocked():
			s.tableSlots.hasWaitingWorker = s.tableSlots.hasWaitingWorker || slot == 0
			if !dir.IsOpen() || !s.removeIdleWorkDirLocked(dir) {
				s.workers.wakeUp.Wait()
			}
			continue
		}
		if a := s.takeWaitingAttemptLocked(slot); a != nil {
			a.enterPhaseLocked(attemptStarting)
			a.worker = w
			s.tableSlots.useCountBySlot[slot]++
			if s.workers.busyWorkerCount++; s.workers.busyWorkerCount == 1 {
				s.watchdog.CheckHungStarts()
			}
			return a
		}
	}
}

// takeWaitingAttemptLocked removes the first attempt from the list of waiting attempts, and stores it in a
// slot of the running table. If it is too late to start the attempt, takeWaitingAttemptLocked discards the
// attempt and returns nil.
func (s *server) takeWaitingAttemptLocked(slot int64) *attempt {
	a := s.waitingAttempts[0]
	s.waitingAttempts = s.waitingAttempts[1:]
	a.tableSlot, a.startedAtMillis = slot, time.Now().UnixMilli()
	// Write the attempt to the table before comparing its deadline with the clock. If a service finds no such attempt in
	// the table after StartDeadlineBootMillis, it then knows that the attempt will never start.
	s.runningTable.SetStartingAttempt(slot, leaseOf(a), a.startedAtMillis)
	if a.isPastStartDeadline() {
		s.runningTable.FreeSlot(slot)
		s.discardAttemptLocked(a)
		s.sendFrameLocked(&wire.DropStartReply{Lease: leaseOf(a), StartDropped: true}, true)
		return nil
	}
	return a
}
