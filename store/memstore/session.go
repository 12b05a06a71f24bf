package memstore

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// awaitCall is a call of AwaitJobs that is waiting. A call gets jobs at most once: the transaction that gives it jobs
// removes it from Store.awaitCalls. Close closes the channel claimedJobs.
type awaitCall struct {
	maxJobs        int              // maximum number of jobs to claim
	claimedJobs    chan []queue.Job // receives the claimed jobs; has a buffer for one value
	dueEarlierHint chan struct{}    // receives a value if a job may be due before the call's timer ends
}

// ReportAndClaim records what a service reports about its leases, and claims up to report.WantedJobCount jobs.
func (s *Store) ReportAndClaim(ctx context.Context, report store.LeaseReport) (grant store.ReportAndClaimResult,
	err error) {
	err = s.runUpdateTx(ctx, func(now queue.UnixMillis) error {
		for _, e := range report.AttemptStarts {
			if j := s.jobOfLease(e.Lease); j == nil {
				grant.StaleLeases = append(grant.StaleLeases, e.Lease)
			} else if j.State != queue.Processing { // record a start only once, because the service may report it twice
				s.recordAttemptStart(j, e, now)
			}
		}
		for _, p := range report.ProgressReports {
			if j := s.jobOfLease(p.Lease); j == nil || j.State != queue.Processing {
				grant.StaleLeases = append(grant.StaleLeases, p.Lease)
			} else {
				progress := p.Progress
				j.Progress = &progress
				s.addEvent(j, queue.EventProgress, queue.EventDetail{AttemptNumber: j.StartedAttempts + 1,
					ProgressPercent: &progress.Percent},
					now)
			}
		}
		for _, e := range report.Settlements {
			if j := s.jobOfLease(e.Lease); j == nil {
				grant.StaleLeases = append(grant.StaleLeases, e.Lease)
			} else {
				s.makeRoomForAttempt(j, &e, report.MaxBytesPerUser)
				s.settle(j, e, now)
			}
		}
		for _, l := range report.ReleasedLeases {
			if j := s.jobOfLease(l); j == nil || j.State == queue.Processing {
				grant.StaleLeases = append(grant.StaleLeases, l)
			} else {
				s.undoUserTurn(j)
				s.endLease(j, now)
			}
		}
		for _, c := range report.LeasedJobChanges {
			j := s.jobOfLease(c.Lease)
			if j == nil || j.State == queue.Processing {
				grant.StaleLeases = append(grant.StaleLeases, c.Lease)
				continue
			}
			s.undoUserTurn(j)
			s.endLease(j, now)
			if err := s.applyChange(j, c.JobChange, now); err != nil {
				if grant.RejectedChanges == nil {
					grant.RejectedChanges = map[queue.Lease]error{}
				}
				grant.RejectedChanges[c.Lease] = err
			}
		}
		grant.ClaimedJobs = s.claim(now, report.MaxJobsToClaim)
		return nil
	})
	return grant, err
}

// jobOfLease returns the job of the lease l, or nil if the lease has ended.
func (s *Store) jobOfLease(l queue.Lease) *job {
	if j := s.jobs[l.Seq]; j != nil && j.isLeased && j.Fence == l.Fence {
		return j
	}
	return nil
}

func (s *Store) recordAttemptStart(j *job, start store.AttemptStart, now queue.UnixMillis) {
	s.recordRateStarts(j, start.StartedAt, now)
	s.addAttemptSample(j, 0, max(j.DueAt, j.AgingSince), start.StartedAt, now)
	s.setState(j, queue.Processing, now)
	j.StartedAt, j.WorkerID, j.PID, j.Progress = start.StartedAt, start.WorkerID, start.PID, nil
	s.addEvent(j, queue.EventStarted, queue.EventDetail{AttemptNumber: j.StartedAttempts + 1, StartedAt: start.StartedAt},
		now)
}

// RecordJobPause records that a running job is paused or resumed.
func (s *Store) RecordJobPause(ctx context.Context, p store.JobPauseRequest) error {
	return s.runUpdateTx(ctx, func(now queue.UnixMillis) error {
		j := s.jobOfLease(p.Lease)
		if j == nil {
			return store.ErrJobStateChanged
		}
		if j.State != queue.Processing {
			return store.ErrJobLeased
		}
		switch {
		case p.Paused && j.PausedAt == 0:
			j.PausedAt, j.PausedBy = now, p.RequesterUID
			s.addEvent(j, queue.EventPaused, queue.EventDetail{CausedByUID: &p.RequesterUID}, now)
		case !p.Paused && j.PausedAt != 0:
			j.PausedAt, j.PausedBy = 0, 0
			s.addEvent(j, queue.EventResumed, queue.EventDetail{CausedByUID: &p.RequesterUID}, now)
		default:
			return nil
		}
		j.UpdatedAt = now
		s.jobWatchers.NotifyOfChangedJobs(j.Seq)
		return nil
	})
}

