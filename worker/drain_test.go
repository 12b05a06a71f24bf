package worker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/worker"
)

// awaitNoJobStartsInBackground calls AwaitNoJobStarts in the background.
func awaitNoJobStartsInBackground(t *testing.T, p *worker.Pool) <-chan error {
	t.Helper()
	result := make(chan error, 1)
	go func() { result <- p.AwaitNoJobStarts(t.Context(), eventTimeout) }()
	return result
}

// checkDrainStillWaits checks that a call of awaitNoJobStartsInBackground is still waiting. reason says why the call
// must wait.
func checkDrainStillWaits(t *testing.T, result <-chan error, reason string) {
	t.Helper()
	select {
	case err := <-result:
		t.Fatalf("the drain is complete (%v), although %s", err, reason)
	default:
	}
}

// A drain is complete only when each job that the runner received has a process, has ended, or was dropped.
// If the runner answers that it is too late to drop a job, the job may still start later.
func TestDrainWaitsUntilNoJobCanStart(t *testing.T) {
	s, f, p := startPool(t, 3)
	f.ignoreStarts()
	s.enqueueJobs(0, 0, 0)
	awaitFrame[*wire.StartAttempt](t, f, 3)
	p.SetDraining(true)
	awaitFrame[*wire.DropStart](t, f, 3)
	result := awaitNoJobStartsInBackground(t, p)
	f.sendFrames(&wire.DropStartReply{Lease: firstClaimLease(3), StartDropped: true})
	f.waitUntilFramesHandled()
	checkDrainStillWaits(t, result, "jobs 1 and 2 may start")
	f.sendFrames(successResult(firstClaimLease(2), longRunTime))
	f.waitUntilFramesHandled()
	checkDrainStillWaits(t, result, "job 1 may start")
	f.sendFrames(&wire.DropStartReply{Lease: firstClaimLease(1)})
	f.waitUntilFramesHandled()
	checkDrainStillWaits(t, result, "the process of job 1 may not have been started")
	f.sendFrames(&wire.StartReport{Attempt: runningAttempt(firstClaimLease(1))})
	if err := receiveEvent(t, "the drain was complete", result); err != nil {
		t.Error(err)
	}
	s.awaitJobState(1, queue.Processing)
	s.awaitJobState(3, queue.Pending)
	checkEqual(t, "started", f.startedJobSeqs(), []int64{1, 2, 3})
}

// If the caller's deadline passes while jobs may still start, the error says that jobs may still start. This happens,
// for example, if the whole process was stopped for a while.
func TestDrainNamesStartableJobsAtDeadline(t *testing.T) {
	s, f, p := startPool(t, 1)
	f.ignoreStarts()
	s.enqueueJobs(0)
	awaitFrame[*wire.StartAttempt](t, f, 1)
	p.SetDraining(true)
	ctx, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	err := p.AwaitNoJobStarts(ctx, eventTimeout)
	if !errors.Is(err, queue.ErrUnavailable) || !strings.Contains(err.Error(), "job 1 may still start") {
		t.Errorf("the error is %v, want one that names job 1", err)
	}
}

// A drain takes jobs back from all runners, including the separate runner of a suspect (a job that may have
// killed its last runner).
func TestDrainRecallsFromEveryRunner(t *testing.T) {
	s, _, p, root, _ := startPoolWithStarter(t, 2, "2.alone", "")
	separate := newFakeRunner(t, root, "2.alone")
	separate.ignoreStarts()
	s.enqueueSuspects(1)
	awaitFrame[*wire.StartAttempt](t, separate, 1)
	p.SetDraining(true)
	result := awaitNoJobStartsInBackground(t, p)
	awaitFrame[*wire.DropStart](t, separate, 1)
	checkDrainStillWaits(t, result, "the suspect may start")
	separate.sendFrames(&wire.DropStartReply{Lease: firstClaimLease(1), StartDropped: true})
	if err := receiveEvent(t, "the drain was complete", result); err != nil {
		t.Error(err)
	}
}

