package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// startPool runs a pool with a store and a living runner that has no jobs yet. The store has one job for
// each of the priorities.
func startPool(t *testing.T, workerCount int, priorities ...int64) (*recordingStore, *fakeRunner, *worker.Pool) {
	t.Helper()
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	if len(priorities) > 0 {
		s.enqueueJobs(priorities...)
	}
	f := newFakeRunner(t, root, "first")
	return s, f, runPool(t, s, root, workerCount)
}

// firstClaimLease returns the lease of a job's first claim.
func firstClaimLease(jobSeq int64) wire.Lease { return wire.Lease{Seq: jobSeq, Fence: 1} }

// Jobs start in the order of the queue, one for each free worker. The end of a job starts the next one; no
// other event is needed.
func TestJobsStartInOrderOnFreeWorkers(t *testing.T) {
	s, f, _ := startPool(t, 2, 1, 5, 3, 5, 2)
	want := []int64{2, 4, 3, 5, 1}
	awaitFrame[*wire.StartAttempt](t, f, 2)
	f.waitUntilFramesHandled()
	checkEqual(t, "started at first", f.startedJobSeqs(), want[:2])
	for i, seq := range want {
		f.sendFrames(successResult(firstClaimLease(seq), longRunTime))
		if next := i + 3; next <= len(want) {
			awaitFrame[*wire.StartAttempt](t, f, next)
		}
		s.awaitJobState(seq, queue.Completed)
	}
	f.waitUntilFramesHandled()
	checkEqual(t, "started", f.startedJobSeqs(), want)
	checkEqual(t, "maximum number of open leases", f.maxOpenLeases(), 2)
}

// A job with a uid that now belongs to another account is held, even if its last runner died and it must run
// alone. Other jobs of the same claim run.
func TestJobsOfReassignedUIDsAreHeld(t *testing.T) {
	s, f, _ := startPool(t, 4)
	drafts := make([]queue.Job, 4)
	for i := range drafts {
		drafts[i] = queue.Job{MaxAttempts: 1, ExitCode: -1,
			ExecutionSettings: queue.ExecutionSettings{Argv: []string{"true"}}}
	}
	drafts[1].UID, drafts[2].UID, drafts[2].NeedsIsolation = firstForbiddenUID, firstForbiddenUID, true
	if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: drafts}); err != nil {
		t.Fatal(err)
	}
	awaitFrame[*wire.StartAttempt](t, f, 2)
	for _, seq := range []int64{2, 3} {
		s.awaitJobState(seq, queue.Held)
		s.checkJobState(seq, queue.Held, queue.ReasonDisowned)
	}
	f.waitUntilFramesHandled()
	checkEqual(t, "started", f.startedJobSeqs(), []int64{1, 4})
	checkEqual(t, "leased", s.leasedJobSeqs(), []int64{1, 4})
}

// A job whose user exists only on other nodes waits for these nodes. The job is not held, and no attempt of the job is
// counted.
func TestJobOfUserOnOtherNodeWaits(t *testing.T) {
	s, f, _ := startPool(t, 1)
	drafts := []queue.Job{{
		UID: otherNodeOnlyUID, MaxAttempts: 1, ExitCode: -1,
		ExecutionSettings: queue.ExecutionSettings{Argv: []string{"true"}},
	}}
	if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: drafts}); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "the job is returned to the queue", func() bool {
		j := s.readJob(1)
		return j.State == queue.Pending && j.Shortages == 1
	})
	if j := s.readJob(1); j.Attempts != 0 || j.DueAt <= j.CreatedAt {
		t.Errorf("the returned job is %+v", j)
	}
	f.waitUntilFramesHandled()
	checkEqual(t, "started", len(f.startedJobSeqs()), 0)
}

