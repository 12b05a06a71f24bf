package store

import "github.com/queuectl/queuectl/queue"

// Hooks says which hooks the settings request, and when the store creates them; see queue.HookSet. The store
// also creates the hooks that a job requests itself (HookLines).
type Hooks struct {
	On queue.HookSet // moments at which Make is called for every job that is not a hook
	// Make returns the hooks of a job for the given moments, as drafts without an id. j is the job in its new
	// state. Make is called inside a transaction, possibly again if the transaction is undone. So it must not
	// wait or use the store. A nil Make creates no hooks.
	Make func(j *queue.Job, on queue.HookSet) []queue.Job
	// UID and Owner are the uid and the name of the account that owns hooks which do not run as the job's
	// user.
	UID   int
	Owner string
	// MaxBytesUser limits the bytes that one user's jobs may hold; 0 means unlimited. If a hook would exceed
	// it, room is made as for the end of an attempt; see Report.MaxBytesUser. If that does not make enough
	// room, the hook is not created.
	MaxBytesUser int64
}
