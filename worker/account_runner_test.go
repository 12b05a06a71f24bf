package worker_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// newAccountRunner creates a directory for the runners of one account, and a fake runner in it. It records
// the fake runner's directory in the store.
func newAccountRunner(t *testing.T, s *recordingStore, rootDir string) *fakeRunner {
	t.Helper()
	dir := filepath.Join(rootDir, "as-x")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f := newFakeRunner(t, dir, "theirs")
	if err := s.StoreRunnerDirs(t.Context(), []string{f.dir}); err != nil {
		t.Fatal(err)
	}
	return f
}

// A runner in the directory of an account may refuse the connection, or report processes that survive
// SIGKILL. The runner can neither end the pool nor reduce the number of workers for new jobs.
func TestMisbehavingAccountRunnerCannotBlockPool(t *testing.T) {
	for name, misbehave := range map[string]func(f *fakeRunner){
		"refuses Hello": func(f *fakeRunner) { f.refusesHello = true },
		"stuck attempts": func(f *fakeRunner) {
			f.framesAfterHello = []wire.Frame{&wire.StuckAttemptsReport{Attempts: make([]wire.Attempt, 100)}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, root := newStore(t), t.TempDir()
			accountRunner := newAccountRunner(t, s, root)
			accountRunner.mu.Lock()
			misbehave(accountRunner)
			accountRunner.mu.Unlock()
			f := newFakeRunner(t, root, "first")
			p := runPool(t, s, root, 1)
			waitUntil(t, "the pool has connected to the account's runner", func() bool {
				accountRunner.mu.Lock()
				defer accountRunner.mu.Unlock()
				return len(accountRunner.helloEpochs) > 0
			})
			f.waitUntilFramesHandled()
			s.enqueueJobs(0)
			start, _ := awaitFrame[*wire.StartAttempt](t, f, 1)
			f.sendFrames(successResult(start.Lease, longRunTime))
			s.awaitJobState(1, queue.Completed)
			checkEqual(t, "workers", len(p.ListWorkers(t.Context())), 1)
		})
	}
}

// The pool ignores a runner directory that an account has created and that the store does not know, because
// its runner cannot have jobs of this queue.
func TestUnrecordedAccountRunnersAreIgnored(t *testing.T) {
	s, root := newStore(t), t.TempDir()
	newAccountRunner(t, s, root)
	unknownRunner := newFakeRunner(t, filepath.Join(root, "as-x"), "planted")
	s.enqueueJobs(0)
	if _, err := s.ReportAndClaim(t.Context(), store.LeaseReport{MaxJobsToClaim: 1}); err != nil {
		t.Fatal(err)
	}
	unknownRunner.helloReply.UnendedAttempts = []wire.Attempt{runningAttempt(firstClaimLease(1))}
	dead := filepath.Join(root, "as-x", uniqueRunnerName(root, "dead"))
	// The dead runner's directory has no boot id. If the store knew this runner, its files would count as
	// damaged.
	if err := os.Mkdir(dead, 0o700); err != nil {
		t.Fatal(err)
	}
	f := newFakeRunner(t, root, "first")
	runPool(t, s, root, 1)
	// Job 1 has returned to the queue, because no runner can have started this job. So the pool claims the
	// job again.
	start, _ := awaitFrame[*wire.StartAttempt](t, f, 1)
	if start.Lease == firstClaimLease(1) {
		t.Error("the job was not returned to the queue first")
	}
	unknownRunner.mu.Lock()
	checkEqual(t, "connections to the unknown runner", unknownRunner.helloEpochs, []int64(nil))
	unknownRunner.mu.Unlock()
	f.sendFrames(successResult(start.Lease, longRunTime))
	s.awaitJobState(1, queue.Completed)
	checkEqual(t, "attempts", s.readJob(1).StartedAttempts, 1)
}
