package control

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/queuectl/queuectl/queue"
)

// ScheduleAPI manages schedules, which enqueue jobs at planned times. The caller's right determines which parts
// of other users' schedules the caller gets.
type ScheduleAPI interface {
	// AddSchedule stores a schedule. If an identical schedule exists, AddSchedule changes nothing and returns no error.
	AddSchedule(ctx context.Context, p ScheduleAddParams) (ScheduleDetail, error)
	// ListSchedules returns a page of schedules, sorted by name.
	ListSchedules(ctx context.Context, p ScheduleListParams) (SchedulePage, error)
	// ShowSchedule returns a schedule with its next and its latest occurrences. An occurrence is one planned
	// start of a job.
	ShowSchedule(ctx context.Context, p ScheduleNameParams) (ScheduleDetail, error)
	// RemoveSchedule removes a schedule. It does not remove the schedule's jobs.
	RemoveSchedule(ctx context.Context, p ScheduleNameParams) (Schedule, error)
	// PauseSchedule stops a schedule from enqueueing jobs. ResumeSchedule lets it enqueue jobs again; the
	// occurrences during the pause do not count as missed.
	PauseSchedule(ctx context.Context, p ScheduleNameParams) (Schedule, error)
	ResumeSchedule(ctx context.Context, p ScheduleNameParams) (Schedule, error)
	// RunScheduleNow enqueues a job of a schedule now, in addition to the planned ones.
	RunScheduleNow(ctx context.Context, p ScheduleNameParams) (EnqueueResult, error)
}

// ScheduleAddParams holds the parameters of the method schedule.add, which adds a schedule. In JSON, the fields of the
// schedule and the fields of its jobs are members of one object. Both have a field jitter, so the job field is called
// backoff_jitter in this object.
type ScheduleAddParams struct {
	Name     string `json:"name" rule:"scheduleName,required"`
	Cron     string `json:"cron" rule:"nonEmpty,required"`
	TimeZone string `json:"tz" rule:"nonEmpty"` // time zone; "" means the time zone of the service's machine
	// Jitter is the maximum delay of a job after its planned time. The delay is computed from the schedule's
	// name and the planned time, so it does not change when it is computed again.
	Jitter                   Duration   `json:"jitter" rule:"jitter"`
	CatchUpPolicy            string     `json:"catch_up" rule:"catchUp"` // none (default), one or all
	OverlapPolicy            string     `json:"overlap" rule:"overlap"`  // skip (default), queue or replace
	ReplaceExisting          bool       `json:"replace"`                 // replace an existing schedule with this name
	RequireEnforceableLimits bool       `json:"require_limits"`          // reject limits that this machine cannot enforce
	JobSpec                  queue.Spec `json:"-"`
}

// backoffJitter is the name that the job field jitter has in the parameters of schedule.add. In these parameters, the
// name jitter means the schedule's own jitter.
const backoffJitter = "backoff_jitter"

// RenameJitterInError returns err. If err is about the job field jitter, the result names backoff_jitter instead, as
// schedule.add does.
func RenameJitterInError(err error) error {
	if e, ok := err.(*queue.Error); ok && e.Field == "jitter" {
		return &queue.Error{Code: e.Code, Field: backoffJitter, Message: e.Message}
	}
	return err
}

// decode parses the parameters, which are fields of the schedule and fields of its jobs.
func (p *ScheduleAddParams) decode(raw json.RawMessage) error {
	d, spec := newParamDecoder(p), []byte{'{'}
	err := queue.EachMember(raw, func(name string, value json.RawMessage) error {
		if own, err := d.decodeNonJobParam(name, value); own {
			return err
		}
		if slices.Contains(excludedScheduleFields, name) {
			return queue.InvalidFieldError(name, "cannot be set for a schedule, which starts many jobs; leave it out")
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
		err = p.JobSpec.DecodeJSON(append(spec, '}'), nil)
	}
	if err != nil {
		return err
	}
	return d.checkGivenParams()
}

// MarshalJSON implements json.Marshaler. It writes only the fields that are set.
func (p ScheduleAddParams) MarshalJSON() ([]byte, error) {
	m := p.JobSpec.GivenFields()
	if j, given := m["jitter"]; given {
		m[backoffJitter] = j
		delete(m, "jitter")
	}
	m["name"], m["cron"] = p.Name, p.Cron // these parameters are required, so write them even if they are empty
	return encodeJobParams(m, p)
}

func scheduleSchema() schema {
	s := jobSchema(&jobFieldPolicy{excludedFields: excludedScheduleFields, describesNewJob: true})
	fields := s["properties"].(schema)
	fields[backoffJitter] = fields["jitter"]
	return s
}

// excludedScheduleFields lists the job fields that a schedule's jobs cannot have. The schedule sets these fields
// itself, or they make sense only for a single job.
var excludedScheduleFields = []string{"id", "run_at", "next_run_at", "expires_at", "env_pass"}

// ScheduleNameParams holds the parameters of the methods that act on one schedule.
type ScheduleNameParams struct {
	Name string `json:"name" rule:"name,required"`
}

// ScheduleListParams requests the schedules that follow the cursor, sorted by name.
type ScheduleListParams struct {
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
	TimeZone string   `json:"tz"`
	Jitter   Duration `json:"jitter"`
	CatchUp  string   `json:"catch_up"`
	Overlap  string   `json:"overlap"`
	Paused   bool     `json:"paused"`
	PausedAt Time     `json:"paused_at"`
	PausedBy *string  `json:"paused_by"`
	// PauseReason says why the service has paused the schedule. It is "" if the schedule is not paused, or if a
	// user has paused it.
	PauseReason string `json:"note,omitempty"`
	NextAt      Time   `json:"next_at"` // next planned start
	User        string `json:"user"`
	// Command is the command line of the jobs. If the jobs have Argv, Command is Argv quoted for a shell.
	Command   string   `json:"command,omitempty"`
	Argv      []string `json:"argv,omitempty"`
	CreatedAt Time     `json:"created_at"`
	// HiddenParts lists the parts of the schedule (command, env) that the caller may not see, because another
	// user owns the schedule.
	HiddenParts []string `json:"hidden,omitempty"`
}

// ScheduleDetail is a schedule with its next and its latest occurrences.
type ScheduleDetail struct {
	Schedule
	NextStarts        []Time             `json:"next"` // next planned starts, at most five
	OccurrenceRecords []OccurrenceRecord `json:"runs"` // latest occurrences, the newest first
	// JobSpec contains the fields of the schedule's jobs, in the form of parameters of the method enqueue.
	JobSpec map[string]any `json:"spec"`
	// AlreadyExisted means that nothing was added, because an identical schedule already existed.
	AlreadyExisted bool `json:"existed,omitempty"`
	// UnenforcedLimits lists the limits of the jobs that this machine enforces only in part or not at all.
	UnenforcedLimits []string `json:"unenforced,omitempty"`
	// Notes are sentences for the user, such as warnings.
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
	OutcomeNote  string  `json:"note,omitempty"` // why the start was refused, or because of which job it was skipped
}
