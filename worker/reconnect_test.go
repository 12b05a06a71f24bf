package worker_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// If the connection to a runner breaks during a call of CancelJob, the pool sends the EndAttempt frame again after it
// has reconnected, and CancelJob returns when the job has ended.
func TestCancelSurvivesReconnect(t *testing.T) {
	s, f, p := startPool(t, 1, 0)
	s.awaitJobState(1, queue.Processing)
	answer := cancelInBackground(p, 1)
	awaitFrame[*wire.EndAttempt](t, f, 1)
	f.reconnect(runningAttempt(firstClaimLease(1)))
	f.waitUntilFramesHandled()
	checkCancelStillWaits(t, answer, "while the job runs")
	checkEqual(t, "killed again", len(framesOfType[*wire.EndAttempt](f)), 2)
}

// If a caller watches a job and the connection to the job's runner breaks, the watch continues on the next
// connection.
func TestJobEndWatchSurvivesReconnect(t *testing.T) {
	s, f, p := startPool(t, 1, 0)
	s.awaitJobState(1, queue.Processing)
	p.WatchJobEnd(1)
	awaitFrame[*wire.ReportAttemptImmediately](t, f, 1)
	f.reconnect(runningAttempt(firstClaimLease(1)))
	f.waitUntilFramesHandled()
	checkEqual(t, "number of watches", len(framesOfType[*wire.ReportAttemptImmediately](f)), 2)
}

// While the pool is not connected to the runner of a running job, for example after a restart of the service, a read of
// the job's output waits for the connection. If the runner does not accept it, the read returns an error.
func TestReadOutputWaitsForRunnerConnection(t *testing.T) {
	s, f, p := startPool(t, 1, 0)
	s.awaitJobState(1, queue.Processing)
	f.mu.Lock()
	f.ignoresHello = true
	before := len(f.acceptedConns)
	f.mu.Unlock()
	f.disconnect()
	waitUntil(t, "the pool tries to connect", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.acceptedConns) > before
	})
	_, _, err := p.ReadOutput(t.Context(), 1, 1, [2]int64{}, false)
	if !errors.Is(err, queue.ErrUnavailable) || !strings.Contains(err.Error(), "does not answer, so job 1 cannot be") {
		t.Errorf("the read returned %v, want an error that says that the runner does not answer", err)
	}
	f.mu.Lock()
	f.ignoresHello, f.helloReply.UnendedAttempts = false, []wire.Attempt{runningAttempt(firstClaimLease(1))}
	for _, conn := range f.acceptedConns {
		conn.Close()
	}
	f.mu.Unlock()
	_, _, err = p.ReadOutput(t.Context(), 1, 1, [2]int64{}, false)
	checkEqual(t, "error after the runner has accepted the connection", err, nil)
	awaitFrame[*wire.ReadOutput](t, f, 1)
}

// A cancellation that is not recorded yet is recorded even if the connection to the runner breaks.
func TestUnrecordedCancelSurvivesReconnect(t *testing.T) {
	s, f, p := startPool(t, 1)
	f.ignoreStarts()
	s.enqueueJobs(0)
	awaitFrame[*wire.DropStart](t, f, 1)
	answer := cancelInBackground(p, 1)
	awaitFrame[*wire.DropStart](t, f, 2)
	refusals := make(chan struct{}, 100)
	s.setReportRefusal(func(store.LeaseReport) error { refusals <- struct{}{}; return queue.ErrNoSpace })
	f.sendFrames(&wire.DropStartReply{Lease: firstClaimLease(1), StartDropped: true})
	<-refusals
	f.reconnect()
	<-refusals
	s.setReportRefusal(nil)
	checkEqual(t, "answer", <-answer, cancelResult{true, nil})
	s.checkJobState(1, queue.Cancelled, "")
}

// If the store has refused a result, the pool does not acknowledge it together with newly claimed jobs. Without the
// acknowledgement, the runner keeps the result until it is stored.
func TestClaimDoesNotAcknowledgeUnstoredResult(t *testing.T) {
	s, f, _ := startPool(t, 2, 0)
	s.awaitJobState(1, queue.Processing)
	waitUntil(t, "a claim for 4 jobs waits", func() bool { return s.awaitedJobCount() == 1 })
	refusals := make(chan struct{}, 100)
	s.setReportRefusal(func(report store.LeaseReport) error {
		if len(report.Settlements) == 0 {
			return nil
		}
		refusals <- struct{}{}
		return queue.ErrNoSpace
	})
	f.sendFrames(successResult(firstClaimLease(1), longRunTime))
	<-refusals
	s.enqueueJobs(0)
	awaitFrame[*wire.StartAttempt](t, f, 2)
	checkEqual(t, "acknowledged before it was stored", f.ackedLeases(), []wire.Lease(nil))
	s.setReportRefusal(nil)
	s.awaitJobState(1, queue.Completed)
	awaitFrame[*wire.AckResults](t, f, 1)
	checkEqual(t, "acknowledged", f.ackedLeases(), []wire.Lease{firstClaimLease(1)})
}

