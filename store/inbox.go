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
	// SetRoles says whose jobs this service takes: those roles may hand them in.
	SetRoles(ctx context.Context, roles []string) error
	// Submissions lists some that were not refused, of the roles that were set here and of those that no service has set: the
	// oldest of each role, up to its limit, and up to MaxSubmitted bytes of them or one. A Request with its number takes one.
	Submissions(ctx context.Context, limit func(role string) int) ([]Submission, error)
	// Refuse keeps one that cannot become a job, with why; of such the newest MaxRefused of each role are kept.
	Refuse(ctx context.Context, n int64, why string) error
	// Arrivals hints that there may be new ones, until ctx ends.
	Arrivals(ctx context.Context) <-chan struct{}
}

// MaxSubmitted is how many bytes of a role's submissions are listed at once, if they are more than one.
const MaxSubmitted = 1 << 20

// MaxRefused is how many refused submissions of a role are kept.
const MaxRefused = 1000
