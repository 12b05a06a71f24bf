package control

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/queuectl/queuectl/queue"
)

// ScheduleAPI manages schedules, which create recurring jobs. The caller's right determines which parts of
// other users' schedules are returned.
type ScheduleAPI interface {
	// ScheduleAdd stores a schedule. Adding an identical schedule again is not an error.
	ScheduleAdd(ctx context.Context, p ScheduleAdd) (ScheduleDetail, error)
	// ScheduleList returns a page of schedules, sorted by name.
	ScheduleList(ctx context.Context, p ScheduleList) (SchedulePage, error)
	// ScheduleShow returns a schedule with its next and latest occurrences (planned starts).
	ScheduleShow(ctx context.Context, p ScheduleNameParams) (ScheduleDetail, error)
	// ScheduleRemove removes a schedule. It does not remove the schedule's jobs.
	ScheduleRemove(ctx context.Context, p ScheduleNameParams) (Schedule, error)
	// SchedulePause stops a schedule from creating jobs. ScheduleResume lets it create jobs again;
	// occurrences that passed during the pause do not count as missed.
	SchedulePause(ctx context.Context, p ScheduleNameParams) (Schedule, error)
	ScheduleResume(ctx context.Context, p ScheduleNameParams) (Schedule, error)
	// ScheduleRun enqueues a job of a schedule now.
	ScheduleRun(ctx context.Context, p ScheduleNameParams) (EnqueueResult, error)
}

// ScheduleAdd holds the parameters of the method schedule.add, which adds a schedule. In JSON, its members and the
// fields of the jobs' spec are in one object. The job field jitter is called backoff_jitter there.
type ScheduleAdd struct {
	Name string `json:"name" rule:"scheduleName,required"`
	Cron string `json:"cron" rule:"nonEmpty,required"`
	TZ   string `json:"tz" rule:"nonEmpty"` // time zone; "" means that of the service's machine
	// Jitter is the maximum delay of a start. The actual delay is computed from the schedule's name and the
	// planned time, so it is always the same.
	Jitter        Duration   `json:"jitter" rule:"jitter"`
	CatchUp       string     `json:"catch_up" rule:"catchUp"` // none (default), one or all
	Overlap       string     `json:"overlap" rule:"overlap"`  // skip (default), queue or replace
	Replace       bool       `json:"replace"`                 // replace an existing schedule with this name
	RequireLimits bool       `json:"require_limits"`          // same as Enqueue.RequireLimits
	Spec          queue.Spec `json:"-"`
}

// backoffJitter is the name of the job field jitter in a ScheduleAdd, where jitter is the schedule's own
// jitter.
const backoffJitter = "backoff_jitter"

// WithScheduleFieldNames changes an error about a job field so that it contains the field's name in a
// ScheduleAdd, where jitter is called backoff_jitter.
func WithScheduleFieldNames(err error) error {
	if e, ok := err.(*queue.Error); ok && e.Field == "jitter" {
		return &queue.Error{Code: e.Code, Field: backoffJitter, Message: e.Message}
	}
	return err
}

// decode parses the parameters: fields of the schedule, and fields of its jobs' spec.
func (p *ScheduleAdd) decode(raw json.RawMessage) error {
	d, spec := newParamDecoder(p), []byte{'{'}
	err := queue.EachMember(raw, func(name string, value json.RawMessage) error {
		if own, err := d.decodeNonJobParam(name, value); own {
			return err
		}
		if slices.Contains(excludedScheduleFields, name) {
			return queue.Invalid(name, "cannot be set for a schedule, which starts many jobs; leave it out")
		}
		if name == backoffJitter {
			name = "jitter"
		}
		quoted, err := json.Marshal(name)
		if err != nil {
			return err
		}
		if len(spec) > 1 {
			spec = append(spec, ',')
		}
		spec = append(append(append(spec, quoted...), ':'), value...)
		return nil
	})
	if err == nil {
		err = p.Spec.Decode(append(spec, '}'), nil)
	}
	if err != nil {
		return err
	}
	return d.check()
}