// Once run times are known, the pool claims more jobs than it has free workers: as many additional jobs as run in 20
// ms, at most 64. If this number is smaller than the number of workers, the pool claims no additional jobs.
func TestShortJobsArePrefetched(t *testing.T) {
	for _, c := range []struct {
		workers int
		took    time.Duration
		leases  int
	}{
		{1, time.Millisecond, 1 + 20},
		{1, 20 * time.Millisecond, 1 + 1},
		{1, 21 * time.Millisecond, 1},
		// A run time below the clock's resolution counts as half a millisecond.
		{2, 0, 2 + 64},
		{2, time.Millisecond, 2 + 40},
		{4, 20 * time.Millisecond, 4 + 4},
		{4, 30 * time.Millisecond, 4},
		{4, time.Minute, 4},
	} {
		t.Run(fmt.Sprintf("%d of %v", c.workers, c.took), func(t *testing.T) {
			t.Parallel()
			for try := 1; ; try++ {
				s, root := newStore(t), t.TempDir()
				s.enqueueJobs(make([]int64, 100)...)
				f := newFakeRunner(t, root, "first")
				runPool(t, s, root, c.workers)
				awaitFrame[*wire.StartAttempt](t, f, c.workers)
				f.waitUntilFramesHandled()
				first := len(f.startedJobSeqs())
				f.sendFrames(successResult(firstClaimLease(1), c.took))
				f.waitUntilFramesHandled()
				started := f.startedJobSeqs()
				if len(framesOfType[*wire.DropStart](f)) > 0 && try < 5 {
					// The machine was so slow that jobs did not start within 50 ms. The pool then takes these jobs back and prefetches
					// fewer jobs, so this run says nothing about the limit.
					continue
				}
				checkEqual(t, "jobs sent while no run time is known", first, c.workers)
				checkEqual(t, "jobs sent after the first end", len(started)-1, c.leases)
				if !slices.IsSorted(started) {
					t.Errorf("started out of order: %v", started)
				}
				return
			}
		})
	}
}

// A claim may be waiting for fewer jobs than there are free workers, because more workers have finished since it began.
// These workers also get the next jobs that arrive. No other event is needed to wake the pool. To show this, the runner
// in this test does not report starts.
func TestWorkersFreedDuringClaimGetJobs(t *testing.T) {
	s, f, _ := startPool(t, 3, 0, 0)
	awaitFrame[*wire.StartAttempt](t, f, 2)
	waitUntil(t, "a claim for one job waits", func() bool { return s.awaitedJobCount() == 1 })
	f.sendFrames(successResult(firstClaimLease(1), longRunTime))
	f.waitUntilFramesHandled()
	f.ignoreStarts()
	s.enqueueJobs(0, 0, 0)
	_, startedAt := awaitFrame[*wire.StartAttempt](t, f, 4)
	f.sendFrames(&wire.StartReport{Attempt: runningAttempt(firstClaimLease(3))},
		&wire.StartReport{Attempt: runningAttempt(firstClaimLease(4))})
	f.waitUntilFramesHandled()
	for _, seq := range []int64{3, 4} {
		s.awaitJobState(seq, queue.Processing)
	}
	checkEqual(t, "started", f.startedJobSeqs(), []int64{1, 2, 3, 4})
	if len(framesOfType[*wire.DropStart](f)) > 0 {
		if _, droppedAt := awaitFrame[*wire.DropStart](t, f, 1); !droppedAt.After(startedAt) {
			t.Error("the second job started only after the first was recalled")
		}
	}
	checkEqual(t, "maximum number of open leases", f.maxOpenLeases(), 3)
}

// A pool whose workers are all busy claims nothing. It claims again when a worker is free.
func TestBusyPoolClaimsNothing(t *testing.T) {
	s, f, _ := startPool(t, 1, 0)
	awaitFrame[*wire.StartAttempt](t, f, 1)
	f.waitUntilFramesHandled()
	checkEqual(t, "jobs that a busy pool tries to claim", s.awaitedJobCount(), 0)
	f.sendFrames(successResult(firstClaimLease(1), longRunTime))
	waitUntil(t, "a claim for one job waits", func() bool { return s.awaitedJobCount() == 1 })
	s.enqueueJobs(0)
	awaitFrame[*wire.StartAttempt](t, f, 2)
}

