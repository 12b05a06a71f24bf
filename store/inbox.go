package store

import "context"

// Submission is a job that a client has submitted with its own database transaction.
type Submission struct {
	Number       int64
	DatabaseRole string // PostgreSQL role that ran the transaction
	JobID        string // id of the job
	SpecJSON     []byte // the job's fields as JSON
}

// Inbox is a store in which clients submit jobs with a database transaction, without calling the service. A submission
// exists only if the client's transaction was committed. The submission stays until the service enqueues or rejects it.
type Inbox interface {
	// SetAcceptedDatabaseRoles sets the PostgreSQL roles whose submissions this service accepts.
	SetAcceptedDatabaseRoles(ctx context.Context, roles []string) error
	// Submissions lists submissions that were not rejected. It lists the submissions of the roles passed to
	// SetAcceptedDatabaseRoles, and of roles that no service has passed to SetAcceptedDatabaseRoles. For each role it
	// lists the oldest submissions, up to limitByRole(role) and up to MaxListedSubmissionBytes bytes, but at least one. To
	// enqueue a submission, set EnqueueRequest.SubmissionNumber to its number.
	Submissions(ctx context.Context, limitByRole func(role string) int) ([]Submission, error)
	// RejectSubmission marks a submission that cannot be enqueued as rejected, with the reason. For each
	// role, only the newest MaxRejectedSubmissions rejected submissions are kept.
	RejectSubmission(ctx context.Context, number int64, reason string) error
	// SubmissionHints returns a channel. Until ctx ends, the channel receives a value when new submissions
	// may exist.
	SubmissionHints(ctx context.Context) <-chan struct{}
}

// MaxListedSubmissionBytes limits the bytes of one role's submissions in a list. A larger submission is
// listed alone.
const MaxListedSubmissionBytes = 1 << 20

// MaxRejectedSubmissions is the maximum number of rejected submissions of a role that are kept.
const MaxRejectedSubmissions = 1000
