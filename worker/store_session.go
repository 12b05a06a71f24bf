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

// storeSession is Run's session with the store: the events that are still to be recorded, and the claim in
// progress. An exchange is a call of store.Session.Exchange, which records events and claims jobs.
type storeSession struct {
	store store.Session
	log   *slog.Logger

	pendingReport store.Report                 // events that the next exchange records
	afterExchange []func()                     // functions to run after the next exchange
	pendingAcks   map[*runnerConn][]wire.Lease // acknowledgements to send to runners after the next exchange
	retryDelay    time.Duration                // how long to wait after the next error
	retryAt       time.Time                    // time of the next try after an error; zero if no try is due
	recordedDirs  []string                     // runner directories recorded in the store

	cancelClaim    context.CancelFunc // cancels the claim in progress, a call of store.Await; nil if no claim is pending
	workersAtClaim int                // number of workers when this claim began
	recallsAtClaim int                // number of recalls (jobs taken back from runners) when this claim began
}

// addSettlement adds a settlement to the pending report.
func (s *storeSession) addSettlement(settlement store.Settlement) {
	s.pendingReport.Settlements = append(s.pendingReport.Settlements, settlement)
}

// handleStoreError handles an error of the store. After a temporary error, it keeps the pending report for a
// later exchange and returns nil. It returns all other errors.
func (s *storeSession) handleStoreError(err error) error {
	if isTemporary(err) {
		s.log.Warn("could not record the results of jobs; trying again", "error", err, "in_ms", s.retryDelay.Milliseconds())
		s.retryAt = time.Now().Add(s.retryDelay)
		s.retryDelay = min(2*s.retryDelay, storeRetryMax)
		return nil
	}
	return fmt.Errorf("the results of some ended jobs are not recorded yet, but the runners keep them for the "+
		"next start of the service; %w", err)
}

// isTemporary reports whether the operation that failed with this error of the store may succeed later.
func isTemporary(err error) bool {
	return errors.Is(err, queue.ErrNoSpace) || errors.Is(err, queue.ErrUnavailable)
}

// recordRunnerDirs records in the store the directories of all runners that may have jobs. Run calls it
// before it sends jobs to a runner. So if a directory disappears, the next service knows that a runner was
// there.
func (s *storeSession) recordRunnerDirs(ctx context.Context, dirs []string) error {
	slices.Sort(dirs)
	dirs = slices.Compact(dirs)
	if s.recordedDirs != nil && slices.Equal(dirs, s.recordedDirs) {
		return nil
	}
	err := s.store.StoreRunnerDirs(context.WithoutCancel(ctx), dirs)
	if err == nil {
		s.recordedDirs = dirs
	}
	return err
}

// sendAcks sends the pending acknowledgements to the runners, which can then discard the results.
func (s *storeSession) sendAcks() {
	for conn, leases := range s.pendingAcks {
		conn.Send(&wire.Ack{Leases: leases})
		delete(s.pendingAcks, conn)
	}
}

// claimInBackground claims up to maxJobs jobs in the background. The claim waits until at least one job is
// available. recallCount says how often jobs were taken back from runners by now. The caller must compute
// recallCount and maxJobs without unlocking mu in between, so that both describe the same moment.
func (l *loop) claimInBackground(maxJobs, workerCount, recallCount int) {
	ctx, cancel := context.WithCancel(l.ctx)
	l.session.cancelClaim, l.session.workersAtClaim, l.session.recallsAtClaim = cancel, workerCount, recallCount
	l.Go(func() {
		jobs, err := l.store.Await(ctx, maxJobs)
		l.post(func() error { return l.startClaimed(jobs, err) })
	})
}

// startClaimed starts the jobs that claimInBackground has claimed. If the pool has taken jobs back from
// runners since the claim began, these may rank before the claimed jobs. startClaimed then returns the
// claimed jobs to the queue too, so that the next claim chooses the first ones of all these jobs.
func (l *loop) startClaimed(jobs []queue.Job, err error) error {
	l.session.cancelClaim()
	l.session.cancelClaim = nil
	recalled := lockedValue(l.Pool, &l.recallCount) != l.session.recallsAtClaim
	switch {
	case len(jobs) > 0 && recalled:
		l.returnClaimed(jobs)
	case len(jobs) > 0:
		l.startAll(jobs, false)
	case err != nil && !errors.Is(err, context.Canceled):
		return l.session.handleStoreError(err)
	}
	return nil
}

