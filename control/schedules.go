package control

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/queuectl/queuectl/queue"
)

// ScheduleAPI manages recurring jobs. The service decides which parts of other users' schedules a
// caller's right allows it to see.
type ScheduleAPI interface {
	// ScheduleAdd stores a recurring job. Adding an identical schedule again is not an error.
	ScheduleAdd(ctx context.Context, p ScheduleAdd) (ScheduleDetail, error)
	// ScheduleList returns a page of schedules in the order of their names.
	ScheduleList(ctx context.Context, p ScheduleList) (SchedulePage, error)
	// ScheduleShow returns a schedule with its next and latest occurrences.
	ScheduleShow(ctx context.Context, p ScheduleName) (ScheduleDetail, error)
	// ScheduleRemove removes a schedule. Its jobs stay.
	ScheduleRemove(ctx context.Context, p ScheduleName) (Schedule, error)
	// SchedulePause stops a schedule from creating jobs. ScheduleResume lets it create jobs again;
	// occurrences that passed during the pause do not count as missed.
	SchedulePause(ctx context.Context, p ScheduleName) (Schedule, error)
	ScheduleResume(ctx context.Context, p ScheduleName) (Schedule, error)
	// ScheduleRun enqueues a job of a schedule now.
	ScheduleRun(ctx context.Context, p ScheduleName) (EnqueueResult, error)
}

// ScheduleAdd adds a recurring job. Its JSON object has the members below and the fields of the
// job's spec. In that object, the job's field jitter is called backoff_jitter.
type ScheduleAdd struct {
	Name string `json:"name" rule:"scheduleName,required"`
	Cron string `json:"cron" rule:"nonEmpty,required"`
	TZ   string `json:"tz" rule:"nonEmpty"` // time zone; "" means that of the service's machine
	// Jitter is the maximum delay of a start. The actual delay is computed from the schedule's name
	// and the planned time.
	Jitter        Duration   `json:"jitter" rule:"jitter"`
	CatchUp       string     `json:"catch_up" rule:"catchUp"` // none (default), one or all
	Overlap       string     `json:"overlap" rule:"overlap"`  // skip (default), queue or replace
	Replace       bool       `json:"replace"`                 // replace an existing schedule with this name
	RequireLimits bool       `json:"require_limits"`          // same as Enqueue.RequireLimits
	Spec          queue.Spec `json:"-"`
}

// backoffJitter is the name that the job field jitter has in a schedule. The name jitter means the
// schedule's own jitter there.
const backoffJitter = "backoff_jitter"

// WithScheduleFieldNames returns an error about a schedule's job. The error has the field names of the
// method schedule.add, which calls the job field jitter backoff_jitter.
func WithScheduleFieldNames(err error) error {
	if e, ok := err.(*queue.Error); ok && e.Field == "jitter" {
		return &queue.Error{Code: e.Code, Field: backoffJitter, Message: e.Message}
	}
	return err
}

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

// MarshalJSON writes the given members.
func (p ScheduleAdd) MarshalJSON() ([]byte, error) {
	m := p.Spec.GivenFields()
	if j, given := m["jitter"]; given {
		m[backoffJitter] = j
		delete(m, "jitter")
	}
	m["name"], m["cron"] = p.Name, p.Cron // even if empty, since they are required
	return encodeJob(m, p)
}

// scheduleSchema returns the schema of ScheduleAdd.
func scheduleSchema() schema {
	s := jobSchema(&fieldSet{excludedFields: excludedScheduleFields, isNewJob: true})
	fields := s["properties"].(schema)
	fields[backoffJitter] = fields["jitter"]
	return s
}

// excludedScheduleFields lists the job fields that a schedule sets itself, or that make sense for a
// single job only.
var excludedScheduleFields = []string{"id", "run_at", "next_run_at", "expires_at", "env_pass"}

// ScheduleName is the name of a schedule.
type ScheduleName struct {
	Name string `json:"name" rule:"name,required"`
}

// ScheduleList requests a page of schedules in the order of their names.
type ScheduleList struct {
	Cursor string `json:"cursor,omitempty" rule:"scheduleCursor"`
}

// SchedulePage is one page of schedules. Next is the cursor of the next page, nil on the last page.
type SchedulePage struct {
	Schedules []Schedule `json:"schedules"`
	Next      *string    `json:"next"`
}

// Schedule is a recurring job.
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
	// PauseReason is the reason for a pause that no user requested.
	PauseReason string `json:"note,omitempty"`
	NextAt      Time   `json:"next_at"` // next planned start
	User        string `json:"user"`
	// Command is the command line of the jobs. For jobs with Argv, it is Argv quoted for a shell.
	Command   string   `json:"command,omitempty"`
	Argv      []string `json:"argv,omitempty"`
	CreatedAt Time     `json:"created_at"`
	// HiddenParts lists the parts (command, env) that are left out because the schedule belongs to
	// another user.
	HiddenParts []string `json:"hidden,omitempty"`
}

// ScheduleDetail is a schedule with its next occurrences and its latest ones.
type ScheduleDetail struct {
	Schedule
	NextStarts        []Time             `json:"next"` // next five planned starts, or fewer if no more follow
	OccurrenceRecords []OccurrenceRecord `json:"runs"` // latest occurrences, the newest first
	// Spec contains the fields of the schedule's jobs, as in the method enqueue.
	Spec map[string]any `json:"spec"`
	// AlreadyExisted means that an identical schedule already existed when this one was added.
	AlreadyExisted bool `json:"existed,omitempty"`
	// UnenforcedLimits has the same meaning as EnqueueResult.UnenforcedLimits.
	UnenforcedLimits []string `json:"unenforced,omitempty"`
	// Notes has the same meaning as EnqueueResult.Notes.
	Notes []string `json:"notes,omitempty"`
}

// OccurrenceRecord is one past occurrence of a schedule.
type OccurrenceRecord struct {
	OccurrenceAt Time    `json:"instant"`
	RecordedAt   Time    `json:"recorded_at"`
	Outcome      string  `json:"outcome"`        // fired, missed, skipped or refused
	ID           *string `json:"id"`             // id of the job, null if none was enqueued
	State        *string `json:"state"`          // current state of the job; null if it was removed
	RequestedBy  *string `json:"by"`             // user who requested the start; null if it was planned
	Note         string  `json:"note,omitempty"` // why the start was refused, or which job it was skipped for
}

func (p *ScheduleList) isForManyJobs() bool { return true }
