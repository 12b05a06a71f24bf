package rules

import (
	"fmt"

	"github.com/queuectl/queuectl/queue"
)

// Move changes a job's state; no other function does. It checks that the transition is allowed, puts a ready
// job into its lane, writes the job with all changes that the caller has made to it, and updates the counts.
// If kind is not "", it adds an event. Unless the new state is processing, it ends the lease of a leased job.
// See docs/decisions/0002.
func (r *Rules) Move(j *Job, newState queue.State, kind queue.EventKind, detail []byte) {
	from, oldSlot, wasKept := j.State, j.Slot, j.OwnRetention
	l := r.tx.Lease(j.Seq)
	if !transitionAllowed(from, newState, l != nil) {
		r.recordErr(fmt.Errorf("job %s cannot change from state %v to state %v", j.ID, from, newState))
		return
	}
	r.setState(j, newState)
	if oldSlot == Ready && l == nil {
		r.leaveLane(j)
	}
	if l != nil && newState != queue.Processing {
		j.HeldUnits = ""
		r.endLease(l)
	}
	r.assignSlot(j)
	if newState == queue.Processing {
		r.tx.PutLease(&Lease{Job: *j, Running: true, Needs: l.Needs})
	}
	r.recordErr(r.tx.Put(j))
	r.tx.CountTransition(j, from, newState)
	if j.OwnRetention != wasKept {
		r.tx.AdjustRetainedCount(j, boolToInt(j.OwnRetention)-boolToInt(wasKept))
	}
	if newState.Ended() != from.Ended() {
		r.recordErr(r.tx.AdjustNamingCounts(j, boolToInt(from.Ended())-boolToInt(newState.Ended())))
	}
	if newState.Ended() && !from.Ended() {
		r.addParentChange(j, newState)
	}
	if kind != "" {
		r.recordErr(r.tx.AddEvent(kind, &j.Job, newState, detail))
	}
	if newState.Ended() && !from.Ended() || newState == queue.Failed && kind == queue.EventEnded {
		r.enqueueHooks(j)
	}
}

