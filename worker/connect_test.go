package worker_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// leaseAllJobs claims all jobs of a store, as an earlier service would have done. It reports the jobs with the
// given numbers as started.
func (s *recordingStore) leaseAllJobs(startedJobSeqs ...int64) {
	s.t.Helper()
	ctx := context.Background()
	if _, err := s.Store.ReportAndClaim(ctx, store.LeaseReport{MaxJobsToClaim: 100}); err != nil {
		s.t.Fatal(err)
	}
	var report store.LeaseReport
	for _, seq := range startedJobSeqs {
		report.AttemptStarts = append(report.AttemptStarts,
			store.AttemptStart{Lease: queue.Lease(firstClaimLease(seq)), StartedAt: 1, WorkerID: "w1",
				PID: int(fakeJobPID(seq))})
	}
	if _, err := s.Store.ReportAndClaim(ctx, report); err != nil {
		s.t.Fatal(err)
	}
}

// A pool adopts the jobs that an earlier service left in a living runner. A running job continues, even if
// its start was not recorded. A job that waits in the runner stays there. A result is recorded and
// acknowledged. A job that the runner does not know returns to the queue if it was only claimed, and is lost
// if it had started.
func TestPoolAdoptsJobsOfEarlierService(t *testing.T) {
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	s.enqueueJobs(0, 0, 0, 0, 0, 0)
	const recorded, unrecorded, ended, waiting, claimed, lost = 1, 2, 3, 4, 5, 6
	s.leaseAllJobs(recorded, ended, lost)
	before, err := s.AdvanceEpoch(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	f := newFakeRunner(t, root, "first")
	f.ignoresStarts = true // otherwise the fake runner would report the waiting job as started
	f.helloReply.UnendedAttempts = []wire.Attempt{
		runningAttempt(firstClaimLease(recorded)), runningAttempt(firstClaimLease(unrecorded)),
		{Lease: firstClaimLease(waiting)},
	}
	f.helloReply.UnacknowledgedLeases = []wire.Lease{firstClaimLease(ended)}
	f.framesAfterHello = []wire.Frame{successResult(firstClaimLease(ended), longRunTime)}
	p := runPool(t, s, root, 4)

	s.awaitJobState(ended, queue.Completed)
	s.awaitJobState(unrecorded, queue.Processing)
	for _, seq := range []int64{recorded, unrecorded} {
		j := s.readJob(seq)
		checkEqual(t, "state and process", []any{j.State, j.PID}, []any{queue.Processing, fakeJobPID(seq)})
		checkEqual(t, "running attempts", p.LeasedAttemptNumber(seq), 1)
	}
	s.checkJobState(lost, queue.Dead, queue.ReasonLost)
	// The job that returned to the queue starts on the worker of the job that ended.
	start, _ := awaitFrame[*wire.StartAttempt](t, f, 1)
	checkEqual(t, "started", start.Lease, wire.Lease{Seq: claimed, Fence: 2})
	s.checkJobState(waiting, queue.Pending, "")
	f.sendFrames(&wire.StartReport{Attempt: runningAttempt(firstClaimLease(waiting))})
	s.awaitJobState(waiting, queue.Processing)
	f.waitUntilFramesHandled()
	checkEqual(t, "started", f.startedJobSeqs(), []int64{claimed})
	checkEqual(t, "acknowledged", f.ackedLeases(), []wire.Lease{firstClaimLease(ended)})
	for _, seq := range []int64{recorded, unrecorded, waiting} {
		f.sendFrames(successResult(firstClaimLease(seq), longRunTime))
		s.awaitJobState(seq, queue.Completed)
	}
	if f.helloEpochs[0] <= before {
		t.Errorf("the runner received epoch %d, want a higher one than %d", f.helloEpochs[0], before)
	}
}

// If the connection to a living runner breaks, the pool connects again with a higher epoch. The runner
// keeps its running jobs and sends its results again. A job that the runner does not know returns to the
// queue if it was only claimed, and is lost if it had started.
func TestReconnectKeepsRunningJobs(t *testing.T) {
	s, f, p := startPool(t, 3, 0, 0, 0)
	for seq := range int64(3) {
		s.awaitJobState(seq+1, queue.Processing)
	}
	f.ignoreStarts()
	p.SetWantedWorkerCount(4)
	s.enqueueJobs(0)
	awaitFrame[*wire.StartAttempt](t, f, 4)
	const kept, ended, lost, claimed = 1, 2, 3, 4
	f.mu.Lock()
	f.helloReply.UnendedAttempts = []wire.Attempt{runningAttempt(firstClaimLease(kept))}
	f.helloReply.UnacknowledgedLeases = []wire.Lease{firstClaimLease(ended)}
	f.framesAfterHello = []wire.Frame{successResult(firstClaimLease(ended), longRunTime)}
	f.mu.Unlock()
	f.disconnect()

	s.awaitJobState(ended, queue.Completed)
	s.awaitJobState(lost, queue.Dead)
	s.checkJobState(lost, queue.Dead, queue.ReasonLost)
	awaitFrame[*wire.StartAttempt](t, f, 5)
	restarted := framesOfType[*wire.StartAttempt](f)[4].Lease
	checkEqual(t, "started again", restarted, wire.Lease{Seq: claimed, Fence: 2})
	f.waitUntilFramesHandled()
	checkEqual(t, "acknowledged", f.ackedLeases(), []wire.Lease{firstClaimLease(ended)})
	j := s.readJob(kept)
	checkEqual(t, "state and process", []any{j.State, j.PID}, []any{queue.Processing, fakeJobPID(kept)})
	f.sendFrames(successResult(firstClaimLease(kept), longRunTime))
	s.awaitJobState(kept, queue.Completed)
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.helloEpochs) != 2 || f.helloEpochs[1] <= f.helloEpochs[0] {
		t.Errorf("the runner received epochs %v, want two, the second higher than the first", f.helloEpochs)
	}
}