// If a runner connects during a drain, the pool takes back the jobs that this runner has not started.
func TestDrainRecallsFromReconnectedRunner(t *testing.T) {
	s, f, p := startPoolWithUnstartedJob(t)
	dropped := len(framesOfType[*wire.DropStart](f))
	p.SetDraining(true)
	awaitFrame[*wire.DropStart](t, f, dropped+1)
	f.reconnect(runningAttempt(firstClaimLease(1)), wire.Attempt{Lease: firstClaimLease(2)})
	result := awaitNoJobStartsInBackground(t, p)
	awaitFrame[*wire.DropStart](t, f, dropped+2)
	checkDrainStillWaits(t, result, "job 2 may start")
	f.sendFrames(&wire.DropStartReply{Lease: firstClaimLease(2), StartDropped: true})
	if err := receiveEvent(t, "the drain was complete", result); err != nil {
		t.Error(err)
	}
	s.awaitJobState(2, queue.Pending)
}

// If a runner does not answer and its files cannot be read, the error names the runner, because its
// jobs may still start.
func TestDrainNamesUnresponsiveRunner(t *testing.T) {
	s, f, p := startPool(t, 2)
	f.ignoreStarts()
	f.setUnresponsive(true)
	s.enqueueJobs(0, 0)
	awaitFrame[*wire.StartAttempt](t, f, 2)
	p.SetDraining(true)
	err := p.AwaitNoJobStarts(t.Context(), 0)
	for _, want := range []string{
		"the runner with pid 1 does not answer, so job ", "; draining has begun, but up to 2 jobs may still start",
	} {
		if !errors.Is(err, queue.ErrUnavailable) || !strings.Contains(err.Error(), want) {
			t.Errorf("AwaitNoStarts returned %v, want an error that contains %q", err, want)
		}
	}
}

// If a runner answers but a job's start hangs, the error names the job, even if SetDraining is called
// again during the wait.
func TestDrainNamesJobWithHungStart(t *testing.T) {
	s, f, p := startPool(t, 1)
	f.ignoreStarts()
	s.enqueueJobs(0)
	awaitFrame[*wire.StartAttempt](t, f, 1)
	p.SetDraining(true)
	awaitFrame[*wire.DropStart](t, f, 1)
	f.sendFrames(&wire.DropStartReply{Lease: firstClaimLease(1)})
	result := make(chan error, 1)
	go func() { result <- p.AwaitNoJobStarts(t.Context(), 0) }()
	waitUntil(t, "the wait for the drain has ended", func() bool { p.SetDraining(true); return len(result) > 0 })
	want := "draining has begun, but job 1 may still start"
	if err := <-result; !errors.Is(err, queue.ErrUnavailable) || err.Error() != want {
		t.Errorf("AwaitNoStarts returned %v, want %q", err, want)
	}
	f.sendFrames(&wire.StartReport{Attempt: runningAttempt(firstClaimLease(1))})
	if err := p.AwaitNoJobStarts(t.Context(), eventTimeout); err != nil {
		t.Errorf("after the start AwaitNoStarts returned %v, want no error", err)
	}
}

// AwaitNoJobStarts returns if the drain ends during the wait or has already ended.
func TestAwaitNoJobStartsReturnsWhenDrainEnds(t *testing.T) {
	s, f, p := startPool(t, 1)
	f.ignoreStarts()
	s.enqueueJobs(0)
	awaitFrame[*wire.StartAttempt](t, f, 1)
	p.SetDraining(true)
	result := awaitNoJobStartsInBackground(t, p)
	f.waitUntilFramesHandled()
	checkDrainStillWaits(t, result, "job 1 may start")
	p.SetDraining(false)
	if err := receiveEvent(t, "the wait was over", result); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	if err := p.AwaitNoJobStarts(ctx, 0); err != nil {
		t.Error(err)
	}
}
