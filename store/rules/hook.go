package rules

import (
	"errors"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// MaxHookBytes limits the bytes read and written for hooks in one step of an operation that ends many jobs. The
// step ends once its hooks have reached the limit.
const MaxHookBytes = 1 << 20

// enqueueHooks enqueues a job's hooks for the state that the job has just reached. A hook is a job that runs a
// command or sends a request because of that state. The hooks are stored in the same transaction as the state,
// so each is enqueued exactly once. If a hook cannot be enqueued, enqueueHooks adds an EventHookDropped. See
// docs/decisions/0094.
func (r *Rules) enqueueHooks(j *Job) {
	h := r.tx.Hooks()
	moments := queue.HookEventsOf(j.State) & (j.HookEvents | h.Triggers)
	if moments == 0 || j.HookEvents&queue.IsHook != 0 || h.MakeHooks == nil {
		return
	}
	// This check comes before the job's large fields are read.
	if r.tx.UserCounts(j.UID).Hooks >= queue.MaxWaitingHookJobs {
		r.recordDroppedHook(j)
		return
	}
	fullJob, err := r.tx.Job(j.Seq, ReadFull)
	isLost := errors.Is(err, queue.ErrNotFound) // the row was deleted while the job was leased
	if !isLost && r.failed(err) {
		return
	}
	// The hook would run as the job's user, so it is not created if that account no longer exists.
	if isLost || fullJob.Damaged || j.UID < 0 || r.tx.FormerOwnerUID(j.UID, j.Seq) != 0 {
		r.recordDroppedHook(j)
		return
	}
	for _, draft := range h.MakeHooks(&fullJob.Job, moments) {
		r.HookBytes += 2 * store.InputSize(&draft.Execution) // twice, because the input is read and written
		draft.HookEvents, draft.HookUID = draft.HookEvents|queue.IsHook, j.UID
		if !r.hookFits(j, &draft, h.MaxBytesPerUser) {
			r.recordDroppedHook(j)
			continue
		}
		// The limits on waiting jobs do not apply to hooks.
		draftNumber, seq, id, err := r.tx.RegisterDraft(&draft)
		if !r.failed(err) {
			r.recordErr(r.Insert(&draft, draftNumber, draft.UID, seq, id))
		}
	}
}

// recordDroppedHook records that a hook of a job was not created.
func (r *Rules) recordDroppedHook(j *Job) {
	r.recordErr(r.tx.AddEvent(queue.EventHookDropped, &j.Job, j.State, emptyDetail))
}

// hookFits reports whether a hook can be created: whether the job's user may have one more waiting hook, and
// whether the hook's own user may use the bytes that it needs. maxBytes limits the bytes that the hook's user
// may hold. If too few bytes are free, hookFits tries to make room.
func (r *Rules) hookFits(j *Job, draft *queue.Job, maxBytes int64) bool {
	size, err := r.tx.StoredSize(draft)
	r.recordErr(err)
	return r.tx.UserCounts(j.UID).Hooks < queue.MaxWaitingHookJobs && r.makeRoom(draft.UID, size, maxBytes)
}

var emptyDetail = []byte(`{}`)
