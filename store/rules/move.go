package rules

import (
	"fmt"

	"github.com/queuectl/queuectl/queue"
)

// MoveToState changes a job's state; no other function does. It checks that the transition is allowed, puts a ready job
// into its lane, writes the job with all changes that the caller has made to it, and updates the counts. If eventKind
// is not "", it adds an event. Unless the new state is processing, it ends the lease of a leased job. See
// docs/decisions/0002.
func (r *Rules) MoveToState(j *Job, newState queue.State, eventKind queue.EventKind, eventDetail []byte) {
	from, oldSlot, wasKept := j.State, j.Slot, j.UsesQueueRetention
	l := r.tx.Lease(j.Seq)
	if !transitionAllowed(from, newState, l != nil) {
		r.recordErr(fmt.Errorf("job %s cannot change from state %v to state %v", j.ID, from, newState))
		return
	}
	r.setState(j, newState)
	if oldSlot == SlotReady && l == nil {
		r.prepareJobToLeaveLane(j)
	}
	if l != nil && newState != queue.Processing {
		j.HeldUnits = ""
		r.endLease(l)
	}
	r.assignSlot(j)
	if newState == queue.Processing {
		r.tx.PutLease(&Lease{Job: *j, AttemptStarted: true, HeldGateUnits: l.HeldGateUnits})
	}
	r.recordErr(r.tx.PutJob(j))
	r.tx.CountStateTransition(j, from, newState)
	if j.UsesQueueRetention != wasKept {
		r.tx.AdjustRetainedCounts(j, boolToInt(j.UsesQueueRetention)-boolToInt(wasKept))
	}
	if newState.HasEnded() != from.HasEnded() {
		r.recordErr(r.tx.AdjustGateJobCounts(j, boolToInt(from.HasEnded())-boolToInt(newState.HasEnded())))
	}
	if newState.HasEnded() && !from.HasEnded() {
		r.addParentStateChange(j, newState)
	}
	if eventKind != "" {
		r.recordErr(r.tx.AddEvent(eventKind, &j.Job, newState, eventDetail))
	}
	if newState.HasEnded() && !from.HasEnded() || newState == queue.Failed && eventKind == queue.EventEnded {
		r.enqueueHooks(j)
	}
}

// setState sets a job's state and the fields that depend on it.
func (r *Rules) setState(j *Job, newState queue.State) {
	j.State, j.UpdatedAt = newState, r.tx.Now()
	if newState != queue.Processing {
		j.PausedAt, j.PausedBy = 0, 0
	}
	j.UsesQueueRetention = (newState == queue.Completed || newState == queue.Cancelled) &&
		r.tx.Queue(j.Queue).HasOwnRetention
	switch {
	case !newState.HasEnded():
		j.EndedAt = 0
	case j.EndedAt <= 0:
		j.EndedAt = r.tx.Now()
	}
}

// transitionAllowed reports whether a job may change from oldState to newState. A leased job may also change
// as if it were processing, because its attempt may have run before its start was reported.
func transitionAllowed(oldState, newState queue.State, isLeased bool) bool {
	return oldState == newState || oldState.CanChangeTo(newState) ||
		isLeased && oldState.CanChangeTo(queue.Processing) && queue.Processing.CanChangeTo(newState)
}

// assignSlot sets j.Slot from the job's state and due time, and puts a ready job into its lane (list of ready jobs). It
// also ensures that the service calls ApplyDueChanges at the time when the job is due or expires.
func (r *Rules) assignSlot(j *Job) {
	if j.State.IsWaiting() {
		r.tx.WakeServiceAt(j.ExpiresAt)
	}
	switch {
	case j.State == queue.Processing:
		j.Slot = SlotRunning
	case !j.State.IsRunnable():
		j.Slot = SlotNotQueued
	case j.DueAt > r.tx.Now():
		j.Slot = SlotWaitingUntilDue
		r.tx.WakeServiceAt(j.DueAt)
	default:
		j.Slot = SlotReady
		r.addJobToLane(j)
	}
}

// AddDueJobToLane puts a job that is due into its lane. If its ageing starts now, the job gets its arrival number,
// from which ageing by enqueues counts.
func (r *Rules) AddDueJobToLane(j *Job) error {
	if j.State == queue.Pending && j.DueAt == j.AgingSince {
		j.ArrivalNumber = r.tx.Counts().EnqueuedTotal
		j.Rank = computeRank(r.tx, &j.Job)
	}
	r.assignSlot(j)
	r.recordErr(r.tx.PutJob(j))
	return r.err
}

// CancelExpiredJob cancels a job that was not started before it expired.
func (r *Rules) CancelExpiredJob(j *Job) error {
	j.Reason = queue.ReasonExpired
	r.MoveToState(j, queue.Cancelled, queue.EventExpired, expiredEventDetail)
	return r.err
}

var (
	expiredEventDetail  = []byte(`{"reason":"expired"}`)
	disownedEventDetail = []byte(`{"reason":"disowned"}`)
)

