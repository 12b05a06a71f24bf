package rules

import (
	"github.com/queuectl/queuectl/queue"
)

// InsertJob enqueues a draft as a job with the given seq and id. draftNumber is the index of the draft in the
// request, or the number from RegisterDraft. uid is the user who made the request.
func (r *Rules) InsertJob(draft *queue.Job, draftNumber, uid int, seq int64, id string) error {
	r.insertedJob = Job{Job: *draft}
	return r.insert(&r.insertedJob, draft, draftNumber, uid, seq, id)
}

// insert is like InsertJob. The new job, *j, is a copy of the draft.
func (r *Rules) insert(j *Job, draft *queue.Job, draftNumber, uid int, seq int64, id string) error {
	now := r.tx.Now()
	j.Seq, j.ID, j.State, j.ParentCount = seq, id, queue.Pending, len(draft.DependsOn)
	if j.RunAt == 0 {
		j.RunAt = now.Add(j.Delay)
	}
	j.CreatedAt, j.UpdatedAt, j.DueAt, j.AgingSince = now, now, j.RunAt, max(now, j.RunAt)
	r.tx.CountEnqueuedJob()
	// The arrival number includes the job itself. So only jobs that are enqueued later add to its ageing
	// points.
	j.ArrivalNumber = r.tx.Counts().EnqueuedTotal
	j.Rank = computeRank(r.tx, &j.Job)
	r.applyDeclaredLimits(j)
	r.recordErr(r.tx.AdjustGateJobCounts(j, 1))
	statuses, unresolved, broken := r.dependencyStatuses(draft)
	if unresolved || broken {
		j.State = queue.Blocked
	}
	r.assignSlot(j)
	r.recordErr(r.tx.InsertJob(j, draftNumber))
	r.tx.AdjustUserBytes(j.UID, j.StoredBytes, 0)
	r.tx.CountStateTransition(j, 0, j.State)
	r.recordErr(r.tx.AddEvent(queue.EventEnqueued, &j.Job, j.State, UserEventDetail(uid)))
	for i := range statuses {
		r.recordErr(r.tx.AddEdge(seq, draft.DependsOn[i], draft.OnDependencyFailure, statuses[i]))
	}
	if broken {
		r.applyDependencyFailure(j, draft.OnDependencyFailure)
	}
	return r.err
}

// CancelReplacedJob cancels the waiting job that has the unique key of a draft, if the draft replaces that
// job. The draft must have passed CheckUniqueKeys. cancelled reports whether a job was cancelled.
func (r *Rules) CancelReplacedJob(draft *queue.Job) (cancelled bool, err error) {
	if draft.Unique == "" || draft.OnConflict != queue.ConflictReplaceExisting {
		return false, nil
	}
	other, found, err := r.tx.UniqueKeyHolder(draft.UID, draft.Unique)
	if err != nil || !found || !other.State.IsWaiting() {
		return false, err
	}
	other.Reason = queue.ReasonReplaced
	r.MoveToState(&other, queue.Cancelled, queue.EventCancelled, replacedEventDetail)
	return true, r.err
}

var replacedEventDetail = []byte(`{"reason":"replaced"}`)
