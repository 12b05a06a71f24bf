package store

import (
	"slices"
	"unicode/utf8"

	"github.com/queuectl/queuectl/queue"
)

// JobTextSize returns how many bytes the texts of a job take in a page of JSON, including quotes, commas and
// escapes. A page does not contain Env and Stdin.
func JobTextSize(j *queue.Job) int {
	n := 0
	for _, s := range slices.Concat([]string{
		j.ID, queue.CommandText(j.Command, j.Argv), j.Cwd, j.Shell, j.StdinFile, j.User, j.Error, j.WorkerID,
	}, j.Argv, j.Secrets) {
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

// AttemptTextSize returns how many bytes the texts of an attempt take in a page of JSON.
func AttemptTextSize(a *queue.Attempt) int {
	return jsonSize(a.Worker) + jsonSize(a.Node) + jsonSize(a.Error) + jsonSize(string(a.Reason)) +
		jsonSize(a.ResultError)
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

// AttemptRecordSize returns how many bytes the record of an attempt counts for, without the output. earlier is the
// number of the job's earlier attempts.
func AttemptRecordSize(e *Settlement, earlier int) int64 {
	n := int64(len(e.Decision.Error) + len(e.Attempt.ResultError))
	if earlier > 0 {
		n += AttemptBytes
	}
	return n
}
