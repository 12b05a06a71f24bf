package daemon

import (
	"time"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/process"
	"github.com/queuectl/queuectl/runner/rundir"
	"github.com/queuectl/queuectl/runner/wire"
)

// journalAndSendResult stores the result of an attempt in the journal, and then sends the result to the service. The
// journal keeps the result until the service has acknowledged it.
func (s *server) journalAndSendResult(a *attempt, r *process.Result, ws *workspace) {
	failpoint.Hit("runner-ended")
	f := resultFrame(r, ws)
	s.addOutputToResult(a, f)
	// This worker is the only goroutine that changes these fields of the attempt, so reading them does not need mu.
	f.Attempt = toWireAttempt(a)
	result := wire.AppendFrame(nil, f)
	segment, err := s.journal.AppendResult(result)
	if err != nil {
		s.Log.Error("could not write a job's result to the result journal; "+
			"keeping the result in memory and trying again", "job", f.Seq, "error", err)
	}
	if r.HasBackgroundProcesses {
		if err := rundir.AppendBackgroundPGID(s.dir.dirPath, r.PID, s.dir.fileMode(0o600)); err != nil {
			s.Log.Error("could not record which background processes a job may keep, so they will end when the runner ends",
				"job", f.Seq, "error", err)
		}
	}
	if r.EndedLeftoverCount > 0 || r.Signal != 0 {
		wire.SendWakeSignal(s.orphanReapRequests)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a.recordResultLocked(result, segment)
	if s.serviceLink.conn == nil && time.Since(s.serviceLink.runnerLastBusyAt) > disconnectJournalSyncDelay {
		s.diskQueue.addOperation(s.syncJournal)
	}
	s.workers.busyWorkerCount--
	if a.phase == attemptUnjournaled {
		s.unjournaledAttemptCount++ // the attempt keeps its slot in the running table until its result is in the journal
	} else {
		s.freeSlotLocked(a)
		if s.unjournaledAttemptCount > 0 {
			s.diskQueue.addOperation(s.retryJournalWrites)
		}
	}
	// Send StuckAttemptsReport before the result. Otherwise the service would consider the worker free and send another
	// job.
	if r.StuckPID != 0 {
		s.addStuckAttemptLocked(a, r.StuckPID)
	}
	s.sendEncodedFrameLocked(a.encodedResultFrame, a.reportsImmediately || len(s.waitingAttempts) == 0)
	s.endRunnerIfDoneLocked()
}

// resultFrame returns the Result frame of an ended attempt, without its output.
func resultFrame(r *process.Result, ws *workspace) *wire.Result {
	return &wire.Result{
		EndedAtMillis: r.EndedAt.UnixMilli(), EndCause: resultEndCause(r), TimedOut: r.TimedOut, IdleTimedOut: r.IdleTimedOut,
		ResourceShortage: r.ResourceShortage, HasStuckProcesses: r.StuckPID != 0 || r.ExitHeldByTracer,
		ReachedMemoryLimit: r.ReachedMemoryLimit,
		ExitCode:           r.ExitCode, Signal: int64(r.Signal), Error: r.Error,
		CPUTime: r.CPUTime, PeakRSSBytes: r.PeakRSSBytes, PeakTasks: r.PeakTasks,
		EndedLeftoverCount: int64(r.EndedLeftoverCount),
		DroppedOutputBytes: ws.attempt.outputLog.DroppedBytes(), ResultJSON: ws.resultJSON, ResultError: ws.resultError,
		Progress: ws.progress.lastProgress,
	}
}

// resultEndCause returns why an attempt ended: the cause of the kill that ended it, or a cause that the runner has
// observed. It returns 0 if the command ended by itself.
//
// If the result is queue.EndStartHung, the field ResourceShortage of the frame has another meaning: a file, directory
// or user database that is needed for the start did not answer. The machine does not lack resources.
func resultEndCause(r *process.Result) int64 {
	switch {
	case r.KillCause != 0:
		return int64(r.KillCause)
	case r.LoginSessionWasEnding:
		return int64(queue.EndStopped)
	case r.ExitStatusUnknown:
		return int64(queue.EndRunnerLost)
	case r.StartHung:
		return int64(queue.EndStartHung)
	case r.OutOfMemory:
		return int64(queue.EndOutOfMemory)
	case r.StartFailedPermanently:
		return int64(queue.EndCannotStart)
	}
	return 0
}

// retryJournalWrites tries again to write results to the journal that could not be written earlier, for example because
// the disk was full.
func (s *server) retryJournalWrites() {
	s.mu.Lock()
	var unjournaledAttempts []*attempt
	for _, a := range s.attempts {
		if a.phase == attemptUnjournaled {
			unjournaledAttempts = append(unjournaledAttempts, a)
		}
	}
	s.mu.Unlock()
	for _, a := range unjournaledAttempts {
		segment, err := s.journal.AppendResult(a.encodedResultFrame)
		if err != nil {
			return // the next round of housekeep or the next result tries again
		}
		s.mu.Lock()
		needed := a.enterPhaseLocked(attemptJournaled)
		if needed {
			a.resultJournalSegment = segment
			s.unjournaledAttemptCount--
			s.freeSlotLocked(a)
		}
		s.mu.Unlock()
		if !needed { // the service has acknowledged the result during the write
			s.journal.AckResult(segment)
		}
	}
}

// forgetAcknowledgedResultsLocked forgets attempts whose results the service has stored.
func (s *server) forgetAcknowledgedResultsLocked(f *wire.AckResults) {
	for _, l := range f.Leases {
		a := s.attempts[l]
		if a == nil {
			continue
		}
		keepsSlot := a.phase == attemptUnjournaled
		if !a.enterPhaseLocked(attemptAcknowledged) {
			continue
		}
		delete(s.attempts, l)
		if keepsSlot {
			s.unjournaledAttemptCount--
			s.freeSlotLocked(a)
		}
		s.diskQueue.addOperation(func() {
			a.outputLog.Discard()
			s.journal.AckResult(a.resultJournalSegment)
		})
	}
	s.endRunnerIfDoneLocked()
}

// syncJournal flushes the journal to the disk, so that the results survive a power cut.
func (s *server) syncJournal() {
	if err := s.journal.Sync(); err != nil {
		s.Log.Error("could not flush the results of ended jobs to disk; a power failure could lose results that the service "+
			"has not stored yet", "error", err)
	}
}
