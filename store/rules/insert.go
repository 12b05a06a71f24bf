package rules

import (
	"github.com/queuectl/queuectl/queue"
)

// Insert enqueues a draft as a job with the given seq and id. For draftNumber, see Jobs.Insert. uid is the user
// who made the request.
func (r *Rules) Insert(draft *queue.Job, draftNumber, uid int, seq int64, id string) error {
	j, now := &Job{Job: *draft}, r.tx.Now()
	j.Seq, j.ID, j.State, j.ParentCount = seq, id, queue.Pending, len(draft.DependsOn)
	if j.RunAt == 0 {
		j.RunAt = now.Add(j.Delay)
	}
	j.CreatedAt, j.UpdatedAt, j.DueAt, j.AgingSince = now, now, j.RunAt, max(now, j.RunAt)
	r.tx.CountEnqueued()
	// The job's arrival number includes the job itself. Each job enqueued later gives it ageing points.
	j.ArrivalNumber = r.tx.Counts().EnqueuedTotal
	j.Rank = rankOf(r.tx, &j.Job)
	err := r.applyDeclaredLimits(j)
	if err == nil {
		err = r.tx.AdjustNamingCounts(j, 1)
	}
	if err != nil {
		return err
	}
	statuses, unresolved, failed, err := r.edgeStatuses(draft)
	if err != nil {
		return err
	}
	if unresolved || failed {
		j.State = queue.Blocked
	}
	if err := r.assignSlot(j); err != nil {
		return err
	}
	if err := r.tx.Insert(j, draftNumber); err != nil {
		return err
	}
	r.tx.AddUserBytes(j.UID, j.StoredBytes, 0)
	r.tx.CountTransition(j, 0, j.State)
	if err := r.tx.AddEvent(queue.EventEnqueued, &j.Job, j.State, UserDetail(uid)); err != nil {
		return err
	}
	for i := range statuses {
		if err := r.tx.AddEdge(seq, draft.DependsOn[i], draft.OnDependencyFailure, statuses[i]); err != nil {
			return err
		}
	}
	if failed {
		return r.applyDependencyFailure(j, draft.OnDependencyFailure)
	}
	return nil
}

// CancelReplacedJob cancels the waiting job that has the unique key of a draft, if the draft replaces it. The draft
// must have passed CheckUnique. cancelled reports whether CancelReplacedJob cancelled a job.
func (r *Rules) CancelReplacedJob(draft *queue.Job) (cancelled bool, err error) {
	if draft.Unique == "" || draft.OnConflict != queue.ConflictReplace {
		return false, nil
	}
	other, found, err := r.tx.UniqueKeyHolder(draft.UID, draft.Unique)
	if err != nil || !found || !other.State.Waiting() {
		return false, err
	}
	other.Reason = queue.ReasonReplaced
	return true, r.Move(&other, queue.Cancelled, queue.EventCancelled, replacedDetail)
}

var replacedDetail = []byte(`{"reason":"replaced"}`)
