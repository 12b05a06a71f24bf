package worker_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// cancelResult contains the results of CancelJob or a similar call.
type cancelResult struct {
	isLeased bool // the first result; for most calls, whether the job is leased
	err      error
}

// cancelInBackground cancels a job in the background on behalf of uid 7.
func cancelInBackground(p *worker.Pool, jobSeq int64) <-chan cancelResult {
	answer := make(chan cancelResult, 1)
	go func() {
		leased, err := p.CancelJob(context.Background(), jobSeq, 7)
		answer <- cancelResult{leased, err}
	}()
	return answer
}

// checkCancelStillWaits checks that a call of CancelJob has not returned yet.
func checkCancelStillWaits(t *testing.T, result <-chan cancelResult, when string) {
	t.Helper()
	select {
	case v := <-result:
		t.Errorf("Cancel answered %+v %s", v, when)
	default:
	}
}

// CancelJob takes back a job that waits in the runner, and returns after the cancellation is stored.
func TestCancelRecallsUnstartedJob(t *testing.T) {
	s, f, p := startPool(t, 1)
	f.ignoreStarts()
	s.enqueueJobs(0)
	// The pool itself also asks for the job, because the job does not start soon. The test answers neither this first
	// DropStart frame (the request to give a job back) nor the one that CancelJob sends, until both have arrived.
	awaitFrame[*wire.DropStart](t, f, 1)
	answer := cancelInBackground(p, 1)
	drop, _ := awaitFrame[*wire.DropStart](t, f, 2)
	f.waitUntilFramesHandled()
	checkCancelStillWaits(t, answer, "while the job waits")
	f.sendFrames(&wire.DropStartReply{Lease: drop.Lease, StartDropped: true})
	checkEqual(t, "answer", receiveEvent(t, "an answer", answer), cancelResult{true, nil})
	s.checkJobState(1, queue.Cancelled, "")
	ended, released, cancelled := s.reportedEndCounts(1)
	checkEqual(t, "ended, released, cancelled", []int{ended, released, cancelled}, []int{0, 0, 1})
	checkEqual(t, "killed", len(framesOfType[*wire.EndAttempt](f)), 0)
}

// CancelJob ends a running job with the kill_after of that job. It returns only after the end is stored.
func TestCancelKillsRunningJob(t *testing.T) {
	s, f, p := startPool(t, 1, 0)
	s.awaitJobState(1, queue.Processing)
	answer := cancelInBackground(p, 1)
	kill, _ := awaitFrame[*wire.EndAttempt](t, f, 1)
	checkEqual(t, "killed", *kill, wire.EndAttempt{Lease: firstClaimLease(1), EndCause: int64(queue.EndCancelled),
		GracePeriod: 3 * time.Second})
	release := s.blockSettlements()
	end := successResult(firstClaimLease(1), longRunTime)
	end.EndCause, end.Signal, end.ExitCode = kill.EndCause, 15, -1
	f.sendFrames(end)
	waitUntil(t, "the settlement has begun", s.isSettlementBlocked)
	checkCancelStillWaits(t, answer, "before the end was stored")
	release()
	checkEqual(t, "answer", receiveEvent(t, "an answer", answer), cancelResult{true, nil})
	s.checkJobState(1, queue.Cancelled, queue.ReasonCancelled)
	s.checkAttemptEndedBy(1, 7, "cancel")
	checkEqual(t, "dropped", len(framesOfType[*wire.DropStart](f)), 0)
}

// If a job starts while CancelJob tries to take the job back from the runner, CancelJob kills the job.
func TestCancelKillsJobThatStartsDuringRecall(t *testing.T) {
	s, f, p := startPool(t, 1)
	f.ignoreStarts()
	s.enqueueJobs(0)
	awaitFrame[*wire.DropStart](t, f, 1)
	answer := cancelInBackground(p, 1)
	awaitFrame[*wire.DropStart](t, f, 2)
	f.sendFrames(&wire.DropStartReply{Lease: firstClaimLease(1)})
	kill, _ := awaitFrame[*wire.EndAttempt](t, f, 1)
	checkEqual(t, "killed", *kill, wire.EndAttempt{Lease: firstClaimLease(1), EndCause: int64(queue.EndCancelled),
		GracePeriod: 3 * time.Second})
	checkCancelStillWaits(t, answer, "before the end")
	end := successResult(firstClaimLease(1), longRunTime)
	end.EndCause, end.Signal, end.ExitCode = kill.EndCause, 15, -1
	f.sendFrames(end)
	checkEqual(t, "answer", receiveEvent(t, "an answer", answer), cancelResult{true, nil})
	s.checkJobState(1, queue.Cancelled, queue.ReasonCancelled)
}

