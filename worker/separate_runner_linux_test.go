package worker_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/worker"
)

// startFakeLauncher imitates the launcher, which starts a runner of root for each request on its socket. It
// sends the fake runners to the returned channel, in the order of the requests.
func startFakeLauncher(t *testing.T, rootDir string) (socketPath string, startedRunners <-chan *fakeRunner) {
	t.Helper()
	socketPath = filepath.Join(t.TempDir(), "spawn.sock")
	l, err := net.Listen("unix", socketPath)
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan *fakeRunner, 16)
	var loop sync.WaitGroup
	loop.Go(func() {
		for n := 1; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return // the test has ended
			}
			bufio.NewReader(c).ReadString('\n')
			f := newFakeRunner(t, rootDir, fmt.Sprint("own", n))
			fmt.Fprintln(c, "queuectl runner "+filepath.Base(f.dir))
			c.Close()
			out <- f
		}
	})
	t.Cleanup(func() {
		l.Close()
		loop.Wait()
	})
	return socketPath, out
}

// startPoolWithHungStartsUser runs a pool in which two programs of a user have hung at their start. So the user's
// next jobs go to a separate runner.
func startPoolWithHungStartsUser(t *testing.T) (
	s *recordingStore, p *worker.Pool, poolErr <-chan error, startedRunners <-chan *fakeRunner,
) {
	t.Helper()
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	socket, startedRunners := startFakeLauncher(t, root)
	f := newFakeRunner(t, root, "first")
	f.onRecover = func(r *wire.EndProcessTrees) {
		f.sendFrames(&wire.EndProcessTreesReply{RequestID: r.RequestID, RunnerStartedThisBoot: true})
	}
	p, poolErr = runPoolAtLocation(t, s, runner.RunnersLocation{RunnersDir: root, SpawnSocketPath: socket}, 4)
	s.enqueueJobs(0, 0)
	for n := range 2 {
		start, _ := awaitFrame[*wire.StartAttempt](t, f, n+1)
		hung := successResult(start.Lease, longRunTime)
		hung.ExitCode, hung.EndCause = 126, int64(queue.EndStartHung)
		f.sendFrames(hung)
		waitUntil(t, "the attempt is recorded", func() bool { return s.readJob(start.Seq).StartedAttempts == 1 })
	}
	return s, p, poolErr, startedRunners
}

// A user whose starts hang has a separate runner. If this runner dies or hangs, another one replaces it. If the runner
// has died, its jobs are lost or return to the queue, as with any runner.
func TestUsersFailedSeparateRunnerIsReplaced(t *testing.T) {
	s, p, ended, started := startPoolWithHungStartsUser(t)
	s.enqueueJobs(0)
	ownRunner := receiveEvent(t, "the user's separate runner", started)
	awaitFrame[*wire.StartAttempt](t, ownRunner, 1)
	ownRunner.simulateExit()
	waitUntil(t, "the job of the dead runner is settled", func() bool { return s.readJob(3).StartedAttempts == 1 })
	checkEqual(t, "reason of that job", s.readJob(3).Reason, queue.ReasonLost)

	s.enqueueJobs(0)
	ownRunner = receiveEvent(t, "a new separate runner", started)
	awaitFrame[*wire.StartAttempt](t, ownRunner, 1)
	s.awaitJobState(4, queue.Processing)
	ownRunner.setUnresponsive(true)
	if got := receiveEvent(t, "an answer", cancelInBackground(p, 4)); !errors.Is(got.err, queue.ErrUnavailable) {
		t.Errorf("cancel of a job of an unresponsive runner: %+v", got)
	}
	s.enqueueJobs(0)
	third := receiveEvent(t, "a third separate runner", started)
	start, _ := awaitFrame[*wire.StartAttempt](t, third, 1)
	third.sendFrames(successResult(start.Lease, longRunTime))
	s.awaitJobState(start.Seq, queue.Completed)
	select {
	case err := <-ended:
		t.Errorf("the pool ended: %v", err)
	default:
	}
}

// If jobs wait too long in a user's separate runner, the pool takes them back. A claim that is in progress at that time
// continues, because the claimed jobs run in another runner and need not wait for the jobs of the user.
func TestRecallFromSeparateRunnerKeepsOtherClaims(t *testing.T) {
	s, _, _, started := startPoolWithHungStartsUser(t)
	s.enqueueJobs(0)
	ownRunner := receiveEvent(t, "the user's separate runner", started)
	awaitFrame[*wire.StartAttempt](t, ownRunner, 1)
	ownRunner.ignoreStarts()
	s.enqueueJobs(0)
	awaitFrame[*wire.StartAttempt](t, ownRunner, 2)
	waitUntil(t, "a claim waits", func() bool { return s.awaitedJobCount() > 0 })
	awaitFrame[*wire.DropStart](t, ownRunner, 1)
	s.enqueueJobs(0)
	start, _ := awaitFrame[*wire.StartAttempt](t, ownRunner, 3)
	checkEqual(t, "the next job that was sent", start.Lease, firstClaimLease(5))
}
