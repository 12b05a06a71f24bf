package store

import "context"

// Submission is a job that was handed in with a transaction of somebody else's.
type Submission struct {
	N    int64
	Role string // of the database, whose transaction it was
	ID   string // of the job
	Spec []byte // JSON of the job's fields
}

// Inbox is a store to which jobs may be handed in by other ways than the service: they are there exactly if the
// transaction is stored that handed them in, and stay until they are taken or refused.
type Inbox interface {
	// SetRoles says which roles may hand jobs in.
	SetRoles(ctx context.Context, roles []string) error
	// Submissions lists up to limit of each role's that were not refused, the oldest first.
	Submissions(ctx context.Context, limit int) ([]Submission, error)
	// Taken forgets one whose job is in the queue.
	Taken(ctx context.Context, n int64) error
	// Refuse keeps one that cannot become a job, with why; of such the newest MaxRefused are kept.
	Refuse(ctx context.Context, n int64, why string) error
	// Arrivals hints that there may be new ones, until ctx ends.
	Arrivals(ctx context.Context) <-chan struct{}
}

// MaxRefused is how many refused submissions are kept.
const MaxRefused = 1000
