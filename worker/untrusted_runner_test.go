package worker_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
)

// Frames from a runner about a job of another runner are ignored, and a Result frame among them is not
// acknowledged. So a runner that was left when the service ran jobs as another account cannot end the present
// jobs.
func TestFramesOfAnotherRunnerAreIgnored(t *testing.T) {
	s, root := newStore(t), t.TempDir()
	s.enqueue(0, 0)
	s.leaseAll(1, 2)
	holder, other := newRunner(t, root, "one"), newRunner(t, root, "two")
	holder.helloReply.Attempts = []wire.Attempt{runningAttempt(lease(1))}
	other.helloReply.Attempts = []wire.Attempt{runningAttempt(lease(2))}
	runPool(t, s, root, 2)
	for _, f := range []*fakeRunner{holder, other} {
		waitUntil(t, "the pool has connected to the runner", func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.conn != nil
		})
	}
	holder.sync()
	start := runningAttempt(lease(1))
	forged := successResult(start.Lease, longRunTime)
	forged.ExitCode, forged.Output = 3, []byte("forged")
	other.send(&wire.StartReport{Attempt: wire.Attempt{Lease: start.Lease, PID: 1}}, forged,
		&wire.DropReply{Lease: start.Lease, Dropped: true})
	other.sync()
	checkEqual(t, "leases acknowledged to the other runner", other.ackedLeases(), []wire.Lease(nil))
	s.checkState(1, queue.Processing, "")
	checkEqual(t, "pid of the job", s.job(1).PID, pid(1))
	genuine := successResult(start.Lease, longRunTime)
	genuine.Output = []byte("own")
	holder.send(genuine)
	s.awaitState(1, queue.Completed)
	a, err := s.Attempt(context.Background(), 1, 1)
	checkEqual(t, "recorded", fmt.Sprintf("%d %s %v", a.ExitCode, a.Output, err), "0 own <nil>")
}

// A result may name the output file of its lease only; another name is ignored.
func TestResultMayNameOnlyItsOwnOutput(t *testing.T) {
	s, root := newStore(t), t.TempDir()
	f := newRunner(t, root, "first")
	s.enqueue(0, 0)
	runPool(t, s, root, 2)
	awaitFrame[*wire.Start](t, f, 2)
	for seq, ref := range map[int64]string{1: "2-1", 2: "2-1"} {
		r := successResult(lease(seq), longRunTime)
		r.OutputRef = ref
		f.send(r)
		s.awaitState(seq, queue.Completed)
	}
	for seq, want := range map[int64]string{1: "", 2: "2-1"} {
		a, err := s.Attempt(context.Background(), seq, 1)
		if err != nil || a.OutputRef != want {
			t.Errorf("job %d: got output %q, %v, want %q", seq, a.OutputRef, err, want)
		}
	}
}

// Sockets of runners that never answer do not delay the pool: the pool is ready without them and runs jobs.
func TestUnresponsiveSocketsDoNotDelayPool(t *testing.T) {
	skip.IfShort(t, "takes long; make test-long runs it")
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	for i := range 12 {
		f := newRunner(t, root, fmt.Sprint("mute", i))
		f.mu.Lock()
		f.ignoresHello = true
		f.mu.Unlock()
	}
	f := newRunner(t, root, "second")
	s.enqueue(0)
	p := runPool(t, s, root, 1)
	start, _ := awaitFrame[*wire.Start](t, f, 1)
	f.send(successResult(start.Lease, longRunTime))
	s.awaitState(1, queue.Completed)
	waitUntil(t, "12 runners are reported as unresponsive", func() bool {
		responsive, unresponsive := p.CheckRunners(time.Second)
		return len(responsive) == 1 && len(unresponsive) == 12
	})
}
