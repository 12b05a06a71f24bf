package rules

import (
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// ReportAndClaim records what a worker pool reports about its leases, and then claims the jobs that the pool wants.
func (r *Rules) ReportAndClaim(report *store.LeaseReport) (grant store.ReportAndClaimResult, err error) {
	reportStale := func(l queue.Lease) { grant.StaleLeases = append(grant.StaleLeases, l) }
	for i := range report.AttemptStarts {
		r.recordAttemptStart(&report.AttemptStarts[i], reportStale)
	}
	for i := range report.ProgressReports {
		r.recordProgress(&report.ProgressReports[i], reportStale)
	}
	for i := range report.Settlements {
		r.settle(&report.Settlements[i], report.MaxBytesPerUser, reportStale)
	}
	for _, l := range report.ReleasedLeases {
		r.releaseLease(l, reportStale)
	}
	for _, c := range report.LeasedJobChanges {
		l := r.leaseIfCurrent(c.Lease)
		r.releaseLease(c.Lease, reportStale)
		if l == nil || l.AttemptStarted {
			continue
		}
		if err := r.ChangeJob(c.Seq, c.JobChange); errors.As(err, new(*queue.Error)) ||
			errors.Is(err, store.ErrJobStateChanged) {
			if grant.RejectedChanges == nil {
				grant.RejectedChanges = map[queue.Lease]error{}
			}
			grant.RejectedChanges[c.Lease] = err
		} else {
			r.recordErr(err)
		}
	}
	if report.MaxJobsToClaim > 0 && r.err == nil {
		grant.ClaimedJobs, _, err = r.Claim(report.MaxJobsToClaim)
		r.recordErr(err)
	}
	return grant, r.err
}

// leaseIfCurrent returns the stored lease that l names. It returns nil if l is stale: if the lease has ended,
// or if the job has been leased again with a higher fence.
func (r *Rules) leaseIfCurrent(l queue.Lease) *Lease {
	if current := r.tx.Lease(l.Seq); current != nil && current.Job.Fence == l.Fence {
		return current
	}
	return nil
}

// recordAttemptStart records the start of an attempt. If the lease is stale (has ended), it calls reportStale instead.
func (r *Rules) recordAttemptStart(start *store.AttemptStart, reportStale func(queue.Lease)) {
	l := r.leaseIfCurrent(start.Lease)
	if l == nil {
		reportStale(start.Lease)
	}
	if l == nil || l.AttemptStarted {
		return
	}
	j := new(l.Job)
	j.StartedAt, j.WorkerID, j.PID = start.StartedAt, start.WorkerID, start.PID
	r.recordRateStarts(l, start.StartedAt)
	r.putProgress(j, nil)
	r.addStartMeasurement(l, start.StartedAt)
	detail := encodeEventDetail(queue.EventDetail{AttemptNumber: j.StartedAttempts + 1, StartedAt: start.StartedAt})
	r.MoveToState(j, queue.Processing, queue.EventStarted, detail)
}

// recordProgress records the progress of a running attempt. If the lease is stale (has ended), it calls reportStale
// instead.
func (r *Rules) recordProgress(p *store.AttemptProgress, reportStale func(queue.Lease)) {
	l := r.leaseIfCurrent(p.Lease)
	if l == nil || !l.AttemptStarted {
		reportStale(p.Lease)
		return
	}
	j := new(l.Job)
	r.putProgress(j, &p.Progress)
	r.tx.PutLease(&Lease{Job: *j, AttemptStarted: true, HeldGateUnits: l.HeldGateUnits})
	r.tx.NotifyJobWatches(j.Seq)
	detail := encodeEventDetail(queue.EventDetail{AttemptNumber: j.StartedAttempts + 1, ProgressPercent: &p.Percent})
	r.recordErr(r.tx.AddEvent(queue.EventProgress, &j.Job, j.State, detail))
}

// putProgress writes the progress of a job if it has changed.
func (r *Rules) putProgress(j *Job, progress *queue.Progress) {
	if old := j.Progress; old == progress || old != nil && progress != nil && *old == *progress {
		return
	}
	if progress != nil {
		progress = new(*progress) // copy it, because the caller owns progress
	}
	j.Progress = progress
	r.recordErr(r.tx.PutProgress(j))
}

// settle records how a lease has ended. If the lease is stale (has ended), it calls reportStale instead. maxBytes
// limits the bytes that the job's user may hold; 0 means unlimited.
func (r *Rules) settle(settlement *store.Settlement, maxUserBytes int64, reportStale func(queue.Lease)) {
	l := r.leaseIfCurrent(settlement.Lease)
	if l == nil {
		reportStale(settlement.Lease)
		return
	}
	if settlement.Decision.RecordsAttempt {
		settlement = r.makeRoomForAttempt(settlement, &l.Job, maxUserBytes)
		// Making room may have removed outputs or a record of earlier attempts, so read the lease again.
		l = r.leaseIfCurrent(settlement.Lease)
	}
	if settlement.DeletableOutputFile != "" {
		r.recordErr(r.tx.AddDeletableOutput(settlement.DeletableOutputFile, settlement.Attempt.Node))
	}
	r.settledJob = l.Job
	j, d, a := &r.settledJob, &settlement.Decision, &settlement.Attempt
	clearRunningFields(j, settlement)
	if d.NextState.IsRunnable() {
		j.DueAt = r.tx.Now().Add(max(0, d.StartDelay))
	}
	// If no attempt ran, the job keeps the results of its last attempt.
	if !d.RecordsAttempt {
		j.Shortages += boolToInt(d.CountsAsShortage)
		if d.Error != "" {
			j.NewError = &d.Error
		}
		kind, detail := queue.EventKind(""), []byte(nil)
		if d.NextState == queue.Held {
			kind, detail = queue.EventHeld, disownedEventDetail
		}
		r.MoveToState(j, d.NextState, kind, detail)
		r.disownJobAfterLease(j)
		return
	}
	if !l.AttemptStarted {
		r.recordRateStarts(l, a.StartedAt)
		r.addStartMeasurement(l, a.StartedAt)
	}
	took := elapsedTime(a.StartedAt, a.EndedAt)
	r.tx.AddMeasurement(AttemptMeasurement{Queue: j.Queue, EndState: d.NextState, WaitOrRunTime: took,
		CommandFingerprint: settlement.CommandFingerprint})
	// Without progress in the settlement, the job keeps the progress that the running attempt has reported.
	if settlement.Progress != nil || !l.AttemptStarted {
		r.putProgress(j, settlement.Progress)
	}
	copyAttemptResultsToJob(j, settlement)
	r.tx.AdjustUserBytes(j.UID, j.StoredBytes-l.Job.StoredBytes, store.AttemptOutputBytes(a))
	r.recordErr(r.tx.AddAttempt(j, settlement))
	r.MoveToState(j, d.NextState, queue.EventEnded, attemptEndEventDetail(j.StartedAttempts, a, settlement))
	r.disownJobAfterLease(j)
}

// clearRunningFields resets the fields of a job that describe a running attempt, and sets the reason for its
// state.
func clearRunningFields(j *Job, settlement *store.Settlement) {
	j.Reason, j.WorkerID, j.PID = settlement.Decision.Reason, "", 0
}

// copyAttemptResultsToJob copies the results of an ended attempt to its job.
func copyAttemptResultsToJob(j *Job, settlement *store.Settlement) {
	d, a := &settlement.Decision, &settlement.Attempt
	j.EndedAt = a.EndedAt
	j.OutputBytes += store.AttemptOutputBytes(a)
	j.StoredBytes += store.AttemptRecordBytes(settlement, j.StartedAttempts)
	j.StartedAttempts++
	j.Attempts += boolToInt(d.CountsTowardMaxAttempts)
	j.Deferrals += boolToInt(d.CountsAsDeferral)
	j.RunnerCrashes += boolToInt(d.CountsAsRunnerCrash)
	j.Shortages, j.NeedsIsolation = 0, d.NeedsIsolation
	j.StartedAt, j.ExitCode, j.Signal, j.NewError = a.StartedAt, a.ExitCode, a.Signal, &d.Error
}

// PredictSettledRow returns the row that a job will have when the end of its attempt is recorded, so that the row
// can be written early. It returns nil if the row cannot be predicted. maxBytes limits the bytes that the
// job's user may hold; 0 means unlimited. PredictSettledRow changes nothing.
func (r *Rules) PredictSettledRow(settlement *store.Settlement, maxUserBytes int64) *Job {
	l := r.leaseIfCurrent(settlement.Lease)
	if l == nil || !settlement.Decision.RecordsAttempt || !settlement.Decision.NextState.HasEnded() {
		return nil
	}
	added := store.AttemptOutputBytes(&settlement.Attempt) + store.AttemptRecordBytes(settlement, l.Job.StartedAttempts)
	if maxUserBytes > 0 && r.tx.UserCounts(l.Job.UID).UsedBytes+added > maxUserBytes {
		return nil // the removal of old outputs may change the row
	}
	j := l.Job
	clearRunningFields(&j, settlement)
	copyAttemptResultsToJob(&j, settlement)
	j.HeldUnits, j.Slot = "", SlotNotQueued
	r.setState(&j, settlement.Decision.NextState)
	return &j
}

// addStartMeasurement adds the start of a leased job to the statistics, with the time that the job has waited since
// it was due and not blocked.
func (r *Rules) addStartMeasurement(l *Lease, startedAt queue.UnixMillis) {
	j := &l.Job
	r.tx.AddMeasurement(AttemptMeasurement{Queue: j.Queue, WaitOrRunTime: elapsedTime(max(j.DueAt, j.AgingSince),
		startedAt)})
}

// elapsedTime returns the time from start to end, or 0 if the clock was set back in between.
func elapsedTime(start, end queue.UnixMillis) time.Duration {
	return max(0, time.Duration(end-start)*time.Millisecond)
}

// RecordPause records that a running job is paused or resumed.
func (r *Rules) RecordPause(p store.JobPauseRequest) error {
	l := r.leaseIfCurrent(p.Lease)
	switch {
	case l == nil:
		return store.ErrJobStateChanged
	case !l.AttemptStarted:
		return store.ErrJobLeased
	case p.Paused == (l.Job.PausedAt != 0):
		return nil
	}
	j, kind := l.Job, queue.EventResumed
	j.PausedAt, j.PausedBy = 0, 0
	if p.Paused {
		j.PausedAt, j.PausedBy, kind = r.tx.Now(), p.RequesterUID, queue.EventPaused
	}
	r.MoveToState(&j, queue.Processing, kind, UserEventDetail(p.RequesterUID))
	return r.err
}

// releaseLease ends a lease whose attempt has not started, and returns the job to the queue. The job keeps the
// fence (the number) of the lease, so that a later claim gets a higher one.
func (r *Rules) releaseLease(lease queue.Lease, reportStale func(queue.Lease)) {
	l := r.leaseIfCurrent(lease)
	if l == nil || l.AttemptStarted {
		reportStale(lease)
		return
	}
	j := new(l.Job)
	r.tx.UndoUserTurn(r.tx.Queue(j.Queue), j.UID, l.UserTurn)
	j.HeldUnits = ""
	// The job was due when it was claimed. Keep it due even if the clock has been set back since then.
	j.DueAt = min(j.DueAt, r.tx.Now())
	r.endLease(l)
	r.assignSlot(j)
	r.recordErr(r.tx.PutJob(j))
	r.tx.NotifyJobWatches(j.Seq)
	r.disownJobAfterLease(j)
}

func encodeEventDetail(d queue.EventDetail) []byte {
	raw, _ := json.Marshal(d) // an EventDetail has only texts and numbers, which can always be encoded
	return raw
}

// attemptEndEventDetail returns the detail of the event for the end of an attempt.
func attemptEndEventDetail(attemptNumber int, a *queue.Attempt, settlement *store.Settlement) []byte {
	hasOutput := len(a.Output) > 0 || a.OutputFileRef != ""
	if a.ExitCode >= 0 && a.Signal == 0 && settlement.Decision.Reason == "" && settlement.EndedByUID == nil && !hasOutput {
		// The details of most attempts have only these three numbers. A general encoder would take a tenth of the time in
		// which the rules settle a job.
		b := strconv.AppendInt([]byte(`{"attempt":`), int64(attemptNumber), 10)
		b = strconv.AppendInt(append(b, `,"started_at":`...), int64(a.StartedAt), 10)
		return append(strconv.AppendInt(append(b, `,"exit_code":`...), a.ExitCode, 10), '}')
	}
	d := queue.EventDetail{AttemptNumber: attemptNumber, StartedAt: a.StartedAt, Signal: a.Signal,
		Reason: settlement.Decision.Reason, HasOutput: hasOutput, CausedByUID: settlement.EndedByUID}
	if a.ExitCode >= 0 {
		d.ExitCode = &a.ExitCode
	}
	if settlement.EndedByUID != nil {
		d.Verb = settlement.EndedByVerb
	}
	return encodeEventDetail(d)
}

// UserEventDetail returns the detail of an event that the user with this uid caused.
func UserEventDetail(uid int) []byte {
	return append(strconv.AppendInt([]byte(`{"uid":`), int64(uid), 10), '}')
}