// MarshalJSON implements json.Marshaler. It writes only the fields that are set.
func (p ScheduleAdd) MarshalJSON() ([]byte, error) {
	m := p.Spec.GivenFields()
	if j, given := m["jitter"]; given {
		m[backoffJitter] = j
		delete(m, "jitter")
	}
	m["name"], m["cron"] = p.Name, p.Cron // required, so written even if empty
	return encodeJob(m, p)
}

func scheduleSchema() schema {
	s := jobSchema(&fieldSet{excludedFields: excludedScheduleFields, isNewJob: true})
	fields := s["properties"].(schema)
	fields[backoffJitter] = fields["jitter"]
	return s
}

// excludedScheduleFields lists the job fields that the schedule itself sets, or that make sense only for a
// single job.
var excludedScheduleFields = []string{"id", "run_at", "next_run_at", "expires_at", "env_pass"}

// ScheduleNameParams holds the parameters of the methods that concern one schedule: the schedule's name.
type ScheduleNameParams struct {
	Name string `json:"name" rule:"name,required"`
}

// ScheduleList requests a page of schedules, sorted by name.
type ScheduleList struct {
	Cursor string `json:"cursor,omitempty" rule:"scheduleCursor"`
}

// SchedulePage is one page of schedules. Next is the cursor of the next page; nil on the last page.
type SchedulePage struct {
	Schedules []Schedule `json:"schedules"`
	Next      *string    `json:"next"`
}

// Schedule describes a schedule in an answer.
type Schedule struct {
	Name     string   `json:"name"`
	Cron     string   `json:"cron"`
	TZ       string   `json:"tz"`
	Jitter   Duration `json:"jitter"`
	CatchUp  string   `json:"catch_up"`
	Overlap  string   `json:"overlap"`
	Paused   bool     `json:"paused"`
	PausedAt Time     `json:"paused_at"`
	PausedBy *string  `json:"paused_by"`
	// PauseReason says why the service has paused the schedule. It is "" if a user has paused it.
	PauseReason string `json:"note,omitempty"`
	NextAt      Time   `json:"next_at"` // next planned start
	User        string `json:"user"`
	// Command is the command line of the jobs. If the jobs have Argv, it is Argv quoted for a shell.
	Command   string   `json:"command,omitempty"`
	Argv      []string `json:"argv,omitempty"`
	CreatedAt Time     `json:"created_at"`
	// HiddenParts lists the parts (command, env) that are left out because the schedule belongs to
	// another user.
	HiddenParts []string `json:"hidden,omitempty"`
}

// ScheduleDetail is a schedule with its next and its latest occurrences.
type ScheduleDetail struct {
	Schedule
	NextStarts        []Time             `json:"next"` // next planned starts, at most five
	OccurrenceRecords []OccurrenceRecord `json:"runs"` // latest occurrences, the newest first
	// Spec contains the fields of the schedule's jobs as parameters of the method enqueue.
	Spec map[string]any `json:"spec"`
	// AlreadyExisted means that nothing was added, because an identical schedule already existed.
	AlreadyExisted bool `json:"existed,omitempty"`
	// UnenforcedLimits is the same as EnqueueResult.UnenforcedLimits.
	UnenforcedLimits []string `json:"unenforced,omitempty"`
	// Notes is the same as EnqueueResult.Notes.
	Notes []string `json:"notes,omitempty"`
}

// OccurrenceRecord describes one past occurrence of a schedule.
type OccurrenceRecord struct {
	OccurrenceAt Time    `json:"instant"`
	RecordedAt   Time    `json:"recorded_at"`
	Outcome      string  `json:"outcome"`        // fired, missed, skipped or refused
	ID           *string `json:"id"`             // id of the job; null if no job was enqueued
	State        *string `json:"state"`          // current state of the job; null if it was removed
	RequestedBy  *string `json:"by"`             // user who requested the start; null if it was planned
	Note         string  `json:"note,omitempty"` // why it was refused, or for which job it was skipped
}

func (p *ScheduleList) isForManyJobs() bool { return true }
