package store

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/queuectl/queuectl/queue"
)

// TextSize returns how many bytes the texts of a job take in a page of JSON, including quotes, commas and
// escapes. A page does not contain Env and Stdin.
func TextSize(j *queue.Job) int {
	n := 0
	for _, s := range []string{j.ID, queue.CommandText(j.Command, j.Argv), j.Cwd, j.Shell, j.StdinFile, j.User, j.Error, j.WorkerID} {
		n += jsonSize(s)
	}
	for _, s := range j.Argv {
		n += jsonSize(s)
	}
	for _, s := range j.Secrets {
		n += jsonSize(s)
	}
	if j.Progress != nil {
		n += jsonSize(j.Progress.Text)
	}
	for name, value := range j.Labels {
		n += jsonSize(name) + jsonSize(value)
	}
	return n
}

// AttemptSize returns how many bytes the texts of an attempt take in a page of JSON.
func AttemptSize(a *queue.Attempt) int {
	return jsonSize(a.Worker) + jsonSize(a.Node) + jsonSize(a.Error) + jsonSize(string(a.Reason)) + jsonSize(a.ResultError)
}

// jsonSize returns how many bytes JSON needs for a string and the comma or colon after it.
func jsonSize(s string) int {
	n := len(`"",`)
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			i += size
			if r == '\u2028' || r == '\u2029' || r == utf8.RuneError && size == 1 {
				size = len(`\u2028`)
			}
			n += size
			continue
		}
		i++
		switch {
		case c == '"' || c == '\\' || c == '\n' || c == '\r' || c == '\t' || c == '\b' || c == '\f':
			n += len(`\n`)
		case c < ' ' || c == '<' || c == '>' || c == '&':
			n += len(`\u0000`)
		default:
			n++
		}
	}
	return n
}

// OutputSize returns the bytes of output and result of an attempt that has just ended.
func OutputSize(a *queue.Attempt) int64 {
	if a.OutputRef != "" {
		return a.OutputBytes
	}
	return int64(len(a.Output) + len(a.Result))
}

// Bytes that a row counts for in a user's quota, without its texts. They include the row's index entries.
const (
	JobBytes        = 512 // a job, including one attempt
	AttemptBytes    = 128 // each further attempt
	DependencyBytes = 64  // each dependency of a job, even if the parent has ended
)

// KeptRecords is the number of attempt records that each job keeps, even if its user exceeds the limit on
// bytes.
const KeptRecords = 10

// RecordSize returns how many bytes the record of an attempt counts for, without the output. earlier is the
// number of the job's earlier attempts.
func RecordSize(e *Settlement, earlier int) int64 {
	n := int64(len(e.Decision.Error) + len(e.Attempt.ResultError))
	if earlier > 0 {
		n += AttemptBytes
	}
	return n
}

// QuotaField is the field of the error that QuotaExceeded returns.
const QuotaField = "max_bytes_per_user"

// QuotaError rejects a request that needs more bytes than a user may still use. It wraps a queue.Error.
type QuotaError struct {
	// Used, Most and More are bytes: in use, allowed in total, and needed in addition by the request.
	Used, Most, More int64
	rejection        *queue.Error
}

// Error implements error.
func (e *QuotaError) Error() string { return e.rejection.Error() }

// Unwrap returns the queue.Error.
func (e *QuotaError) Unwrap() error { return e.rejection }

// QuotaExceeded returns the error for a request that needs more bytes than a user may still use.
func QuotaExceeded(used, limit, added int64) error {
	return &QuotaError{Used: used, Most: limit, More: added, rejection: &queue.Error{Code: queue.CodeFull, Field: QuotaField, Message: fmt.Sprintf(
		"the jobs and schedules of this user use %d of %d bytes, and this request needs %d more; "+
			"cancel waiting jobs, remove ended jobs (queuectl rm --state done) or schedules, or ask an admin to raise the limit", used, limit, added)}}
}

// KeptInput is the largest input of a job, in bytes as stored, that stays until the job's row is removed.
// Larger inputs are removed if other jobs of the same user need the room; see TrimUser.
const KeptInput = 1 << 10

// Limits of the outputs and inputs that are removed to make room for the attempts and hooks of one
// transaction.
const (
	// RemovedTogether is the limit for all attempts and hooks of a transaction together. Each of them may use
	// RemovedForOne even if the others have used up this limit.
	RemovedTogether = 500
	RemovedForOne   = 10
)

// RemovalLimit returns how many outputs and inputs may be removed to make room for an attempt or a hook.
// examined is the number of outputs and inputs that the transaction has already read to make room for earlier
// attempts and hooks, even if that made no room.
func RemovalLimit(examined int) int { return max(RemovedForOne, RemovedTogether-examined) }

// LosesInput reports whether jobs that ended in this state lose long inputs if room is needed. Dead jobs keep
// theirs, because a user has yet to decide whether they run again.
func LosesInput(s queue.State) bool { return slices.Contains(BoundedStates, s) }

// InputGone returns an error if a job cannot run again because its input was removed.
func InputGone(j *queue.Job) error {
	fields := j.InputRemoved.Fields()
	if len(fields) == 0 {
		return nil
	}
	return &queue.Error{Code: queue.CodeWrongState, Field: fields[len(fields)-1], Message: fmt.Sprintf(
		"job %s cannot run again, because its input (%s) was removed to make room for newer jobs; enqueue it again with its input", j.ID, strings.Join(fields, ", "))}
}

// InputSize returns the bytes of a job's environment and standard input.
func InputSize(e *queue.Execution) int {
	n := len(e.Stdin)
	for _, v := range e.Env {
		n += len(v)
	}
	return n
}
