package worker_test

import (
	"context"
	"errors"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// ReturnUnstartedJob returns ErrAttemptStarted when the runner answers that the job has started.
func TestReturnUnstartedFailsForStartedJob(t *testing.T) {
	s, f, p := startPool(t, 1)
	f.ignoreStarts()
	s.enqueueJobs(0)
	awaitFrame[*wire.DropStart](t, f, 1)
	answer := make(chan error, 1)
	go func() { answer <- p.ReturnUnstartedJob(context.Background(), 1) }()
	awaitFrame[*wire.DropStart](t, f, 2)
	f.sendFrames(&wire.DropStartReply{Lease: firstClaimLease(1)}) // too late: the job runs
	if err := receiveEvent(t, "an answer", answer); !errors.Is(err, worker.ErrAttemptStarted) {
		t.Errorf("ReturnUnstarted returned %v, want an error that the attempt has started", err)
	}
}

// ReturnUnstartedJob returns a job to the queue and changes nothing else, even if another caller has
// requested a change.
func TestReturnUnstartedIgnoresPendingChange(t *testing.T) {
	s, f, p := startPool(t, 1)
	f.ignoreStarts()
	answers, waits := make(chan error, 1), signalingContext{context.Background(), make(chan struct{}, 9)}
	s.enqueueJobs(0)
	awaitFrame[*wire.DropStart](t, f, 1)
	go func() { answers <- p.ReturnUnstartedJob(waits, 1) }()
	<-waits.doneCalledSignal
	f.sendFrames(&wire.DropStartReply{Lease: firstClaimLease(1), StartDropped: true})
	if err := receiveEvent(t, "an answer", answers); err != nil {
		t.Errorf("give back: %v", err)
	}
	s.checkJobState(1, queue.Pending, "")
	awaitFrame[*wire.StartAttempt](t, f, 2) // the job is claimed again
	held := make(chan error, 1)
	waits.doneCalledSignal = make(chan struct{}, 9)
	go func() {
		_, err := p.ChangeUnstartedJob(waits, 1, store.JobChange{Verb: queue.VerbHold, UID: 7})
		held <- err
	}()
	<-waits.doneCalledSignal
	waits.doneCalledSignal = make(chan struct{}, 9)
	go func() { answers <- p.ReturnUnstartedJob(waits, 1) }()
	<-waits.doneCalledSignal
	f.sendFrames(&wire.DropStartReply{Lease: wire.Lease{Seq: 1, Fence: 2}, StartDropped: true})
	if err := errors.Join(receiveEvent(t, "an answer", held), receiveEvent(t, "an answer", answers)); err != nil {
		t.Errorf("hold and give back: %v", err)
	}
	s.checkJobState(1, queue.Held, "")
	if err := p.ReturnUnstartedJob(context.Background(), 1); err != nil {
		t.Errorf("give back a job that is not leased: %v", err)
	}
	s.checkJobState(1, queue.Held, "")
}

// If two callers change a job and the first one stops waiting, the second caller does not get the result of the first
// change.
func TestSecondChangeDoesNotGetFirstResult(t *testing.T) {
	s, f, p := startPool(t, 1)
	f.ignoreStarts()
	s.enqueueJobs(0)
	awaitFrame[*wire.DropStart](t, f, 1)
	ctx, giveUp := context.WithCancel(context.Background())
	first := make(chan error, 1)
	go func() {
		_, err := p.ChangeUnstartedJob(ctx, 1, store.JobChange{Verb: queue.VerbCancel, UID: 7})
		first <- err
	}()
	awaitFrame[*wire.DropStart](t, f, 2)
	second, waits := make(chan cancelResult, 1), signalingContext{context.Background(), make(chan struct{}, 9)}
	go func() {
		done, err := p.ChangeUnstartedJob(waits, 1, store.JobChange{Verb: queue.VerbHold, UID: 7})
		second <- cancelResult{done, err}
	}()
	<-waits.doneCalledSignal
	refusals := make(chan struct{}, 100)
	s.setReportRefusal(func(store.LeaseReport) error { refusals <- struct{}{}; return queue.ErrUnavailable })
	f.sendFrames(&wire.DropStartReply{Lease: firstClaimLease(1), StartDropped: true})
	<-refusals // the store has refused the report that contains the first change, so the pool will send it again
	giveUp()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	s.setReportRefusal(nil)
	got := receiveEvent(t, "an answer", second)
	if got.isLeased && got.err == nil && s.readJob(1).State != queue.Held {
		t.Errorf("hold returned success, but the job is %v", s.readJob(1).State)
	}
}

// A job occupies a worker while the results of its dependencies are read.
func TestReadingDependenciesOccupiesWorker(t *testing.T) {
	s, f, _ := startPool(t, 1, 0)
	awaitFrame[*wire.StartAttempt](t, f, 1)
	s.awaitJobState(1, queue.Processing)
	var drafts []queue.Job
	for range 20 {
		drafts = append(drafts, queue.Job{
			MaxAttempts: 1, ExitCode: -1, ParentCount: 1, DependsOn: []queue.Dependency{{ParentID: "1",
				Condition: queue.ParentEnded}},
			ExecutionSettings: queue.ExecutionSettings{Argv: []string{"true"}},
		})
	}
	if _, err := s.Enqueue(context.Background(), store.EnqueueRequest{Drafts: drafts}); err != nil {
		t.Fatal(err)
	}
	s.unblockParentReadsSignal, s.parentReadStartedSignal = make(chan struct{}), make(chan struct{}, len(drafts))
	f.sendFrames(successResult(firstClaimLease(1), longRunTime))
	s.awaitJobState(1, queue.Completed)
	<-s.parentReadStartedSignal // wait until the read for the first job begins
	if n := len(s.leasedJobSeqs()); n != 1 {
		t.Errorf("%d jobs are leased for one worker, want 1", n)
	}
	close(s.unblockParentReadsSignal)
	awaitFrame[*wire.StartAttempt](t, f, 2)
}
