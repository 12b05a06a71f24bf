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
		return ReadScopeSummary
	case queue.VerbEdit:
		return ReadScopeFull
	}
	return ReadScopeSettings
}

// ChangeJob applies the verb of c to the job with the number seq; see store.Queue.ChangeJob.
func (r *Rules) ChangeJob(jobSeq int64, c store.JobChange) error {
	if r.tx.Lease(jobSeq) != nil {
		return store.ErrJobLeased
	}
	j, err := r.tx.Job(jobSeq, readScopeFor(c.Verb))
	if err != nil {
		return err
	}
	if j.IsDamaged {
		return queue.Errorf(queue.CodeWrongState,
			"job %[1]s cannot be read; see why with: queuectl show %[1]s, or remove it with: queuectl rm %[1]s", j.ID)
	}
	to, event, acts, err := c.EffectOn(&j.Job)
	if err != nil || !acts {
		return err
	}
	if to.IsWaiting() && !j.State.IsWaiting() {
		if err := r.prepareJobRestart(&j, &c); err != nil {
			return err
		}
	}
	detail := UserEventDetail(c.UID)
	switch c.Verb {
	case queue.VerbRemove:
		return r.RemoveUnleasedJob(&j, detail)
	case queue.VerbCancel, queue.VerbHold:
		j.Reason = ""
		r.MoveToState(&j, to, event, detail)
		return r.err
	case queue.VerbRelease:
		r.restartWaitingTime(&j, max(r.tx.Now(), j.RunAt)) // a released job does not wait for the end of its retry delay
	case queue.VerbRetry, queue.VerbRetryDead:
		if c.NewTimeout != nil {
			j.Timeout, j.WriteScope = *c.NewTimeout, WriteScopeSettings
		}
		j.Attempts, j.Deferrals, j.Shortages, j.RunnerCrashes = 0, 0, 0, 0
		j.NewError, j.ExitCode, j.Signal, j.ExpiresAt = new(""), -1, 0, 0
		r.restartWaitingTime(&j, r.tx.Now())
		// A retried job sets the limits of the locks and rates that it names, like a new job.
		r.applyDeclaredLimits(&j)
	case queue.VerbEdit:
		if err := r.applyEdit(&j, &c); err != nil {
			return err
		}
	}
	to = r.stateForDependencies(&j, to)
	j.Rank = computeRank(r.tx, &j.Job)
	r.MoveToState(&j, to, event, detail)
	return r.err
}

// stateForDependencies returns the state that a job gets if a change requests requestedState. A job with an
// undecided dependency gets Blocked instead of a runnable state, and a job without one gets Pending instead
// of Blocked. An ended job that cannot change to Blocked gets requestedState: it does not wait for parents
// that run again.
func (r *Rules) stateForDependencies(j *Job, requestedState queue.State) queue.State {
	runnable, mayWait := requestedState.IsRunnable() || requestedState == queue.Blocked,
		j.State.CanChangeTo(queue.Blocked) || !j.State.HasEnded()
	if !runnable || !mayWait || !r.tx.HasEdges() {
		return requestedState
	}
	waits, err := r.tx.HasEdgeWithStatus(j.Seq, store.Unresolved)
	r.recordErr(err)
	switch {
	case waits:
		return queue.Blocked
	case requestedState == queue.Blocked:
		r.restartWaitingTime(j, max(r.tx.Now(), j.RunAt))
		return queue.Pending
	}
	return requestedState
}

// prepareJobRestart prepares an ended job to wait for another start. It returns an error if a limit is reached, or if
// another job has the unique key. Unless c.KeepDependantsCancelled is true, it also adds a ParentStateChange, so that
// dependants that were cancelled because of this job wait for it.
func (r *Rules) prepareJobRestart(j *Job, c *store.JobChange) error {
	if err := CheckWaitingLimits(r.tx, j.UID, 1, c.MaxPendingJobs, c.MaxPendingJobsPerUser); err != nil {
		return err
	}
	if err := CheckQueueWaitingLimits(r.tx, map[string]int64{j.Queue: 1}); err != nil {
		return err
	}
	if other, taken := r.otherJobWithUniqueKey(j); taken {
		return queue.Errorf(queue.CodeExists, "job %[1]s cannot run again, because job %[2]s was enqueued later with the "+
			"same unique key, %[3]q; wait for job %[2]s, or cancel it", j.ID, other.ID, j.Unique)
	}
	if c.KeepDependantsCancelled || !r.tx.HasEdges() {
		return nil
	}
	r.tx.WakeServiceAt(r.tx.Now())
	r.addParentStateChange(j, ParentRerunState)
	return nil
}