// Additional workers start immediately, and the runner is notified. A pool scaled to 0 claims
// nothing, even if a claim was waiting, until it is scaled up again.
func TestWorkerCountChangeTakesEffectImmediately(t *testing.T) {
	s, f, p := startPool(t, 1, 0, 0)
	awaitFrame[*wire.StartAttempt](t, f, 1)
	f.waitUntilFramesHandled()
	p.SetWantedWorkerCount(3)
	awaitFrame[*wire.StartAttempt](t, f, 2)
	setups := framesOfType[*wire.RunnerSettings](f)
	checkEqual(t, "workers in the last Setup", setups[len(setups)-1].WorkerCount, 3)
	waitUntil(t, "a claim for one job waits", func() bool { return s.awaitedJobCount() == 1 })
	p.SetWantedWorkerCount(0)
	f.waitUntilFramesHandled()
	s.enqueueJobs(0)
	f.waitUntilFramesHandled()
	checkEqual(t, "started without workers", f.startedJobSeqs(), []int64{1, 2})
	s.checkJobState(3, queue.Pending, "")
	checkEqual(t, "leased without workers", s.leasedJobSeqs(), []int64{1, 2})
	p.SetWantedWorkerCount(3)
	awaitFrame[*wire.StartAttempt](t, f, 3)
	checkEqual(t, "workers", p.WantedWorkerCount(), 3)
}

// startPoolWithUnstartedJob starts a pool with two workers. Job 1 runs. Job 2 was sent to the runner, which
// does not report its start.
func startPoolWithUnstartedJob(t *testing.T) (*recordingStore, *fakeRunner, *worker.Pool) {
	t.Helper()
	s, f, p := startPool(t, 1, 0)
	s.awaitJobState(1, queue.Processing)
	f.ignoreStarts()
	p.SetWantedWorkerCount(2)
	s.enqueueJobs(0)
	awaitFrame[*wire.StartAttempt](t, f, 2)
	return s, f, p
}

// If the number of workers is lowered, jobs that have not started return to the queue and running jobs
// continue.
func TestScaleDownRecallsUnstartedJob(t *testing.T) {
	s, f, p := startPoolWithUnstartedJob(t)
	n := len(framesOfType[*wire.RunnerSettings](f))
	p.SetWantedWorkerCount(1)
	_, setupAt := awaitFrame[*wire.RunnerSettings](t, f, n+1)
	drop, droppedAt := awaitFrame[*wire.DropStart](t, f, 1)
	checkEqual(t, "dropped", drop.Lease, firstClaimLease(2))
	if droppedAt.After(setupAt) {
		t.Error("the job was recalled only after it had waited for a long time")
	}
	f.sendFrames(&wire.DropStartReply{Lease: drop.Lease, StartDropped: true})
	waitUntil(t, "the job is returned to the queue", func() bool { return len(s.leasedJobSeqs()) == 1 })
	f.waitUntilFramesHandled()
	checkEqual(t, "leased", s.leasedJobSeqs(), []int64{1})
	checkEqual(t, "killed", len(framesOfType[*wire.EndAttempt](f)), 0)
}

