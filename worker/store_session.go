package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/queuectl/queuectl/internal/failpoint"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner/wire"
	"github.com/queuectl/queuectl/store"
)

// storeSession is Run's session with the store: the events that are still to be recorded, and the claim in progress. An
// exchange is a call of ReportAndClaim, which records events and claims jobs.
type storeSession struct {
	store store.Session
	log   *slog.Logger

	pendingReport      store.LeaseReport            // events that the next exchange records
	afterReportFuncs   []func()                     // functions to run after the next exchange
	pendingAcks        map[*runnerConn][]wire.Lease // acknowledgements to send to runners after the next exchange
	nextRetryDelay     time.Duration                // how long to wait after the next error
	retryAt            time.Time                    // time of the next try after an error; zero if no try is due
	recordedRunnerDirs []string                     // runner directories recorded in the store

	// cancels the claim in progress, a call of store.AwaitJobs; nil if no claim is pending
	cancelClaim        context.CancelFunc
	workerCountAtClaim int // number of workers when this claim began
	recallCountAtClaim int // number of recalls (jobs taken back from runners) when this claim began
}

// addSettlement adds a settlement to the pending report.
func (s *storeSession) addSettlement(settlement store.Settlement) {
	s.pendingReport.Settlements = append(s.pendingReport.Settlements, settlement)
}

// handleStoreError handles an error of the store. After a temporary error, it keeps the pending report for a later
// exchange with the store and returns nil. It returns all other errors.
func (s *storeSession) handleStoreError(err error) error {
	if isTemporaryStoreError(err) {
		s.log.Warn("could not record the results of jobs; trying again", "error", err, "in_ms",
			s.nextRetryDelay.Milliseconds())
		s.retryAt = time.Now().Add(s.nextRetryDelay)
		s.nextRetryDelay = min(2*s.nextRetryDelay, maxStoreRetryDelay)
		return nil
	}
	return fmt.Errorf("the results of some ended jobs are not recorded yet, but the runners keep them for the "+
		"next start of the service; %w", err)
}

// isTemporaryStoreError reports whether the operation that failed with this error of the store may succeed later.
func isTemporaryStoreError(err error) bool {
	return errors.Is(err, queue.ErrNoSpace) || errors.Is(err, queue.ErrUnavailable)
}

// recordRunnerDirs records in the store the directories of all runners that may have jobs. Run calls it before it sends
// jobs to a runner. So if a directory disappears, the next service knows that there was a runner, which may still be
// alive.
func (s *storeSession) recordRunnerDirs(ctx context.Context, runnerDirs []string) error {
	slices.Sort(runnerDirs)
	runnerDirs = slices.Compact(runnerDirs)
	if s.recordedRunnerDirs != nil && slices.Equal(runnerDirs, s.recordedRunnerDirs) {
		return nil
	}
	err := s.store.StoreRunnerDirs(context.WithoutCancel(ctx), runnerDirs)
	if err == nil {
		s.recordedRunnerDirs = runnerDirs
	}
	return err
}

// sendAcks sends the pending acknowledgements to the runners, which can then discard the results.
func (s *storeSession) sendAcks() {
	for conn, leases := range s.pendingAcks {
		conn.Send(&wire.AckResults{Leases: leases})
		delete(s.pendingAcks, conn)
	}
}

// claimInBackground claims up to maxJobs jobs in the background. The claim waits until at least one job is available.
// recallCount is the number of recalls (jobs taken back from runners) until now. The caller must compute recallCount
// and maxJobs without unlocking mu in between, so that both describe the same moment.
func (l *poolLoop) claimInBackground(maxJobs, workerCount, recallCount int) {
	ctx, cancel := context.WithCancel(l.ctx)
	s := &l.storeSession
	s.cancelClaim, s.workerCountAtClaim, s.recallCountAtClaim = cancel, workerCount, recallCount
	l.Go(func() {
		jobs, err := l.store.AwaitJobs(ctx, maxJobs)
		l.runInLoop(func() error { return l.handleBackgroundClaim(jobs, err) })
	})
}

// handleBackgroundClaim starts the jobs that claimInBackground has claimed. If the pool has taken jobs back from
// runners since the claim began, the returned jobs may rank before the claimed jobs. handleBackgroundClaim then also
// returns the claimed jobs to the queue, so that the next claim chooses the best-ranked jobs from all of them.
func (l *poolLoop) handleBackgroundClaim(jobs []queue.Job, err error) error {
	l.storeSession.cancelClaim()
	l.storeSession.cancelClaim = nil
	recalled := readWithLock(l.Pool, &l.recallCount) != l.storeSession.recallCountAtClaim
	switch {
	case len(jobs) > 0 && recalled:
		l.returnClaimedJobs(jobs)
	case len(jobs) > 0:
		l.dispatchClaimedJobs(jobs, false)
	case err != nil && !errors.Is(err, context.Canceled):
		return l.storeSession.handleStoreError(err)
	}
	return nil
}

