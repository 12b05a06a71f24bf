package rules

import (
	"fmt"

	"github.com/queuectl/queuectl/queue"
)

// Move changes a job's state. No other function changes states. It checks that the transition is allowed, puts
// the job into its lane, writes the job and updates the counts. If kind is not "", it adds an event. It also
// writes other changes that the caller has made to the job. If the job is leased, a move to any state except
// processing ends the lease. See docs/decisions/0002.
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

// transitionAllowed reports whether a job may change from one state to another. For a leased job, it also
// allows the transitions from processing, because the attempt may have run although its start is not recorded
// yet.
func transitionAllowed(oldState, newState queue.State, isLeased bool) bool {
	return oldState == newState || oldState.CanChangeTo(newState) ||
		isLeased && oldState.CanChangeTo(queue.Processing) && queue.Processing.CanChangeTo(newState)
}

// assignSlot sets j.Slot according to the job's state and due time, and puts a ready job into its lane. It
// ensures that Promote is called when the job is due or expires.
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

// MarkDue puts a job that is due now into its lane. If ageing starts now, the job also gets its arrival number.
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

// rankOf returns the job's rank under the current order.
func rankOf(settings Settings, j *queue.Job) int64 {
	order, _ := settings.Order()
	return order.Rank(j.Priority, j.AgingSince, j.ArrivalNumber)
}

// Rerank gives a job its rank under the current order.
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
		r.joinLane(j) // the job joins its lane again, because its new position may be before the lane's head
	}
	r.recordErr(r.tx.Put(j))
	return r.err
}

// Disown gives an unleased job to formerOwnerUID, a uid below 0 that no account has. It is called when the
// job's uid belongs to another account now. A waiting job is then held.
func (r *Rules) Disown(j *Job, formerOwnerUID int) error {
	if j.Slot == Ready {
		r.leaveLane(j)
		j.Slot = NotQueued // the job is in no lane; a waiting job is held below
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

// disownAfterLease disowns a job whose lease has just ended, if another account got the job's uid during the
// lease.
func (r *Rules) disownAfterLease(j *Job) {
	if former := r.tx.FormerOwnerUID(j.UID, j.Seq); former != 0 {
		r.tx.WakeAt(r.tx.Now()) // wake Promote, which ends the disownment after its last job
		r.recordErr(r.Disown(j, former))
	}
}

// HoldDamaged holds a job that cannot be read. A job in a state that claims do not consider keeps its state and
// only leaves its lane.
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