// A result is acknowledged only after it is stored. The call of the store that records the result also claims the job
// that will use the free worker. If the runner repeats the result, the result is not recorded again.
func TestResultIsStoredThenAcknowledged(t *testing.T) {
	s, f, p := startPool(t, 1, 0, 0)
	s.awaitJobState(1, queue.Processing)
	release := s.blockSettlements()
	f.sendFrames(successResult(firstClaimLease(1), longRunTime))
	waitUntil(t, "the settlement has begun", s.isSettlementBlocked)
	// Frames (messages) arrive in order: when this Setup frame arrives, all frames that were sent before it have arrived.
	n := len(framesOfType[*wire.RunnerSettings](f))
	p.ResendRunnerSetup()
	awaitFrame[*wire.RunnerSettings](t, f, n+1)
	checkEqual(t, "acknowledged before it was stored", f.ackedLeases(), []wire.Lease(nil))
	checkEqual(t, "started before it was stored", f.startedJobSeqs(), []int64{1})
	release()
	awaitFrame[*wire.StartAttempt](t, f, 2)
	checkEqual(t, "acknowledged", f.ackedLeases(), []wire.Lease{firstClaimLease(1)})
	s.checkJobState(1, queue.Completed, "")
	s.mu.Lock()
	for _, exchange := range s.storedReports {
		if len(exchange.Settlements) > 0 {
			checkEqual(t, "jobs wanted in the exchange that settles the job", exchange.MaxJobsToClaim, 1)
		}
	}
	s.mu.Unlock()
	f.sendFrames(successResult(firstClaimLease(1), longRunTime))
	f.waitUntilFramesHandled()
	checkEqual(t, "acknowledged", f.ackedLeases(), []wire.Lease{firstClaimLease(1), firstClaimLease(1)})
	ended, _, _ := s.reportedEndCounts(1)
	checkEqual(t, "settled", ended, 1)
	checkEqual(t, "runs", s.readJob(1).StartedAttempts, 1)
}

// A result for a lease that the pool does not hold is acknowledged, so that the runner can discard
// it, and changes nothing.
func TestResultOfUnknownLeaseChangesNothing(t *testing.T) {
	s, f, _ := startPool(t, 1, 0, 0)
	s.awaitJobState(1, queue.Processing)
	unknown := []wire.Lease{{Seq: 1, Fence: 7}, {Seq: 2, Fence: 1}, {Seq: 99, Fence: 1}}
	for _, l := range unknown {
		f.sendFrames(successResult(l, longRunTime))
	}
	f.waitUntilFramesHandled()
	checkEqual(t, "acknowledged", f.ackedLeases(), unknown)
	s.checkJobState(1, queue.Processing, "")
	s.checkJobState(2, queue.Pending, "")
	checkEqual(t, "started", f.startedJobSeqs(), []int64{1})
	f.sendFrames(successResult(firstClaimLease(1), longRunTime))
	s.awaitJobState(1, queue.Completed)
}

// If a job has not started after 50 ms, the pool takes it back from the runner. A new job that ranks before
// it then starts first.
func TestUnstartedJobIsRecalled(t *testing.T) {
	s, f, _ := startPool(t, 1)
	f.ignoreStarts()
	before := time.Now()
	s.enqueueJobs(0)
	drop, droppedAt := awaitFrame[*wire.DropStart](t, f, 1)
	checkEqual(t, "dropped", drop.Lease, firstClaimLease(1))
	if waited := droppedAt.Sub(before); waited < 50*time.Millisecond {
		t.Errorf("dropped after %v, want at least 50 ms", waited)
	}
	s.enqueueJobs(9)
	f.sendFrames(&wire.DropStartReply{Lease: drop.Lease, StartDropped: true})
	awaitFrame[*wire.StartAttempt](t, f, 2)
	checkEqual(t, "started", f.startedJobSeqs(), []int64{1, 2})
	ended, released, _ := s.reportedEndCounts(1)
	checkEqual(t, "ended and released", []int{ended, released}, []int{0, 1})
	checkEqual(t, "leased", s.leasedJobSeqs(), []int64{2})
	checkEqual(t, "maximum number of open leases", f.maxOpenLeases(), 1)
}