// settle records the end of an attempt, sets the job's new state and ends the lease.
func (s *Store) settle(j *job, settlement store.Settlement, now queue.UnixMillis) {
	defer s.endLease(j, now)
	if settlement.DeletableOutputFile != "" && !slices.Contains(s.deletableOutputs, settlement.DeletableOutputFile) {
		s.deletableOutputs = append(s.deletableOutputs, settlement.DeletableOutputFile)
	}
	d, a, wasRunning := settlement.Decision, settlement.Attempt, j.State == queue.Processing
	s.addAttemptEndSample(j, &settlement, now)
	if j.State != queue.Processing {
		s.setState(j, queue.Processing, now)
	}
	s.setState(j, d.NextState, now)
	j.WorkerID, j.PID, j.Reason = "", 0, d.Reason
	if j.State.IsRunnable() {
		j.DueAt = now.Add(d.StartDelay)
	}
	if j.State.HasEnded() && a.EndedAt != 0 {
		j.EndedAt = a.EndedAt
	}
	if d.CountsTowardMaxAttempts {
		j.Attempts++
	}
	if d.CountsAsDeferral {
		j.Deferrals++
	}
	if d.CountsAsShortage {
		j.Shortages++
	}
	if !d.RecordsAttempt { // no attempt ran, so the job keeps the results of its last attempt
		j.Error = cmp.Or(d.Error, j.Error)
		if j.State == queue.Held {
			s.addEvent(j, queue.EventHeld, queue.EventDetail{Reason: d.Reason}, now)
		}
		if moments := j.pendingHookEvents; moments != 0 {
			j.pendingHookEvents = 0
			s.createHookJobs(j, moments, now)
		}
		return
	}
	if !wasRunning {
		s.recordRateStarts(j, a.StartedAt, now)
	}
	s.addAttempt(j, &a, settlement, wasRunning)
	detail := queue.EventDetail{AttemptNumber: a.Number, StartedAt: a.StartedAt, Signal: a.Signal, Reason: d.Reason,
		HasOutput: len(a.Output) > 0 || a.OutputFileRef != "", CausedByUID: settlement.EndedByUID,
		Verb: settlement.EndedByVerb}
	if a.ExitCode >= 0 {
		detail.ExitCode = &a.ExitCode
	}
	s.addEvent(j, queue.EventEnded, detail, now)
}

// addAttempt adds an ended attempt to its job. startWasReported reports whether the service had reported the start of
// the attempt.
func (s *Store) addAttempt(j *job, attempt *queue.Attempt, settlement store.Settlement, startWasReported bool) {
	j.attemptRecordBytes += store.AttemptRecordBytes(&settlement, j.StartedAttempts)
	j.StartedAttempts++
	j.Shortages = 0
	j.NeedsIsolation = settlement.Decision.NeedsIsolation
	if settlement.Decision.CountsAsRunnerCrash {
		j.RunnerCrashes++
	}
	j.Error, j.ExitCode, j.Signal, j.StartedAt = settlement.Decision.Error, attempt.ExitCode, attempt.Signal,
		attempt.StartedAt
	attempt.Number = j.StartedAttempts
	attempt.Output, attempt.Result = slices.Clone(attempt.Output), slices.Clone(attempt.Result)
	if attempt.OutputFileRef == "" && attempt.OutputBytes >= 0 {
		attempt.OutputBytes = int64(len(attempt.Output) + len(attempt.Result))
	}
	if !startWasReported {
		j.Progress = nil
	}
	if settlement.Progress != nil {
		j.Progress = new(*settlement.Progress)
	}
	j.attempts = append(j.attempts, *attempt)
	j.OutputBytes += max(0, attempt.OutputBytes)
	if j.State == queue.Failed {
		j.pendingHookEvents = queue.HookFailed
	}
}

