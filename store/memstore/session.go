package memstore

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// waiter is a call of Await that is waiting. A call gets jobs at most once: the transaction that gives it
// jobs removes it from Store.waiters. Close closes the channel claimedJobs.
type waiter struct {
	maxJobs     int              // maximum number of jobs to claim
	claimedJobs chan []queue.Job // receives the claimed jobs; has a buffer for one value
	wake        chan struct{}    // receives a value if a job may be due before the call's timer ends
}

// Exchange records what a service reports about its leases, and claims up to report.WantedJobs jobs.
func (s *Store) Exchange(ctx context.Context, report store.Report) (grant store.Grant, err error) {
	err = s.update(ctx, func(now queue.Millis) error {
		for _, e := range report.Starts {
			if j := s.jobOfLease(e.Lease); j == nil {
				grant.StaleLeases = append(grant.StaleLeases, e.Lease)
			} else if j.State != queue.Processing { // record a start only once, because the service may report it twice
				s.recordStart(j, e, now)
			}
		}
		for _, p := range report.Progress {
			if j := s.jobOfLease(p.Lease); j == nil || j.State != queue.Processing {
				grant.StaleLeases = append(grant.StaleLeases, p.Lease)
			} else {
				progress := p.Progress
				j.Progress = &progress
				s.addEvent(j, queue.EventProgress, queue.EventDetail{Attempt: j.StartedAttempts + 1, Percent: &progress.Percent},
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
		for _, l := range report.Releases {
			if j := s.jobOfLease(l); j == nil || j.State == queue.Processing {
				grant.StaleLeases = append(grant.StaleLeases, l)
			} else {
				s.takeBackTurn(j)
				s.endLease(j, now)
			}
		}
		for _, c := range report.Changes {
			j := s.jobOfLease(c.Lease)
			if j == nil || j.State == queue.Processing {
				grant.StaleLeases = append(grant.StaleLeases, c.Lease)
				continue
			}
			s.takeBackTurn(j)
			s.endLease(j, now)
			if err := s.change(j, c.Change, now); err != nil {
				if grant.RejectedChanges == nil {
					grant.RejectedChanges = map[queue.Lease]error{}
				}
				grant.RejectedChanges[c.Lease] = err
			}
		}
		grant.Jobs = s.claim(now, report.WantedJobs)
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

func (s *Store) recordStart(j *job, start store.AttemptStart, now queue.Millis) {
	s.recordRateStarts(j, start.StartedAt, now)
	s.addSample(j, 0, max(j.DueAt, j.AgingSince), start.StartedAt, now)
	s.setState(j, queue.Processing, now)
	j.StartedAt, j.WorkerID, j.PID, j.Progress = start.StartedAt, start.Worker, start.PID, nil
	s.addEvent(j, queue.EventStarted, queue.EventDetail{Attempt: j.StartedAttempts + 1, StartedAt: start.StartedAt}, now)
}

// Pause records that a running job is paused or resumed.
func (s *Store) Pause(ctx context.Context, p store.Pause) error {
	return s.update(ctx, func(now queue.Millis) error {
		j := s.jobOfLease(p.Lease)
		if j == nil {
			return store.ErrStateChanged
		}
		if j.State != queue.Processing {
			return store.ErrLeased
		}
		switch {
		case p.Paused && j.PausedAt == 0:
			j.PausedAt, j.PausedBy = now, p.UID
			s.addEvent(j, queue.EventPaused, queue.EventDetail{UID: &p.UID}, now)
		case !p.Paused && j.PausedAt != 0:
			j.PausedAt, j.PausedBy = 0, 0
			s.addEvent(j, queue.EventResumed, queue.EventDetail{UID: &p.UID}, now)
		default:
			return nil
		}
		j.UpdatedAt = now
		s.watchers.Notify(j.Seq)
		return nil
	})
}

// settle records the end of an attempt, sets the job's new state and ends the lease.
func (s *Store) settle(j *job, settlement store.Settlement, now queue.Millis) {
	defer s.endLease(j, now)
	if settlement.DeletableOutput != "" && !slices.Contains(s.garbage, settlement.DeletableOutput) {
		s.garbage = append(s.garbage, settlement.DeletableOutput)
	}
	d, a, wasRunning := settlement.Decision, settlement.Attempt, j.State == queue.Processing
	s.addEndSample(j, &settlement, now)
	if j.State != queue.Processing {
		s.setState(j, queue.Processing, now)
	}
	s.setState(j, d.State, now)
	j.WorkerID, j.PID, j.Reason = "", 0, d.Reason
	if j.State.Runnable() {
		j.DueAt = now.Add(d.Delay)
	}
	if j.State.Ended() && a.EndedAt != 0 {
		j.EndedAt = a.EndedAt
	}
	if d.UsesAttempt {
		j.Attempts++
	}
	if d.UsesDeferral {
		j.Deferrals++
	}
	if d.CountsShortage {
		j.Shortages++
	}
	if !d.RecordsAttempt { // no attempt ran, so the job keeps the results of its last attempt
		j.Error = cmp.Or(d.Error, j.Error)
		if j.State == queue.Held {
			s.addEvent(j, queue.EventHeld, queue.EventDetail{Reason: d.Reason}, now)
		}
		if moments := j.pendingHookEvents; moments != 0 {
			j.pendingHookEvents = 0
			s.createHooks(j, moments, now)
		}
		return
	}
	if !wasRunning {
		s.recordRateStarts(j, a.StartedAt, now)
	}
	s.addAttempt(j, &a, settlement, wasRunning)
	detail := queue.EventDetail{Attempt: a.Number, StartedAt: a.StartedAt, Signal: a.Signal, Reason: d.Reason,
		HasOutput: len(a.Output) > 0 || a.OutputRef != "", UID: settlement.EndedBy, Verb: settlement.Verb}
	if a.ExitCode >= 0 {
		detail.ExitCode = &a.ExitCode
	}
	s.addEvent(j, queue.EventEnded, detail, now)
}

// addAttempt adds an ended attempt to its job. wasRunning reports whether the service had reported the start
// of the attempt.
func (s *Store) addAttempt(j *job, a *queue.Attempt, settlement store.Settlement, wasRunning bool) {
	j.recordBytes += store.AttemptRecordSize(&settlement, j.StartedAttempts)
	j.StartedAttempts++
	j.Shortages = 0
	j.NeedsIsolation = settlement.Decision.NeedsIsolation
	if settlement.Decision.CountsAsCrash {
		j.RunnerCrashes++
	}
	j.Error, j.ExitCode, j.Signal, j.StartedAt = settlement.Decision.Error, a.ExitCode, a.Signal, a.StartedAt
	a.Number = j.StartedAttempts
	a.Output, a.Result = slices.Clone(a.Output), slices.Clone(a.Result)
	if a.OutputRef == "" && a.OutputBytes >= 0 {
		a.OutputBytes = int64(len(a.Output) + len(a.Result))
	}
	if !wasRunning {
		j.Progress = nil
	}
	if settlement.Progress != nil {
		j.Progress = new(*settlement.Progress)
	}
	j.attempts = append(j.attempts, *a)
	j.OutputBytes += max(0, a.OutputBytes)
	if j.State == queue.Failed {
		j.pendingHookEvents = queue.HookFailed
	}
}

// Await waits until a job can start, and claims up to maxJobs jobs.
func (s *Store) Await(ctx context.Context, maxJobs int) ([]queue.Job, error) {
	w := &waiter{maxJobs: max(1, maxJobs), claimedJobs: make(chan []queue.Job, 1), wake: make(chan struct{}, 1)}
	addWaiter := func(queue.Millis) error {
		s.waiters = append(s.waiters, w)
		return nil
	}
	if err := s.update(ctx, addWaiter); err != nil {
		return nil, err
	}
	// noChange is enough to get jobs, because each update gives jobs to waiting calls.
	noChange := func(queue.Millis) error { return nil }
	for {
		timer := time.NewTimer(s.timeUntilRunnable())
		select {
		case jobs, open := <-w.claimedJobs:
			timer.Stop()
			if !open {
				return nil, queue.ErrUnavailable
			}
			return jobs, nil
		case <-ctx.Done():
			timer.Stop()
			return s.stopWaiting(w, ctx.Err())
		case <-w.wake:
			timer.Stop()
		case <-timer.C:
			// Ignore the error: it means that ctx has ended or the store is closed, and the next select
			// detects both.
			_ = s.update(ctx, noChange)
		}
	}
}

// stopWaiting ends a waiting call of Await. If a transaction has already given jobs to the call, stopWaiting
// returns them: they are leased, and no other caller can run them.
func (s *Store) stopWaiting(w *waiter, reason error) ([]queue.Job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.waiters, w); i >= 0 {
		s.waiters = slices.Delete(s.waiters, i, i+1)
		return nil, reason
	}
	if jobs, open := <-w.claimedJobs; open {
		return jobs, nil
	}
	return nil, queue.ErrUnavailable
}

// serveWaiters claims runnable jobs for waiting calls of Await. It runs at the end of each transaction.
func (s *Store) serveWaiters(now queue.Millis) {
	for len(s.waiters) > 0 {
		w := s.waiters[0]
		jobs := s.claim(now, w.maxJobs)
		if len(jobs) == 0 {
			break
		}
		s.waiters = s.waiters[1:]
		w.claimedJobs <- jobs
	}
	for _, w := range s.waiters {
		queue.TrySend(w.wake, struct{}{})
	}
}

// timeUntilRunnable returns the time until another job is due, at most an hour.
func (s *Store) timeUntilRunnable() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	next := now.Add(maxPromoteInterval)
	for _, j := range s.jobs {
		// These jobs only wait for their due time. All others wait until a job ends or a rule changes.
		if j.State.Runnable() && !j.isLeased && j.DueAt > now {
			next = min(next, j.DueAt)
		}
	}
	if opens := s.nextRateOpening(now); opens != 0 {
		next = min(next, opens)
	}
	return time.Duration(next-now) * time.Millisecond
}

// Parents returns the jobs on which a job depends or has depended.
func (s *Store) Parents(ctx context.Context, seq int64) (list []store.Parent, err error) {
	err = s.read(ctx, func() error {
		j, err := s.findJob(seq)
		if err != nil {
			return err
		}
		maxResult := queue.MaxDependencyResultBytes
		for _, l := range j.links {
			parent := s.jobs[l.JobSeq]
			if parent == nil {
				continue
			}
			p := store.Parent{ID: parent.ID, UID: parent.UID, State: parent.State, ExitCode: parent.ExitCode}
			if n := len(parent.attempts); n > 0 && len(parent.attempts[n-1].Result) <= maxResult {
				p.Result = slices.Clone(parent.attempts[n-1].Result)
				maxResult -= len(p.Result)
			}
			list = append(list, p)
		}
		return nil
	})
	return list, err
}

// PreviousSession returns the leases and the runners that an earlier service has left. IsCopy is always false,
// because a store in memory is never a copy.
func (s *Store) PreviousSession(ctx context.Context) (session store.PreviousSession, err error) {
	err = s.read(ctx, func() error {
		for _, j := range s.jobsBySeq() {
			if j.isLeased {
				session.LeasedJobs = append(session.LeasedJobs, j.leasedJob())
			}
		}
		session.RunnerDirs, session.LastSeq = slices.Clone(s.runnerDirs), s.lastSeq
		return nil
	})
	return session, err
}

// NextEpoch increments the epoch, the number of the service start, and returns it.
func (s *Store) NextEpoch(ctx context.Context) (epoch int64, err error) {
	err = s.update(ctx, func(queue.Millis) error {
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
