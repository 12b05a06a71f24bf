package worker_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
)

// fakeDispatcher makes a fake runner start and drop attempts as requested by the frames that the fake runner receives.
// It starts attempts on a number of workers in the order in which they were sent, and records the order of starts. It
// takes one frame at a time, like the runner, so that a worker can finish between any two frames.
type fakeDispatcher struct {
	runner              *fakeRunner
	workerCount         int
	processedFrameCount int // number of frames processed
	droppedLeaseCount   int
	waitingLeases       []wire.Lease
	startTimes          map[wire.Lease]time.Time // start times of the running attempts
	startedJobSeqs      []int64                  // job numbers in the order of their starts
}

// handleNextFrame handles the next frame and reports whether a frame was waiting.
func (d *fakeDispatcher) handleNextFrame() bool {
	d.runner.mu.Lock()
	defer d.runner.mu.Unlock()
	if d.processedFrameCount == len(d.runner.receivedFrames) {
		return false
	}
	frame := d.runner.receivedFrames[d.processedFrameCount]
	d.processedFrameCount++
	switch frame := frame.(type) {
	case *wire.StartAttempt:
		d.waitingLeases = append(d.waitingLeases, frame.Lease)
		d.startWaitingAttemptsLocked()
	case *wire.DropStart:
		at := slices.Index(d.waitingLeases, frame.Lease)
		if at >= 0 {
			d.waitingLeases = slices.Delete(d.waitingLeases, at, at+1)
			d.droppedLeaseCount++
		}
		d.runner.writeFramesLocked(&wire.DropStartReply{Lease: frame.Lease, StartDropped: at >= 0})
	}
	return true
}

// startWaitingAttemptsLocked starts attempts on the free workers. The caller holds the runner's mu.
func (d *fakeDispatcher) startWaitingAttemptsLocked() {
	for len(d.waitingLeases) > 0 && len(d.startTimes) < d.workerCount {
		l := d.waitingLeases[0]
		d.waitingLeases = d.waitingLeases[1:]
		d.startTimes[l] = time.Now()
		d.startedJobSeqs = append(d.startedJobSeqs, l.Seq)
	}
}

// finishAttempts ends the running attempts that the callback accepts. Each reports a run time of one millisecond.
func (d *fakeDispatcher) finishAttempts(isSelected func(l wire.Lease, startedAt time.Time) bool) {
	d.runner.mu.Lock()
	defer d.runner.mu.Unlock()
	for l, since := range d.startTimes {
		if isSelected(l, since) {
			d.runner.writeFramesLocked(successResult(l, time.Millisecond))
			delete(d.startTimes, l)
			d.startWaitingAttemptsLocked()
		}
	}
}

// Jobs start in the order of the queue, although the pool sends some of them to the runner in advance, and
// takes some back because earlier jobs take longer than expected.
func TestJobStartsFollowQueueOrder(t *testing.T) {
	const jobs = 120
	for _, order := range []queue.RankPolicy{
		{Scheduling: queue.SchedulingByArrival},
		{Scheduling: queue.SchedulingByAging, AgingInterval: time.Minute},
	} {
		for _, workers := range []int{1, 8} {
			t.Run(fmt.Sprintf("%s, %d workers", order.Scheduling, workers), func(t *testing.T) {
				t.Parallel()
				s, root := newStoreWithOrder(t, order), t.TempDir()
				rng := rand.New(rand.NewPCG(1, uint64(workers)))
				want := make([]int64, jobs)
				priorities := make([]int64, jobs)
				for i := range want {
					want[i], priorities[i] = int64(i+1), rng.Int64N(3)
				}
				if order.Scheduling == queue.SchedulingByAging {
					slices.SortStableFunc(want, func(a, b int64) int { return int(priorities[b-1] - priorities[a-1]) })
				}
				s.enqueueJobs(priorities...)
				checkEqual(t, "started", jobStartOrder(t, jobWorkload{s, root, workers, jobs, rng}), want)
			})
		}
	}
}

// jobWorkload describes a set of jobs that a pool runs.
type jobWorkload struct {
	store       *recordingStore
	rootDir     string
	workerCount int
	jobCount    int
	rng         *rand.Rand
}

