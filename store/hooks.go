package store

import "github.com/queuectl/queuectl/queue"

// Hooks is what the store does for the sake of jobs that come to a moment, see queue.HookSet. A job's own
// HookLines count beside it.
type Hooks struct {
	On queue.HookSet // moments at which any job that is no hook itself has Make called
	// Make is the hooks of a job for these moments, as drafts without an id: it has come to them, and is
	// as it is now. It is called inside a transaction, maybe more than once for one that is undone, and so
	// neither waits nor asks the store. nil makes none.
	Make func(j *queue.Job, on queue.HookSet) []queue.Job
	// UID and Owner are the account, and its name, that those drafts are of which are not the job's user's.
	UID   int
	Owner string
	// MaxBytesUser is how many bytes the jobs of one user may hold; 0 means unlimited. If a hook would exceed it,
	// room is made as for the end of an attempt; see Report.MaxBytesUser. If that does not make enough room, the hook
	// is not created.
	MaxBytesUser int64
}