// If the runner has started a job before the pool asks for it back, the job keeps running.
func TestJobStartedBeforeRecallKeepsRunning(t *testing.T) {
	s, f, _ := startPool(t, 1)
	f.ignoreStarts()
	s.enqueueJobs(0)
	awaitFrame[*wire.DropStart](t, f, 1)
	f.sendFrames(&wire.DropStartReply{Lease: firstClaimLease(1)},
		&wire.StartReport{Attempt: runningAttempt(firstClaimLease(1))})
	s.awaitJobState(1, queue.Processing)
	f.waitUntilFramesHandled()
	checkEqual(t, "started", f.startedJobSeqs(), []int64{1})
	checkEqual(t, "dropped", len(framesOfType[*wire.DropStart](f)), 1)
	checkEqual(t, "killed", len(framesOfType[*wire.EndAttempt](f)), 0)
	f.sendFrames(successResult(firstClaimLease(1), longRunTime))
	s.awaitJobState(1, queue.Completed)
	_, released, _ := s.reportedEndCounts(1)
	checkEqual(t, "released", released, 0)
}

// shortageResult returns the result of an attempt that could not be started for lack of resources.
func shortageResult(l wire.Lease) *wire.Result {
	return &wire.Result{Attempt: runningAttempt(l), ResourceShortage: true, ExitCode: -1, Error: "no more processes"}
}

// If starts fail for lack of resources, the pool pauses claims for a second. If starts still fail after this pause,
// each further pause is twice as long. Failures during a pause do not extend the pause. A successful start ends the
// shortage.
func TestResourceShortagePausesClaims(t *testing.T) {
	_, f, _ := startPool(t, 2, make([]int64, 40)...)
	handled := 0 // number of starts that were handled
	next := func() [2]wire.Lease {
		awaitFrame[*wire.StartAttempt](t, f, handled+2)
		list := framesOfType[*wire.StartAttempt](f)[handled:]
		handled += 2
		return [2]wire.Lease{list[0].Lease, list[1].Lease}
	}
	pauses := func(minPause time.Duration) {
		t.Helper()
		leases := next()
		sentAt := time.Now()
		f.sendFrames(shortageResult(leases[0]), shortageResult(leases[1]))
		_, resumedAt := awaitFrame[*wire.StartAttempt](t, f, handled+1)
		if paused := resumedAt.Sub(sentAt); paused < minPause || paused > minPause*19/10 {
			t.Errorf("paused for %v, want %v", paused, minPause)
		}
	}
	pauses(time.Second)
	pauses(2 * time.Second)
	leases := next()
	f.sendFrames(successResult(leases[0], longRunTime), successResult(leases[1], longRunTime))
	pauses(time.Second)
}

// While the store cannot record results, the pool keeps them, does not acknowledge them, and tries again.
func TestTemporaryStoreErrorLosesNoResult(t *testing.T) {
	for _, reason := range []error{queue.ErrNoSpace, queue.ErrUnavailable} {
		t.Run(reason.Error(), func(t *testing.T) {
			s, f, p := startPool(t, 2, 0, 0, 0)
			s.awaitJobState(1, queue.Processing)
			s.awaitJobState(2, queue.Processing)
			refusals := make(chan struct{}, 1000)
			s.setReportRefusal(func(store.LeaseReport) error {
				refusals <- struct{}{}
				return fmt.Errorf("record: %w", reason)
			})
			f.sendFrames(successResult(firstClaimLease(1), longRunTime))
			receiveEvent(t, "a rejected report", refusals)
			f.sendFrames(successResult(firstClaimLease(2), longRunTime))
			receiveEvent(t, "another rejected report", refusals)
			n := len(framesOfType[*wire.RunnerSettings](f))
			p.ResendRunnerSetup()
			awaitFrame[*wire.RunnerSettings](t, f, n+1)
			checkEqual(t, "acknowledged", f.ackedLeases(), []wire.Lease(nil))
			checkEqual(t, "started", f.startedJobSeqs(), []int64{1, 2})
			s.checkJobState(1, queue.Processing, "")
			s.setReportRefusal(nil)
			s.awaitJobState(1, queue.Completed)
			s.awaitJobState(2, queue.Completed)
			awaitFrame[*wire.StartAttempt](t, f, 3)
			checkEqual(t, "acknowledged", f.ackedLeases(), []wire.Lease{firstClaimLease(1), firstClaimLease(2)})
			f.sendFrames(successResult(firstClaimLease(3), longRunTime))
			s.awaitJobState(3, queue.Completed)
		})
	}
}