// If the store has no space when a runner dies, the pool continues. It records the runner's results when the store has
// space again.
func TestDeadRunnersResultsWaitForStoreSpace(t *testing.T) {
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	s.enqueueJobs(0)
	first := newFakeRunner(t, root, "first")
	_, ended := runPoolThatMayFail(t, s, root, 1)
	s.awaitJobState(1, queue.Processing)
	newFakeRunner(t, root, "second")
	frame := wire.AppendFrame(nil, successResult(firstClaimLease(1), longRunTime))
	record := append(binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(frame)), frame...)
	os.WriteFile(filepath.Join(first.dir, "journal.1"), record, 0o600)
	refusals := make(chan struct{}, 100)
	s.setReportRefusal(func(store.LeaseReport) error { refusals <- struct{}{}; return queue.ErrNoSpace })
	first.simulateExit()
	<-refusals
	<-refusals
	s.setReportRefusal(nil)
	s.awaitJobState(1, queue.Completed)
	select {
	case err := <-ended:
		t.Errorf("the pool ended: %v", err)
	default:
	}
}

// Results of a runner that the pool has shut down stay in the runner's directory until they are stored.
func TestDismissedRunnerKeepsResultsUntilStored(t *testing.T) {
	t.Parallel()
	s, root := newStore(t), t.TempDir()
	s.enqueueJobs(0)
	f := newFakeRunner(t, root, "first")
	p := runPool(t, s, root, 1)
	s.awaitJobState(1, queue.Processing)
	refusals := make(chan struct{}, 100)
	s.setReportRefusal(func(store.LeaseReport) error { refusals <- struct{}{}; return queue.ErrNoSpace })
	f.sendFrames(successResult(firstClaimLease(1), longRunTime))
	<-refusals
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	stopped := make(chan struct{})
	go func() { p.Stop(ctx, 0, 0); close(stopped) }()
	awaitFrame[*wire.Shutdown](t, f, 1)
	f.simulateExit()
	receiveEvent(t, "the end of the stop", stopped)
	for range 3 {
		receiveEvent(t, "another rejected report", refusals)
	}
	if _, err := os.Stat(f.dir); err != nil {
		t.Error(err)
	}
	s.setReportRefusal(nil)
	s.awaitJobState(1, queue.Completed)
	waitUntil(t, "the runner's directory is removed", func() bool {
		_, err := os.Stat(f.dir)
		return err != nil
	})
}

// If the number of workers is lowered while a claim waits for jobs, the pool starts only as many jobs as it
// still has workers.
func TestScaleDownReducesWaitingClaim(t *testing.T) {
	s, f, p := startPool(t, 4)
	waitUntil(t, "a claim for 4 jobs waits", func() bool { return s.awaitedJobCount() == 4 })
	p.SetWantedWorkerCount(1)
	f.waitUntilFramesHandled()
	s.enqueueJobs(0, 0, 0, 0)
	awaitFrame[*wire.StartAttempt](t, f, 1)
	f.waitUntilFramesHandled()
	checkEqual(t, "started", f.startedJobSeqs(), []int64{1})
}

// The pool may ask a runner twice to give the same job back. If the runner answers both DropStart frames, the pool
// counts only one worker as free.
func TestDuplicateDropReplyFreesOneWorker(t *testing.T) {
	s, f, p := startPool(t, 1)
	f.ignoreStarts()
	s.enqueueJobs(0, 0, 0, 0)
	awaitFrame[*wire.DropStart](t, f, 1)
	cancelInBackground(p, 1)
	awaitFrame[*wire.DropStart](t, f, 2)
	f.sendFrames(&wire.DropStartReply{Lease: firstClaimLease(1), StartDropped: true},
		&wire.DropStartReply{Lease: firstClaimLease(1), StartDropped: true})
	awaitFrame[*wire.StartAttempt](t, f, 2)
	f.waitUntilFramesHandled()
	checkEqual(t, "started", fmt.Sprint(f.startedJobSeqs()), []int64{1, 2})
}