// AwaitJobs waits until a job can start, and claims up to maxJobs jobs.
func (s *Store) AwaitJobs(ctx context.Context, maxJobs int) ([]queue.Job, error) {
	w := &awaitCall{maxJobs: max(1, maxJobs), claimedJobs: make(chan []queue.Job, 1),
		dueEarlierHint: make(chan struct{}, 1)}
	addWaiter := func(queue.UnixMillis) error {
		s.awaitCalls = append(s.awaitCalls, w)
		return nil
	}
	if err := s.runUpdateTx(ctx, addWaiter); err != nil {
		return nil, err
	}
	// An update that changes nothing is enough to get jobs, because each update gives jobs to waiting calls.
	noChange := func(queue.UnixMillis) error { return nil }
	for {
		timer := time.NewTimer(s.timeUntilNextDueJob())
		select {
		case jobs, open := <-w.claimedJobs:
			timer.Stop()
			if !open {
				return nil, queue.ErrUnavailable
			}
			return jobs, nil
		case <-ctx.Done():
			timer.Stop()
			return s.endAwaitCall(w, ctx.Err())
		case <-w.dueEarlierHint:
			timer.Stop()
		case <-timer.C:
			// Ignore the error: it means that ctx has ended or the store is closed, and the next select
			// detects both.
			_ = s.runUpdateTx(ctx, noChange)
		}
	}
}

// endAwaitCall ends a waiting call of AwaitJobs. If a transaction has already given jobs to the call, endAwaitCall
// returns them: they are leased, and no other caller can run them.
func (s *Store) endAwaitCall(call *awaitCall, reason error) ([]queue.Job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.awaitCalls, call); i >= 0 {
		s.awaitCalls = slices.Delete(s.awaitCalls, i, i+1)
		return nil, reason
	}
	if jobs, open := <-call.claimedJobs; open {
		return jobs, nil
	}
	return nil, queue.ErrUnavailable
}

// serveAwaitCalls claims runnable jobs for waiting calls of AwaitJobs. It runs at the end of each transaction.
func (s *Store) serveAwaitCalls(now queue.UnixMillis) {
	for len(s.awaitCalls) > 0 {
		w := s.awaitCalls[0]
		jobs := s.claim(now, w.maxJobs)
		if len(jobs) == 0 {
			break
		}
		s.awaitCalls = s.awaitCalls[1:]
		w.claimedJobs <- jobs
	}
	for _, w := range s.awaitCalls {
		queue.TrySend(w.dueEarlierHint, struct{}{})
	}
}

// timeUntilNextDueJob returns the time until another job is due, at most an hour.
func (s *Store) timeUntilNextDueJob() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	next := now.Add(maxDueChangesInterval)
	for _, j := range s.jobs {
		// These jobs only wait for their due time. All other jobs wait until a job ends or a rule changes.
		if j.State.IsRunnable() && !j.isLeased && j.DueAt > now {
			next = min(next, j.DueAt)
		}
	}
	if opens := s.nextRateOpeningTime(now); opens != 0 {
		next = min(next, opens)
	}
	return time.Duration(next-now) * time.Millisecond
}

// ParentJobs returns the jobs on which a job depends or has depended.
func (s *Store) ParentJobs(ctx context.Context, seq int64) (parents []store.ParentJob, err error) {
	err = s.runReadTx(ctx, func() error {
		j, err := s.findJob(seq)
		if err != nil {
			return err
		}
		maxResult := queue.MaxDependencyResultBytes
		for _, l := range j.dependencyLinks {
			parent := s.jobs[l.ParentSeq]
			if parent == nil {
				continue
			}
			p := store.ParentJob{ID: parent.ID, UID: parent.UID, State: parent.State, ExitCode: parent.ExitCode}
			if n := len(parent.attempts); n > 0 && len(parent.attempts[n-1].Result) <= maxResult {
				p.ResultJSON = slices.Clone(parent.attempts[n-1].Result)
				maxResult -= len(p.ResultJSON)
			}
			parents = append(parents, p)
		}
		return nil
	})
	return parents, err
}

// PreviousSession returns the leases and the runners that an earlier service has left. IsDatabaseCopy is always false,
// because a store in memory is never a copy.
func (s *Store) PreviousSession(ctx context.Context) (session store.PreviousSession, err error) {
	err = s.runReadTx(ctx, func() error {
		for _, j := range s.jobsBySeq() {
			if j.isLeased {
				session.LeasedJobs = append(session.LeasedJobs, j.copyWithRank())
			}
		}
		session.RunnerDirs, session.HighestJobSeq = slices.Clone(s.runnerDirs), s.lastSeq
		return nil
	})
	return session, err
}

// AdvanceEpoch increments the epoch, the number of the service start, and returns it.
func (s *Store) AdvanceEpoch(ctx context.Context) (epoch int64, err error) {
	err = s.runUpdateTx(ctx, func(queue.UnixMillis) error {
		s.epoch++
		epoch = s.epoch
		return nil
	})
	return epoch, err
}

// StoreRunnerDirs stores the directories of the runners that may have leases.
func (s *Store) StoreRunnerDirs(_ context.Context, dirs []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runnerDirs = slices.Clone(dirs)
	return nil
}