// finishStored is called after the store has recorded a report. It removes the leases whose end was recorded,
// and answers callers whose changes were stored or refused. It returns lines for the log.
func (l *loop) finishStored(report store.Report, refusalErrs map[queue.Lease]error) []logLine {
	l.mu.Lock()
	lines := l.attemptLogLinesLocked(report.Settlements)
	now := time.Now()
	for i := range report.Settlements {
		lease := report.Settlements[i].Lease
		if report.Settlements[i].Decision.RecordsAttempt {
			queueName := "" // not known for a lease of another node
			if h := l.leases.byLease[lease]; h != nil {
				queueName = h.job.Queue
				if l.cfg.OnAttemptEnded != nil {
					l.cfg.OnAttemptEnded(&h.job, &report.Settlements[i])
				}
			}
			l.endedCounts.add(queueName, now)
		}
		l.leases.removeLocked(lease, eventStored)
	}
	for _, lease := range report.Releases {
		l.leases.removeLocked(lease, eventStored)
	}
	for i := range report.Changes {
		lease := report.Changes[i].Lease
		if h := l.leases.byLease[lease]; h != nil && h.reportedChange != nil {
			// Other callers that wait for a change of this job notice that the lease has ended, and change the job
			// in the store.
			h.reportedChange.answer <- refusalErrs[lease]
		}
		l.leases.removeLocked(lease, eventStored)
	}
	l.mu.Unlock()
	l.session.pendingReport = store.Report{}
	return lines
}

// startOnCurrent sends claimed jobs to the runner for new jobs. allStored says that the store has recorded
// all earlier results of attempts. startOnCurrent then sends the pending acknowledgements together with the
// jobs.
func (l *loop) startOnCurrent(jobs []queue.Job, allStored bool) {
	if len(jobs) == 0 {
		return
	}
	failpoint.Hit("claimed")
	l.mu.Lock()
	defer l.mu.Unlock()
	conn := l.runners.currentLocked()
	// Return the jobs if they may not start now. Since the claim began, the runner may have died, or a stop,
	// a pause or a recall (taking back jobs) may have begun.
	if conn == nil || !l.mayStartLocked() || l.leases.isRecallingLocked() {
		l.returnClaimed(jobs)
		return
	}
	frames := make([]wire.Frame, 0, len(jobs)+1)
	if acks := l.session.pendingAcks[conn]; allStored && len(acks) > 0 {
		frames = append(frames, &wire.Ack{Leases: acks})
		delete(l.session.pendingAcks, conn)
	}
	for i := range jobs {
		h := l.leases.addLocked(&jobs[i], phaseSent)
		h.leaseLocation = leaseLocation{conn, conn.Dir}
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
func (l *loop) attemptLogLinesLocked(ended []store.Settlement) (lines []logLine) {
	for i := range ended {
		a, d := &ended[i].Attempt, &ended[i].Decision
		level, text := levelAndText(d)
		h := l.leases.byLease[ended[i].Lease]
		if h == nil || !l.cfg.Log.Enabled(context.Background(), level) {
			continue
		}
		r := logLine{level, text, []slog.Attr{slog.String("job", h.job.ID),
			slog.Int("attempt", h.job.StartedAttempts+1), slog.String("state", d.State.String())}}
		addIf := func(applies bool, attr slog.Attr) {
			if applies {
				r.attrs = append(r.attrs, attr)
			}
		}
		addIf(d.Reason != "", slog.String("reason", string(d.Reason)))
		addIf(a.ExitCode >= 0, slog.Int64("exit_code", a.ExitCode))
		addIf(a.Signal != 0, slog.Int("signal", a.Signal))
		addIf(d.State == queue.Failed, slog.Int64("again_in_ms", d.Delay.Milliseconds()))
		r.attrs = append(r.attrs, slog.String("worker", a.Worker), slog.Int("pid", a.PID))
		lines = append(lines, r)
	}
	return lines
}

// levelAndText returns the level and the text of the log line for the decision about an attempt.
func levelAndText(d *queue.Decision) (slog.Level, string) {
	lost := d.Reason == queue.ReasonLost || d.Reason == queue.ReasonInterrupted
	switch {
	case d.Reason == queue.ReasonUnkillable:
		return slog.LevelError,
			"a job's processes still exist after SIGKILL; the kernel blocks them, most likely on a disk or the network"
	case d.State == queue.Dead:
		return slog.LevelWarn, "job is dead"
	case lost && d.State == queue.Failed:
		return slog.LevelWarn, "job was interrupted, and will be retried after again_in_ms"
	case lost:
		return slog.LevelWarn, "job was interrupted"
	case d.State == queue.Failed:
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
