package control

import (
	"encoding/json"
	"reflect"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// ScheduleAdd asks for a recurring job. Its members are those here and the fields of its jobs' spec,
// of which jitter is backoff_jitter.
type ScheduleAdd struct {
	Name          string
	Cron          string
	TZ            string // "" is the machine's zone
	Jitter        time.Duration
	CatchUp       string // none, the default, one or all
	Overlap       string // skip, the default, queue or replace
	Replace       bool   // the one that has its name
	RequireLimits bool   // as that of Enqueue
	Spec          queue.Spec
}

// backoffJitter is what the field jitter of a job is called beside a schedule's own.
const backoffJitter = "backoff_jitter"

// ScheduleFault changes the field of an error about a schedule's job to the name by which schedule.add knows that
// field.
func ScheduleFault(err error) error {
	if e, ok := err.(*queue.Error); ok && e.Field == "jitter" {
		return &queue.Error{Code: e.Code, Field: backoffJitter, Message: e.Message}
	}
	return err
}

// own returns where the members go that are not the spec's.
func (p *ScheduleAdd) own() map[string]reflect.Value {
	own := map[string]reflect.Value{}
	for name, into := range map[string]any{
		"name": &p.Name, "cron": &p.Cron, "tz": &p.TZ, "jitter": (*Span)(&p.Jitter), "catch_up": &p.CatchUp, "overlap": &p.Overlap,
		"replace": &p.Replace, "require_limits": &p.RequireLimits,
	} {
		own[name] = reflect.ValueOf(into).Elem()
	}
	return own
}

func (p *ScheduleAdd) decode(raw json.RawMessage) error {
	d, spec := newParamDecoder(reflect.TypeFor[ScheduleAdd](), p.own()), []byte{'{'}
	err := queue.Members(raw, func(name string, value json.RawMessage) error {
		if own, err := d.decodeOwn(name, value); own {
			return err
		}
		if slices.Contains(notOfSchedules, name) {
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

// MarshalJSON writes the members that are given.
func (p ScheduleAdd) MarshalJSON() ([]byte, error) {
	m := p.Spec.Given()
	if j, given := m["jitter"]; given {
		m[backoffJitter] = j
		delete(m, "jitter")
	}
	m["name"], m["cron"] = p.Name, p.Cron
	for name, text := range map[string]string{"tz": p.TZ, "catch_up": p.CatchUp, "overlap": p.Overlap} {
		if text != "" {
			m[name] = text
		}
	}
	if p.Jitter != 0 {
		m["jitter"] = Span(p.Jitter)
	}
	if p.Replace {
		m["replace"] = true
	}
	if p.RequireLimits {
		m["require_limits"] = true
	}
	return json.Marshal(m)
}

// scheduleSchema describes the members of ScheduleAdd.
func scheduleSchema() schema {
	s := jobSchema(&fieldSet{without: notOfSchedules, job: true})
	fields := s["properties"].(schema)
	fields[backoffJitter] = fields["jitter"]
	return s
}

// notOfSchedules are the fields of a job that its schedule gives it, or that are of one moment.
var notOfSchedules = []string{"id", "run_at", "next_run_at", "expires_at", "env_pass"}

// ScheduleName names a schedule.
type ScheduleName struct {
	Name string `json:"name"`
}

// ScheduleList asks for schedules, by name.
type ScheduleList struct {
	Cursor string `json:"cursor,omitempty"`
}

// SchedulePage is part of the schedules; Next is the next one's cursor, nil at the end.
type SchedulePage struct {
	Schedules []Schedule `json:"schedules"`
	Next      *string    `json:"next"`
}

// Schedule is a recurring job.
type Schedule struct {
	Name     string   `json:"name"`
	Cron     string   `json:"cron"`
	TZ       string   `json:"tz"`
	Jitter   Span     `json:"jitter"`
	CatchUp  string   `json:"catch_up"`
	Overlap  string   `json:"overlap"`
	Paused   bool     `json:"paused"`
	PausedAt Time     `json:"paused_at"`
	PausedBy *string  `json:"paused_by"`
	Note     string   `json:"note,omitempty"` // why it is paused, if nobody did that
	NextAt   Time     `json:"next_at"`        // the next instant
	User     string   `json:"user"`
	Command  string   `json:"command,omitempty"` // for jobs with argv: that, quoted for a shell
	Argv     []string `json:"argv,omitempty"`
	Created  Time     `json:"created_at"`
	// Hidden names what is left out, because the schedule is another's: command, env.
	Hidden []string `json:"hidden,omitempty"`
}

// ScheduleDetail is a schedule with its next instants and its last runs.
type ScheduleDetail struct {
	Schedule
	Next []Time        `json:"next"` // five instants, fewer if there are no more
	Runs []ScheduleRun `json:"runs"` // the newest first
	// Spec is what was asked of its jobs.
	Spec map[string]any `json:"spec"`
	// Existed says, of one that was added, that it was there already.
	Existed bool `json:"existed,omitempty"`
	// Unenforced is as that of Enqueued.
	Unenforced []string `json:"unenforced,omitempty"`
	// Notes are as those of Enqueued.
	Notes []string `json:"notes,omitempty"`
}

// ScheduleRun is what became of one instant.
type ScheduleRun struct {
	Instant Time    `json:"instant"`
	At      Time    `json:"recorded_at"`
	Outcome string  `json:"outcome"`        // fired, missed, skipped or refused
	ID      *string `json:"id"`             // of the job that was made
	State   *string `json:"state"`          // of that job now, null if it is gone
	By      *string `json:"by"`             // who asked for it, null if its time had come
	Note    string  `json:"note,omitempty"` // why it was refused, or the job that it was skipped for
}

// Hide leaves out what a sight does not show.
func (s *Schedule) Hide(sight Visibility) {
	if sight == Outline {
		s.Command, s.Argv, s.Hidden = "", nil, []string{"command"}
	}
}

// Hide leaves out what a sight does not show.
func (d *ScheduleDetail) Hide(sight Visibility) {
	d.Schedule.Hide(sight)
	switch sight {
	case Outline:
		for _, name := range inside {
			delete(d.Spec, name)
		}
		d.Hidden = append(d.Hidden, "env")
	case Inside:
		env, _ := d.Spec["env"].(map[string]string)
		for name := range env {
			env[name] = hiddenValue
		}
		if len(env) > 0 {
			d.Hidden = append(d.Hidden, "env")
		}
	}
}

func (p *ScheduleList) many() bool { return true }
