package enqueue

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/queue"
)

// request holds the jobs of one request.
type request struct {
	jobs           []pendingJob
	jsonBytes      int // size of the jobs as JSON
	argAndEnvCount int // number of arguments and environment variables of the jobs
}

// add adds a job.
func (r *request) add(j pendingJob) {
	r.jobs, r.jsonBytes, r.argAndEnvCount = append(r.jobs, j), r.jsonBytes+len(j.jobJSON)+1, r.argAndEnvCount+
		j.argAndEnvCount
}

// isFullForJob reports whether the request already contains jobs and would exceed one of its bounds with one more job.
func (r *request) isFullForJob(j *pendingJob, maxJobs, maxBytes int) bool {
	return len(r.jobs) > 0 &&
		(len(r.jobs) == maxJobs || r.jsonBytes+len(j.jobJSON) > maxBytes || r.argAndEnvCount+
			j.argAndEnvCount > control.MaxArgEnvCount)
}

// callerFields holds the caller's working directory, umask and environment, which addToJob adds to jobs that do not set
// these fields. callerFields reads them from the process only once.
type callerFields struct {
	spec       *queue.Spec // the caller's fields; nil until loadFromProcess is called
	jsonPrefix []byte      // spec as JSON, without the closing brace and followed by the fields of a job
}

// addToJob returns the JSON of a job, completed with the caller's working directory, umask and environment. raw is the
// job in the file, and s is the same job, decoded. addToJob also completes s.
func (f *callerFields) addToJob(raw []byte, s *queue.Spec, runInHomeDir bool) (json.RawMessage, error) {
	plain := len(bytes.TrimSpace(raw)) > 2
	// Most jobs do not set the caller's fields, and addToJob only inserts jsonPrefix into their JSON. A job that may
	// contain one of these fields, even with the value null, takes the slower path: it is encoded again. JSON can write
	// the letters of a name as \u escapes, so a job with \u takes that path too.
	for _, name := range []string{`"cwd"`, `"umask"`, `"env"`, `"env_pass"`, `"stdin_file"`, `"tty"`, `\u`} {
		plain = plain && !bytes.Contains(raw, []byte(name))
	}
	if !plain {
		if err := input.CompleteAndCheckSpec(s, runInHomeDir); err != nil {
			return nil, err
		}
		return json.Marshal(s)
	}
	if f.spec == nil {
		if err := f.loadFromProcess(runInHomeDir); err != nil {
			return nil, err
		}
	}
	s.Cwd, s.Umask, s.Env = f.spec.Cwd, f.spec.Umask, f.spec.Env
	if err := input.CheckSpec(s); err != nil {
		return nil, err
	}
	raw = bytes.TrimLeft(raw, " \t\r\n")[1:]
	// Replace line breaks by spaces. This does not change the meaning, because line breaks occur only between
	// the parts of the JSON. A JSON string cannot contain them.
	if bytes.ContainsAny(raw, "\r\n") {
		raw = bytes.Map(func(c rune) rune {
			if c == '\r' || c == '\n' {
				return ' '
			}
			return c
		}, raw)
	}
	return append(f.jsonPrefix[:len(f.jsonPrefix):len(f.jsonPrefix)], raw...), nil
}

// loadFromProcess determines the caller's working directory, umask and environment.
func (f *callerFields) loadFromProcess(runInHomeDir bool) error {
	f.spec = &queue.Spec{}
	if err := input.AddCallerEnvironment(f.spec, runInHomeDir); err != nil {
		return err
	}
	head, err := json.Marshal(f.spec)
	if err != nil {
		return err
	}
	f.jsonPrefix = append(head[:len(head)-1], ',')
	if len(head) == 2 { // spec contains no fields
		f.jsonPrefix = []byte{'{'}
	}
	return nil
}

// mergeBatchResult adds the result of one request to merged, the result of the earlier requests for the same file.
// jobLineNumbers contains the line number of each job of the request.
func mergeBatchResult(merged, result *control.EnqueueBatchResult, jobLineNumbers []int) {
	for _, at := range result.ExistingJobIndexes {
		if at < len(jobLineNumbers) {
			merged.ExistingJobIndexes = append(merged.ExistingJobIndexes, jobLineNumbers[at])
		}
	}
	merged.JobIDs = append(merged.JobIDs, result.JobIDs...)
	merged.UnenforcedLimits = appendMissing(merged.UnenforcedLimits, result.UnenforcedLimits)
	merged.CreatedQueues = appendMissing(merged.CreatedQueues, result.CreatedQueues)
	merged.MaxAttempts = max(merged.MaxAttempts, result.MaxAttempts)
	if len(merged.Notes) == 0 { // keep only the first notes, because every reply contains the same ones
		merged.Notes = result.Notes
	}
}

// appendMissing appends those candidates that elements does not contain yet.
func appendMissing[T comparable](elements, candidates []T) []T {
	for _, v := range candidates {
		if !slices.Contains(elements, v) {
			elements = append(elements, v)
		}
	}
	return elements
}

// errorWithJobLine adds the line number of a job to the error of a request, if the error says which job is wrong.
func errorWithJobLine(err error, jobLineNumbers []int) error {
	switch e, ok := errors.AsType[*queue.Error](err); {
	case !ok:
	case e.BatchIndex > 0 && e.BatchIndex <= len(jobLineNumbers):
		return fault.WithLineNumber(err, jobLineNumbers[e.BatchIndex-1])
	case e.Field != "" && len(jobLineNumbers) == 1:
		return fault.WithLineNumber(err, jobLineNumbers[0])
	}
	return err
}

// isBatchLostError reports whether err means that the service no longer knows the batch, for example because the
// service has restarted.
func isBatchLostError(err error) bool {
	e, ok := errors.AsType[*queue.Error](err)
	return ok && e.Code == queue.CodeWrongState && e.Field == ""
}