// If the job ends by itself before it is cancelled, CancelJob returns, and the job is not cancelled. If the caller's
// context ends first, CancelJob returns the error of the context. For a job that is not leased, CancelJob returns
// immediately.
func TestCancelReturnsIfJobEndsByItself(t *testing.T) {
	s, f, p := startPool(t, 1, 0)
	s.awaitJobState(1, queue.Processing)
	answer := cancelInBackground(p, 1)
	awaitFrame[*wire.EndAttempt](t, f, 1)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	leased, err := p.CancelJob(ended, 1, 7)
	checkEqual(t, "answer to the caller whose context ended", cancelResult{leased, err}, cancelResult{true,
		context.Canceled})
	f.sendFrames(successResult(firstClaimLease(1), longRunTime))
	checkEqual(t, "answer", receiveEvent(t, "an answer", answer), cancelResult{true, nil})
	s.checkJobState(1, queue.Completed, "")
	checkEqual(t, "answer of a job that is not leased", receiveEvent(t, "an answer", cancelInBackground(p, 1)),
		cancelResult{false, nil})
}

// WatchJobEnd applies to the running attempt of a job and to later attempts, until the caller stops the watch.
func TestWatchJobEndCoversRunningAndLaterAttempts(t *testing.T) {
	s, f, p := startPool(t, 1, 0, 0, 0)
	s.awaitJobState(1, queue.Processing)
	p.WatchJobEnd(1)
	watch, _ := awaitFrame[*wire.ReportAttemptImmediately](t, f, 1)
	checkEqual(t, "watched lease", watch.Lease, firstClaimLease(1))
	p.WatchJobEnd(2)
	p.WatchJobEnd(3)()
	f.sendFrames(successResult(firstClaimLease(1), longRunTime))
	watch, _ = awaitFrame[*wire.ReportAttemptImmediately](t, f, 2)
	checkEqual(t, "watched lease", watch.Lease, firstClaimLease(2))
	s.awaitJobState(2, queue.Processing)
	f.sendFrames(successResult(firstClaimLease(2), longRunTime))
	s.awaitJobState(3, queue.Processing)
	checkEqual(t, "number of watches", len(framesOfType[*wire.ReportAttemptImmediately](f)), 2)
}

// A call of ReadOutput that waits for output ends with the lease, even if the runner never replies. The
// lease may end because the job returns to the queue or because the attempt ends.
func TestReadOutputEndsWithLease(t *testing.T) {
	for name, end := range map[string]wire.Frame{
		"given back": &wire.DropStartReply{Lease: firstClaimLease(1), StartDropped: true},
		"ended":      successResult(firstClaimLease(1), longRunTime),
	} {
		t.Run(name, func(t *testing.T) {
			s, f, p := startPool(t, 1)
			f.ignoreStarts()
			f.setUnresponsive(true)
			s.enqueueJobs(0)
			awaitFrame[*wire.DropStart](t, f, 1)
			answer := make(chan cancelResult, 1)
			go func() { // this goroutine ends with the lease or the test
				_, ok, err := p.ReadOutput(t.Context(), 1, 1, [2]int64{}, true)
				answer <- cancelResult{ok, err}
			}()
			read, _ := awaitFrame[*wire.ReadOutput](t, f, 1)
			checkEqual(t, "read", []any{read.Lease, read.WaitForOutput}, []any{firstClaimLease(1), true})
			f.sendFrames(end)
			checkEqual(t, "answer", receiveEvent(t, "the end of the read", answer), cancelResult{false, nil})
		})
	}
}