// If a runner dies, the jobs that it has started are lost, its other jobs return to the queue, and a new
// runner gets the next jobs.
func TestDeadRunnerIsReplaced(t *testing.T) {
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	s.enqueueJobs(0)
	first := newFakeRunner(t, root, "first")
	p := runPool(t, s, root, 1)
	s.awaitJobState(1, queue.Processing)
	first.ignoreStarts()
	p.SetWantedWorkerCount(2)
	s.enqueueJobs(0)
	awaitFrame[*wire.StartAttempt](t, first, 2)
	second := newFakeRunner(t, root, "second")
	first.simulateExit()
	start, _ := awaitFrame[*wire.StartAttempt](t, second, 1)
	checkEqual(t, "started by the second runner", start.Lease, wire.Lease{Seq: 2, Fence: 2})
	s.checkJobState(1, queue.Dead, queue.ReasonLost)
	s.awaitJobState(2, queue.Processing)
	second.sendFrames(successResult(start.Lease, longRunTime))
	s.awaitJobState(2, queue.Completed)
}

// If a dead runner's directory cannot be removed, the service continues. On Windows, this happens while a
// virus scanner or a backup reads a file in the directory.
func TestUnremovableRunnerDirectoryIsKept(t *testing.T) {
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	s.enqueueJobs(0)
	first := newFakeRunner(t, root, "first")
	runPool(t, s, root, 1)
	s.awaitJobState(1, queue.Processing)
	second := newFakeRunner(t, root, "second")
	reader, err := os.Open(filepath.Join(first.dir, bootIDFileName))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	first.simulateExit()
	s.awaitJobState(1, queue.Dead)
	s.enqueueJobs(0)
	start, _ := awaitFrame[*wire.StartAttempt](t, second, 1)
	second.sendFrames(successResult(start.Lease, longRunTime))
	s.awaitJobState(2, queue.Completed)
}

// A job that was sent to a runner whose directory is gone runs again only after its start deadline.
// Until then the first runner may be alive and start the job, so two runners could run it.
func TestLeasesOfMissingRunnerWaitForStartDeadline(t *testing.T) {
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	s.enqueueJobs(0)
	s.leaseAllJobs()
	if err := s.StoreRunnerDirs(context.Background(), []string{filepath.Join(root, "vanished")}); err != nil {
		t.Fatal(err)
	}
	f := newFakeRunner(t, root, "first")
	poolStarted := time.Now()
	runPool(t, s, root, 1)
	isRecorded := func() bool {
		previous, err := s.PreviousSession(context.Background())
		return err != nil || slices.Contains(previous.RunnerDirs, filepath.Join(root, "vanished"))
	}
	if !isRecorded() {
		t.Error("the store no longer names the vanished runner")
	}
	start, startedAt := awaitFrame[*wire.StartAttempt](t, f, 1)
	checkEqual(t, "started", start.Lease, wire.Lease{Seq: 1, Fence: 2})
	waitUntil(t, "the vanished runner is settled", func() bool { return !isRecorded() })
	if waited := startedAt.Sub(poolStarted); waited < 5*time.Second {
		t.Errorf("started after %v, want at least 5s, in which the vanished runner may start the job", waited)
	}
	f.sendFrames(successResult(start.Lease, longRunTime))
	s.awaitJobState(1, queue.Completed)
}

