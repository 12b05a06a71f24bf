package store

import "github.com/queuectl/queuectl/queue"

// Hooks says which hooks the store creates when a job reaches a moment; see queue.HookSet. Hooks that a job
// has itself (HookLines) are added.
type Hooks struct {
	On queue.HookSet // moments at which Make is called for every job that is not a hook
	// Make returns the hooks of a job for the given moments, as drafts without an id. j is the job as it is
	// after the moment. Make is called inside a transaction, possibly again if the transaction is undone. So
	// it must not wait or use the store. A nil Make creates no hooks.
	Make func(j *queue.Job, on queue.HookSet) []queue.Job
	// UID and Owner are the account, and its name, of drafts that do not run as the job's user.
	UID   int
	Owner string
	// MaxBytesUser limits the bytes that one user's jobs may hold; 0 means unlimited. If a hook would exceed
	// it, room is made as for the end of an attempt; see Report.MaxBytesUser. If that does not make enough
	// room, the hook is not created.
	MaxBytesUser int64
}
