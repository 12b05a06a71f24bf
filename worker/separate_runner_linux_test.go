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
func startFakeLauncher(t *testing.T, rootDir string) (socket string, startedRunners <-chan *fakeRunner) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "spawn.sock")
	l, err := net.Listen("unix", socket)
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
			f := newRunner(t, rootDir, fmt.Sprint("own", n))
			fmt.Fprintln(c, "queuectl runner "+filepath.Base(f.dir))
			c.Close()
			out <- f
		}
	})
	t.Cleanup(func() {
		l.Close()
		loop.Wait()
	})
	return socket, out
}

// startPoolWithHungUser runs a pool in which two programs of a user have hung at their start. So the user's
// next jobs go to a separate runner.
func startPoolWithHungUser(t *testing.T) (
	s *recordingStore, p *worker.Pool, poolErr <-chan error, startedRunners <-chan *fakeRunner,
) {
	t.Helper()
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	socket, startedRunners := startFakeLauncher(t, root)
	f := newRunner(t, root, "first")
	f.onRecover = func(r *wire.Recover) { f.send(&wire.RecoverReply{RequestID: r.RequestID, SameBoot: true}) }
	p, poolErr = runPoolAt(t, s, runner.Location{Dir: root, SpawnSocket: socket}, 4)
	s.enqueue(0, 0)
	for n := range 2 {
		start, _ := awaitFrame[*wire.Start](t, f, n+1)
		hung := successResult(start.Lease, longRunTime)
		hung.ExitCode, hung.Cause = 126, int64(queue.EndStartHung)
		f.send(hung)
		waitUntil(t, "the attempt is recorded", func() bool { return s.job(start.Seq).StartedAttempts == 1 })
	}
	return s, p, poolErr, startedRunners
}

// A user whose starts hang has a separate runner. If this runner dies or hangs, another one replaces it. If
// it has died, its jobs are lost or return to the queue, as with any runner.
func TestSeparateRunnerOfUserIsReplaced(t *testing.T) {
	s, p, ended, started := startPoolWithHungUser(t)
	s.enqueue(0)
	ownRunner := receive(t, "the user's separate runner", started)
	awaitFrame[*wire.Start](t, ownRunner, 1)
	ownRunner.die()
	waitUntil(t, "the job of the dead runner is settled", func() bool { return s.job(3).StartedAttempts == 1 })
	checkEqual(t, "reason of that job", s.job(3).Reason, queue.ReasonLost)

	s.enqueue(0)
	ownRunner = receive(t, "a new separate runner", started)
	awaitFrame[*wire.Start](t, ownRunner, 1)
	s.awaitState(4, queue.Processing)
	ownRunner.setUnresponsive(true)
	if got := receive(t, "an answer", cancelAsync(p, 4)); !errors.Is(got.err, queue.ErrUnavailable) {
		t.Errorf("cancel of a job of an unresponsive runner: %+v", got)
	}
	s.enqueue(0)
	third := receive(t, "a third separate runner", started)
	start, _ := awaitFrame[*wire.Start](t, third, 1)
	third.send(successResult(start.Lease, longRunTime))
	s.awaitState(start.Seq, queue.Completed)
	select {
	case err := <-ended:
		t.Errorf("the pool ended: %v", err)
	default:
	}
}

// If jobs wait too long in a user's separate runner, the pool takes them back. It keeps the jobs that it is
// claiming at that time, because these jobs run in another runner and need not wait for those of the user.
func TestRecallFromSeparateRunnerKeepsOtherClaims(t *testing.T) {
	s, _, _, started := startPoolWithHungUser(t)
	s.enqueue(0)
	ownRunner := receive(t, "the user's separate runner", started)
	awaitFrame[*wire.Start](t, ownRunner, 1)
	ownRunner.ignoreStarts()
	s.enqueue(0)
	awaitFrame[*wire.Start](t, ownRunner, 2)
	waitUntil(t, "a claim waits", func() bool { return s.awaitedJobs() > 0 })
	awaitFrame[*wire.Drop](t, ownRunner, 1)
	s.enqueue(0)
	start, _ := awaitFrame[*wire.Start](t, ownRunner, 3)
	checkEqual(t, "the next job that was sent", start.Lease, lease(5))
}
