package store

import (
	"encoding/json"
	"slices"

	"github.com/queuectl/queuectl/queue"
)

// JobTextBytes returns how many bytes the texts of a job take when a page of a job list is written as JSON,
// including quotes, commas and escapes. Env and Stdin do not count, because job lists do not contain them.
func JobTextBytes(j *queue.Job) int {
	texts := slices.Concat([]string{
		j.ID, queue.CommandText(j.Command, j.Argv), j.Cwd, j.Shell, j.StdinFile, j.RunAsUser, j.Error, j.WorkerID,
	}, j.Argv, j.SecretReferences)
	if j.Progress != nil {
		texts = append(texts, j.Progress.Text)
	}
	for name, value := range j.Labels {
		texts = append(texts, name, value)
	}
	return encodedJSONBytes(texts...)
}

// AttemptTextBytes returns how many bytes the texts of an attempt, except the output, take in a page of JSON.
func AttemptTextBytes(a *queue.Attempt) int {
	return encodedJSONBytes(a.Worker, a.Node, a.Error, string(a.Reason), a.ResultError)
}

// encodedJSONBytes returns how many bytes JSON needs for texts, each with the comma or colon after it.
func encodedJSONBytes(texts ...string) int {
	raw, _ := json.Marshal(texts) // encoding texts as JSON cannot fail
	return len(raw) - 1           // the list has two brackets, but no comma after the last text
}

// JobInputBytes returns the size of a job's environment and standard input in bytes.
func JobInputBytes(execution *queue.ExecutionSettings) int {
	n := len(execution.Stdin)
	for _, v := range execution.Env {
		n += len(v)
	}
	return n
}

// AttemptOutputBytes returns the size in bytes of the output and the result of an attempt that has just ended.
func AttemptOutputBytes(a *queue.Attempt) int64 {
	if a.OutputFileRef != "" {
		return a.OutputBytes
	}
	return int64(len(a.Output) + len(a.Result))
}

// The number of bytes that a row and its index entries, without texts, count for in a user's quota.
const (
	QuotaBytesPerJob        = 512 // a job, including one attempt
	QuotaBytesPerAttempt    = 128 // each further attempt
	QuotaBytesPerDependency = 64  // each dependency of a job, even if the parent has ended
)

// MinKeptAttemptRecords is the number of attempt records that each job keeps, even if the user's data
// exceeds the quota in bytes.
const MinKeptAttemptRecords = 10

// AttemptRecordBytes returns how many bytes the record of an attempt, without its output, counts for in the quota
// of the job's user.
func AttemptRecordBytes(settlement *Settlement, earlierAttemptCount int) int64 {
	n := int64(len(settlement.Decision.Error) + len(settlement.Attempt.ResultError))
	if earlierAttemptCount > 0 {
		n += QuotaBytesPerAttempt
	}
	return n
}
