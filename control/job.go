package control

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Job is a job as the wire shows it.
type Job struct {
	ID                string              `json:"id"`
	Seq               int64               `json:"seq"`
	Command           string              `json:"command,omitempty"` // for a job with argv: that, quoted for a shell
	Argv              []string            `json:"argv,omitempty"`
	State             string              `json:"state"`
	Reason            *string             `json:"reason"`
	Queue             string              `json:"queue"`
	WaitsFor          *Reason             `json:"waits_for"`            // why it does not run, as why says first; null if it runs, may start now, or has ended
	DependsOn         []string            `json:"depends_on,omitempty"` // the first that it still waits for
	Lock              *string             `json:"lock,omitempty"`
	RateLimit         *string             `json:"rate_limit,omitempty"`
	On                *string             `json:"on,omitempty"` // the machine that may run it, or label=value of it
	Resources         map[string]int      `json:"resources,omitempty"`
	Units             map[string][]string `json:"units,omitempty"` // of resources that it holds now, by name
	Unique            string              `json:"unique,omitempty"`
	Priority          int64               `json:"priority"`
	WaitingTime       int64               `json:"waiting_time"` // points earned by waiting
	EffectivePriority int64               `json:"effective_priority"`
	Attempts          int                 `json:"attempts"`
	MaxRetries        int                 `json:"max_retries"`
	MaxAttempts       int                 `json:"max_attempts"`
	TimeoutMS         int64               `json:"timeout_ms"` // 0 is none
	CreatedAt         Time                `json:"created_at"`
	UpdatedAt         Time                `json:"updated_at"`
	RunAt             Time                `json:"run_at"`
	NextRetryAt       Time                `json:"next_retry_at"`
	ExpiresAt         Time                `json:"expires_at"`
	StartedAt         Time                `json:"started_at"`
	FinishedAt        Time                `json:"finished_at"`
	QueueTimeMS       int64               `json:"queue_time_ms"`
	RunTimeMS         *int64              `json:"run_time_ms"`
	UsualRunTimeMS    *int64              `json:"usual_run_time_ms"` // of those that ran the same and completed, null if none did lately
	ExitCode          *int64              `json:"exit_code"`
	Signal            *int                `json:"signal"`
	Error             *string             `json:"error"`
	WorkerID          *string             `json:"worker_id"`
	Node              string              `json:"node,omitempty"` // that had it last, where machines share the queue; "" if none has
	PID               *int                `json:"pid"`
	PausedAt          Time                `json:"paused_at"` // null unless it runs and stands still, as of the next
	PausedBy          *string             `json:"paused_by"` // the user who did it
	User              string              `json:"user"`
	Labels            map[string]string   `json:"labels"`
	Cwd               string              `json:"cwd,omitempty"`
	OnLost            string              `json:"on_lost"`
	OutputLimit       int64               `json:"output_limit"`
	Progress          *JobProgress        `json:"progress"`            // that the last attempt has told
	Submitter         string              `json:"submitter,omitempty"` // who enqueued it, where it runs as another user
	Schedule          string              `json:"schedule,omitempty"`  // that made it
	queue.HookLines
	// InputRemoved lists the parts of an ended job's input (env, stdin) that were removed to make room. Such a job cannot
	// run again.
	InputRemoved []string `json:"input_removed,omitempty"`
	// Hidden names what is left out, because the job is another's: command, env, output.
	Hidden []string `json:"hidden,omitempty"`
}

// JobDetail is a job with the end of its output and its history.
type JobDetail struct {
	Job
	// Output is the last 4 KiB of the last attempt's standard output. Where bytes are missing, it has a line that
	// says so.
	Output string `json:"output"`
	Stderr string `json:"stderr"`
	// StdoutBytes is how many bytes the last attempt printed on its standard output, kept or not. It is 0 while the
	// job runs, and if the output was removed.
	StdoutBytes int64 `json:"stdout_bytes"`
	// Result is the JSON that the last attempt has left, null if it has left none.
	Result json.RawMessage `json:"result"`
	// Spec is the job as an enqueue would ask for it, every field given: also those
	// that a client does not know yet.
	Spec map[string]any `json:"spec"`
	// History is the newest attempts, at most 100 and 256 KiB, of those before the one
	// that was asked for; HistoryTotal is how many there are in all.
	History      []Attempt `json:"history"`
	HistoryTotal int       `json:"history_total"`
}