// ReadOutput reads only the attempt that its caller names, not a later attempt, because the positions in the output
// belong to the named attempt.
func TestReadOutputStaysInGivenAttempt(t *testing.T) {
	s, f, p := startPool(t, 1, 0)
	s.awaitJobState(1, queue.Processing)
	answer := make(chan cancelResult, 1)
	go func() {
		leased, err := p.RequeueJob(context.Background(), 1, 7)
		answer <- cancelResult{leased, err}
	}()
	kill, _ := awaitFrame[*wire.EndAttempt](t, f, 1)
	end := successResult(kill.Lease, longRunTime)
	end.EndCause, end.Signal, end.ExitCode = kill.EndCause, 15, -1
	f.sendFrames(end)
	checkEqual(t, "answer of Requeue", receiveEvent(t, "an answer", answer), cancelResult{true, nil})
	second, _ := awaitFrame[*wire.StartAttempt](t, f, 2)
	waitUntil(t, "attempt 2 is leased", func() bool { return p.LeasedAttemptNumber(1) == 2 })
	for _, c := range []struct{ attempt, reads int }{{1, 0}, {2, 1}, {0, 2}} {
		_, ok, err := p.ReadOutput(t.Context(), 1, c.attempt, [2]int64{5, 0}, false)
		checkEqual(t, "answer", cancelResult{ok, err}, cancelResult{}) // the fake runner has no output
		reads := 0
		for _, frame := range framesOfType[*wire.ReadOutput](f) {
			if frame.Lease == second.Lease {
				reads++
			}
		}
		checkEqual(t, fmt.Sprintf("reads of attempt 2, up to the read of attempt %d", c.attempt), reads, c.reads)
	}
}

// If more jobs run than there should be workers, WaitForScaleDown ends the youngest jobs at the deadline and
// returns them to the queue. The oldest jobs continue.
func TestScaleDownEndsYoungestJobs(t *testing.T) {
	s, f, p := startPool(t, 1, 0)
	s.awaitJobState(1, queue.Processing)
	p.SetWantedWorkerCount(2)
	s.enqueueJobs(0)
	s.awaitJobState(2, queue.Processing)
	p.SetWantedWorkerCount(1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.WaitForScaleDown(t.Context(), 0, nil)
	}()
	kill, _ := awaitFrame[*wire.EndAttempt](t, f, 1)
	checkEqual(t, "killed", *kill, wire.EndAttempt{Lease: firstClaimLease(2), EndCause: int64(queue.EndStopped),
		GracePeriod: 3 * time.Second})
	end := successResult(firstClaimLease(2), longRunTime)
	end.EndCause, end.Signal, end.ExitCode = kill.EndCause, 15, -1
	f.sendFrames(end)
	receiveEvent(t, "the result of WaitForScaleDown", done)
	s.checkJobState(1, queue.Processing, "")
	s.checkJobState(2, queue.Pending, queue.ReasonStopped)
	checkEqual(t, "killed", len(framesOfType[*wire.EndAttempt](f)), 1)
}

// signalingContext is a context that sends to doneCalledSignal when a caller waits for its end.
type signalingContext struct {
	context.Context
	doneCalledSignal chan struct{}
}

// Done implements context.Context. It sends a value to doneCalledSignal, unless the channel is full.
func (c signalingContext) Done() <-chan struct{} {
	select {
	case c.doneCalledSignal <- struct{}{}:
	default:
	}
	return c.Context.Done()
}

// If the number of workers is raised again during WaitForScaleDown, the jobs keep running.
func TestScaleUpDuringScaleDownKeepsJobs(t *testing.T) {
	s, f, p := startPool(t, 1, 0)
	s.awaitJobState(1, queue.Processing)
	p.SetWantedWorkerCount(2)
	s.enqueueJobs(0)
	s.awaitJobState(2, queue.Processing)
	p.SetWantedWorkerCount(1)
	done, waits := make(chan error), signalingContext{t.Context(), make(chan struct{}, 9)}
	go func() { done <- p.WaitForScaleDown(waits, 100*time.Millisecond, nil) }()
	receiveEvent(t, "the first check of WaitForScaleDown", waits.doneCalledSignal)
	p.SetWantedWorkerCount(2)
	checkEqual(t, "the result of WaitForScaleDown", receiveEvent(t, "the result of WaitForScaleDown", done), nil)
	checkEqual(t, "killed", len(framesOfType[*wire.EndAttempt](f)), 0)
	f.sendFrames(successResult(firstClaimLease(1), longRunTime), successResult(firstClaimLease(2), longRunTime))
	f.waitUntilFramesHandled()
}

