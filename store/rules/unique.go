package rules

import (
	"errors"
	"fmt"

	"github.com/queuectl/queuectl/queue"
)

// DraftSubstitute is the job that the reply names instead of a new job (draft) that is not stored, because both have
// the same unique key. The substitute is an existing job or, if Job is nil, an earlier draft of the request.
type DraftSubstitute struct {
	ExistingJob *Job
	DraftIndex  int
}

// uniqueKeyChecker finds the jobs that use a unique key.
type uniqueKeyChecker struct {
	*txFailure
	clock  Clock
	jobs   Jobs
	leases Leases
}

// CheckUniqueKeys checks whether a stored job or an earlier draft uses the unique key of a draft. If so, the
// draft's conflict action decides: CheckUniqueKeys returns an error, or the draft replaces the other job or
// draft, or the draft is not stored. substitutes maps the index of each draft that is not stored to the
// job or draft with its key.
func (u *uniqueKeyChecker) CheckUniqueKeys(drafts []queue.Job) (substitutes map[int]DraftSubstitute, err error) {
	var earlierDrafts map[string]int // for each key, the index of the draft that will have it
	for i := range drafts {
		d := &drafts[i]
		if d.Unique == "" {
			continue
		}
		if substitutes == nil {
			substitutes, earlierDrafts = map[int]DraftSubstitute{}, map[string]int{}
		}
		earlierIndex, duplicate := earlierDrafts[d.Unique]
		var keyOwner *Job
		switch {
		case duplicate && d.OnConflict == queue.ConflictReject:
			err = uniqueKeyTakenError("an earlier job of this request has the same unique key, %q; give each job its own key",
				d.Unique)
		case duplicate && d.OnConflict == queue.ConflictReturnExisting:
			substitutes[i] = DraftSubstitute{DraftIndex: earlierIndex}
			continue
		case !duplicate:
			keyOwner, err = u.findConflictingJob(d)
		}
		var rejection *queue.Error
		if errors.As(err, &rejection) {
			return nil, errorAtDraft(rejection, i, len(drafts))
		}
		if err != nil {
			return nil, err
		}
		if keyOwner != nil && d.OnConflict == queue.ConflictReturnExisting {
			substitutes[i] = DraftSubstitute{ExistingJob: keyOwner}
			continue
		}
		earlierDrafts[d.Unique] = i
	}
	if len(substitutes) == 0 {
		return nil, nil
	}
	return substitutes, checkDraftsAcyclic(drafts, substitutes)
}

// findConflictingJob returns the job that already uses the unique key of a draft, or nil. It returns an error if the
// draft must be rejected because of that job.
func (u *uniqueKeyChecker) findConflictingJob(draft *queue.Job) (*Job, error) {
	j, found := u.currentUniqueKeyHolder(draft.UID, draft.Unique)
	switch {
	case !found:
		return nil, u.err
	case draft.OnConflict == queue.ConflictReturnExisting,
		draft.OnConflict == queue.ConflictReplaceExisting && j.State.IsWaiting() && u.leases.Lease(j.Seq) == nil:
		return &j, nil
	case j.State.HasEnded():
		until := j.EndedAt.Add(j.UniqueFor)
		return nil, uniqueKeyTakenError("the unique key %q is already used by job %s, which is %v but keeps the key until %s",
			draft.Unique, j.ID, j.State, until)
	}
	return nil, uniqueKeyTakenError("the unique key %q is already used by job %s, which is %v; "+
		"wait for that job, or cancel it", draft.Unique, j.ID, j.State)
}

func uniqueKeyTakenError(format string, args ...any) error {
	return &queue.Error{Code: queue.CodeExists, Field: "unique", Message: fmt.Sprintf(format, args...)}
}

// currentUniqueKeyHolder returns the job that currently reserves a unique key. found is false if the key is free.
func (u *uniqueKeyChecker) currentUniqueKeyHolder(uid int, uniqueKey string) (holder Job, found bool) {
	holder, found, err := u.jobs.UniqueKeyHolder(uid, uniqueKey)
	u.recordErr(err)
	return holder, found && (!holder.State.HasEnded() || holder.EndedAt.Add(holder.UniqueFor) > u.clock.Now())
}

// otherJobWithUniqueKey returns the unfinished job, other than j, that uses the unique key of the ended job j.
func (u *uniqueKeyChecker) otherJobWithUniqueKey(j *Job) (otherJob Job, isTaken bool) {
	if j.Unique == "" {
		return otherJob, false
	}
	otherJob, found, err := u.jobs.UniqueKeyHolder(j.UID, j.Unique)
	u.recordErr(err)
	return otherJob, found && otherJob.Seq != j.Seq && !otherJob.State.HasEnded()
}
