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
	// UserBytes returns how many bytes a user's jobs hold as of the last commit. For each job it counts the
	// stored Execution, JobBytes for the rest of the row, DependencyBytes for each dependency,
	// AttemptRecordSize for each attempt, and the outputs. Staged batches count too. Like Counts, UserBytes
	// reads no table and does not wait for a commit.
	UserBytes(uid int) int64
	// UsersOverBytes lists the users whose jobs hold more bytes than the given limit, most bytes first. It reads
	// no table.
	UsersOverBytes(maxBytes int64) []UserBytes
	// RemovableBytes returns how many bytes of a user's data TrimUserData can remove. It stops counting once
	// the sum is at least neededBytes.
	RemovableBytes(ctx context.Context, uid int, neededBytes int64) (int64, error)
	// TrimUserData removes a limited number of inputs and outputs of a user's jobs while the user holds more
	// bytes (UserBytes) than the given limit. It starts with jobs that have not ended. Ended jobs follow, in the
	// order in which they ended. It removes the outputs of all attempts that have ended. It removes inputs longer
	// than MaxKeptInputBytes if LosesInput is true for the job's state. The rows of the jobs stay. It reports
	// whether there is more to remove.
	TrimUserData(ctx context.Context, uid int, maxBytes int64) (more bool, err error)
}

// UserBytes is the number of bytes that the jobs of one user hold.
type UserBytes struct {
	UID   int
	Bytes int64
}

// SortUserBytes sorts users by the bytes of their jobs, most first.
func SortUserBytes(users []UserBytes) {
	slices.SortFunc(users, func(a, b UserBytes) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.UID, b.UID))
	})
}

// QuotaErrorField is the field of the error that NewQuotaError returns.
const QuotaErrorField = "max_bytes_per_user"

// QuotaError is the error for a request that needs more bytes than a user may still use. It wraps a queue.Error.
type QuotaError struct {
	// UsedBytes are in use, LimitBytes is the total that is allowed, and the request needs NeededBytes in addition.
	UsedBytes, LimitBytes, NeededBytes int64
	rejection                          *queue.Error
}

// Error returns the message of the queue.Error.
func (e *QuotaError) Error() string { return e.rejection.Error() }

// Unwrap returns the queue.Error.
func (e *QuotaError) Unwrap() error { return e.rejection }

// NewQuotaError returns the error for a request that needs more bytes than a user may still use.
func NewQuotaError(usedBytes, limitBytes, neededBytes int64) error {
	message := fmt.Sprintf("the jobs and schedules of this user use %d of %d bytes, and this request needs %d more; "+
		"cancel waiting jobs, remove ended jobs (queuectl rm --state done) or schedules, "+
		"or ask an admin to raise the limit", usedBytes, limitBytes, neededBytes)
	return &QuotaError{
		UsedBytes: usedBytes, LimitBytes: limitBytes, NeededBytes: neededBytes,
		rejection: &queue.Error{Code: queue.CodeQueueFull, Field: QuotaErrorField, Message: message},
	}
}

// MaxKeptInputBytes is the largest input of a job, in bytes as stored, that stays until the job's row is removed.
// Larger inputs are removed if other jobs of the same user need the room; see TrimUserData.
const MaxKeptInputBytes = 1 << 10

// Limits of the outputs and inputs that are removed to make room for the attempts and hooks of one
// transaction.
const (
	// MaxRemovedTotal is the limit for all attempts and hooks of a transaction together. Each of them may use
	// MaxRemovedEach even if the others have used up this limit.
	MaxRemovedTotal = 500
	MaxRemovedEach  = 10
)

// RemovalLimit returns how many outputs and inputs may be removed to make room for an attempt or a hook.
// examined is the number of outputs and inputs that the transaction has already read to make room for earlier
// attempts and hooks, even if that made no room.
func RemovalLimit(examined int) int { return max(MaxRemovedEach, MaxRemovedTotal-examined) }

// LosesInput reports whether jobs that ended in this state lose long inputs if room is needed. Dead jobs keep
// theirs, because a user has yet to decide whether they run again.
func LosesInput(s queue.State) bool { return slices.Contains(RetentionStates, s) }

// CheckInputKept returns an error if a job cannot run again because its input was removed.
func CheckInputKept(j *queue.Job) error {
	fields := j.InputRemoved.Fields()
	if len(fields) == 0 {
		return nil
	}
	message := fmt.Sprintf("job %s cannot run again, because its input (%s) was removed to make room for newer jobs; "+
		"enqueue it again with its input", j.ID, strings.Join(fields, ", "))
	return &queue.Error{Code: queue.CodeWrongState, Field: fields[len(fields)-1], Message: message}
}