// If a job waits in the runner, ChangeUnstartedJob stores the change together with the job's return to the
// queue. If the job has started in the meantime, it continues, and ChangeUnstartedJob returns
// ErrAttemptStarted.
func TestChangeReturnsUnstartedJobToQueue(t *testing.T) {
	s, f, p := startPool(t, 1)
	f.ignoreStarts()
	s.enqueueJobs(0)
	awaitFrame[*wire.DropStart](t, f, 1)
	change := func(verb queue.Verb) <-chan cancelResult {
		answer := make(chan cancelResult, 1)
		go func() {
			done, err := p.ChangeUnstartedJob(context.Background(), 1, store.JobChange{Verb: verb, UID: 7})
			answer <- cancelResult{done, err}
		}()
		return answer
	}
	answer := change(queue.VerbHold)
	awaitFrame[*wire.DropStart](t, f, 2)
	f.sendFrames(&wire.DropStartReply{Lease: firstClaimLease(1)})
	checkEqual(t, "answer for a started job", receiveEvent(t, "an answer", answer),
		cancelResult{true, worker.ErrAttemptStarted})
	checkEqual(t, "answer to the next change", receiveEvent(t, "an answer", change(queue.VerbHold)),
		cancelResult{true, worker.ErrAttemptStarted})
	checkEqual(t, "killed", len(framesOfType[*wire.EndAttempt](f)), 0)
	f.sendFrames(successResult(firstClaimLease(1), longRunTime))
	s.awaitJobState(1, queue.Completed)
	checkEqual(t, "answer for an unleased job", receiveEvent(t, "an answer", change(queue.VerbHold)),
		cancelResult{false, nil})

	s.enqueueJobs(0)
	drop, _ := awaitFrame[*wire.DropStart](t, f, 3)
	held := make(chan error, 1)
	go func() {
		_, err := p.ChangeUnstartedJob(context.Background(), 2, store.JobChange{Verb: queue.VerbHold, UID: 7})
		held <- err
	}()
	awaitFrame[*wire.DropStart](t, f, 4)
	f.sendFrames(&wire.DropStartReply{Lease: drop.Lease, StartDropped: true})
	if err := receiveEvent(t, "an answer", held); err != nil {
		t.Error(err)
	}
	s.checkJobState(2, queue.Held, "")
	checkEqual(t, "leased", len(s.leasedJobSeqs()), 0)
}

// If the end of a job is just being stored, ChangeUnstartedJob waits until the end is stored, and returns false,
// because the job is not leased any more.
func TestChangeWaitsUntilJobEndIsStored(t *testing.T) {
	s, f, p := startPool(t, 1, 0)
	s.awaitJobState(1, queue.Processing)
	release := s.blockSettlements()
	f.sendFrames(successResult(firstClaimLease(1), longRunTime))
	waitUntil(t, "the end is being stored", s.isSettlementBlocked)
	answer := make(chan cancelResult, 1)
	called := make(chan struct{})
	go func() {
		close(called)
		done, err := p.ChangeUnstartedJob(context.Background(), 1, store.JobChange{Verb: queue.VerbRemove})
		answer <- cancelResult{done, err}
	}()
	<-called
	release()
	checkEqual(t, "answer", receiveEvent(t, "an answer", answer), cancelResult{false, nil})
	s.checkJobState(1, queue.Completed, "")
}

// If the store refuses a change, the caller gets the error and the job returns to the queue.
func TestChangeReturnsErrorOfStore(t *testing.T) {
	s, f, p := startPool(t, 1)
	f.ignoreStarts()
	s.enqueueJobs(0)
	drop, _ := awaitFrame[*wire.DropStart](t, f, 1)
	answer := make(chan error, 1)
	go func() {
		edit := func(*queue.Job) error { return queue.InvalidFieldError("priority", "no") }
		_, err := p.ChangeUnstartedJob(context.Background(), 1, store.JobChange{Verb: queue.VerbEdit, EditJob: edit})
		answer <- err
	}()
	awaitFrame[*wire.DropStart](t, f, 2)
	f.sendFrames(&wire.DropStartReply{Lease: drop.Lease, StartDropped: true})
	if err := receiveEvent(t, "an answer", answer); !errors.Is(err, queue.ErrInvalid) {
		t.Errorf("Change returned %v, want the error of the store", err)
	}
	awaitFrame[*wire.StartAttempt](t, f, 2)
}

