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

// Frames from a runner about a job of another runner are ignored, and a Result frame among them is not acknowledged. A
// runner may be left over from a time when the service ran jobs as another account. Such a runner therefore cannot end
// the jobs of the present runners.
func TestFramesAboutOtherRunnersJobsAreIgnored(t *testing.T) {
	s, root := newStore(t), t.TempDir()
	s.enqueueJobs(0, 0)
	s.leaseAllJobs(1, 2)
	holder, other := newFakeRunner(t, root, "one"), newFakeRunner(t, root, "two")
	holder.helloReply.UnendedAttempts = []wire.Attempt{runningAttempt(firstClaimLease(1))}
	other.helloReply.UnendedAttempts = []wire.Attempt{runningAttempt(firstClaimLease(2))}
	runPool(t, s, root, 2)
	for _, f := range []*fakeRunner{holder, other} {
		waitUntil(t, "the pool has connected to the runner", func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.conn != nil
		})
	}
	holder.waitUntilFramesHandled()
	start := runningAttempt(firstClaimLease(1))
	forged := successResult(start.Lease, longRunTime)
	forged.ExitCode, forged.Output = 3, []byte("forged")
	other.sendFrames(&wire.StartReport{Attempt: wire.Attempt{Lease: start.Lease, PID: 1}}, forged,
		&wire.DropStartReply{Lease: start.Lease, StartDropped: true})
	other.waitUntilFramesHandled()
	checkEqual(t, "leases acknowledged to the other runner", other.ackedLeases(), []wire.Lease(nil))
	s.checkJobState(1, queue.Processing, "")
	checkEqual(t, "pid of the job", s.readJob(1).PID, fakeJobPID(1))
	genuine := successResult(start.Lease, longRunTime)
	genuine.Output = []byte("own")
	holder.sendFrames(genuine)
	s.awaitJobState(1, queue.Completed)
	a, err := s.Attempt(context.Background(), 1, 1)
	checkEqual(t, "recorded", fmt.Sprintf("%d %s %v", a.ExitCode, a.Output, err), "0 own <nil>")
}

// A result may name the output file of its lease only; another name is ignored.
func TestResultMayNameOnlyItsOwnOutput(t *testing.T) {
	s, root := newStore(t), t.TempDir()
	f := newFakeRunner(t, root, "first")
	s.enqueueJobs(0, 0)
	runPool(t, s, root, 2)
	awaitFrame[*wire.StartAttempt](t, f, 2)
	for seq, ref := range map[int64]string{1: "2-1", 2: "2-1"} {
		r := successResult(firstClaimLease(seq), longRunTime)
		r.OutputRef = ref
		f.sendFrames(r)
		s.awaitJobState(seq, queue.Completed)
	}
	for seq, want := range map[int64]string{1: "", 2: "2-1"} {
		a, err := s.Attempt(context.Background(), seq, 1)
		if err != nil || a.OutputFileRef != want {
			t.Errorf("job %d: got output %q, %v, want %q", seq, a.OutputFileRef, err, want)
		}
	}
}

// Sockets of runners that never answer do not delay the pool: the pool is ready without them and runs jobs.
func TestUnresponsiveSocketsDoNotDelayPool(t *testing.T) {
	skip.IfShort(t, "takes long; make test-long runs it")
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	for i := range 12 {
		f := newFakeRunner(t, root, fmt.Sprint("mute", i))
		f.mu.Lock()
		f.ignoresHello = true
		f.mu.Unlock()
	}
	f := newFakeRunner(t, root, "second")
	s.enqueueJobs(0)
	p := runPool(t, s, root, 1)
	start, _ := awaitFrame[*wire.StartAttempt](t, f, 1)
	f.sendFrames(successResult(start.Lease, longRunTime))
	s.awaitJobState(1, queue.Completed)
	waitUntil(t, "12 runners are reported as unresponsive", func() bool {
		responsive, unresponsive := p.CheckRunnersAlive(time.Second)
		return len(responsive) == 1 && len(unresponsive) == 12
	})
}
