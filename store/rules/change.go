package rules

import (
	"slices"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// readScopeFor returns which part of a job is read to apply a verb, such as cancel. Cancel, remove and hold
// read little, so that they work for large and damaged jobs too.
func readScopeFor(verb queue.Verb) ReadScope {
	switch verb {
	case queue.VerbCancel, queue.VerbRemove, queue.VerbHold:
		return ReadSummary
	case queue.VerbEdit:
		return ReadFull
	}
	return ReadTerms
}

// Change applies the verb of c to the job with the number seq; see store.Queue.Change.
func (r *Rules) Change(seq int64, c store.Change) error {
	if r.tx.Lease(seq) != nil {
		return store.ErrLeased
	}
	j, err := r.tx.Job(seq, readScopeFor(c.Verb))
	if err != nil {
		return err
	}
	if j.Damaged {
		return queue.Errorf(queue.CodeWrongState,
			"job %[1]s cannot be read; see why with: queuectl show %[1]s, or remove it with: queuectl rm %[1]s", j.ID)
	}
	to, event, acts, err := c.EffectOn(&j.Job)
	if err != nil || !acts {
		return err
	}
	if to.Waiting() && !j.State.Waiting() {
		if err := r.revive(&j, &c); err != nil {
			return err
		}
	}
	detail := UserDetail(c.UID)
	switch c.Verb {
	case queue.VerbRemove:
		return r.Remove(&j, detail)
	case queue.VerbCancel, queue.VerbHold:
		j.Reason = ""
		r.Move(&j, to, event, detail)
		return r.err
	case queue.VerbRelease:
		r.restartWait(&j, max(r.tx.Now(), j.RunAt)) // a released job does not wait for the end of its retry delay
	case queue.VerbRetry, queue.VerbRetryDead:
		if c.Timeout != nil {
			j.Timeout, j.WriteScope = *c.Timeout, WriteTerms
		}
		j.Attempts, j.Deferrals, j.Shortages, j.RunnerCrashes = 0, 0, 0, 0
		j.NewError, j.ExitCode, j.Signal, j.ExpiresAt = new(""), -1, 0, 0
		r.restartWait(&j, r.tx.Now())
		// A retried job sets the limits of the locks and rates that it names, like a new job.
		r.applyDeclaredLimits(&j)
	case queue.VerbEdit:
		if err := r.edit(&j, &c); err != nil {
			return err
		}
	}
	to = r.adjustForDependencies(&j, to)
	j.Rank = rankOf(r.tx, &j.Job)
	r.Move(&j, to, event, detail)
	return r.err
}

// adjustForDependencies returns the state that a job gets if a change requests requestedState. A job with an
// undecided dependency gets Blocked instead of a runnable state, and a job without one gets Pending instead
// of Blocked. An ended job that cannot change to Blocked gets requestedState: it does not wait for parents
// that run again.
func (r *Rules) adjustForDependencies(j *Job, requestedState queue.State) queue.State {
	runnable, mayWait := requestedState.Runnable() || requestedState == queue.Blocked,
		j.State.CanChangeTo(queue.Blocked) || !j.State.Ended()
	if !runnable || !mayWait || !r.tx.HasEdges() {
		return requestedState
	}
	waits, err := r.tx.HasEdgeWithStatus(j.Seq, store.Unresolved)
	r.recordErr(err)
	switch {
	case waits:
		return queue.Blocked
	case requestedState == queue.Blocked:
		r.restartWait(j, max(r.tx.Now(), j.RunAt))
		return queue.Pending
	}
	return requestedState
}

// revive prepares an ended job to wait for another start. It returns an error if a limit is reached, or if
// another job has the unique key. Unless c.KeepDependants is true, it also adds a ParentChange, so that
// dependants that were cancelled because of this job wait for it.
func (r *Rules) revive(j *Job, c *store.Change) error {
	if err := Admit(r.tx, j.UID, 1, c.MaxPending, c.MaxPendingPerUser); err != nil {
		return err
	}
	if err := AdmitQueues(r.tx, map[string]int64{j.Queue: 1}); err != nil {
		return err
	}
	if other, taken := r.successorWithKey(j); taken {
		return queue.Errorf(queue.CodeExists, "job %[1]s cannot run again, because job %[2]s was enqueued later with the "+
			"same unique key, %[3]q; wait for job %[2]s, or cancel it", j.ID, other.ID, j.Unique)
	}
	if c.KeepDependants || !r.tx.HasEdges() {
		return nil
	}
	r.tx.WakeAt(r.tx.Now())
	r.addParentChange(j, Rerun)
	return nil
}

// restartWait resets the waiting time of a job, as if the job were enqueued at dueAt. It leaves the job at
// least one attempt.
func (r *Rules) restartWait(j *Job, dueAt queue.Millis) {
	j.DueAt, j.AgingSince, j.ArrivalNumber, j.Reason = dueAt, dueAt, r.tx.Counts().EnqueuedTotal, ""
	j.Attempts = min(j.Attempts, j.MaxAttempts-1)
}

// checkEdit returns an error if a waiting job may not be changed from old to j.
func (r *Rules) checkEdit(old, j *Job) error {
	if err := queue.CheckDemands(j.Demands); err != nil {
		return err
	}
	if old.Queue != j.Queue {
		if err := AdmitQueues(r.tx, map[string]int64{j.Queue: 1}); err != nil {
			return err
		}
	}
	if old.Unique != j.Unique && j.Unique != "" {
		if other, found := r.keyHolder(j.UID, j.Unique); found && other.Seq != j.Seq {
			return keyTakenError("the unique key %q is already used by job %s", j.Unique, other.ID)
		}
	}
	if j.DependsOn != nil {
		return r.checkParents(j)
	}
	return nil
}

// edit applies a user's changes to a waiting job. If its start time does not change, the job keeps the ageing
// points that it has gained by waiting.
func (r *Rules) edit(j *Job, c *store.Change) error {
	old := *j
	sizeBefore, err := r.tx.StoredSize(&old.Job)
	if err != nil {
		return err
	}
	if err := c.Edit(&j.Job); err != nil {
		return err
	}
	if err := r.checkEdit(&old, j); err != nil {
		return err
	}
	sizeAfter, err := r.tx.StoredSize(&j.Job)
	if err == nil {
		err = AdmitBytes(r.tx, j.UID, sizeAfter-sizeBefore, c.MaxBytesPerUser)
	}
	if err != nil {
		return err
	}
	j.StoredBytes += sizeAfter - sizeBefore
	r.tx.AddUserBytes(j.UID, sizeAfter-sizeBefore, 0)
	if old.Queue != j.Queue {
		r.tx.CountTransition(&old, old.State, 0)
		r.tx.CountTransition(j, 0, old.State)
	}
	if j.DependsOn != nil {
		j.ParentCount = len(j.DependsOn)
		r.replaceEdges(j)
	}
	if j.Delay != 0 {
		j.RunAt = r.tx.Now().Add(j.Delay)
	}
	if j.RunAt != old.RunAt {
		j.DueAt, j.AgingSince, j.ArrivalNumber = j.RunAt, max(r.tx.Now(), j.RunAt), r.tx.Counts().EnqueuedTotal
	}
	j.WriteScope = WriteFull
	demandsChanged := !slices.Equal(old.Demands, j.Demands)
	if demandsChanged {
		r.recordErr(r.tx.AdjustNamingCounts(&old, -1))
	}
	if old.Slot == Ready { // the edit may change the job's lane
		r.leaveLane(&old)
		j.Slot = NotQueued
	}
	// Set the limits of locks and rates only if the edit has changed the demands.
	if demandsChanged {
		r.applyDeclaredLimits(j)
		r.recordErr(r.tx.AdjustNamingCounts(j, 1))
	}
	return nil
}
