package rules

import (
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Exchange records what a worker pool reports about its leases, and then claims the jobs that the pool wants.
func (r *Rules) Exchange(t *store.Report) (g store.Grant, err error) {
	reportStale := func(l queue.Lease) { g.StaleLeases = append(g.StaleLeases, l) }
	for i := range t.Starts {
		r.recordStarted(&t.Starts[i], reportStale)
	}
	for i := range t.Progress {
		r.recordProgress(&t.Progress[i], reportStale)
	}
	for i := range t.Settlements {
		r.settle(&t.Settlements[i], t.MaxBytesPerUser, reportStale)
	}
	for _, l := range t.Releases {
		r.release(l, reportStale)
	}
	for _, c := range t.Changes {
		l := r.currentLease(c.Lease)
		r.release(c.Lease, reportStale)
		if l == nil || l.Running {
			continue
		}
		if err := r.Change(c.Seq, c.Change); errors.As(err, new(*queue.Error)) || errors.Is(err, store.ErrStateChanged) {
			if g.RejectedChanges == nil {
				g.RejectedChanges = map[queue.Lease]error{}
			}
			g.RejectedChanges[c.Lease] = err
		} else {
			r.recordErr(err)
		}
	}
	if t.WantedJobs > 0 && r.err == nil {
		g.Jobs, _, err = r.Claim(t.WantedJobs)
		r.recordErr(err)
	}
	return g, r.err
}

// currentLease returns the stored lease that l names. It returns nil if l is stale: if the lease has ended,
// or if the job has been leased again with a higher fence.
func (r *Rules) currentLease(l queue.Lease) *Lease {
	if current := r.tx.Lease(l.Seq); current != nil && current.Job.Fence == l.Fence {
		return current
	}
	return nil
}

// recordStarted records the start of an attempt. For a stale lease, it calls reportStale instead.
func (r *Rules) recordStarted(st *store.AttemptStart, reportStale func(queue.Lease)) {
	l := r.currentLease(st.Lease)
	if l == nil {
		reportStale(st.Lease)
	}
	if l == nil || l.Running {
		return
	}
	j := new(l.Job)
	j.StartedAt, j.WorkerID, j.PID = st.StartedAt, st.Worker, st.PID
	r.recordRateStarts(l, st.StartedAt)
	r.putProgress(j, nil)
	r.measureStart(l, st.StartedAt)
	detail := encodeDetail(queue.EventDetail{Attempt: j.StartedAttempts + 1, StartedAt: st.StartedAt})
	r.Move(j, queue.Processing, queue.EventStarted, detail)
}

// recordProgress records the progress of a running attempt. For a stale lease, it calls reportStale instead.
func (r *Rules) recordProgress(p *store.Progress, reportStale func(queue.Lease)) {
	l := r.currentLease(p.Lease)
	if l == nil || !l.Running {
		reportStale(p.Lease)
		return
	}
	j := new(l.Job)
	r.putProgress(j, &p.Progress)
	r.tx.PutLease(&Lease{Job: *j, Running: true, Needs: l.Needs})
	r.tx.NotifyWatches(j.Seq)
	detail := encodeDetail(queue.EventDetail{Attempt: j.StartedAttempts + 1, Percent: &p.Percent})
	r.recordErr(r.tx.AddEvent(queue.EventProgress, &j.Job, j.State, detail))
}

// putProgress writes the progress of a job if it has changed.
func (r *Rules) putProgress(j *Job, p *queue.Progress) {
	if old := j.Progress; old == p || old != nil && p != nil && *old == *p {
		return
	}
	if p != nil {
		p = new(*p) // copy it, because the caller owns p
	}
	j.Progress = p
	r.recordErr(r.tx.PutProgress(j))
}

// settle records how a lease has ended. For a stale lease, it calls reportStale instead. maxBytes limits the
// bytes that the job's user may hold; 0 means unlimited.
func (r *Rules) settle(e *store.Settlement, maxBytes int64, reportStale func(queue.Lease)) {
	l := r.currentLease(e.Lease)
	if l == nil {
		reportStale(e.Lease)
		return
	}
	if e.Decision.RecordsAttempt {
		e = r.makeRoomForAttempt(e, &l.Job, maxBytes)
		// Making room may have removed outputs or a record of earlier attempts, so read the lease again.
		l = r.currentLease(e.Lease)
	}
	if e.DeletableOutput != "" {
		r.recordErr(r.tx.AddDeletableOutput(e.DeletableOutput, e.Attempt.Node))
	}
	j, d, a := new(l.Job), &e.Decision, &e.Attempt
	clearRunningFields(j, e)
	if d.State.Runnable() {
		j.DueAt = r.tx.Now().Add(max(0, d.Delay))
	}
	// If no attempt ran, the job keeps the results of its last attempt.
	if !d.RecordsAttempt {
		j.Shortages += boolToInt(d.CountsShortage)
		if d.Error != "" {
			j.NewError = &d.Error
		}
		kind, detail := queue.EventKind(""), []byte(nil)
		if d.State == queue.Held {
			kind, detail = queue.EventHeld, disownedDetail
		}
		r.Move(j, d.State, kind, detail)
		r.disownAfterLease(j)
		return
	}
	if !l.Running {
		r.recordRateStarts(l, a.StartedAt)
		r.measureStart(l, a.StartedAt)
	}
	took := elapsed(a.StartedAt, a.EndedAt)
	r.tx.AddMeasurement(Measurement{Queue: j.Queue, EndState: d.State, Duration: took, Fingerprint: e.Fingerprint})
	// Without progress in the settlement, the job keeps the progress that the running attempt has reported.
	if e.Progress != nil || !l.Running {
		r.putProgress(j, e.Progress)
	}
	applyResult(j, e)
	r.tx.AddUserBytes(j.UID, j.StoredBytes-l.Job.StoredBytes, store.OutputSize(a))
	r.recordErr(r.tx.AddAttempt(j, e))
	r.Move(j, d.State, queue.EventEnded, endedDetail(j.StartedAttempts, a, e))
	r.disownAfterLease(j)
}

// clearRunningFields resets the fields of a job that describe a running attempt, and sets the reason for its
// state.
func clearRunningFields(j *Job, e *store.Settlement) {
	j.Reason, j.WorkerID, j.PID = e.Decision.Reason, "", 0
}

// applyResult copies the results of an ended attempt to its job.
func applyResult(j *Job, e *store.Settlement) {
	d, a := &e.Decision, &e.Attempt
	j.EndedAt = a.EndedAt
	j.OutputBytes, j.StoredBytes = j.OutputBytes+store.OutputSize(a), j.StoredBytes+store.AttemptRecordSize(e,
		j.StartedAttempts)
	j.StartedAttempts++
	j.Attempts, j.Deferrals, j.RunnerCrashes = j.Attempts+boolToInt(d.UsesAttempt), j.Deferrals+boolToInt(d.UsesDeferral),
		j.RunnerCrashes+boolToInt(d.CountsAsCrash)
	j.Shortages, j.NeedsIsolation = 0, d.NeedsIsolation
	j.StartedAt, j.ExitCode, j.Signal, j.NewError = a.StartedAt, a.ExitCode, a.Signal, &d.Error
}

// PredictRow returns the row that a job will have when the end of its attempt is recorded, so that the row
// can be written early. It returns nil if the row cannot be predicted. maxBytes limits the bytes that the
// job's user may hold; 0 means unlimited. PredictRow changes nothing.
func (r *Rules) PredictRow(e *store.Settlement, maxBytes int64) *Job {
	l := r.currentLease(e.Lease)
	if l == nil || !e.Decision.RecordsAttempt || !e.Decision.State.Ended() {
		return nil
	}
	added := store.OutputSize(&e.Attempt) + store.AttemptRecordSize(e, l.Job.StartedAttempts)
	if maxBytes > 0 && r.tx.UserCounts(l.Job.UID).Bytes+added > maxBytes {
		return nil // the removal of old outputs may change the row
	}
	j := l.Job
	clearRunningFields(&j, e)
	applyResult(&j, e)
	j.HeldUnits, j.Slot = "", NotQueued
	r.setState(&j, e.Decision.State)
	return &j
}

// measureStart adds the start of a leased job to the statistics, with the time that the job has waited since
// it was due and not blocked.
func (r *Rules) measureStart(l *Lease, startedAt queue.Millis) {
	j := &l.Job
	r.tx.AddMeasurement(Measurement{Queue: j.Queue, Duration: elapsed(max(j.DueAt, j.AgingSince), startedAt)})
}

// elapsed returns the time from start to end, or 0 if the clock was set back in between.
func elapsed(start, end queue.Millis) time.Duration {
	return max(0, time.Duration(end-start)*time.Millisecond)
}

// Pause records that a running job is paused or resumed.
func (r *Rules) Pause(p store.Pause) error {
	l := r.currentLease(p.Lease)
	switch {
	case l == nil:
		return store.ErrStateChanged
	case !l.Running:
		return store.ErrLeased
	case p.Paused == (l.Job.PausedAt != 0):
		return nil
	}
	j, kind := l.Job, queue.EventResumed
	j.PausedAt, j.PausedBy = 0, 0
	if p.Paused {
		j.PausedAt, j.PausedBy, kind = r.tx.Now(), p.UID, queue.EventPaused
	}
	r.Move(&j, queue.Processing, kind, UserDetail(p.UID))
	return r.err
}

// release ends a lease whose attempt has not started, and returns the job to the queue. The job keeps the
// fence (the number) of the lease, so that a later claim gets a higher one.
func (r *Rules) release(lease queue.Lease, reportStale func(queue.Lease)) {
	l := r.currentLease(lease)
	if l == nil || l.Running {
		reportStale(lease)
		return
	}
	j := new(l.Job)
	r.tx.UndoUserTurn(r.tx.Queue(j.Queue), j.UID, l.Turn)
	j.HeldUnits = ""
	// The job was due when it was claimed. Keep it due even if the clock has been set back since then.
	j.DueAt = min(j.DueAt, r.tx.Now())
	r.endLease(l)
	r.assignSlot(j)
	r.recordErr(r.tx.Put(j))
	r.tx.NotifyWatches(j.Seq)
	r.disownAfterLease(j)
}

// encodeDetail encodes the detail of an event.
func encodeDetail(d queue.EventDetail) []byte {
	raw, _ := json.Marshal(d) // an EventDetail has only texts and numbers, which can always be encoded
	return raw
}

// endedDetail returns the detail of the event for the end of an attempt.
func endedDetail(attemptNumber int, a *queue.Attempt, e *store.Settlement) []byte {
	hasOutput := len(a.Output) > 0 || a.OutputRef != ""
	if a.ExitCode >= 0 && a.Signal == 0 && e.Decision.Reason == "" && e.EndedBy == nil && !hasOutput {
		// Most details have only these numbers. A general encoder would take a tenth of the time in which the rules
		// settle a job.
		b := strconv.AppendInt([]byte(`{"attempt":`), int64(attemptNumber), 10)
		b = strconv.AppendInt(append(b, `,"started_at":`...), int64(a.StartedAt), 10)
		return append(strconv.AppendInt(append(b, `,"exit_code":`...), a.ExitCode, 10), '}')
	}
	d := queue.EventDetail{Attempt: attemptNumber, StartedAt: a.StartedAt, Signal: a.Signal, Reason: e.Decision.Reason,
		HasOutput: hasOutput, UID: e.EndedBy}
	if a.ExitCode >= 0 {
		d.ExitCode = &a.ExitCode
	}
	if e.EndedBy != nil {
		d.Verb = e.Verb
	}
	return encodeDetail(d)
}

// UserDetail returns the detail of an event that the user with this uid caused.
func UserDetail(uid int) []byte {
	return append(strconv.AppendInt([]byte(`{"uid":`), int64(uid), 10), '}')
}
