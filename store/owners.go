package store

import "context"

// Owners keeps the names of the users who have enqueued jobs, because the system may give the uid of a
// removed account to another one.
type Owners interface {
	// Owners returns the name that each uid had when it first enqueued a job. It lists former owners under uids
	// below 0. movingUIDs lists the uids that may still have jobs of a former owner, because Disown has not
	// finished.
	Owners(ctx context.Context) (ownerNames map[int]string, movingUIDs []int, err error)
	// Disown takes a uid from its recorded owner, because the uid now belongs to another account. It does
	// nothing if Owners lists another name for the uid. Waiting jobs of the former owner are held with
	// ReasonDisowned. All jobs of the former owner get a uid below 0, which no account has; leased jobs get it
	// when their lease is over. Owners lists the former owner's name under this new uid. Disown deletes the
	// former owner's keys and staged batches.
	//
	// Each call makes one step and reports whether there is more to do. Promote also makes these steps. Jobs
	// that the uid enqueues after the first call belong to its new owner.
	Disown(ctx context.Context, uid int, ownerName string) (more bool, err error)
}
