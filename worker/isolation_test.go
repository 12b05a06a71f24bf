package worker_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// maxConcurrentSuspectJobs is the pool's limit of suspects (jobs whose last runner died) that run concurrently.
const maxConcurrentSuspectJobs = 16

// startPoolWithStarter is like startPool, with a command that starts separate runners. The command waits for the file
// waitFileName in rootDir, and then reports that it has started the runner runnerName. startCallCount returns how often
// the command was called.
func startPoolWithStarter(t *testing.T, workerCount int, runnerName, waitFileName string) (
	s *recordingStore, f *fakeRunner, p *worker.Pool, rootDir string, startCallCount func() int,
) {
	t.Helper()
	t.Parallel()
	s, rootDir = newStore(t), t.TempDir()
	f = newFakeRunner(t, rootDir, "1")
	callLog := filepath.Join(t.TempDir(), "tries")
	logs, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { logs.Close() })
	if runnerName != "" {
		runnerName = uniqueRunnerName(rootDir, runnerName)
	}
	if waitFileName != "" {
		waitFileName = filepath.Join(rootDir, waitFileName)
	}
	p, _ = runPoolAtLocation(t, s, runner.RunnersLocation{RunnersDir: rootDir, RunnerLog: logs,
		RunnerCommand: runnerStarterCommand(t, runnerName, callLog, waitFileName)},
		workerCount)
	return s, f, p, rootDir, func() int { return countLines(callLog) }
}

// enqueueSuspects enqueues jobs with the highest priority and marks them as if their runner had died, so that
// each must run alone.
func (s *recordingStore) enqueueSuspects(n int) {
	s.t.Helper()
	drafts := make([]queue.Job, n)
	for i := range drafts {
		drafts[i] = queue.Job{
			Priority: 9, MaxAttempts: 1, ExitCode: -1, NeedsIsolation: true,
			ExecutionSettings: queue.ExecutionSettings{Argv: []string{"true"}},
		}
	}
	if _, err := s.Enqueue(context.Background(), store.EnqueueRequest{Drafts: drafts}); err != nil {
		s.t.Fatal(err)
	}
}

// A suspect is a job whose runner has died. If no separate runner can be started for suspects, the pool tries again
// later, for one suspect at a time, and doubles the delay after each failure. After each failure, the pool pauses
// claims for a while, and then runs other jobs before the suspects.
func TestSuspectsWithoutRunnerLetOtherJobsRun(t *testing.T) {
	s, f, _, _, tries := startPoolWithStarter(t, 3, "", "")
	s.enqueueSuspects(3)
	s.enqueueJobs(0, 0)
	awaitFrame[*wire.StartAttempt](t, f, 2)
	checkEqual(t, "attempted runner starts when the other jobs run", tries(), 1)
	checkEqual(t, "started", f.startedJobSeqs(), []int64{4, 5})
	for seq := range int64(3) {
		s.checkJobState(seq+1, queue.Pending, queue.ReasonResourceShortage)
	}
	waitUntil(t, "a second runner start was attempted", func() bool { return tries() == 2 })
	waitUntil(t, "only the other jobs are leased", func() bool { return slices.Equal(s.leasedJobSeqs(), []int64{4, 5}) })
	checkEqual(t, "attempted runner starts in total", tries(), 2)
	f.sendFrames(successResult(firstClaimLease(4), longRunTime))
	s.awaitJobState(4, queue.Completed)
}

// Suspects (jobs whose last runner died) run in separate runners, at most maxConcurrentSuspectJobs concurrently.
// Further suspects start when running ones end. Other jobs start before them.
func TestSuspectsRunInSeparateRunnersUpToLimit(t *testing.T) {
	const excess = 3
	s, f, _, root, tries := startPoolWithStarter(t, 2*maxConcurrentSuspectJobs, "#.alone", "")
	var separate []*fakeRunner
	for n := range maxConcurrentSuspectJobs + excess {
		separate = append(separate, newFakeRunner(t, root, fmt.Sprintf("%d.alone", n+1)))
	}
	starts := func() (seqs []int64) {
		for _, f := range separate {
			seqs = append(seqs, f.startedJobSeqs()...)
		}
		return seqs
	}
	s.enqueueSuspects(maxConcurrentSuspectJobs + excess)
	s.enqueueJobs(0)
	awaitFrame[*wire.StartAttempt](t, f, 1)
	waitUntil(t, "the maximum number of suspects has started",
		func() bool { return len(starts()) == maxConcurrentSuspectJobs })
	f.waitUntilFramesHandled()
	checkEqual(t, "attempted runner starts", tries(), maxConcurrentSuspectJobs)
	checkEqual(t, "suspects started", len(starts()), maxConcurrentSuspectJobs)
	checkEqual(t, "other jobs started", f.startedJobSeqs(), []int64{maxConcurrentSuspectJobs + excess + 1})
	before := time.Now()
	for n := range excess {
		separate[n].sendFrames(successResult(firstClaimLease(int64(n+1)), longRunTime))
	}
	waitUntil(t, "the remaining suspects have started", func() bool {
		return len(starts()) == maxConcurrentSuspectJobs+
			excess
	})
	if took := time.Since(before); took > 5*time.Second {
		t.Errorf("the remaining suspects waited for %v", took)
	}
	got := starts()
	slices.Sort(got)
	if len(slices.Compact(got)) != maxConcurrentSuspectJobs+excess {
		t.Errorf("suspects started: %v", got)
	}
	checkEqual(t, "attempted runner starts", tries(), maxConcurrentSuspectJobs+excess)
}

// If a runner reports an attempt of a job that the pool has not sent to any runner, the pool does not assign the lease
// to this runner, and ignores the attempt's result.
func TestRunnerCannotReportJobItWasNotSent(t *testing.T) {
	s, f, _, root, tries := startPoolWithStarter(t, 2, "2.alone", "go")
	separate := newFakeRunner(t, root, "2.alone")
	s.enqueueSuspects(1)
	waitUntil(t, "a runner start was attempted", func() bool { return tries() == 1 })
	f.reconnect(runningAttempt(firstClaimLease(1)))
	f.sendFrames(successResult(firstClaimLease(1), longRunTime))
	f.waitUntilFramesHandled()
	s.checkJobState(1, queue.Pending, "")
	checkEqual(t, "acknowledged", slices.Contains(f.ackedLeases(), firstClaimLease(1)), false)
	if err := os.WriteFile(filepath.Join(root, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	awaitFrame[*wire.StartAttempt](t, separate, 1)
	separate.sendFrames(successResult(firstClaimLease(1), longRunTime))
	s.awaitJobState(1, queue.Completed)
}

// If a drain begins while a runner for a suspect (a job whose last runner died) is starting, the suspects return to the
// queue and the runner ends.
func TestDrainReturnsSuspectsToQueue(t *testing.T) {
	s, _, p, root, tries := startPoolWithStarter(t, 2, "2.alone", "go")
	separate := newFakeRunner(t, root, "2.alone")
	s.enqueueSuspects(2)
	waitUntil(t, "a runner start was attempted", func() bool { return tries() == 1 })
	p.SetDraining(true)
	if err := os.WriteFile(filepath.Join(root, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	awaitFrame[*wire.Shutdown](t, separate, 1)
	checkEqual(t, "leased", s.leasedJobSeqs(), []int64(nil))
	checkEqual(t, "started", separate.startedJobSeqs(), []int64(nil))
	s.checkJobState(1, queue.Pending, "")
	checkEqual(t, "attempted runner starts", tries(), 1)
}
