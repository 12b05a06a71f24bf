package store

import "context"

// Owners keeps the account names of the users who have enqueued jobs. The names are needed because the system may give
// the uid of a removed account to another account.
type Owners interface {
	// Owners returns the name that each uid had when it first enqueued a job. Former owners have uids below 0.
	// uidsBeingDisowned lists the uids that may still have jobs of a former owner, because DisownJobs has more steps to
	// do.
	Owners(ctx context.Context) (ownerNameByUID map[int]string, uidsBeingDisowned []int, err error)
	// DisownJobs takes the jobs of a uid from its recorded owner, because the uid now belongs to another account. It does
	// nothing if Owners lists another name for the uid. Waiting jobs of the former owner are held with ReasonDisowned. All
	// jobs of the former owner get a uid below 0, which no account has. Leased jobs get this uid when their lease is over.
	// Owners lists the former owner's name under the new uid.
	//
	// DisownJobs discards the former owner's staged batches. Hooks that the former owner's jobs have caused get the new
	// uid as their HookUID, so they do not count for the new owner. From the first call on, a request of the new owner
	// never counts as a repetition of a request of the former owner.
	//
	// Each call does one step, and more reports whether there are further steps. ApplyDueChanges does these steps too.
	// Jobs that the uid enqueues after the first call belong to its new owner.
	DisownJobs(ctx context.Context, uid int, ownerName string) (more bool, err error)
}