// If the attempt ends by itself before RequeueJob can end it, RequeueJob returns ErrAttemptEnded.
func TestRequeueFailsIfJobEndsByItself(t *testing.T) {
	s, f, p := startPool(t, 1, 0)
	s.awaitJobState(1, queue.Processing)
	answer := make(chan cancelResult, 1)
	go func() {
		leased, err := p.RequeueJob(context.Background(), 1, 7)
		answer <- cancelResult{leased, err}
	}()
	awaitFrame[*wire.EndAttempt](t, f, 1)
	f.sendFrames(successResult(firstClaimLease(1), longRunTime))
	checkEqual(t, "answer", receiveEvent(t, "an answer", answer), cancelResult{true, worker.ErrAttemptEnded})
}

// RequeueJob ends a running job and returns it to the queue. The attempt does not count.
func TestRequeueReturnsRunningJob(t *testing.T) {
	s, f, p := startPool(t, 1, 0)
	s.awaitJobState(1, queue.Processing)
	got, err := p.SignalJob(t.Context(), 1, 10)
	checkEqual(t, "answer to the signal", cancelResult{got, err}, cancelResult{true, nil})
	signal, _ := awaitFrame[*wire.SignalAttempt](t, f, 1)
	checkEqual(t, "signal", *signal, wire.SignalAttempt{Lease: firstClaimLease(1), SignalNumber: 10})
	got, err = p.SignalJob(t.Context(), 2, 10)
	checkEqual(t, "signal to a job that does not run", cancelResult{got, err}, cancelResult{false, nil})
	answer := make(chan cancelResult, 1)
	go func() {
		leased, err := p.RequeueJob(context.Background(), 1, 7)
		answer <- cancelResult{leased, err}
	}()
	kill, _ := awaitFrame[*wire.EndAttempt](t, f, 1)
	checkEqual(t, "killed", *kill, wire.EndAttempt{Lease: firstClaimLease(1), EndCause: int64(queue.EndStopped),
		GracePeriod: 3 * time.Second})
	f.ignoreStarts()
	end := successResult(firstClaimLease(1), longRunTime)
	end.EndCause, end.Signal, end.ExitCode = kill.EndCause, 15, -1
	f.sendFrames(end)
	checkEqual(t, "answer", receiveEvent(t, "an answer", answer), cancelResult{true, nil})
	if j := s.readJob(1); j.Attempts != 0 || j.StartedAttempts != 1 {
		t.Errorf("after Requeue the job has %d counted attempts and %d runs, want 0 and 1", j.Attempts, j.StartedAttempts)
	}
	s.checkAttemptEndedBy(1, 7, "requeue")
}

// If several callers change or cancel the same job, each gets an answer. If the job has started in the meantime,
// ChangeUnstartedJob returns ErrAttemptStarted and CancelJob ends the job.
func TestConcurrentJobRequestsAreAllAnswered(t *testing.T) {
	s, f, p := startPool(t, 1)
	f.ignoreStarts()
	s.enqueueJobs(0)
	awaitFrame[*wire.DropStart](t, f, 1)
	held := make(chan error, 1)
	go func() {
		_, err := p.ChangeUnstartedJob(context.Background(), 1, store.JobChange{Verb: queue.VerbHold})
		held <- err
	}()
	awaitFrame[*wire.DropStart](t, f, 2)
	cancelled := cancelInBackground(p, 1)
	f.waitUntilFramesHandled()
	f.sendFrames(&wire.DropStartReply{Lease: firstClaimLease(1)})
	if err := receiveEvent(t, "an answer", held); !errors.Is(err, worker.ErrAttemptStarted) {
		t.Errorf("hold: %v, want %v", err, worker.ErrAttemptStarted)
	}
	kill, _ := awaitFrame[*wire.EndAttempt](t, f, 1)
	end := successResult(firstClaimLease(1), longRunTime)
	end.EndCause, end.Signal, end.ExitCode = kill.EndCause, 15, -1
	f.sendFrames(end)
	checkEqual(t, "answer", receiveEvent(t, "an answer", cancelled), cancelResult{true, nil})
	s.checkJobState(1, queue.Cancelled, queue.ReasonCancelled)
}

