package rules

import (
	"fmt"

	"github.com/queuectl/queuectl/queue"
)

// Move is the one place where a job's state changes: it sees to it that it may, has the job
// stand where it belongs, writes it, counts it and tells the event, unless kind is "". What
// else has changed of the job is written too. A lease that moves to another state than
// processing is over.
// See docs/decisions/0002.
func (r *Rules) Move(j *Job, to queue.State, kind queue.EventKind, detail []byte) error {
	from, was, kept := j.State, j.Standing, j.Kept
	l := r.tx.Lease(j.Seq)
	if !legal(from, to, l != nil) {
		return fmt.Errorf("job %s cannot change from state %v to state %v", j.ID, from, to)
	}
	r.become(j, to)
	if was == Ready && l == nil {
		if err := r.leaveLane(j); err != nil {
			return err
		}
	}
	if l != nil && to != queue.Processing {
		j.Units = ""
		r.endLease(l)
	}
	if err := r.stand(j); err != nil {
		return err
	}
	if to == queue.Processing {
		r.tx.Hold(&Lease{Job: *j, Running: true, Needs: l.Needs})
	}
	if err := r.tx.Put(j); err != nil {
		return err
	}
	r.tx.Moved(j, from, to)
	if j.Kept != kept {
		r.tx.CountKept(j, bit(j.Kept)-bit(kept))
	}
	if to.Ended() != from.Ended() {
		if err := r.tx.CountNaming(j, bit(from.Ended())-bit(to.Ended())); err != nil {
			return err
		}
	}
	if to.Ended() && !from.Ended() {
		if err := r.noteEnded(j, to); err != nil {
			return err
		}
	}
	if kind != "" {
		if err := r.tx.AddEvent(kind, &j.Job, to, detail); err != nil {
			return err
		}
	}
	if to.Ended() && !from.Ended() || to == queue.Failed && kind == queue.EventEnded {
		return r.hook(j)
	}
	return nil
}

// become has a job be in a state, with what goes with that.
func (r *Rules) become(j *Job, to queue.State) {
	j.State, j.UpdatedAt = to, r.tx.Now()
	if to != queue.Processing {
		j.PausedAt, j.PausedBy = 0, 0
	}
	j.Kept = (to == queue.Completed || to == queue.Cancelled) && r.tx.Queue(j.Queue).Keeps
	switch {
	case !to.Ended():
		j.EndedAt = 0
	case j.EndedAt <= 0:
		j.EndedAt = r.tx.Now()
	}
}

// legal reports whether a job may move. One that is leased may have run, whether that was
// recorded or not.
func legal(from, to queue.State, leased bool) bool {
	return from == to || from.May(to) || leased && from.May(queue.Processing) && queue.Processing.May(to)
}

// stand has a job stand where its state and its time say, and be looked at when it expires.
func (r *Rules) stand(j *Job) error {
	if j.State.Waiting() {
		r.tx.WakeAt(j.ExpiresAt)
	}
	switch {
	case j.State == queue.Processing:
		j.Standing = Running
	case !j.State.Runnable():
		j.Standing = Nowhere
	case j.DueAt > r.tx.Now():
		j.Standing = Timed
		r.tx.WakeAt(j.DueAt)
	default:
		j.Standing = Ready
		return r.joinLane(j)
	}
	return nil
}

// Due has a job whose time has come stand in its lane. One that comes to wait only now arrives
// now.
func (r *Rules) Due(j *Job) error {
	if j.State == queue.Pending && j.DueAt == j.Since {
		j.Arrival = r.tx.Counts().Enqueued
		j.Rank = r.rankOf(&j.Job)
	}
	if err := r.stand(j); err != nil {
		return err
	}
	return r.tx.Put(j)
}

// Expire cancels a job that was not started in time.
func (r *Rules) Expire(j *Job) error {
	j.Reason = queue.ReasonExpired
	return r.Move(j, queue.Cancelled, queue.EventExpired, expiredDetail)
}

var (
	expiredDetail  = []byte(`{"reason":"expired"}`)
	disownedDetail = []byte(`{"reason":"disowned"}`)
)

// rankOf is the rank that the order gives a job.
func (r *Rules) rankOf(j *queue.Job) int64 {
	order, _ := r.tx.Order()
	return order.Rank(j.Priority, j.Since, j.Arrival)
}

// Rerank gives a job the rank that the order asks for.
func (r *Rules) Rerank(j *Job) error {
	l := r.tx.Lease(j.Seq)
	if l != nil {
		*j = l.Job
	} else if j.Standing == Ready {
		if err := r.leaveLane(j); err != nil {
			return err
		}
	}
	j.Rank = r.rankOf(&j.Job)
	if l != nil {
		r.tx.Hold(&Lease{Job: *j, Running: l.Running, Needs: l.Needs, Turn: l.Turn})
	}
	if j.Standing == Ready {
		if err := r.joinLane(j); err != nil { // it may stand before the head now
			return err
		}
	}
	return r.tx.Put(j)
}

// Disown makes a job that nobody holds a former owner's; one that waits is held.
func (r *Rules) Disown(j *Job, former int) error {
	if j.Standing == Ready {
		if err := r.leaveLane(j); err != nil {
			return err
		}
		j.Standing = Nowhere // it is held below
	}
	from := j.State
	if from.Waiting() {
		r.tx.Moved(j, from, 0)
	}
	was := *j
	j.UID = former
	r.tx.Holds(was.UID, -j.Stored, -j.Outputs)
	r.tx.Holds(former, j.Stored, j.Outputs)
	if from.Waiting() {
		r.tx.Moved(j, 0, from)
	}
	if !from.Ended() {
		if err := r.rename(&was, j); err != nil {
			return err
		}
	}
	if !from.Waiting() || from == queue.Held {
		r.tx.Touched(j.Seq)
		return r.tx.Put(j)
	}
	j.Reason = queue.ReasonDisowned
	return r.Move(j, queue.Held, queue.EventHeld, disownedDetail)
}

// returned disowns a job that was leased while its uid was disowned, now that the lease is
// over.
func (r *Rules) returned(j *Job) error {
	former := r.tx.Disowned(j.UID, j.Seq)
	if former == 0 {
		return nil
	}
	r.tx.WakeAt(r.tx.Now()) // this may have been the last one
	return r.Disown(j, former)
}

// HoldDamaged holds a job that cannot be read. One whose state does not let it stand in a
// lane keeps that.
func (r *Rules) HoldDamaged(j *Job) error {
	if !j.State.Runnable() {
		j.Standing = Nowhere
		return r.tx.Put(j)
	}
	told := j.Error
	j.NewError = &told
	return r.Move(j, queue.Held, queue.EventHeld, noDetail)
}

// Remove deletes a job that nobody holds, with its history.
func (r *Rules) Remove(j *Job, detail []byte) error {
	if j.Standing == Ready {
		if err := r.leaveLane(j); err != nil {
			return err
		}
	}
	if !j.State.Ended() {
		err := r.noteEnded(j, 0)
		if err == nil {
			err = r.tx.CountNaming(j, -1)
		}
		if err != nil {
			return err
		}
	}
	if err := r.tx.Remove(j.Seq); err != nil {
		return err
	}
	r.tx.Holds(j.UID, -j.Stored, -j.Outputs)
	r.tx.Moved(j, j.State, 0)
	if j.Kept {
		r.tx.CountKept(j, -1)
	}
	return r.tx.AddEvent(queue.EventRemoved, &j.Job, 0, detail)
}
