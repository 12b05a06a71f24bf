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
func startPool(t *testing.T, workers int, priorities ...int64) (*recordingStore, *fakeRunner, *worker.Pool) {
	t.Helper()
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	if len(priorities) > 0 {
		s.enqueue(priorities...)
	}
	f := newRunner(t, root, "first")
	return s, f, runPool(t, s, root, workers)
}

// lease returns the lease of a job's first claim.
func lease(seq int64) wire.Lease { return wire.Lease{Seq: seq, Fence: 1} }

// Jobs start in the order of the queue, one for each free worker. The end of a job starts the next one; no
// other event is needed.
func TestJobsStartInOrderOnFreeWorkers(t *testing.T) {
	s, f, _ := startPool(t, 2, 1, 5, 3, 5, 2)
	want := []int64{2, 4, 3, 5, 1}
	awaitFrame[*wire.Start](t, f, 2)
	f.sync()
	checkEqual(t, "started at first", f.startedJobs(), want[:2])
	for i, seq := range want {
		f.send(successResult(lease(seq), longRunTime))
		if next := i + 3; next <= len(want) {
			awaitFrame[*wire.Start](t, f, next)
		}
		s.awaitState(seq, queue.Completed)
	}
	f.sync()
	checkEqual(t, "started", f.startedJobs(), want)
	checkEqual(t, "maximum number of open leases", f.maxOpenLeases(), 2)
}

// A job with a uid that now belongs to another account is held, even if its last runner died and it must run
// alone. Other jobs of the same claim run.
func TestDisownedJobsAreHeld(t *testing.T) {
	s, f, _ := startPool(t, 4)
	drafts := make([]queue.Job, 4)
	for i := range drafts {
		drafts[i] = queue.Job{MaxAttempts: 1, ExitCode: -1, Execution: queue.Execution{Argv: []string{"true"}}}
	}
	drafts[1].UID, drafts[2].UID, drafts[2].NeedsIsolation = firstDisownedUID, firstDisownedUID, true
	if _, err := s.Enqueue(t.Context(), store.Request{Drafts: drafts}); err != nil {
		t.Fatal(err)
	}
	awaitFrame[*wire.Start](t, f, 2)
	for _, seq := range []int64{2, 3} {
		s.awaitState(seq, queue.Held)
		s.checkState(seq, queue.Held, queue.ReasonDisowned)
	}
	f.sync()
	checkEqual(t, "started", f.startedJobs(), []int64{1, 4})
	checkEqual(t, "leased", s.leasedJobs(), []int64{1, 4})
}

// A job whose user exists only on other nodes waits for these nodes. It is not held, and no attempt is
// counted.
func TestJobOfUserOnOtherNodeWaits(t *testing.T) {
	s, f, _ := startPool(t, 1)
	drafts := []queue.Job{{
		UID: otherNodesUID, MaxAttempts: 1, ExitCode: -1, Execution: queue.Execution{Argv: []string{"true"}},
	}}
	if _, err := s.Enqueue(t.Context(), store.Request{Drafts: drafts}); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "the job is returned to the queue", func() bool {
		j := s.job(1)
		return j.State == queue.Pending && j.Shortages == 1
	})
	if j := s.job(1); j.Attempts != 0 || j.DueAt <= j.CreatedAt {
		t.Errorf("the returned job is %+v", j)
	}
	f.sync()
	checkEqual(t, "started", len(f.startedJobs()), 0)
}

