package store

import "context"

// Submission is a job that a client has submitted with its own database transaction.
type Submission struct {
	Number int64
	Role   string // database role that ran the transaction
	ID     string // id of the job
	Spec   []byte // the job's fields as JSON
}

// Inbox is a store that accepts jobs through the database instead of the service. A submission exists only if
// the client's transaction was committed. It stays until the service enqueues or rejects it.
type Inbox interface {
	// SetRoles sets the database roles from which this service accepts submissions.
	SetRoles(ctx context.Context, roles []string) error
	// Submissions lists submissions that were not rejected, from the roles passed to SetRoles and from roles
	// that no service has passed to SetRoles. For each role it lists the oldest submissions: up to
	// limitOfRole(role) submissions and MaxListedSubmissionBytes bytes, but at least one submission. To enqueue
	// a submission, set Request.Submission to its number.
	Submissions(ctx context.Context, limitOfRole func(role string) int) ([]Submission, error)
	// RejectSubmission marks a submission that cannot be enqueued as rejected, with the reason. The
	// newest MaxRejectedSubmissions of each role are kept.
	RejectSubmission(ctx context.Context, number int64, reason string) error
	// SubmissionHints returns a channel. Until ctx ends, the channel receives a hint when new submissions may
	// exist.
	SubmissionHints(ctx context.Context) <-chan struct{}
}

// MaxListedSubmissionBytes limits the bytes of one role's submissions in a list. A submission that is larger is listed
// alone.
const MaxListedSubmissionBytes = 1 << 20

// MaxRejectedSubmissions limits the rejected submissions of a role that are kept.
const MaxRejectedSubmissions = 1000