// When the pool recovers the jobs of a dead runner, it spares processes of jobs whose runner is not known yet. These
// processes may belong to another runner, to which the starting service has not connected yet.
func TestRecoverySparesOtherRunnersJobProcesses(t *testing.T) {
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	s.enqueueJobs(0, 0)
	s.leaseAllJobs(1)
	first, old := newFakeRunner(t, root, "first"), newFakeRunner(t, root, "old")
	old.simulateExit()
	recovered := make(chan []wire.Attempt, 1)
	first.onRecover = func(f *wire.EndProcessTrees) {
		if f.RunnerName == filepath.Base(old.dir) {
			recovered <- f.Attempts
		}
		first.sendFrames(&wire.EndProcessTreesReply{RequestID: f.RequestID, RunnerStartedThisBoot: true})
	}
	runPoolAtLocation(t, s, runner.RunnersLocation{RunnersDir: root, SpawnSocketPath: "unused"}, 2)
	checkEqual(t, "attempts to be ended with the dead runner",
		receiveEvent(t, "the recovery of the dead runner", recovered), []wire.Attempt(nil))
}

// While a runner of root cleans up after a dead runner, it continues to send other frames (messages). The pool receives
// the RecoverReply of that runner even if many frames come before it.
func TestPoolReceivesRecoverReplyAfterManyFrames(t *testing.T) {
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	s.enqueueJobs(0)
	s.leaseAllJobs(1)
	first, old := newFakeRunner(t, root, "first"), newFakeRunner(t, root, "old")
	old.helloReply.RunnerVersion, old.helloReply.UnendedAttempts = "older",
		[]wire.Attempt{runningAttempt(firstClaimLease(1))}
	first.onRecover = func(f *wire.EndProcessTrees) {
		for n := range int64(200) { // the pause makes the pool read each frame separately
			first.sendFrames(&wire.Result{Attempt: wire.Attempt{Lease: wire.Lease{Seq: firstSyncJobSeq + n, Fence: 1}}})
			time.Sleep(time.Millisecond)
		}
		first.sendFrames(&wire.EndProcessTreesReply{RequestID: f.RequestID})
	}
	runPoolAtLocation(t, s, runner.RunnersLocation{RunnersDir: root, SpawnSocketPath: "unused"}, 2)
	old.simulateExit()
	forget, _ := awaitFrame[*wire.RemoveDeadRunnerDir](t, first, 1)
	checkEqual(t, "forgotten", forget.RunnerName, filepath.Base(old.dir))
	first.waitUntilFramesHandled()
}

// If a runner has jobs with numbers that the store has never assigned, the pool ends with ErrStoreOlderThanRunner. This
// also happens if the store assigns these numbers to other jobs before the pool connects to the runner. The runner's
// jobs continue.
func TestRunnerWithUnassignedJobsEndsPool(t *testing.T) {
	for name, connectsLate := range map[string]bool{"connects immediately": false, "connects late": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, root := newStore(t), t.TempDir()
			s.enqueueJobs(0)
			f := newFakeRunner(t, root, "first")
			f.helloReply.UnendedAttempts = []wire.Attempt{runningAttempt(firstClaimLease(3))}
			if connectsLate {
				f.listener.Close()
				f.acceptLoopGroup.Wait()
			}
			p := worker.New(s, poolConfig(runner.RunnersLocation{RunnersDir: root}), 1)
			ended := make(chan error, 1)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			go func() { // this goroutine ends when the pool ends
				ended <- p.Run(ctx, func() {
					if !connectsLate {
						return
					}
					s.enqueueJobs(0, 0, 0)
					var err error
					if f.listener, err = listenAsRunner(f.dir); err != nil {
						t.Error(err)
					}
					f.acceptLoopGroup.Go(f.acceptConnections)
				})
			}()
			select {
			case err := <-ended:
				if !errors.Is(err, worker.ErrStoreOlderThanRunner) || !strings.Contains(err.Error(), "job 3") {
					t.Errorf("the pool ended: %v", err)
				}
			case <-time.After(eventTimeout):
				t.Fatal("the pool has not ended")
			}
			checkEqual(t, "ended jobs", framesOfType[*wire.EndAttempt](f), []*wire.EndAttempt(nil))
		})
	}
}

// Normally, a runner that the pool has shut down removes its directory. If the runner is killed before that, the pool
// removes the directory.
func TestDirectoryOfKilledDismissedRunnerIsRemoved(t *testing.T) {
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	old := newFakeRunner(t, root, "1")
	old.helloReply.RunnerVersion = "another"
	newFakeRunner(t, root, "2")
	runPool(t, s, root, 1)
	awaitFrame[*wire.Shutdown](t, old, 1)
	old.simulateExit()
	waitUntil(t, "the runner's directory is removed", func() bool {
		_, err := os.Stat(old.dir)
		return errors.Is(err, fs.ErrNotExist)
	})
}