// restartWaitingTime resets the waiting time of a job, as if the job were enqueued at dueAt. It leaves the job at
// least one attempt.
func (r *Rules) restartWaitingTime(j *Job, dueAt queue.UnixMillis) {
	j.DueAt, j.AgingSince, j.ArrivalNumber, j.Reason = dueAt, dueAt, r.tx.Counts().EnqueuedTotal, ""
	j.Attempts = min(j.Attempts, j.MaxAttempts-1)
}

// checkEdit returns an error if a waiting job may not be changed from old to edited.
func (r *Rules) checkEdit(old, edited *Job) error {
	if err := queue.CheckDemands(edited.Demands); err != nil {
		return err
	}
	if old.Queue != edited.Queue {
		if err := CheckQueueWaitingLimits(r.tx, map[string]int64{edited.Queue: 1}); err != nil {
			return err
		}
	}
	if old.Unique != edited.Unique && edited.Unique != "" {
		if other, found := r.currentUniqueKeyHolder(edited.UID, edited.Unique); found && other.Seq != edited.Seq {
			return uniqueKeyTakenError("the unique key %q is already used by job %s", edited.Unique, other.ID)
		}
	}
	if edited.DependsOn != nil {
		return r.checkEditedJobParents(edited)
	}
	return nil
}

// applyEdit applies a user's changes to a waiting job. If its start time does not change, the job keeps the ageing
// points that it has gained by waiting.
func (r *Rules) applyEdit(j *Job, c *store.JobChange) error {
	old := *j
	sizeBefore, err := r.tx.StoredJobBytes(&old.Job)
	if err != nil {
		return err
	}
	if err := c.EditJob(&j.Job); err != nil {
		return err
	}
	if err := r.checkEdit(&old, j); err != nil {
		return err
	}
	sizeAfter, err := r.tx.StoredJobBytes(&j.Job)
	if err == nil {
		err = CheckUserByteLimit(r.tx, j.UID, sizeAfter-sizeBefore, c.MaxBytesPerUser)
	}
	if err != nil {
		return err
	}
	j.StoredBytes += sizeAfter - sizeBefore
	r.tx.AdjustUserBytes(j.UID, sizeAfter-sizeBefore, 0)
	if old.Queue != j.Queue {
		r.tx.CountStateTransition(&old, old.State, 0)
		r.tx.CountStateTransition(j, 0, old.State)
	}
	if j.DependsOn != nil {
		j.ParentCount = len(j.DependsOn)
		r.replaceDependencyEdges(j)
	}
	if j.Delay != 0 {
		j.RunAt = r.tx.Now().Add(j.Delay)
	}
	if j.RunAt != old.RunAt {
		j.DueAt, j.AgingSince, j.ArrivalNumber = j.RunAt, max(r.tx.Now(), j.RunAt), r.tx.Counts().EnqueuedTotal
	}
	j.WriteScope = WriteScopeFull
	demandsChanged := !slices.Equal(old.Demands, j.Demands)
	if demandsChanged {
		r.recordErr(r.tx.AdjustGateJobCounts(&old, -1))
	}
	if old.Slot == SlotReady { // the edit may change the job's lane
		r.prepareJobToLeaveLane(&old)
		j.Slot = SlotNotQueued
	}
	// Set the limits of locks and rates only if the edit has changed the demands.
	if demandsChanged {
		r.applyDeclaredLimits(j)
		r.recordErr(r.tx.AdjustGateJobCounts(j, 1))
	}
	return nil
}