// A permanent error of the store ends Run, which returns it.
func TestPermanentStoreErrorEndsPool(t *testing.T) {
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	s.enqueueJobs(0)
	f := newFakeRunner(t, root, "first")
	_, ended := runPoolThatMayFail(t, s, root, 1)
	s.awaitJobState(1, queue.Processing)
	broken := errors.New("the disk is on fire")
	s.setReportRefusal(func(store.LeaseReport) error { return broken })
	f.sendFrames(successResult(firstClaimLease(1), longRunTime))
	if err := receiveEvent(t, "the end of the pool", ended); !errors.Is(err, broken) {
		t.Errorf("Run returned %v, want %v", err, broken)
	}
	checkEqual(t, "acknowledged", f.ackedLeases(), []wire.Lease(nil))
}

// After the beginning of a graceful stop, the pool claims no jobs, even if more workers are requested.
// Running jobs finish, and then the runner ends.
func TestGracefulStopLetsJobsFinish(t *testing.T) {
	s, f, p := startPool(t, 1, 0, 0)
	s.awaitJobState(1, queue.Processing)
	stopped := make(chan struct{})
	n := len(framesOfType[*wire.RunnerSettings](f))
	go func() {
		defer close(stopped)
		p.Stop(context.Background(), time.Hour, time.Hour)
	}()
	awaitFrame[*wire.RunnerSettings](t, f, n+1)
	p.SetWantedWorkerCount(2) // simulates a caller that does not know about the stop
	f.waitUntilFramesHandled()
	checkEqual(t, "started while stopping", f.startedJobSeqs(), []int64{1})
	select {
	case <-stopped:
		t.Fatal("stopped while a job runs")
	default:
	}
	f.sendFrames(successResult(firstClaimLease(1), longRunTime))
	receiveEvent(t, "the end of Stop", stopped)
	s.checkJobState(1, queue.Completed, "")
	s.checkJobState(2, queue.Pending, "")
	checkEqual(t, "started", f.startedJobSeqs(), []int64{1})
	checkEqual(t, "killed", len(framesOfType[*wire.EndAttempt](f)), 0)
	checkEqual(t, "Shutdown frames", len(framesOfType[*wire.Shutdown](f)), 1)
}

// At the deadline of a stop, running jobs are ended and returned to the queue. The grace period of each of these jobs
// is at most that of the stop. Jobs that have not started are taken back.
func TestStopEndsJobsAtTheDeadline(t *testing.T) {
	s, f, p := startPoolWithUnstartedJob(t)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		p.Stop(context.Background(), 0, 2*time.Second)
	}()
	kill, _ := awaitFrame[*wire.EndAttempt](t, f, 1)
	checkEqual(t, "killed", *kill, wire.EndAttempt{Lease: firstClaimLease(1), EndCause: int64(queue.EndStopped),
		GracePeriod: 2 * time.Second})
	drop, _ := awaitFrame[*wire.DropStart](t, f, 1)
	checkEqual(t, "dropped", drop.Lease, firstClaimLease(2))
	end := successResult(firstClaimLease(1), longRunTime)
	end.EndCause, end.Signal, end.ExitCode = kill.EndCause, 15, -1
	f.sendFrames(end, &wire.DropStartReply{Lease: firstClaimLease(2), StartDropped: true})
	receiveEvent(t, "the end of Stop", stopped)
	s.checkJobState(1, queue.Pending, queue.ReasonStopped)
	s.checkJobState(2, queue.Pending, "")
	checkEqual(t, "attempts that count", s.readJob(1).Attempts, 0)
	checkEqual(t, "leased", s.leasedJobSeqs(), []int64(nil))
	checkEqual(t, "started", f.startedJobSeqs(), []int64{1, 2})
}