// jobStartOrder runs all jobs and returns the order in which they started. Some jobs run longer
// than expected.
func jobStartOrder(t *testing.T, workload jobWorkload) []int64 {
	t.Helper()
	f := newFakeRunner(t, workload.rootDir, "first")
	f.ignoreStarts()
	d := &fakeDispatcher{runner: f, workerCount: workload.workerCount, startTimes: map[wire.Lease]time.Time{}}
	runPool(t, workload.store, workload.rootDir, workload.workerCount)
	slow := func(l wire.Lease) bool { return l.Seq%17 == 0 || workload.workerCount > 1 && l.Seq%40 > 25 }
	waitUntil(t, "all jobs have ended", func() bool {
		if workload.rng.IntN(3) == 0 || !d.handleNextFrame() {
			slowTime := 70 * time.Millisecond
			if d.droppedLeaseCount == 0 {
				slowTime = 2 * time.Second // on a busy machine, the pool recalls the first jobs late
			}
			d.finishAttempts(func(l wire.Lease, since time.Time) bool {
				return !slow(l) || time.Since(since) > slowTime && workload.rng.IntN(2) == 0
			})
		}
		return len(d.startedJobSeqs) == workload.jobCount && len(d.startTimes) == 0
	})
	if d.droppedLeaseCount == 0 {
		t.Error("no job was recalled")
	}
	return d.startedJobSeqs
}

// Users are served round robin, although the pool sends jobs to the runner in advance and takes some of them
// back.
func TestJobStartsAlternateBetweenUsers(t *testing.T) {
	for _, workers := range []int{1, 8} {
		t.Run(fmt.Sprintf("%d workers", workers), func(t *testing.T) {
			t.Parallel()
			s, root := newStore(t), t.TempDir()
			const many, few = 90, 30
			s.enqueueForUser(1, make([]int64, many)...)
			s.enqueueForUser(2, make([]int64, few)...)
			var want []int64
			for i := range int64(many) {
				if want = append(want, i+1); i < few {
					want = append(want, many+i+1)
				}
			}
			load := jobWorkload{s, root, workers, many + few, rand.New(rand.NewPCG(2, uint64(workers)))}
			checkEqual(t, "started", jobStartOrder(t, load), want)
		})
	}
}

// startPoolWithPrefetch runs a pool with one worker. Its runner is busy with job 2, and jobs 3 to jobCount wait in the
// runner until the pool takes these jobs back.
func startPoolWithPrefetch(t *testing.T, jobCount int) (*recordingStore, *fakeRunner) {
	t.Helper()
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	s.enqueueJobs(make([]int64, 2)...)
	f := newFakeRunner(t, root, "first")
	runPool(t, s, root, 1)
	awaitFrame[*wire.StartAttempt](t, f, 1)
	f.sendFrames(successResult(firstClaimLease(1), time.Millisecond))
	awaitFrame[*wire.StartAttempt](t, f, 2) // job 2 keeps running
	s.awaitJobState(2, queue.Processing)
	f.ignoreStarts()
	s.enqueueJobs(make([]int64, jobCount-2)...)
	awaitFrame[*wire.StartAttempt](t, f, jobCount)
	awaitFrame[*wire.DropStart](t, f, jobCount-2)
	return s, f
}

// If the pool takes jobs back from a runner, it begins with the job that would start last. If the runner
// starts a job during that time, this job is the first of those that are left.
func TestRecallTakesBackLastJobFirst(t *testing.T) {
	_, f := startPoolWithPrefetch(t, 12)
	var seqs []int64
	for _, d := range framesOfType[*wire.DropStart](f) {
		seqs = append(seqs, d.Seq)
	}
	checkEqual(t, "dropped", seqs, []int64{12, 11, 10, 9, 8, 7, 6, 5, 4, 3})
}

// During a recall (while the pool takes jobs back from a runner), the pool claims no job. It also sends no job that it
// claimed before, since such a job would start before the recalled jobs. After the recall, the pool claims the returned
// jobs again.
func TestRecalledJobsStartBeforeLaterClaims(t *testing.T) {
	s, f := startPoolWithPrefetch(t, 8)
	f.sendFrames(&wire.DropStartReply{Lease: firstClaimLease(8), StartDropped: true},
		successResult(firstClaimLease(2), time.Millisecond))
	// These jobs have started. Their run times are short enough that the pool prefetches more jobs.
	for seq := int64(3); seq <= 6; seq++ {
		f.sendFrames(&wire.DropStartReply{Lease: firstClaimLease(seq)}, successResult(firstClaimLease(seq), time.Millisecond))
		s.awaitJobState(seq, queue.Completed)
	}
	f.waitUntilFramesHandled()
	checkEqual(t, "started while job 7 is being recalled", f.startedJobSeqs(), []int64{1, 2, 3, 4, 5, 6, 7, 8})
	f.sendFrames(&wire.DropStartReply{Lease: firstClaimLease(7), StartDropped: true})
	awaitFrame[*wire.StartAttempt](t, f, 10)
	checkEqual(t, "started after the recall", f.startedJobSeqs()[8:], []int64{7, 8})
}

