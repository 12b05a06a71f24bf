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

// leaseAll claims all jobs of a store, as an earlier service would have done. It reports the jobs with the
// given numbers as started.
func (s *recordingStore) leaseAll(startedSeqs ...int64) {
	s.t.Helper()
	ctx := context.Background()
	if _, err := s.Store.Exchange(ctx, store.Report{WantedJobs: 100}); err != nil {
		s.t.Fatal(err)
	}
	var report store.Report
	for _, seq := range startedSeqs {
		report.Starts = append(report.Starts,
			store.AttemptStart{Lease: queue.Lease(lease(seq)), StartedAt: 1, Worker: "w1", PID: int(pid(seq))})
	}
	if _, err := s.Store.Exchange(ctx, report); err != nil {
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
	s.enqueue(0, 0, 0, 0, 0, 0)
	const recorded, unrecorded, ended, waiting, claimed, lost = 1, 2, 3, 4, 5, 6
	s.leaseAll(recorded, ended, lost)
	before, err := s.NextEpoch(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	f := newRunner(t, root, "first")
	f.ignoresStarts = true // otherwise it would report the waiting job as started
	f.helloReply.Attempts = []wire.Attempt{
		runningAttempt(lease(recorded)), runningAttempt(lease(unrecorded)), {Lease: lease(waiting)},
	}
	f.helloReply.EndedLeases = []wire.Lease{lease(ended)}
	f.afterHello = []wire.Frame{successResult(lease(ended), longRunTime)}
	p := runPool(t, s, root, 4)

	s.awaitState(ended, queue.Completed)
	s.awaitState(unrecorded, queue.Processing)
	for _, seq := range []int64{recorded, unrecorded} {
		j := s.job(seq)
		checkEqual(t, "state and process", []any{j.State, j.PID}, []any{queue.Processing, pid(seq)})
		checkEqual(t, "running attempts", p.LeasedAttemptNumber(seq), 1)
	}
	s.checkState(lost, queue.Dead, queue.ReasonLost)
	// The job that returned to the queue starts on the worker of the job that ended.
	start, _ := awaitFrame[*wire.Start](t, f, 1)
	checkEqual(t, "started", start.Lease, wire.Lease{Seq: claimed, Fence: 2})
	s.checkState(waiting, queue.Pending, "")
	f.send(&wire.StartReport{Attempt: runningAttempt(lease(waiting))})
	s.awaitState(waiting, queue.Processing)
	f.sync()
	checkEqual(t, "started", f.startedJobs(), []int64{claimed})
	checkEqual(t, "acknowledged", f.ackedLeases(), []wire.Lease{lease(ended)})
	for _, seq := range []int64{recorded, unrecorded, waiting} {
		f.send(successResult(lease(seq), longRunTime))
		s.awaitState(seq, queue.Completed)
	}
	if f.epochs[0] <= before {
		t.Errorf("the runner received epoch %d, want a higher one than %d", f.epochs[0], before)
	}
}

// If the connection to a living runner breaks, the pool connects again with a higher epoch. The runner
// keeps its running jobs and sends its results again. A job that the runner does not know returns to the
// queue if it was only claimed, and is lost if it had started.
func TestReconnectKeepsRunningJobs(t *testing.T) {
	s, f, p := startPool(t, 3, 0, 0, 0)
	for seq := range int64(3) {
		s.awaitState(seq+1, queue.Processing)
	}
	f.ignoreStarts()
	p.SetWantedWorkers(4)
	s.enqueue(0)
	awaitFrame[*wire.Start](t, f, 4)
	const kept, ended, lost, claimed = 1, 2, 3, 4
	f.mu.Lock()
	f.helloReply.Attempts = []wire.Attempt{runningAttempt(lease(kept))}
	f.helloReply.EndedLeases = []wire.Lease{lease(ended)}
	f.afterHello = []wire.Frame{successResult(lease(ended), longRunTime)}
	f.mu.Unlock()
	f.disconnect()

	s.awaitState(ended, queue.Completed)
	s.awaitState(lost, queue.Dead)
	s.checkState(lost, queue.Dead, queue.ReasonLost)
	awaitFrame[*wire.Start](t, f, 5)
	restarted := receivedFrames[*wire.Start](f)[4].Lease
	checkEqual(t, "started again", restarted, wire.Lease{Seq: claimed, Fence: 2})
	f.sync()
	checkEqual(t, "acknowledged", f.ackedLeases(), []wire.Lease{lease(ended)})
	j := s.job(kept)
	checkEqual(t, "state and process", []any{j.State, j.PID}, []any{queue.Processing, pid(kept)})
	f.send(successResult(lease(kept), longRunTime))
	s.awaitState(kept, queue.Completed)
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.epochs) != 2 || f.epochs[1] <= f.epochs[0] {
		t.Errorf("the runner received epochs %v, want two, the second higher than the first", f.epochs)
	}
}

// If a runner dies, the jobs that it has started are lost, its other jobs return to the queue, and a new
// runner gets the next jobs.
func TestDeadRunnerIsReplaced(t *testing.T) {
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	s.enqueue(0)
	first := newRunner(t, root, "first")
	p := runPool(t, s, root, 1)
	s.awaitState(1, queue.Processing)
	first.ignoreStarts()
	p.SetWantedWorkers(2)
	s.enqueue(0)
	awaitFrame[*wire.Start](t, first, 2)
	second := newRunner(t, root, "second")
	first.die()
	start, _ := awaitFrame[*wire.Start](t, second, 1)
	checkEqual(t, "started by the second runner", start.Lease, wire.Lease{Seq: 2, Fence: 2})
	s.checkState(1, queue.Dead, queue.ReasonLost)
	s.awaitState(2, queue.Processing)
	second.send(successResult(start.Lease, longRunTime))
	s.awaitState(2, queue.Completed)
}

// If a dead runner's directory cannot be removed, the service continues. On Windows, this happens while a
// virus scanner or a backup reads a file in the directory.
func TestUnremovableRunnerDirectoryIsKept(t *testing.T) {
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	s.enqueue(0)
	first := newRunner(t, root, "first")
	runPool(t, s, root, 1)
	s.awaitState(1, queue.Processing)
	second := newRunner(t, root, "second")
	reader, err := os.Open(filepath.Join(first.dir, bootIDFileName))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	first.die()
	s.awaitState(1, queue.Dead)
	s.enqueue(0)
	start, _ := awaitFrame[*wire.Start](t, second, 1)
	second.send(successResult(start.Lease, longRunTime))
	s.awaitState(2, queue.Completed)
}

// A job that was sent to a runner whose directory is gone runs again only after its start deadline.
// Until then the first runner may be alive and start the job, so two runners could run it.
func TestLeasesOfMissingRunnerWaitForStartDeadline(t *testing.T) {
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	s.enqueue(0)
	s.leaseAll()
	if err := s.StoreRunnerDirs(context.Background(), []string{filepath.Join(root, "vanished")}); err != nil {
		t.Fatal(err)
	}
	f := newRunner(t, root, "first")
	poolStarted := time.Now()
	runPool(t, s, root, 1)
	isRecorded := func() bool {
		previous, err := s.PreviousSession(context.Background())
		return err != nil || slices.Contains(previous.RunnerDirs, filepath.Join(root, "vanished"))
	}
	if !isRecorded() {
		t.Error("the store no longer names the vanished runner")
	}
	start, startedAt := awaitFrame[*wire.Start](t, f, 1)
	checkEqual(t, "started", start.Lease, wire.Lease{Seq: 1, Fence: 2})
	waitUntil(t, "the vanished runner is settled", func() bool { return !isRecorded() })
	if waited := startedAt.Sub(poolStarted); waited < 5*time.Second {
		t.Errorf("started after %v, want at least 5s, in which the vanished runner may start the job", waited)
	}
	f.send(successResult(start.Lease, longRunTime))
	s.awaitState(1, queue.Completed)
}

// When the pool recovers a dead runner, it does not end processes of jobs whose runner it does not know yet.
// These processes may belong to another runner, to which the starting service has not connected yet.
func TestRecoverySparesProcessesOfOtherLeases(t *testing.T) {
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	s.enqueue(0, 0)
	s.leaseAll(1)
	first, old := newRunner(t, root, "first"), newRunner(t, root, "old")
	old.die()
	recovered := make(chan []wire.Attempt, 1)
	first.onRecover = func(f *wire.Recover) {
		if f.RunnerName == filepath.Base(old.dir) {
			recovered <- f.Attempts
		}
		first.send(&wire.RecoverReply{RequestID: f.RequestID, SameBoot: true})
	}
	runPoolAt(t, s, runner.Location{Dir: root, SpawnSocket: "unused"}, 2)
	checkEqual(t, "attempts to be ended with the dead runner",
		receive(t, "the recovery of the dead runner", recovered), []wire.Attempt(nil))
}

// A runner of root can clean up after a dead runner, and continues to send other frames during that time. The
// pool receives its RecoverReply even if many frames come before it.
func TestRecoverReplyArrivesAfterManyFrames(t *testing.T) {
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	s.enqueue(0)
	s.leaseAll(1)
	first, old := newRunner(t, root, "first"), newRunner(t, root, "old")
	old.helloReply.Version, old.helloReply.Attempts = "older", []wire.Attempt{runningAttempt(lease(1))}
	first.onRecover = func(f *wire.Recover) {
		for n := range int64(200) { // the pause makes the pool read each frame separately
			first.send(&wire.Result{Attempt: wire.Attempt{Lease: wire.Lease{Seq: firstUnknownSeq + n, Fence: 1}}})
			time.Sleep(time.Millisecond)
		}
		first.send(&wire.RecoverReply{RequestID: f.RequestID})
	}
	runPoolAt(t, s, runner.Location{Dir: root, SpawnSocket: "unused"}, 2)
	old.die()
	forget, _ := awaitFrame[*wire.RemoveDeadRunner](t, first, 1)
	checkEqual(t, "forgotten", forget.RunnerName, filepath.Base(old.dir))
	first.sync()
}

// If a runner has jobs with numbers that the store has never assigned, the pool ends with ErrStoreOlder.
// This is true even if other jobs have got these numbers before the pool connects. The runner's jobs
// continue.
func TestRunnerWithUnassignedJobsEndsRun(t *testing.T) {
	for name, connectsLate := range map[string]bool{"connects immediately": false, "connects late": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, root := newStore(t), t.TempDir()
			s.enqueue(0)
			f := newRunner(t, root, "first")
			f.helloReply.Attempts = []wire.Attempt{runningAttempt(lease(3))}
			if connectsLate {
				f.listener.Close()
				f.loopGroup.Wait()
			}
			p := worker.New(s, poolConfig(runner.Location{Dir: root}), 1)
			ended := make(chan error, 1)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			go func() { // this goroutine ends when the pool ends
				ended <- p.Run(ctx, func() {
					if !connectsLate {
						return
					}
					s.enqueue(0, 0, 0)
					var err error
					if f.listener, err = listen(f.dir); err != nil {
						t.Error(err)
					}
					f.loopGroup.Go(f.accept)
				})
			}()
			select {
			case err := <-ended:
				if !errors.Is(err, worker.ErrStoreOlder) || !strings.Contains(err.Error(), "job 3") {
					t.Errorf("the pool ended: %v", err)
				}
			case <-time.After(eventTimeout):
				t.Fatal("the pool has not ended")
			}
			checkEqual(t, "ended jobs", receivedFrames[*wire.EndAttempt](f), []*wire.EndAttempt(nil))
		})
	}
}

// A runner that the pool has shut down removes its directory. If it is killed before that, the pool removes
// the directory.
func TestDirectoryOfKilledDismissedRunnerIsRemoved(t *testing.T) {
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	old := newRunner(t, root, "1")
	old.helloReply.Version = "another"
	newRunner(t, root, "2")
	runPool(t, s, root, 1)
	awaitFrame[*wire.Shutdown](t, old, 1)
	old.die()
	waitUntil(t, "the runner's directory is removed", func() bool {
		_, err := os.Stat(old.dir)
		return errors.Is(err, fs.ErrNotExist)
	})
}