// handleStoredReport processes a report that the store has recorded. It removes the leases whose end was recorded, and
// answers callers whose changes were stored or refused. It returns lines for the log.
func (l *poolLoop) handleStoredReport(report store.LeaseReport, refusalErrs map[queue.Lease]error) []logLine {
	l.mu.Lock()
	lines := l.attemptLogLinesLocked(report.Settlements)
	now := time.Now()
	for i := range report.Settlements {
		lease := report.Settlements[i].Lease
		if report.Settlements[i].Decision.RecordsAttempt {
			queueName := "" // not known for a lease of another node
			if h := l.leases.byID[lease]; h != nil {
				queueName = h.job.Queue
				l.cfg.OnAttemptEnded(&h.job, &report.Settlements[i])
			}
			l.endedAttempts.countEndedAttempt(queueName, now)
		}
		l.leases.removeLeaseLocked(lease, eventStored)
	}
	for _, lease := range report.ReleasedLeases {
		l.leases.removeLeaseLocked(lease, eventStored)
	}
	for i := range report.LeasedJobChanges {
		lease := report.LeasedJobChanges[i].Lease
		if h := l.leases.byID[lease]; h != nil && h.changeInReport != nil {
			// Other callers that wait for a change of this job notice that the lease has ended, and change the job
			// in the store.
			h.changeInReport.answer <- refusalErrs[lease]
		}
		l.leases.removeLeaseLocked(lease, eventStored)
	}
	l.mu.Unlock()
	l.storeSession.pendingReport = store.LeaseReport{}
	return lines
}

// sendToCurrentRunner sends claimed jobs to the runner for new jobs. If allResultsStored is true, the store has
// recorded all earlier results of attempts, and sendToCurrentRunner sends the pending acknowledgements together with
// the jobs.
func (l *poolLoop) sendToCurrentRunner(jobs []queue.Job, allResultsStored bool) {
	if len(jobs) == 0 {
		return
	}
	failpoint.Hit("claimed")
	l.mu.Lock()
	defer l.mu.Unlock()
	conn := l.runners.currentRunnerLocked()
	// Return the jobs if they may not start now. Since the claim began, the runner may have died, or a stop,
	// a pause or a recall (taking back jobs) may have begun.
	if conn == nil || !l.mayStartJobsLocked() || l.leases.isRecallInProgressLocked() {
		l.returnClaimedJobs(jobs)
		return
	}
	frames := make([]wire.Frame, 0, len(jobs)+1)
	if acks := l.storeSession.pendingAcks[conn]; allResultsStored && len(acks) > 0 {
		frames = append(frames, &wire.AckResults{Leases: acks})
		delete(l.storeSession.pendingAcks, conn)
	}
	for i := range jobs {
		h := l.leases.addLeaseLocked(&jobs[i], phaseSent)
		h.leaseLocation = leaseLocation{conn, conn.RunnerDir}
		frames = l.appendStartFramesLocked(frames, &h.job)
	}
	conn.Send(frames...)
	failpoint.Hit("start-sent")
}

// logLine is a line for the log.
type logLine struct {
	level slog.Level
	text  string
	attrs []slog.Attr
}

// attemptLogLinesLocked returns log lines about attempts that have ended. Problems that need attention have
// the level Error or Warn. Other attempts have the level Info if they will be retried, and otherwise the level
// Debug. A line contains only the job's id, because commands and output may be secret.
func (l *poolLoop) attemptLogLinesLocked(settlements []store.Settlement) (lines []logLine) {
	for i := range settlements {
		a, d := &settlements[i].Attempt, &settlements[i].Decision
		level, text := decisionLevelAndText(d)
		h := l.leases.byID[settlements[i].Lease]
		if h == nil || !l.cfg.Log.Enabled(context.Background(), level) {
			continue
		}
		r := logLine{level, text, []slog.Attr{slog.String("job", h.job.ID),
			slog.Int("attempt", h.job.StartedAttempts+1), slog.String("state", d.NextState.String())}}
		addIf := func(applies bool, attr slog.Attr) {
			if applies {
				r.attrs = append(r.attrs, attr)
			}
		}
		addIf(d.Reason != "", slog.String("reason", string(d.Reason)))
		addIf(a.ExitCode >= 0, slog.Int64("exit_code", a.ExitCode))
		addIf(a.Signal != 0, slog.Int("signal", a.Signal))
		addIf(d.NextState == queue.Failed, slog.Int64("again_in_ms", d.StartDelay.Milliseconds()))
		r.attrs = append(r.attrs, slog.String("worker", a.Worker), slog.Int("pid", a.PID))
		lines = append(lines, r)
	}
	return lines
}

// decisionLevelAndText returns the level and the text of the log line for the decision about an attempt.
func decisionLevelAndText(d *queue.AttemptDecision) (slog.Level, string) {
	lost := d.Reason == queue.ReasonLost || d.Reason == queue.ReasonInterrupted
	switch {
	case d.Reason == queue.ReasonUnkillable:
		return slog.LevelError,
			"a job's processes still exist after SIGKILL; the kernel blocks them, most likely on a disk or the network"
	case d.NextState == queue.Dead:
		return slog.LevelWarn, "job is dead"
	case lost && d.NextState == queue.Failed:
		return slog.LevelWarn, "job was interrupted, and will be retried after again_in_ms"
	case lost:
		return slog.LevelWarn, "job was interrupted"
	case d.NextState == queue.Failed:
		return slog.LevelInfo, "attempt failed"
	}
	return slog.LevelDebug, "attempt ended"
}

// writeLog writes lines to the log. The caller holds no lock, since logging may block.
func (s *storeSession) writeLog(lines []logLine) {
	for _, r := range lines {
		s.log.LogAttrs(context.Background(), r.level, r.text, r.attrs...)
	}
}