// computeRank computes the job's rank from the current settings.
func computeRank(settings Settings, j *queue.Job) int64 {
	order, _ := settings.RankOrder()
	return order.Rank(j.Priority, j.AgingSince, j.ArrivalNumber)
}

// UpdateRank computes a job's rank from the current settings and stores it.
func (r *Rules) UpdateRank(j *Job) error {
	l := r.tx.Lease(j.Seq)
	if l != nil {
		*j = l.Job
	} else if j.Slot == SlotReady {
		r.prepareJobToLeaveLane(j)
	}
	j.Rank = computeRank(r.tx, &j.Job)
	if l != nil {
		r.tx.PutLease(&Lease{Job: *j, AttemptStarted: l.AttemptStarted, HeldGateUnits: l.HeldGateUnits, UserTurn: l.UserTurn})
	}
	if j.Slot == SlotReady {
		r.addJobToLane(j) // the lane's head may be after the new position, so add the job to its lane again
	}
	r.recordErr(r.tx.PutJob(j))
	return r.err
}

// DisownJob gives an unleased job to formerOwnerUID, a negative uid that no account has, because another account
// has the job's uid now. A waiting job is held.
func (r *Rules) DisownJob(j *Job, formerOwnerUID int) error {
	if j.Slot == SlotReady {
		r.prepareJobToLeaveLane(j)
		j.Slot = SlotNotQueued // the job is in no lane now; a waiting job is held below
	}
	from := j.State
	if from.IsWaiting() {
		r.tx.CountStateTransition(j, from, 0)
	}
	old := *j
	j.UID = formerOwnerUID
	r.tx.AdjustUserBytes(old.UID, -j.StoredBytes, -j.OutputBytes)
	r.tx.AdjustUserBytes(formerOwnerUID, j.StoredBytes, j.OutputBytes)
	if from.IsWaiting() {
		r.tx.CountStateTransition(j, 0, from)
	}
	if !from.HasEnded() {
		r.recordErr(r.tx.AdjustGateJobCounts(&old, -1))
		r.recordErr(r.tx.AdjustGateJobCounts(j, 1))
	}
	if !from.IsWaiting() || from == queue.Held {
		r.tx.NotifyJobWatches(j.Seq)
		r.recordErr(r.tx.PutJob(j))
		return r.err
	}
	j.Reason = queue.ReasonDisowned
	r.MoveToState(j, queue.Held, queue.EventHeld, disownedEventDetail)
	return r.err
}

// DisownHook makes a hook count for formerOwnerUID, a uid below 0, instead of for the uid whose job caused it. It is
// called when that uid belongs to another account now. The hook may be leased, and may run as any user.
func (r *Rules) DisownHook(j *Job, formerOwnerUID int) error {
	lease := r.tx.Lease(j.Seq)
	if lease != nil {
		changed := *lease
		lease, j = &changed, &changed.Job
	}
	waits := j.State.IsWaiting()
	if waits {
		r.tx.CountStateTransition(j, j.State, 0)
	}
	j.HookUID = formerOwnerUID
	if waits {
		r.tx.CountStateTransition(j, 0, j.State)
	}
	if lease != nil {
		r.tx.PutLease(lease)
	}
	r.recordErr(r.tx.PutHookUID(j))
	return r.err
}

// disownJobAfterLease disowns a job whose lease has just ended, if another account got the job's uid during the
// lease.
func (r *Rules) disownJobAfterLease(j *Job) {
	if former := r.tx.FormerOwnerUID(j.UID, j.Seq); former != 0 {
		r.tx.WakeServiceAt(r.tx.Now()) // call ApplyDueChanges, which ends the disownment after its last job
		r.recordErr(r.DisownJob(j, former))
	}
}

// HoldDamagedJob holds a job that cannot be read. The stored state may be damaged too. If jobs do not start from
// that state, HoldDamagedJob does not change it, and only removes the job from its lane.
func (r *Rules) HoldDamagedJob(j *Job) error {
	if !j.State.IsRunnable() {
		j.Slot = SlotNotQueued
		r.recordErr(r.tx.PutJob(j))
		return r.err
	}
	j.NewError = new(j.Error)
	r.MoveToState(j, queue.Held, queue.EventHeld, emptyEventDetail)
	return r.err
}

// RemoveUnleasedJob deletes an unleased job and its history.
func (r *Rules) RemoveUnleasedJob(j *Job, eventDetail []byte) error {
	if j.Slot == SlotReady {
		r.prepareJobToLeaveLane(j)
	}
	if !j.State.HasEnded() {
		r.addParentStateChange(j, 0)
		r.recordErr(r.tx.AdjustGateJobCounts(j, -1))
	}
	r.recordErr(r.tx.RemoveJob(j.Seq))
	r.tx.AdjustUserBytes(j.UID, -j.StoredBytes, -j.OutputBytes)
	r.tx.CountStateTransition(j, j.State, 0)
	if j.UsesQueueRetention {
		r.tx.AdjustRetainedCounts(j, -1)
	}
	r.recordErr(r.tx.AddEvent(queue.EventRemoved, &j.Job, 0, eventDetail))
	return r.err
}