// Once run times are known, the pool claims more jobs than it has free workers: as many additional jobs as
// run in 20 ms, at most 64. If this number is smaller than the number of workers, the pool claims none of
// them.
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
				s.enqueue(make([]int64, 100)...)
				f := newRunner(t, root, "first")
				runPool(t, s, root, c.workers)
				awaitFrame[*wire.Start](t, f, c.workers)
				f.sync()
				first := len(f.startedJobs())
				f.send(successResult(lease(1), c.took))
				f.sync()
				started := f.startedJobs()
				if len(receivedFrames[*wire.Drop](f)) > 0 && try < 5 {
					// The machine was too slow. The pool takes jobs back that do not start within 50 ms, and
					// then sends fewer jobs in advance.
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

// If workers finish their jobs while a claim for fewer jobs waits, they get the next jobs that arrive. No
// other event is needed to wake the pool. Therefore the runner in this test reports no starts.
func TestWorkersFreedDuringClaimAreUsed(t *testing.T) {
	s, f, _ := startPool(t, 3, 0, 0)
	awaitFrame[*wire.Start](t, f, 2)
	waitUntil(t, "a claim for one job waits", func() bool { return s.awaitedJobs() == 1 })
	f.send(successResult(lease(1), longRunTime))
	f.sync()
	f.ignoreStarts()
	s.enqueue(0, 0, 0)
	_, startedAt := awaitFrame[*wire.Start](t, f, 4)
	f.send(&wire.StartReport{Attempt: runningAttempt(lease(3))}, &wire.StartReport{Attempt: runningAttempt(lease(4))})
	f.sync()
	for _, seq := range []int64{3, 4} {
		s.awaitState(seq, queue.Processing)
	}
	checkEqual(t, "started", f.startedJobs(), []int64{1, 2, 3, 4})
	if len(receivedFrames[*wire.Drop](f)) > 0 {
		if _, droppedAt := awaitFrame[*wire.Drop](t, f, 1); !droppedAt.After(startedAt) {
			t.Error("the second job started only after the first was recalled")
		}
	}
	checkEqual(t, "maximum number of open leases", f.maxOpenLeases(), 3)
}

// A pool whose workers are all busy claims nothing. It claims again when a worker is free.
func TestBusyPoolClaimsNothing(t *testing.T) {
	s, f, _ := startPool(t, 1, 0)
	awaitFrame[*wire.Start](t, f, 1)
	f.sync()
	checkEqual(t, "jobs that a busy pool tries to claim", s.awaitedJobs(), 0)
	f.send(successResult(lease(1), longRunTime))
	waitUntil(t, "a claim for one job waits", func() bool { return s.awaitedJobs() == 1 })
	s.enqueue(0)
	awaitFrame[*wire.Start](t, f, 2)
}

// Additional workers start immediately, and the runner is notified. A pool scaled to 0 claims
// nothing, even if a claim was waiting, until it is scaled up again.
func TestScaleTakesEffectImmediately(t *testing.T) {
	s, f, p := startPool(t, 1, 0, 0)
	awaitFrame[*wire.Start](t, f, 1)
	f.sync()
	p.SetWantedWorkers(3)
	awaitFrame[*wire.Start](t, f, 2)
	setups := receivedFrames[*wire.Setup](f)
	checkEqual(t, "workers in the last Setup", setups[len(setups)-1].Workers, 3)
	waitUntil(t, "a claim for one job waits", func() bool { return s.awaitedJobs() == 1 })
	p.SetWantedWorkers(0)
	f.sync()
	s.enqueue(0)
	f.sync()
	checkEqual(t, "started without workers", f.startedJobs(), []int64{1, 2})
	s.checkState(3, queue.Pending, "")
	checkEqual(t, "leased without workers", s.leasedJobs(), []int64{1, 2})
	p.SetWantedWorkers(3)
	awaitFrame[*wire.Start](t, f, 3)
	checkEqual(t, "workers", p.WantedWorkers(), 3)
}

// startPoolWithUnstartedJob starts a pool with two workers. Job 1 runs. Job 2 was sent to the runner, which
// does not report its start.
func startPoolWithUnstartedJob(t *testing.T) (*recordingStore, *fakeRunner, *worker.Pool) {
	t.Helper()
	s, f, p := startPool(t, 1, 0)
	s.awaitState(1, queue.Processing)
	f.ignoreStarts()
	p.SetWantedWorkers(2)
	s.enqueue(0)
	awaitFrame[*wire.Start](t, f, 2)
	return s, f, p
}

// If the number of workers is lowered, jobs that have not started return to the queue and running jobs
// continue.
func TestScaleDownRecallsUnstartedJob(t *testing.T) {
	s, f, p := startPoolWithUnstartedJob(t)
	n := len(receivedFrames[*wire.Setup](f))
	p.SetWantedWorkers(1)
	_, setupAt := awaitFrame[*wire.Setup](t, f, n+1)
	drop, droppedAt := awaitFrame[*wire.Drop](t, f, 1)
	checkEqual(t, "dropped", drop.Lease, lease(2))
	if droppedAt.After(setupAt) {
		t.Error("the job was recalled only after it had waited for a long time")
	}
	f.send(&wire.DropReply{Lease: drop.Lease, Dropped: true})
	waitUntil(t, "the job is returned to the queue", func() bool { return len(s.leasedJobs()) == 1 })
	f.sync()
	checkEqual(t, "leased", s.leasedJobs(), []int64{1})
	checkEqual(t, "killed", len(receivedFrames[*wire.EndAttempt](f)), 0)
}

// A result is acknowledged only after it is stored. The job that takes the free worker is claimed in the same
// exchange. If the runner repeats the result, the result is not recorded again.
func TestResultIsStoredThenAcknowledged(t *testing.T) {
	s, f, p := startPool(t, 1, 0, 0)
	s.awaitState(1, queue.Processing)
	release := s.blockSettlements()
	f.send(successResult(lease(1), longRunTime))
	waitUntil(t, "the settlement has begun", s.isBlocking)
	// Frames arrive in order: when this Setup arrives, all frames that were sent before it have arrived.
	n := len(receivedFrames[*wire.Setup](f))
	p.ResendSetup()
	awaitFrame[*wire.Setup](t, f, n+1)
	checkEqual(t, "acknowledged before it was stored", f.ackedLeases(), []wire.Lease(nil))
	checkEqual(t, "started before it was stored", f.startedJobs(), []int64{1})
	release()
	awaitFrame[*wire.Start](t, f, 2)
	checkEqual(t, "acknowledged", f.ackedLeases(), []wire.Lease{lease(1)})
	s.checkState(1, queue.Completed, "")
	s.mu.Lock()
	for _, exchange := range s.exchanges {
		if len(exchange.Settlements) > 0 {
			checkEqual(t, "jobs wanted in the exchange that settles the job", exchange.WantedJobs, 1)
		}
	}
	s.mu.Unlock()
	f.send(successResult(lease(1), longRunTime))
	f.sync()
	checkEqual(t, "acknowledged", f.ackedLeases(), []wire.Lease{lease(1), lease(1)})
	ended, _, _ := s.reportCounts(1)
	checkEqual(t, "settled", ended, 1)
	checkEqual(t, "runs", s.job(1).StartedAttempts, 1)
}

// A result for a lease that the pool does not hold is acknowledged, so that the runner can discard
// it, and changes nothing.
func TestUnknownResultChangesNothing(t *testing.T) {
	s, f, _ := startPool(t, 1, 0, 0)
	s.awaitState(1, queue.Processing)
	unknown := []wire.Lease{{Seq: 1, Fence: 7}, {Seq: 2, Fence: 1}, {Seq: 99, Fence: 1}}
	for _, l := range unknown {
		f.send(successResult(l, longRunTime))
	}
	f.sync()
	checkEqual(t, "acknowledged", f.ackedLeases(), unknown)
	s.checkState(1, queue.Processing, "")
	s.checkState(2, queue.Pending, "")
	checkEqual(t, "started", f.startedJobs(), []int64{1})
	f.send(successResult(lease(1), longRunTime))
	s.awaitState(1, queue.Completed)
}

// If a job has not started after 50 ms, the pool takes it back from the runner. A new job that ranks before
// it then starts first.
func TestUnstartedJobIsRecalled(t *testing.T) {
	s, f, _ := startPool(t, 1)
	f.ignoreStarts()
	before := time.Now()
	s.enqueue(0)
	drop, droppedAt := awaitFrame[*wire.Drop](t, f, 1)
	checkEqual(t, "dropped", drop.Lease, lease(1))
	if waited := droppedAt.Sub(before); waited < 50*time.Millisecond {
		t.Errorf("dropped after %v, want at least 50 ms", waited)
	}
	s.enqueue(9)
	f.send(&wire.DropReply{Lease: drop.Lease, Dropped: true})
	awaitFrame[*wire.Start](t, f, 2)
	checkEqual(t, "started", f.startedJobs(), []int64{1, 2})
	ended, released, _ := s.reportCounts(1)
	checkEqual(t, "ended and released", []int{ended, released}, []int{0, 1})
	checkEqual(t, "leased", s.leasedJobs(), []int64{2})
	checkEqual(t, "maximum number of open leases", f.maxOpenLeases(), 1)
}

// If the runner has started a job before the pool asks for it back, the job keeps running.
func TestJobStartedBeforeDropIsKept(t *testing.T) {
	s, f, _ := startPool(t, 1)
	f.ignoreStarts()
	s.enqueue(0)
	awaitFrame[*wire.Drop](t, f, 1)
	f.send(&wire.DropReply{Lease: lease(1)}, &wire.StartReport{Attempt: runningAttempt(lease(1))})
	s.awaitState(1, queue.Processing)
	f.sync()
	checkEqual(t, "started", f.startedJobs(), []int64{1})
	checkEqual(t, "dropped", len(receivedFrames[*wire.Drop](f)), 1)
	checkEqual(t, "killed", len(receivedFrames[*wire.EndAttempt](f)), 0)
	f.send(successResult(lease(1), longRunTime))
	s.awaitState(1, queue.Completed)
	_, released, _ := s.reportCounts(1)
	checkEqual(t, "released", released, 0)
}

// shortageResult returns the result of an attempt that could not be started for lack of resources.
func shortageResult(l wire.Lease) *wire.Result {
	return &wire.Result{Attempt: runningAttempt(l), Shortage: true, ExitCode: -1, Error: "no more processes"}
}

// If starts fail for lack of resources, claims pause for a second. If starts still fail after that, each
// further pause is twice as long. Failures during a pause do not extend it. A successful start ends the
// shortage.
func TestShortagePausesClaims(t *testing.T) {
	_, f, _ := startPool(t, 2, make([]int64, 40)...)
	handled := 0 // number of starts that were handled
	next := func() [2]wire.Lease {
		awaitFrame[*wire.Start](t, f, handled+2)
		list := receivedFrames[*wire.Start](f)[handled:]
		handled += 2
		return [2]wire.Lease{list[0].Lease, list[1].Lease}
	}
	pauses := func(minPause time.Duration) {
		t.Helper()
		leases := next()
		sentAt := time.Now()
		f.send(shortageResult(leases[0]), shortageResult(leases[1]))
		_, resumedAt := awaitFrame[*wire.Start](t, f, handled+1)
		if paused := resumedAt.Sub(sentAt); paused < minPause || paused > minPause*19/10 {
			t.Errorf("paused for %v, want %v", paused, minPause)
		}
	}
	pauses(time.Second)
	pauses(2 * time.Second)
	leases := next()
	f.send(successResult(leases[0], longRunTime), successResult(leases[1], longRunTime))
	pauses(time.Second)
}

// While the store cannot record results, the pool keeps them, does not acknowledge them, and tries again.
func TestTemporaryStoreErrorLosesNothing(t *testing.T) {
	for _, reason := range []error{queue.ErrNoSpace, queue.ErrUnavailable} {
		t.Run(reason.Error(), func(t *testing.T) {
			s, f, p := startPool(t, 2, 0, 0, 0)
			s.awaitState(1, queue.Processing)
			s.awaitState(2, queue.Processing)
			refusals := make(chan struct{}, 1000)
			s.setRefuse(func(store.Report) error {
				refusals <- struct{}{}
				return fmt.Errorf("record: %w", reason)
			})
			f.send(successResult(lease(1), longRunTime))
			receive(t, "a rejected report", refusals)
			f.send(successResult(lease(2), longRunTime))
			receive(t, "another rejected report", refusals)
			n := len(receivedFrames[*wire.Setup](f))
			p.ResendSetup()
			awaitFrame[*wire.Setup](t, f, n+1)
			checkEqual(t, "acknowledged", f.ackedLeases(), []wire.Lease(nil))
			checkEqual(t, "started", f.startedJobs(), []int64{1, 2})
			s.checkState(1, queue.Processing, "")
			s.setRefuse(nil)
			s.awaitState(1, queue.Completed)
			s.awaitState(2, queue.Completed)
			awaitFrame[*wire.Start](t, f, 3)
			checkEqual(t, "acknowledged", f.ackedLeases(), []wire.Lease{lease(1), lease(2)})
			f.send(successResult(lease(3), longRunTime))
			s.awaitState(3, queue.Completed)
		})
	}
}

// A permanent error of the store ends Run, which returns it.
func TestPermanentStoreErrorEndsRun(t *testing.T) {
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	s.enqueue(0)
	f := newRunner(t, root, "first")
	_, ended := runPoolThatMayFail(t, s, root, 1)
	s.awaitState(1, queue.Processing)
	broken := errors.New("the disk is on fire")
	s.setRefuse(func(store.Report) error { return broken })
	f.send(successResult(lease(1), longRunTime))
	if err := receive(t, "the end of the pool", ended); !errors.Is(err, broken) {
		t.Errorf("Run returned %v, want %v", err, broken)
	}
	checkEqual(t, "acknowledged", f.ackedLeases(), []wire.Lease(nil))
}

// After the beginning of a graceful stop, the pool claims no jobs, even if more workers are requested.
// Running jobs finish, and then the runner ends.
func TestStopLetsJobsFinish(t *testing.T) {
	s, f, p := startPool(t, 1, 0, 0)
	s.awaitState(1, queue.Processing)
	stopped := make(chan struct{})
	n := len(receivedFrames[*wire.Setup](f))
	go func() {
		defer close(stopped)
		p.Stop(context.Background(), time.Hour, time.Hour)
	}()
	awaitFrame[*wire.Setup](t, f, n+1)
	p.SetWantedWorkers(2) // simulates a caller that does not know about the stop
	f.sync()
	checkEqual(t, "started while stopping", f.startedJobs(), []int64{1})
	select {
	case <-stopped:
		t.Fatal("stopped while a job runs")
	default:
	}
	f.send(successResult(lease(1), longRunTime))
	receive(t, "the end of Stop", stopped)
	s.checkState(1, queue.Completed, "")
	s.checkState(2, queue.Pending, "")
	checkEqual(t, "started", f.startedJobs(), []int64{1})
	checkEqual(t, "killed", len(receivedFrames[*wire.EndAttempt](f)), 0)
	checkEqual(t, "Shutdown frames", len(receivedFrames[*wire.Shutdown](f)), 1)
}

// At the deadline of a stop, running jobs are ended and returned to the queue. Their grace period is at
// most that of the stop. Jobs that have not started are taken back.
func TestStopEndsJobsAtTheDeadline(t *testing.T) {
	s, f, p := startPoolWithUnstartedJob(t)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		p.Stop(context.Background(), 0, 2*time.Second)
	}()
	kill, _ := awaitFrame[*wire.EndAttempt](t, f, 1)
	checkEqual(t, "killed", *kill, wire.EndAttempt{Lease: lease(1), Cause: int64(queue.EndStopped),
		Grace: 2 * time.Second})
	drop, _ := awaitFrame[*wire.Drop](t, f, 1)
	checkEqual(t, "dropped", drop.Lease, lease(2))
	end := successResult(lease(1), longRunTime)
	end.Cause, end.Signal, end.ExitCode = kill.Cause, 15, -1
	f.send(end, &wire.DropReply{Lease: lease(2), Dropped: true})
	receive(t, "the end of Stop", stopped)
	s.checkState(1, queue.Pending, queue.ReasonStopped)
	s.checkState(2, queue.Pending, "")
	checkEqual(t, "attempts that count", s.job(1).Attempts, 0)
	checkEqual(t, "leased", s.leasedJobs(), []int64(nil))
	checkEqual(t, "started", f.startedJobs(), []int64{1, 2})
}
