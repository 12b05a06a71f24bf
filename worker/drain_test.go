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

// awaitNoStarts calls AwaitNoStarts in the background.
func awaitNoStarts(t *testing.T, p *worker.Pool) <-chan error {
	t.Helper()
	result := make(chan error, 1)
	go func() { result <- p.AwaitNoStarts(t.Context(), eventTimeout) }()
	return result
}

// checkDraining checks that a call of awaitNoStarts is still waiting. reason says why it must wait.
func checkDraining(t *testing.T, result <-chan error, reason string) {
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
	s.enqueue(0, 0, 0)
	awaitFrame[*wire.Start](t, f, 3)
	p.SetDraining(true)
	awaitFrame[*wire.Drop](t, f, 3)
	result := awaitNoStarts(t, p)
	f.send(&wire.DropReply{Lease: lease(3), Dropped: true})
	f.sync()
	checkDraining(t, result, "jobs 1 and 2 may start")
	f.send(successResult(lease(2), longRunTime))
	f.sync()
	checkDraining(t, result, "job 1 may start")
	f.send(&wire.DropReply{Lease: lease(1)})
	f.sync()
	checkDraining(t, result, "the process of job 1 may not have been started")
	f.send(&wire.StartReport{Attempt: runningAttempt(lease(1))})
	if err := receive(t, "the drain was complete", result); err != nil {
		t.Error(err)
	}
	s.awaitState(1, queue.Processing)
	s.awaitState(3, queue.Pending)
	checkEqual(t, "started", f.startedJobs(), []int64{1, 2, 3})
}

// If the caller's deadline passes while jobs may still start, the error says so. This happens, for example,
// if the whole process was stopped for a while.
func TestDrainNamesJobsAtTheDeadline(t *testing.T) {
	s, f, p := startPool(t, 1)
	f.ignoreStarts()
	s.enqueue(0)
	awaitFrame[*wire.Start](t, f, 1)
	p.SetDraining(true)
	ctx, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	err := p.AwaitNoStarts(ctx, eventTimeout)
	if !errors.Is(err, queue.ErrUnavailable) || !strings.Contains(err.Error(), "job 1 may still start") {
		t.Errorf("the error is %v, want one that names job 1", err)
	}
}

// A drain takes jobs back from all runners, including the separate runner of a suspect (a job that may have
// killed its last runner).
func TestDrainRecallsFromEveryRunner(t *testing.T) {
	s, _, p, root, _ := startPoolWithSpawns(t, 2, "2.alone", "")
	separate := newRunner(t, root, "2.alone")
	separate.ignoreStarts()
	s.enqueueSuspects(1)
	awaitFrame[*wire.Start](t, separate, 1)
	p.SetDraining(true)
	result := awaitNoStarts(t, p)
	awaitFrame[*wire.Drop](t, separate, 1)
	checkDraining(t, result, "the suspect may start")
	separate.send(&wire.DropReply{Lease: lease(1), Dropped: true})
	if err := receive(t, "the drain was complete", result); err != nil {
		t.Error(err)
	}
}

// If a runner connects while a drain is on, the pool takes back the jobs that this runner has not started.
func TestDrainRecallsFromReconnectedRunner(t *testing.T) {
	s, f, p := startPoolWithUnstartedJob(t)
	dropped := len(receivedFrames[*wire.Drop](f))
	p.SetDraining(true)
	awaitFrame[*wire.Drop](t, f, dropped+1)
	f.reconnect(runningAttempt(lease(1)), wire.Attempt{Lease: lease(2)})
	result := awaitNoStarts(t, p)
	awaitFrame[*wire.Drop](t, f, dropped+2)
	checkDraining(t, result, "job 2 may start")
	f.send(&wire.DropReply{Lease: lease(2), Dropped: true})
	if err := receive(t, "the drain was complete", result); err != nil {
		t.Error(err)
	}
	s.awaitState(2, queue.Pending)
}

// If a runner does not answer and its files cannot be read, the error names the runner, because its
// jobs may still start.
func TestDrainNamesUnresponsiveRunner(t *testing.T) {
	s, f, p := startPool(t, 2)
	f.ignoreStarts()
	f.setUnresponsive(true)
	s.enqueue(0, 0)
	awaitFrame[*wire.Start](t, f, 2)
	p.SetDraining(true)
	err := p.AwaitNoStarts(t.Context(), 0)
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
func TestDrainNamesHungStart(t *testing.T) {
	s, f, p := startPool(t, 1)
	f.ignoreStarts()
	s.enqueue(0)
	awaitFrame[*wire.Start](t, f, 1)
	p.SetDraining(true)
	awaitFrame[*wire.Drop](t, f, 1)
	f.send(&wire.DropReply{Lease: lease(1)})
	result := make(chan error, 1)
	go func() { result <- p.AwaitNoStarts(t.Context(), 0) }()
	waitUntil(t, "the wait for the drain has ended", func() bool { p.SetDraining(true); return len(result) > 0 })
	want := "draining has begun, but job 1 may still start"
	if err := <-result; !errors.Is(err, queue.ErrUnavailable) || err.Error() != want {
		t.Errorf("AwaitNoStarts returned %v, want %q", err, want)
	}
	f.send(&wire.StartReport{Attempt: runningAttempt(lease(1))})
	if err := p.AwaitNoStarts(t.Context(), eventTimeout); err != nil {
		t.Errorf("after the start AwaitNoStarts returned %v, want no error", err)
	}
}

// AwaitNoStarts returns if the drain ends during the wait or has already ended.
func TestAwaitNoStartsReturnsWhenDrainEnds(t *testing.T) {
	s, f, p := startPool(t, 1)
	f.ignoreStarts()
	s.enqueue(0)
	awaitFrame[*wire.Start](t, f, 1)
	p.SetDraining(true)
	result := awaitNoStarts(t, p)
	f.sync()
	checkDraining(t, result, "job 1 may start")
	p.SetDraining(false)
	if err := receive(t, "the wait was over", result); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	if err := p.AwaitNoStarts(ctx, 0); err != nil {
		t.Error(err)
	}
}