// If a claim waits for jobs while the pool takes other jobs back from a runner, the claim may return a job that ranks
// after the jobs that were taken back. The pool returns this job to the queue.
func TestJobsClaimedBeforeRecallAreReturned(t *testing.T) {
	s, f, p := startPool(t, 1, 0)
	awaitFrame[*wire.StartAttempt](t, f, 1)
	f.sendFrames(successResult(firstClaimLease(1), time.Millisecond))
	waitUntil(t, "a claim for several jobs waits", func() bool { return s.awaitedJobCount() > 1 })
	f.ignoreStarts()
	s.enqueueJobs(0)
	awaitFrame[*wire.StartAttempt](t, f, 2)
	waitUntil(t, "a claim for several jobs waits", func() bool { return s.awaitedJobCount() > 1 })
	p.SetWantedWorkerCount(2)
	p.SetWantedWorkerCount(1) // scaling down takes the waiting jobs back from the runner
	awaitFrame[*wire.DropStart](t, f, 1)
	s.enqueueJobs(0)
	f.waitUntilFramesHandled()
	checkEqual(t, "started", f.startedJobSeqs(), []int64{1, 2})
	f.sendFrames(&wire.DropStartReply{Lease: firstClaimLease(2), StartDropped: true})
	awaitFrame[*wire.StartAttempt](t, f, 3)
	checkEqual(t, "first job started after the recall", f.startedJobSeqs()[2], 2)
}

// The pool claims no jobs until the runner has answered its request to give a job back. If the runner reports
// the job's start first, the pool claims jobs again from then on.
func TestJobStartEndsItsRecall(t *testing.T) {
	s, f, p := startPool(t, 1)
	f.ignoreStarts()
	s.enqueueJobs(0)
	awaitFrame[*wire.StartAttempt](t, f, 1)
	p.SetWantedWorkerCount(0)
	awaitFrame[*wire.DropStart](t, f, 1)
	f.sendFrames(&wire.StartReport{Attempt: runningAttempt(firstClaimLease(1))})
	s.awaitJobState(1, queue.Processing)
	p.SetWantedWorkerCount(2)
	s.enqueueJobs(0)
	awaitFrame[*wire.StartAttempt](t, f, 2)
}

// A start that hangs delays only its own job, even if it hangs for a long time. Jobs that are sent to the
// runner later stay there, and jobs that are claimed in the meantime are not returned to the queue.
func TestHungJobStartRecallsNoOtherJob(t *testing.T) {
	s, f, _ := startPool(t, 2)
	f.ignoreStarts()
	s.enqueueJobs(0)
	awaitFrame[*wire.DropStart](t, f, 1)
	f.sendFrames(&wire.DropStartReply{Lease: firstClaimLease(1)}) // too late: the start is in progress
	since := time.Now()
	waitUntil(t, "the start hangs for longer than jobs may wait in a runner", func() bool {
		return time.Since(since) > 100*time.Millisecond
	})
	f.mu.Lock()
	f.ignoresStarts = false
	f.mu.Unlock()
	const jobs = 20
	for seq := int64(2); seq <= jobs; seq++ {
		s.enqueueJobs(0)
		awaitFrame[*wire.StartAttempt](t, f, int(seq))
		f.waitUntilFramesHandled()
		f.sendFrames(successResult(framesOfType[*wire.StartAttempt](f)[seq-1].Lease, longRunTime))
		s.awaitJobState(seq, queue.Completed)
	}
	dropped, reclaimed := len(framesOfType[*wire.DropStart](f))-1, 0
	for _, start := range framesOfType[*wire.StartAttempt](f) {
		if start.Fence > 1 {
			reclaimed++
		}
	}
	// On a busy machine, a few jobs may wait until the pool takes them back.
	if dropped > jobs/4 || reclaimed > jobs/4 {
		t.Errorf("of %d jobs after a start that hangs, %d were recalled and %d were claimed again; want none",
			jobs-1, dropped, reclaimed)
	}
}