// Attempt is one execution of a job.
type Attempt struct {
	Attempt    int     `json:"attempt"`
	Worker     string  `json:"worker_id"`
	Node       string  `json:"node"`
	PID        int     `json:"pid"`
	StartedAt  Time    `json:"started_at"`
	FinishedAt Time    `json:"finished_at"`
	RunTimeMS  *int64  `json:"run_time_ms"`
	ExitCode   *int64  `json:"exit_code"`
	Signal     *int    `json:"signal"`
	Reason     *string `json:"reason"`
	Error      *string `json:"error"`
	Counted    bool    `json:"counted"`
	CPUMS      int64   `json:"cpu_ms"`
	PeakRSS    int64   `json:"peak_rss"`
	// PeakTasks is how many processes and threads it had at once, at most: of a job with a limit of
	// them, where the kernel tells.
	PeakTasks int64 `json:"peak_tasks,omitempty"`
	Leftovers int   `json:"leftovers"`
	Dropped   int64 `json:"output_dropped"`
	// ResultError is why what it left as its result is not kept.
	ResultError *string `json:"result_error,omitempty"`
}

// JobProgress is how far an attempt says that it is.
type JobProgress struct {
	Percent int    `json:"percent"`
	Text    string `json:"text"`
	At      Time   `json:"at"`
}

// View is what a job's points are computed by.
type View struct {
	Now      queue.Millis
	Order    queue.Order
	Enqueued int64
	User     string // of the job
	Units    map[string][]string
	Owner    string // who enqueued it
	PausedAt queue.Millis
	PausedBy string        // by name
	Usual    time.Duration // that jobs like it run, 0 if that is not known
}

// ViewJob shows a job.
func ViewJob(j *queue.Job, v View) Job {
	out := Job{
		ID: j.ID, Seq: j.Seq, Command: queue.CommandText(j.Command, j.Argv), Argv: j.Argv, State: j.State.String(), Reason: optional(string(j.Reason)),
		Queue: j.Queue, Priority: j.Priority, EffectivePriority: j.Priority,
		Attempts: j.Attempts, MaxRetries: j.MaxAttempts - 1, MaxAttempts: j.MaxAttempts, TimeoutMS: j.Timeout.Milliseconds(),
		CreatedAt: Time(j.CreatedAt), UpdatedAt: Time(j.UpdatedAt), RunAt: Time(j.RunAt), ExpiresAt: Time(j.ExpiresAt),
		StartedAt: Time(j.StartedAt), FinishedAt: Time(j.EndedAt),
		QueueTimeMS: j.QueueTime(v.Now).Milliseconds(), UsualRunTimeMS: optional(v.Usual.Milliseconds()), ExitCode: code(j.ExitCode), Signal: optional(j.Signal),
		DependsOn: dependsOn(j.After), Lock: queue.AsWritten(j, queue.GateLock), RateLimit: queue.AsWritten(j, queue.GateRate), On: queue.AsWritten(j, queue.GateNode), Resources: queue.Units(j), Unique: j.Unique, Units: v.Units,
		Error: optional(j.Error), User: v.User, Labels: j.Labels, Cwd: j.Cwd, OnLost: string(j.OnLost), OutputLimit: j.OutputLimit, Schedule: j.Schedule, HookLines: j.HookLines, InputRemoved: j.InputRemoved.Fields(),
	}
	if j.AsUID != nil && v.Owner != v.User {
		out.Submitter = v.Owner
	}
	if p := j.Progress; p != nil {
		out.Progress = &JobProgress{Percent: p.Percent, Text: p.Text, At: Time(p.At)}
	}
	if out.Labels == nil {
		out.Labels = map[string]string{}
	}
	if j.State == queue.Pending && j.DueAt > v.Now { // it was put off
		out.RunAt = Time(j.DueAt)
	}
	switch {
	case j.State == queue.Processing:
		out.WorkerID, out.PID = optional(j.WorkerID), optional(j.PID)
		out.RunTimeMS = millis(j.StartedAt, v.Now)
		out.PausedAt, out.PausedBy = Time(v.PausedAt), optional(v.PausedBy)
	case j.State == queue.Failed:
		out.NextRetryAt = Time(j.DueAt)
	}
	if j.State.Runnable() {
		out.WaitingTime = v.Order.Points(j.Since, v.Now, j.Arrival, v.Enqueued)
		out.EffectivePriority += out.WaitingTime
	}
	if j.State.Ended() && j.StartedAt != 0 {
		out.RunTimeMS = millis(j.StartedAt, j.EndedAt)
	}
	return out
}

