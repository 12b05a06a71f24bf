package worker_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/worker"
)

// receivedPauseStates returns the field Paused of the PauseAttempt frames that the runner has received for a job, in
// order.
func (f *fakeRunner) receivedPauseStates(jobSeq int64) (states []bool) {
	for _, p := range framesOfType[*wire.PauseAttempt](f) {
		if p.Seq == jobSeq {
			states = append(states, p.Paused)
		}
	}
	return states
}

// The store records a pause or resume before the runner receives it. An attempt that is being ended is not
// paused.
func TestPauseIsRecordedBeforeItIsSent(t *testing.T) {
	s, f, p := startPool(t, 1, 0)
	s.awaitJobState(1, queue.Processing)
	var recorded []bool
	f.mu.Lock()
	f.onPause = func(*wire.PauseAttempt) {
		j, err := s.GetJob(t.Context(), "1")
		recorded = append(recorded, err == nil && j.PausedAt != 0 && j.PausedBy == 7)
	}
	f.mu.Unlock()
	for _, on := range []bool{true, false} {
		if runs, err := p.SetJobPaused(t.Context(), 1, on, 7); !runs || err != nil {
			t.Errorf("pause %t: %t, %v", on, runs, err)
		}
	}
	checkEqual(t, "pauses sent to the runner", f.receivedPauseStates(1), []bool{true, false})
	f.mu.Lock()
	checkEqual(t, "recorded before the runner received them", recorded, []bool{true, false})
	f.mu.Unlock()
	if runs, err := p.SetJobPaused(t.Context(), 2, true, 7); runs || err != nil {
		t.Errorf("an unknown job: %t, %v", runs, err)
	}
	cancelInBackground(p, 1)
	awaitFrame[*wire.EndAttempt](t, f, 1)
	if _, err := p.SetJobPaused(t.Context(), 1, true, 7); !errors.Is(err, queue.ErrWrongState) {
		t.Errorf("a job that is being ended: %v", err)
	}
}

// SetJobPaused returns an error if some processes still run, but the job is recorded as paused.
func TestPauseReportsStillRunningProcesses(t *testing.T) {
	s, f, p := startPool(t, 1, 0)
	s.awaitJobState(1, queue.Processing)
	f.mu.Lock()
	f.unchangedProcessCount = 3
	f.mu.Unlock()
	_, err := p.SetJobPaused(t.Context(), 1, true, 7)
	if err == nil || !strings.Contains(err.Error(), "3 of its processes still run") {
		t.Errorf("Pause returned %v, want an error about 3 running processes", err)
	}
	if j, err := s.GetJob(t.Context(), "1"); err != nil || j.PausedAt == 0 {
		t.Errorf("the job is %+v, error %v; want it recorded as paused", j, err)
	}
}

// An attempt that its runner is ending, for example at its timeout, is not paused.
func TestPauseOfEndingAttemptFails(t *testing.T) {
	s, f, p := startPool(t, 1, 0)
	s.awaitJobState(1, queue.Processing)
	f.mu.Lock()
	f.refusesPauses = true
	f.mu.Unlock()
	if _, err := p.SetJobPaused(t.Context(), 1, true, 7); !errors.Is(err, queue.ErrWrongState) {
		t.Errorf("Pause of an ending attempt returned %v, want ErrWrongState", err)
	}
	if _, err := p.SetJobPaused(t.Context(), 1, false, 7); err != nil {
		t.Errorf("resume: %v", err)
	}
	if _, err := p.SetAllJobsPaused(true)(t.Context()); err != nil {
		t.Errorf("pause of all jobs: %v", err)
	}
}

// A runner that is connected again receives the recorded pause state of each of its attempts, even if it
// received that state over an earlier connection.
func TestReconnectedRunnerReceivesPauseStates(t *testing.T) {
	s, f, p := startPool(t, 2, 0, 0)
	s.awaitJobState(1, queue.Processing)
	s.awaitJobState(2, queue.Processing)
	if _, err := p.SetJobPaused(t.Context(), 1, true, 7); err != nil {
		t.Fatal(err)
	}
	f.reconnect(runningAttempt(firstClaimLease(1)), runningAttempt(firstClaimLease(2)))
	f.waitUntilFramesHandled()
	checkEqual(t, "pauses sent for the paused job", f.receivedPauseStates(1), []bool{true, true})
	checkEqual(t, "pauses sent for the other job", f.receivedPauseStates(2), []bool{false})
}

// While all jobs are paused, jobs that have not started return to the queue, and no job starts. Resuming all
// jobs does not resume those that are paused individually.
func TestPauseAllKeepsIndividualPauses(t *testing.T) {
	s, f, p := startPool(t, 2, 3, 2)
	s.awaitJobState(1, queue.Processing)
	s.awaitJobState(2, queue.Processing)
	if _, err := p.SetJobPaused(t.Context(), 1, true, 7); err != nil {
		t.Fatal(err)
	}
	ids, err := p.SetAllJobsPaused(true)(t.Context())
	if err != nil || !slices.Equal(ids, []string{"2"}) {
		t.Errorf("SetAllPaused returned %v, error %v; want job 2 only", ids, err)
	}
	if _, err := p.SetJobPaused(t.Context(), 2, false, 7); !errors.Is(err, worker.ErrAllPaused) {
		t.Errorf("resume of one job: %v", err)
	}
	s.enqueueJobs(9)
	f.sendFrames(successResult(firstClaimLease(2), longRunTime))
	s.awaitJobState(2, queue.Completed)
	f.waitUntilFramesHandled()
	checkEqual(t, "started", f.startedJobSeqs(), []int64{1, 2})
	if _, err := p.SetAllJobsPaused(false)(t.Context()); err != nil {
		t.Error(err)
	}
	s.awaitJobState(3, queue.Processing)
	checkEqual(t, "pauses sent for job 1", f.receivedPauseStates(1), []bool{true})
	checkEqual(t, "pauses sent for job 2", f.receivedPauseStates(2), []bool{true})
	if err := p.ResumeJobForSignal(t.Context(), 1, 7); err != nil {
		t.Error(err)
	}
	checkEqual(t, "pauses sent for job 1 after the resume", f.receivedPauseStates(1), []bool{true, false})
	if j, err := s.GetJob(t.Context(), "1"); err != nil || j.PausedAt != 0 {
		t.Errorf("a resumed job: %+v, %v", j, err)
	}
}

// If a job starts while all jobs are being paused, it is paused too, although the pool has asked the runner
// to give it back.
func TestPauseAllPausesStartingJob(t *testing.T) {
	s, f, p := startPool(t, 1)
	f.ignoreStarts()
	s.enqueueJobs(0)
	awaitFrame[*wire.StartAttempt](t, f, 1)
	if _, err := p.SetAllJobsPaused(true)(t.Context()); err != nil {
		t.Error(err)
	}
	awaitFrame[*wire.DropStart](t, f, 1)
	checkEqual(t, "pauses sent to the runner", f.receivedPauseStates(1), []bool{true})
	f.sendFrames(&wire.DropStartReply{Lease: firstClaimLease(1)},
		&wire.StartReport{Attempt: runningAttempt(firstClaimLease(1))})
	s.awaitJobState(1, queue.Processing)
	if w := p.ListWorkers(t.Context()); len(w) != 1 || !w[0].Paused || w[0].JobID != "1" {
		t.Errorf("workers %+v", w)
	}
}
