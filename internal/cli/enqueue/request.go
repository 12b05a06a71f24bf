package enqueue

import (
	"bytes"
	"encoding/json"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/queue"
)

// request holds the jobs of one request.
type request struct {
	jobs    []pendingJob
	bytes   int // size of the jobs as JSON
	entries int // number of arguments and environment variables of the jobs
}

// add adds a job.
func (r *request) add(j pendingJob) {
	r.jobs, r.bytes, r.entries = append(r.jobs, j), r.bytes+len(j.raw)+1, r.entries+j.entries
}

// isFull reports whether the request has jobs and one more job would exceed its bounds.
func (r *request) isFull(j *pendingJob, maxJobs, maxBytes int) bool {
	return len(r.jobs) > 0 &&
		(len(r.jobs) == maxJobs || r.bytes+len(j.raw) > maxBytes || r.entries+j.entries > control.MaxEntries)
}

// callerFields holds the fields that the method complete adds to jobs that do not set them. It
// determines the fields once for all jobs.
type callerFields struct {
	spec *queue.Spec // nil until needed
	json []byte      // spec as JSON, without the closing brace, so that a job's fields can follow
}

// complete returns the JSON of a job, completed with the caller's working directory, umask and
// environment. The parameter s is the job as decoded from raw; complete sets the same fields in it.
func (f *callerFields) complete(raw []byte, s *queue.Spec, noCwd bool) (json.RawMessage, error) {
	plain := len(bytes.TrimSpace(raw)) > 2
	// If a job may contain one of these fields, even with the value null, it takes the slower path. So
	// does a job with \u, because a field's name can be written with \u, and this search would miss it.
	for _, name := range []string{`"cwd"`, `"umask"`, `"env"`, `"env_pass"`, `"stdin_file"`, `"tty"`, `\u`} {
		plain = plain && !bytes.Contains(raw, []byte(name))
	}
	if !plain {
		if err := input.Prepare(s, noCwd); err != nil {
			return nil, err
		}
		return json.Marshal(s)
	}
	if f.spec == nil {
		if err := f.find(noCwd); err != nil {
			return nil, err
		}
	}
	s.Cwd, s.Umask, s.Env = f.spec.Cwd, f.spec.Umask, f.spec.Env
	if err := input.CheckSpec(s); err != nil {
		return nil, err
	}
	raw = bytes.TrimLeft(raw, " \t\r\n")[1:]
	// Replace line breaks by spaces. They can occur only between the parts of a JSON value, because a JSON
	// string cannot contain them.
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

// find determines the caller's working directory, umask and environment.
func (f *callerFields) find(noCwd bool) error {
	f.spec = &queue.Spec{}
	if err := input.Complete(f.spec, noCwd); err != nil {
		return err
	}
	head, err := json.Marshal(f.spec)
	if err != nil {
		return err
	}
	f.json = append(head[:len(head)-1], ',')
	if len(head) == 2 { // complete has set no field
		f.json = []byte{'{'}
	}
	return nil
}