// dependsOn names jobs that one waits for, as a person writes it.
func dependsOn(list []queue.Dependency) (names []string) {
	for _, d := range list {
		name := cmp.Or(d.ID, fmt.Sprintf("#%d", d.Job))
		if d.How != queue.ParentCompleted {
			name += ":" + d.How.String()
		}
		names = append(names, name)
	}
	return names
}

// ViewAttempt shows an attempt.
func ViewAttempt(a *queue.Attempt) Attempt {
	return Attempt{
		Attempt: a.N, Worker: a.Worker, Node: a.Node, PID: a.PID, StartedAt: Time(a.StartedAt), FinishedAt: Time(a.EndedAt),
		RunTimeMS: millis(a.StartedAt, a.EndedAt), ExitCode: code(a.ExitCode), Signal: optional(a.Signal), Reason: optional(string(a.Reason)),
		Error: optional(a.Error), Counted: a.Counted, CPUMS: a.CPU.Milliseconds(), PeakRSS: a.PeakRSS, PeakTasks: a.PeakTasks, Leftovers: a.Leftovers, Dropped: a.Dropped, ResultError: optional(a.ResultError),
	}
}

// ViewEvent shows an event, but for who asked.
func ViewEvent(e *queue.Event) Event {
	return Event{
		Seq: e.Seq, At: Time(e.At), Event: string(e.Kind), ID: e.ID, JobSeq: e.Job, State: e.State.String(),
		Attempt: e.Detail.Attempt, StartedAt: Time(e.Detail.StartedAt), Percent: e.Detail.Percent, ExitCode: e.Detail.ExitCode, Signal: e.Detail.Signal,
		Reason: string(e.Detail.Reason), Output: e.Detail.Output, Key: e.Detail.Key, Value: e.Detail.Value,
		Schedule: e.Detail.Schedule, Instant: Time(e.Detail.Instant), Count: e.Detail.Count,
	}
}

// verbs are by which a person makes an event, where it does not say so itself.
var verbs = map[queue.EventKind]string{
	queue.EventEnqueued: "enqueue", queue.EventCancelled: "cancel", queue.EventRetried: "retry", queue.EventRemoved: "rm",
	queue.EventHeld: "hold", queue.EventReleased: "release", queue.EventEdited: "edit", queue.EventPaused: "pause", queue.EventResumed: "resume", queue.EventSetting: "config",
	queue.EventScheduleAdded: "schedule.add", queue.EventScheduleRemoved: "schedule.rm", queue.EventSchedulePaused: "schedule.pause", queue.EventScheduleResumed: "schedule.resume",
	queue.EventScheduleFired: "schedule.run",
}

// Audit adds who did it, by which verb and to what.
func (v *Event) Audit(e *queue.Event) {
	v.UID, v.PeerPID = e.Detail.UID, e.Detail.PID
	v.Verb = cmp.Or(e.Detail.Verb, verbs[e.Kind])
	v.Target = cmp.Or(e.Detail.Schedule, e.Detail.Target, e.ID, e.Detail.Key)
	if e.ID != "" && e.Detail.Target != "" {
		v.Target = e.ID + " " + e.Detail.Target
	}
}

func optional[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func code(n int64) *int64 {
	if n < 0 {
		return nil
	}
	return &n
}

func millis(from, to queue.Millis) *int64 {
	if from == 0 || to == 0 {
		return nil
	}
	n := max(0, int64(to-from))
	return &n
}

// Time is an instant on the wire: RFC 3339 UTC with milliseconds, or null.
type Time queue.Millis

// MarshalJSON writes the instant.
func (t Time) MarshalJSON() ([]byte, error) {
	if t == 0 {
		return []byte("null"), nil
	}
	return json.Marshal(queue.Millis(t).String())
}

// UnmarshalJSON reads an instant.
func (t *Time) UnmarshalJSON(raw []byte) error {
	if string(raw) == "null" {
		*t = 0
		return nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return fmt.Errorf("must be an RFC 3339 time, like 2026-03-01T15:04:05Z")
	}
	m, err := queue.ParseInstant(s)
	*t = Time(m)
	return err
}

// Span is a duration on the wire: seconds, or text like "90s".
type Span time.Duration

// MarshalJSON writes the duration as text.
func (s Span) MarshalJSON() ([]byte, error) {
	return json.Marshal(queue.FormatDuration(time.Duration(s)))
}

// UnmarshalJSON reads a duration.
func (s *Span) UnmarshalJSON(raw []byte) error {
	d, err := queue.ReadDuration(raw)
	*s = Span(d)
	return err
}
