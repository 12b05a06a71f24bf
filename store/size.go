package store

import (
	"encoding/json"
	"slices"

	"github.com/queuectl/queuectl/queue"
)

// JobTextSize returns how many bytes the texts of a job take in a page of JSON, including quotes, commas and
// escapes. A page does not contain Env and Stdin.
func JobTextSize(j *queue.Job) int {
	texts := slices.Concat([]string{
		j.ID, queue.CommandText(j.Command, j.Argv), j.Cwd, j.Shell, j.StdinFile, j.User, j.Error, j.WorkerID,
	}, j.Argv, j.Secrets)
	if j.Progress != nil {
		texts = append(texts, j.Progress.Text)
	}
	for name, value := range j.Labels {
		texts = append(texts, name, value)
	}
	return jsonSize(texts...)
}

// AttemptTextSize returns how many bytes the texts of an attempt take in a page of JSON. The output is not included.
func AttemptTextSize(a *queue.Attempt) int {
	return jsonSize(a.Worker, a.Node, a.Error, string(a.Reason), a.ResultError)
}

// jsonSize returns how many bytes JSON needs for texts, each with the comma or colon after it.
func jsonSize(texts ...string) int {
	raw, _ := json.Marshal(texts) // encoding texts as JSON cannot fail
	return len(raw) - 1           // the list has two brackets, but no comma after the last text
}

// InputSize returns the bytes of a job's environment and standard input.
func InputSize(e *queue.Execution) int {
	n := len(e.Stdin)
	for _, v := range e.Env {
		n += len(v)
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

// KeptAttemptRecords is the number of attempt records that each job keeps, even if its user exceeds the limit on
// bytes.
const KeptAttemptRecords = 10

// AttemptRecordSize returns how many bytes the record of an attempt, without its output, counts for in the quota
// of the job's user.
func AttemptRecordSize(e *Settlement, earlierAttempts int) int64 {
	n := int64(len(e.Decision.Error) + len(e.Attempt.ResultError))
	if earlierAttempts > 0 {
		n += AttemptBytes
	}
	return n
}
