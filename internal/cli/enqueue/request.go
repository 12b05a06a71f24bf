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
	jobs        []pendingJob
	bytes       int // size of the jobs as JSON
	argEnvCount int // number of arguments and environment variables of the jobs
}

// add adds a job.
func (r *request) add(j pendingJob) {
	r.jobs, r.bytes, r.argEnvCount = append(r.jobs, j), r.bytes+len(j.raw)+1, r.argEnvCount+j.argEnvCount
}

// isFull reports whether the request has jobs and one more job would exceed its bounds.
func (r *request) isFull(j *pendingJob, maxJobs, maxBytes int) bool {
	return len(r.jobs) > 0 &&
		(len(r.jobs) == maxJobs || r.bytes+len(j.raw) > maxBytes || r.argEnvCount+j.argEnvCount > control.MaxArgEnvCount)
}

// callerFields holds the caller's working directory, umask and environment. The method addTo adds them to jobs
// that do not set these fields. callerFields determines them once for all jobs.
type callerFields struct {
	spec *queue.Spec // the caller's fields; nil until load is called
	json []byte      // spec as JSON without the closing brace; the fields of a job follow it
}

// addTo returns the JSON of a job, completed with the caller's working directory, umask and environment. s is
// the same job, decoded from raw. addTo sets these fields in s too.
func (f *callerFields) addTo(raw []byte, s *queue.Spec, noCwd bool) (json.RawMessage, error) {
	plain := len(bytes.TrimSpace(raw)) > 2
	// A job that may contain one of these fields, even with the value null, takes the slower path. A field's
	// name can also be written with \u, so a job with \u takes that path too.
	for _, name := range []string{`"cwd"`, `"umask"`, `"env"`, `"env_pass"`, `"stdin_file"`, `"tty"`, `\u`} {
		plain = plain && !bytes.Contains(raw, []byte(name))
	}
	if !plain {
		if err := input.CompleteAndCheck(s, noCwd); err != nil {
			return nil, err
		}
		return json.Marshal(s)
	}
	if f.spec == nil {
		if err := f.load(noCwd); err != nil {
			return nil, err
		}
	}
	s.Cwd, s.Umask, s.Env = f.spec.Cwd, f.spec.Umask, f.spec.Env
	if err := input.CheckSpec(s); err != nil {
		return nil, err
	}
	raw = bytes.TrimLeft(raw, " \t\r\n")[1:]
	// Replace line breaks by spaces. They are always between the parts of the JSON, because a JSON string
	// cannot contain them.
	if bytes.ContainsAny(raw, "\r\n") {
		raw = bytes.Map(func(c rune) rune {
			if c == '\r' || c == '\n' {
				return ' '
			}
			return c
		}, raw)
	}
	return append(f.json[:len(f.json):len(f.json)], raw...), nil
}

// load determines the caller's working directory, umask and environment.
func (f *callerFields) load(noCwd bool) error {
	f.spec = &queue.Spec{}
	if err := input.AddCallerEnvironment(f.spec, noCwd); err != nil {
		return err
	}
	head, err := json.Marshal(f.spec)
	if err != nil {
		return err
	}
	f.json = append(head[:len(head)-1], ',')
	if len(head) == 2 { // spec is empty
		f.json = []byte{'{'}
	}
	return nil
}

// addAnswer adds the answer to one request of a batch (got) to the answers to earlier requests (all). lines contains
// the line number of each job of the request.
func addAnswer(all, got *control.EnqueueBatchResult, lines []int) {
	for _, at := range got.FoundIndexes {
		if at < len(lines) {
			all.FoundIndexes = append(all.FoundIndexes, lines[at])
		}
	}
	all.IDs = append(all.IDs, got.IDs...)
	all.UnenforcedLimits = appendNew(all.UnenforcedLimits, got.UnenforcedLimits)
	all.NewQueues = appendNew(all.NewQueues, got.NewQueues)
	all.MaxAttempts = max(all.MaxAttempts, got.MaxAttempts)
	if len(all.Notes) == 0 { // every answer contains the same notes
		all.Notes = got.Notes
	}
}

// appendNew appends the elements that the list does not contain yet.
func appendNew[T comparable](list, more []T) []T {
	for _, v := range more {
		if !slices.Contains(list, v) {
			list = append(list, v)
		}
	}
	return list
}

// errorAtLine adds a job's line to the error of a request, if the error says which job is wrong.
func errorAtLine(err error, lines []int) error {
	switch e, ok := errors.AsType[*queue.Error](err); {
	case !ok:
	case e.Index > 0 && e.Index <= len(lines):
		return fault.AtLine(err, lines[e.Index-1])
	case e.Field != "" && len(lines) == 1:
		return fault.AtLine(err, lines[0])
	}
	return err
}

// isBatchLost reports whether err means that the service no longer has the batch, for example after
// its restart.
func isBatchLost(err error) bool {
	e, ok := errors.AsType[*queue.Error](err)
	return ok && e.Code == queue.CodeWrongState && e.Field == ""
}