// PurgeOutputs deletes files through one runner of each directory that contains runners. It fails if there is a
// directory in which no runner answers the request, or if no runner is connected.
func TestPurgeOutputsNeedsRunnerPerDirectory(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	foreign := runner.RunnersLocation{RunnersDir: root, SpawnSocketPath: "unused"}
	if worker.New(newStore(t), worker.Config{RunnerLocation: foreign}, 1).PurgeOutputs(t.Context(), []string{"1-1"}) {
		t.Error("Purge succeeded although no runner was connected")
	}
	if err := os.Mkdir(filepath.Join(root, "as-x"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := newStore(t)
	s.enqueueJobs(0)
	if _, err := s.ReportAndClaim(t.Context(), store.LeaseReport{MaxJobsToClaim: 1}); err != nil {
		t.Fatal(err)
	}
	first, other := newFakeRunner(t, root, "1"), newFakeRunner(t, filepath.Join(root, "as-x"), "2")
	// the pool would end a runner without attempts
	other.helloReply.UnendedAttempts = []wire.Attempt{runningAttempt(firstClaimLease(1))}
	if err := s.StoreRunnerDirs(t.Context(), []string{other.dir}); err != nil {
		t.Fatal(err)
	}
	p, _ := runPoolAtLocation(t, s, foreign, 1)
	refs := []string{"1-1", "2-1"}
	checkEqual(t, "deleted while both answer", p.PurgeOutputs(t.Context(), refs), true)
	for _, f := range []*fakeRunner{first, other} {
		purge, _ := awaitFrame[*wire.PurgeOutputs](t, f, 1)
		checkEqual(t, "files to be deleted", purge.OutputRefs, refs)
	}
	for _, f := range []*fakeRunner{first, other} {
		f.setUnresponsive(true)
		checkEqual(t, "deleted while one runner does not answer", p.PurgeOutputs(t.Context(), refs), false)
		f.setUnresponsive(false)
	}
	checkEqual(t, "deleted once both answer", p.PurgeOutputs(t.Context(), refs), true)
}

// If a user ends another user's job, the job's grace period is at most the grace period of a stop, even if the job's
// kill_after is longer.
func TestCancelByAnotherUserLimitsKillGrace(t *testing.T) {
	s, f, p := startPool(t, 1)
	drafts := []queue.Job{{
		MaxAttempts: 1, ExitCode: -1, ExecutionSettings: queue.ExecutionSettings{Argv: []string{"true"},
			KillAfter: 1000 * time.Hour},
	}}
	if _, err := s.Enqueue(t.Context(), store.EnqueueRequest{Drafts: drafts}); err != nil {
		t.Fatal(err)
	}
	s.awaitJobState(1, queue.Processing)
	answer := cancelInBackground(p, 1)
	kill, _ := awaitFrame[*wire.EndAttempt](t, f, 1)
	checkEqual(t, "grace", kill.GracePeriod, runner.StopGracePeriod())
	end := successResult(firstClaimLease(1), longRunTime)
	end.EndCause, end.Signal, end.ExitCode = kill.EndCause, 9, -1
	f.sendFrames(end)
	checkEqual(t, "answer", receiveEvent(t, "an answer", answer), cancelResult{true, nil})
}

// If several runners in one directory answer, PurgeOutputs asks the newest of them to delete the files.
func TestPurgeOutputsUsesNewestResponsiveRunner(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	foreign := runner.RunnersLocation{RunnersDir: root, SpawnSocketPath: "unused"}
	s := newStore(t)
	s.enqueueJobs(0)
	if _, err := s.ReportAndClaim(t.Context(), store.LeaseReport{MaxJobsToClaim: 1}); err != nil {
		t.Fatal(err)
	}
	old, newest := newFakeRunner(t, root, "1"), newFakeRunner(t, root, "2")
	old.helloReply.RunnerVersion = "older"
	// the pool would end a runner without attempts
	old.helloReply.UnendedAttempts = []wire.Attempt{runningAttempt(firstClaimLease(1))}
	p, _ := runPoolAtLocation(t, s, foreign, 1)
	refs := []string{"1-1"}
	checkEqual(t, "deleted while both answer", p.PurgeOutputs(t.Context(), refs), true)
	checkEqual(t, "requests to the old and the new runner",
		[]int{len(framesOfType[*wire.PurgeOutputs](old)), len(framesOfType[*wire.PurgeOutputs](newest))}, []int{0, 1})
	newest.setUnresponsive(true)
	checkEqual(t, "deleted while the newest hangs", p.PurgeOutputs(t.Context(), refs), true)
}
