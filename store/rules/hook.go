package rules

import (
	"errors"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// MaxHookBytesPerStep limits the bytes that are read and written to create hooks in one step of an operation that
// ends many jobs. When a step has reached the limit, the operation continues in the next step.
const MaxHookBytesPerStep = 1 << 20

// enqueueHooks enqueues the hooks for the state that a job has just reached. A hook is a job that runs a
// command or sends a request because of that state. It is stored in the transaction that stores the state, so
// each hook is enqueued exactly once. If a hook cannot be enqueued, enqueueHooks adds an EventHookDropped.
// See docs/decisions/0094.
func (r *Rules) enqueueHooks(j *Job) {
	h := r.tx.Hooks()
	moments := queue.HookEventsOfState(j.State) & (j.HookEvents | h.TriggerEvents)
	if moments == 0 || j.HookEvents&queue.HookJobFlag != 0 || h.MakeHookDrafts == nil {
		return
	}
	// check this first, because reading the job's large fields takes time
	if r.tx.UserCounts(j.UID).WaitingHooks >= queue.MaxWaitingHookJobs {
		r.recordDroppedHook(j)
		return
	}
	fullJob, err := r.tx.Job(j.Seq, ReadScopeFull)
	isLost := errors.Is(err, queue.ErrNotFound) // the row was deleted while the job was leased
	if !isLost && r.hasFailed(err) {
		return
	}
	// A hook runs as the user of its job, so do not create it if the account of this user no longer exists.
	if isLost || fullJob.IsDamaged || j.UID < 0 || r.tx.FormerOwnerUID(j.UID, j.Seq) != 0 {
		r.recordDroppedHook(j)
		return
	}
	for _, draft := range h.MakeHookDrafts(&fullJob.Job, moments) {
		// the input is read and written, so count it twice
		r.HookBytesUsed += 2 * store.JobInputBytes(&draft.ExecutionSettings)
		draft.HookEvents, draft.HookUID = draft.HookEvents|queue.HookJobFlag, j.UID
		if !r.hookFitsQuotas(j, &draft, h.MaxBytesPerUser) {
			r.recordDroppedHook(j)
			continue
		}
		// Hooks are enqueued even if a limit on waiting jobs is reached.
		draftNumber, seq, id, err := r.tx.RegisterDraft(&draft)
		if !r.hasFailed(err) {
			// The hook has its own copy, because the job may be one that InsertJob is inserting.
			r.recordErr(r.insert(&Job{Job: draft}, &draft, draftNumber, draft.UID, seq, id))
		}
	}
}

// recordDroppedHook records that a hook of a job was not created.
func (r *Rules) recordDroppedHook(j *Job) {
	r.recordErr(r.tx.AddEvent(queue.EventHookDropped, &j.Job, j.State, emptyEventDetail))
}

// hookFitsQuotas reports whether a hook can be created: the job's user may have one more waiting hook, and the
// hook's user may use the bytes that it needs. maxBytes limits the bytes that the hook's user may hold. If
// too few bytes are free, hookFitsQuotas tries to free some.
func (r *Rules) hookFitsQuotas(j *Job, draft *queue.Job, maxBytes int64) bool {
	size, err := r.tx.StoredJobBytes(draft)
	r.recordErr(err)
	return r.tx.UserCounts(j.UID).WaitingHooks < queue.MaxWaitingHookJobs && r.makeRoomForBytes(draft.UID, size, maxBytes)
}

var emptyEventDetail = []byte(`{}`)