// setState sets a job's state and the fields that depend on it.
func (r *Rules) setState(j *Job, newState queue.State) {
	j.State, j.UpdatedAt = newState, r.tx.Now()
	if newState != queue.Processing {
		j.PausedAt, j.PausedBy = 0, 0
	}
	j.OwnRetention = (newState == queue.Completed || newState == queue.Cancelled) && r.tx.Queue(j.Queue).HasOwnRetention
	switch {
	case !newState.Ended():
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

// assignSlot sets j.Slot from the job's state and due time, and puts a ready job into its lane (list of ready
// jobs). It makes the service call Promote when the job is due or expires.
func (r *Rules) assignSlot(j *Job) {
	if j.State.Waiting() {
		r.tx.WakeAt(j.ExpiresAt)
	}
	switch {
	case j.State == queue.Processing:
		j.Slot = Running
	case !j.State.Runnable():
		j.Slot = NotQueued
	case j.DueAt > r.tx.Now():
		j.Slot = Timed
		r.tx.WakeAt(j.DueAt)
	default:
		j.Slot = Ready
		r.joinLane(j)
	}
}

// MarkDue puts a job that is due into its lane. If its ageing starts now, the job gets its arrival number,
// from which ageing by enqueues counts.
func (r *Rules) MarkDue(j *Job) error {
	if j.State == queue.Pending && j.DueAt == j.AgingSince {
		j.ArrivalNumber = r.tx.Counts().EnqueuedTotal
		j.Rank = rankOf(r.tx, &j.Job)
	}
	r.assignSlot(j)
	r.recordErr(r.tx.Put(j))
	return r.err
}

// Expire cancels a job that was not started before it expired.
func (r *Rules) Expire(j *Job) error {
	j.Reason = queue.ReasonExpired
	r.Move(j, queue.Cancelled, queue.EventExpired, expiredDetail)
	return r.err
}

var (
	expiredDetail  = []byte(`{"reason":"expired"}`)
	disownedDetail = []byte(`{"reason":"disowned"}`)
)

// rankOf computes the job's rank from the current settings.
func rankOf(settings Settings, j *queue.Job) int64 {
	order, _ := settings.Order()
	return order.Rank(j.Priority, j.AgingSince, j.ArrivalNumber)
}

// Rerank changes a job's rank to the one that follows from the current settings.
func (r *Rules) Rerank(j *Job) error {
	l := r.tx.Lease(j.Seq)
	if l != nil {
		*j = l.Job
	} else if j.Slot == Ready {
		r.leaveLane(j)
	}
	j.Rank = rankOf(r.tx, &j.Job)
	if l != nil {
		r.tx.PutLease(&Lease{Job: *j, Running: l.Running, Needs: l.Needs, Turn: l.Turn})
	}
	if j.Slot == Ready {
		r.joinLane(j) // the lane's head may be after the new position, so add the job to its lane again
	}
	r.recordErr(r.tx.Put(j))
	return r.err
}

// Disown gives an unleased job to formerOwnerUID, a negative uid that no account has, because another account
// has the job's uid now. A waiting job is held.
func (r *Rules) Disown(j *Job, formerOwnerUID int) error {
	if j.Slot == Ready {
		r.leaveLane(j)
		j.Slot = NotQueued // the job is in no lane now; a waiting job is held below
	}
	from := j.State
	if from.Waiting() {
		r.tx.CountTransition(j, from, 0)
	}
	old := *j
	j.UID = formerOwnerUID
	r.tx.AddUserBytes(old.UID, -j.StoredBytes, -j.OutputBytes)
	r.tx.AddUserBytes(formerOwnerUID, j.StoredBytes, j.OutputBytes)
	if from.Waiting() {
		r.tx.CountTransition(j, 0, from)
	}
	if !from.Ended() {
		r.recordErr(r.tx.AdjustNamingCounts(&old, -1))
		r.recordErr(r.tx.AdjustNamingCounts(j, 1))
	}
	if !from.Waiting() || from == queue.Held {
		r.tx.NotifyWatches(j.Seq)
		r.recordErr(r.tx.Put(j))
		return r.err
	}
	j.Reason = queue.ReasonDisowned
	r.Move(j, queue.Held, queue.EventHeld, disownedDetail)
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
	waits := j.State.Waiting()
	if waits {
		r.tx.CountTransition(j, j.State, 0)
	}
	j.HookUID = formerOwnerUID
	if waits {
		r.tx.CountTransition(j, 0, j.State)
	}
	if lease != nil {
		r.tx.PutLease(lease)
	}
	r.recordErr(r.tx.PutHookUID(j))
	return r.err
}

// disownAfterLease disowns a job whose lease has just ended, if another account got the job's uid during the
// lease.
func (r *Rules) disownAfterLease(j *Job) {
	if former := r.tx.FormerOwnerUID(j.UID, j.Seq); former != 0 {
		r.tx.WakeAt(r.tx.Now()) // call Promote, which ends the disownment after its last job
		r.recordErr(r.Disown(j, former))
	}
}

// HoldDamaged holds a job that cannot be read. The stored state may be damaged too. If jobs do not start from
// that state, HoldDamaged does not change it, and only removes the job from its lane.
func (r *Rules) HoldDamaged(j *Job) error {
	if !j.State.Runnable() {
		j.Slot = NotQueued
		r.recordErr(r.tx.Put(j))
		return r.err
	}
	j.NewError = new(j.Error)
	r.Move(j, queue.Held, queue.EventHeld, emptyDetail)
	return r.err
}

// Remove deletes an unleased job and its history.
func (r *Rules) Remove(j *Job, detail []byte) error {
	if j.Slot == Ready {
		r.leaveLane(j)
	}
	if !j.State.Ended() {
		r.addParentChange(j, 0)
		r.recordErr(r.tx.AdjustNamingCounts(j, -1))
	}
	r.recordErr(r.tx.Remove(j.Seq))
	r.tx.AddUserBytes(j.UID, -j.StoredBytes, -j.OutputBytes)
	r.tx.CountTransition(j, j.State, 0)
	if j.OwnRetention {
		r.tx.AdjustRetainedCount(j, -1)
	}
	r.recordErr(r.tx.AddEvent(queue.EventRemoved, &j.Job, 0, detail))
	return r.err
}
