package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// Quotas counts the bytes that the jobs of each user hold, and makes room for newer jobs of the same user.
type Quotas interface {
	// StoredBytesOfUser returns how many bytes a user's jobs hold as of the last commit, including jobs in batches. For
	// each job it counts the stored Execution, QuotaBytesPerJob for the rest of the row, QuotaBytesPerDependency for each
	// dependency, AttemptRecordBytes for each attempt, and the outputs. UserBytes reads no table and does not wait for a
	// commit.
	StoredBytesOfUser(uid int) int64
	// UsersOverStoredBytes lists the users whose jobs hold more bytes than the given limit, most bytes first. It reads
	// no table.
	UsersOverStoredBytes(maxBytes int64) []UserStoredBytes
	// RemovableUserBytes returns how many bytes of a user's data TrimUserData can remove. It stops counting when the count
	// has reached neededBytes.
	RemovableUserBytes(ctx context.Context, uid int, neededBytes int64) (int64, error)
	// TrimUserData removes inputs and outputs of a user's jobs until the jobs hold at most maxBytes (UserBytes). It begins
	// with the outputs of unfinished jobs. Ended jobs follow, in the order in which they ended. It removes an input only
	// if the input is longer than MaxKeptInputBytes and StateLosesLongInput is true for the job's state. The rows of the
	// jobs stay. One call removes a limited number of inputs and outputs. more reports whether another call must remove
	// more.
	TrimUserData(ctx context.Context, uid int, maxBytes int64) (more bool, err error)
}

// UserStoredBytes is the number of bytes that the jobs of one user hold.
type UserStoredBytes struct {
	UID         int
	StoredBytes int64
}

// SortByStoredBytes sorts users by the bytes of their jobs, most first.
func SortByStoredBytes(users []UserStoredBytes) {
	slices.SortFunc(users, func(a, b UserStoredBytes) int {
		return cmp.Or(cmp.Compare(b.StoredBytes, a.StoredBytes), cmp.Compare(a.UID, b.UID))
	})
}

// QuotaErrorField is the Field of the queue.Error that NewQuotaError creates.
const QuotaErrorField = "max_bytes_per_user"

// QuotaError is the error for a request that needs more bytes than the limit of the user allows. It wraps a
// queue.Error.
type QuotaError struct {
	// UsedBytes is the number of bytes in use, LimitBytes the number of allowed bytes, and NeededBytes the number of bytes
	// that the request needs in addition to UsedBytes.
	UsedBytes, LimitBytes, NeededBytes int64
	queueError                         *queue.Error
}

// Error returns the message of the queue.Error.
func (e *QuotaError) Error() string { return e.queueError.Error() }

// Unwrap returns the queue.Error.
func (e *QuotaError) Unwrap() error { return e.queueError }

// NewQuotaError returns the error for a request that needs more bytes than the limit of the user allows.
func NewQuotaError(usedBytes, limitBytes, neededBytes int64) error {
	message := fmt.Sprintf("the jobs and schedules of this user use %d of %d bytes, and this request needs %d more; "+
		"cancel waiting jobs, remove ended jobs (queuectl rm --state done) or schedules, "+
		"or ask an admin to raise the limit", usedBytes, limitBytes, neededBytes)
	return &QuotaError{
		UsedBytes: usedBytes, LimitBytes: limitBytes, NeededBytes: neededBytes,
		queueError: &queue.Error{Code: queue.CodeQueueFull, Field: QuotaErrorField, Message: message},
	}
}

// MaxKeptInputBytes is the size in bytes up to which the stored input of a job stays until the job is
// removed. TrimUserData removes larger inputs if other jobs of the same user need the space.
const MaxKeptInputBytes = 1 << 10

// Limits of how many outputs and inputs one transaction removes to make room for attempts and hooks.
const (
	// MaxRemovalsPerTransaction is the limit for all attempts and hooks of a transaction together. After it is reached, up
	// to MaxRemovalsPerAttempt outputs and inputs may still be removed for each further attempt or hook.
	MaxRemovalsPerTransaction = 500
	MaxRemovalsPerAttempt     = 10
)

// QuotaRemovalLimit returns how many outputs and inputs may be removed to make room for an attempt or a hook.
// examinedCount is the number of outputs and inputs that the transaction has already examined to make room, whether or
// not it removed them.
func QuotaRemovalLimit(examinedCount int) int {
	return max(MaxRemovalsPerAttempt, MaxRemovalsPerTransaction-examinedCount)
}

// StateLosesLongInput reports whether jobs that ended in this state lose long inputs when space is needed. Dead jobs
// keep their inputs, because a user may retry them.
func StateLosesLongInput(s queue.State) bool { return slices.Contains(StatesWithRetention, s) }

// CheckInputNotRemoved returns an error if a job cannot run again because its input was removed.
func CheckInputNotRemoved(j *queue.Job) error {
	fields := j.InputRemoved.FieldNames()
	if len(fields) == 0 {
		return nil
	}
	message := fmt.Sprintf("job %s cannot run again, because its input (%s) was removed to make room for newer jobs; "+
		"enqueue it again with its input", j.ID, strings.Join(fields, ", "))
	return &queue.Error{Code: queue.CodeWrongState, Field: fields[len(fields)-1], Message: message}
}
