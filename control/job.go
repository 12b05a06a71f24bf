package control

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Job describes a job in an answer.
type Job struct {
	ID  string `json:"id"`
	Seq int64  `json:"seq"`
	// Command is the command line. If the job has Argv, Command is Argv quoted for a shell.
	Command string   `json:"command,omitempty"`
	Argv    []string `json:"argv,omitempty"`
	State   string   `json:"state"`
	Reason  *string  `json:"reason"`
	Queue   string   `json:"queue"`
	// MainWaitReason is the main reason why the job is not running: the first reason in the answer of the method why. It
	// is null if the job is running, may start now, or has ended.
	MainWaitReason *WaitReason `json:"waits_for"`
	// DependsOn lists jobs that this job waits for, but only the first few.
	DependsOn []string `json:"depends_on,omitempty"`
	Lock      *string  `json:"lock,omitempty"`
	RateLimit *string  `json:"rate_limit,omitempty"`
	// NodeSelector is the name of the node that must run the job, or a label (label=value) that this node must
	// have.
	NodeSelector *string        `json:"on,omitempty"`
	Resources    map[string]int `json:"resources,omitempty"`
	// HeldUnits lists the resource units that the job has now, such as the ids of its GPUs, by resource.
	HeldUnits               map[string][]string `json:"units,omitempty"`
	UniqueKey               string              `json:"unique,omitempty"`
	Priority                int64               `json:"priority"`
	PriorityGainedByWaiting int64               `json:"waiting_time"` // priority points that the job has gained by waiting
	EffectivePriority       int64               `json:"effective_priority"`
	AttemptCount            int                 `json:"attempts"`
	MaxRetries              int                 `json:"max_retries"`
	MaxAttempts             int                 `json:"max_attempts"`
	TimeoutMS               int64               `json:"timeout_ms"` // 0 means no timeout
	CreatedAt               Time                `json:"created_at"`
	UpdatedAt               Time                `json:"updated_at"`
	RunAt                   Time                `json:"run_at"`
	NextRetryAt             Time                `json:"next_retry_at"`
	ExpiresAt               Time                `json:"expires_at"`
	StartedAt               Time                `json:"started_at"`
	FinishedAt              Time                `json:"finished_at"`
	QueueTimeMS             int64               `json:"queue_time_ms"`
	RunTimeMS               *int64              `json:"run_time_ms"`
	// TypicalRuntimeMS is the usual run time of jobs with the same command. It is null if no such job has
	// completed recently.
	TypicalRuntimeMS *int64  `json:"usual_run_time_ms"`
	ExitCode         *int64  `json:"exit_code"`
	Signal           *int    `json:"signal"`
	Error            *string `json:"error"`
	WorkerID         *string `json:"worker_id"`
	// Node is the node that ran the job last. It is "" if the job has never run, or if the queue has only one
	// node.
	Node string `json:"node,omitempty"`
	PID  *int   `json:"pid"`
	// PausedAt is when the running job was frozen, and PausedBy is the user who froze it. Both are null if the
	// job is not frozen.
	PausedAt         Time              `json:"paused_at"`
	PausedBy         *string           `json:"paused_by"`
	User             string            `json:"user"`
	Labels           map[string]string `json:"labels"`
	Cwd              string            `json:"cwd,omitempty"`
	OnLost           string            `json:"on_lost"`
	OutputLimitBytes int64             `json:"output_limit"`
	Progress         *JobProgress      `json:"progress"` // progress that the latest attempt has reported
	// Submitter is the user who enqueued the job. It is set only if the job runs as another user.
	Submitter string `json:"submitter,omitempty"`
	Schedule  string `json:"schedule,omitempty"` // schedule that enqueued the job
	queue.HookCommands
	// RemovedInputParts lists the parts of the input (env, stdin) that were removed after the job had ended, to free
	// space. A job without its input cannot run again.
	RemovedInputParts []string `json:"input_removed,omitempty"`
	// HiddenParts lists the parts of the job (command, env, output) that the caller may not see, because
	// another user owns the job.
	HiddenParts []string `json:"hidden,omitempty"`
}

// EnqueuedBy reports whether a user has enqueued the job.
func (j *Job) EnqueuedBy(user string) bool { return cmp.Or(j.Submitter, j.User) == user }

// JobDetail is a job with the end of its output and its history of attempts.
type JobDetail struct {
	Job
	// StdoutTail is the last 4 KiB of the last attempt's standard output. If bytes are missing, a line says where.
	StdoutTail string `json:"output"`
	StderrTail string `json:"stderr"`
	// StdoutBytes is the number of bytes that the last attempt wrote to its standard output, including bytes
	// that were not stored. It is 0 while the job is running or if the output was removed.
	StdoutBytes int64 `json:"stdout_bytes"`
	// Result is the result that the last attempt has reported, as JSON; null if the attempt has reported none.
	Result json.RawMessage `json:"result"`
	// Spec contains all fields of the job, in the form of parameters of the method enqueue. A newer service may send
	// fields that this client does not know; Spec contains them too.
	Spec map[string]any `json:"spec"`
	// History holds the newest attempts: at most 100 attempts and 256 KiB. If the request has history_before,
	// it holds only attempts with a lower number. TotalAttempts is the number of all attempts of the job.
	History       []Attempt `json:"history"`
	TotalAttempts int       `json:"history_total"`
}

// Attempt is one execution of a job.
type Attempt struct {
	Attempt                  int     `json:"attempt"`
	Worker                   string  `json:"worker_id"`
	Node                     string  `json:"node"`
	PID                      int     `json:"pid"`
	StartedAt                Time    `json:"started_at"`
	FinishedAt               Time    `json:"finished_at"`
	RunTimeMS                *int64  `json:"run_time_ms"`
	ExitCode                 *int64  `json:"exit_code"`
	Signal                   *int    `json:"signal"`
	Reason                   *string `json:"reason"`
	Error                    *string `json:"error"`
	CountsTowardsMaxAttempts bool    `json:"counted"`
	CPUTimeMS                int64   `json:"cpu_ms"`
	PeakRSSBytes             int64   `json:"peak_rss"`
	// PeakTasks is the highest number of processes and threads that the attempt had at one time. It is 0 if the kernel
	// does not report the number, or if the job has no limit on it.
	PeakTasks          int64 `json:"peak_tasks,omitempty"`
	LeftoverProcesses  int   `json:"leftovers"`
	DroppedOutputBytes int64 `json:"output_dropped"`
	// ResultError says why the result that the attempt reported was rejected.
	ResultError *string `json:"result_error,omitempty"`
}

// JobProgress is the progress that an attempt has reported.
type JobProgress struct {
	Percent    int    `json:"percent"`
	Text       string `json:"text"`
	ReportedAt Time   `json:"at"`
}

// JobViewContext holds the values that NewJobView needs in addition to the job.
type JobViewContext struct {
	CurrentTime      queue.UnixMillis
	JobOrder         queue.RankPolicy
	JobsEverEnqueued int64               // number of jobs that were ever enqueued
	RunAsUser        string              // name of the user whose account the job runs as
	HeldUnits        map[string][]string // see Job.HeldUnits
	OwnerName        string              // name of the user who enqueued the job
	PausedAt         queue.UnixMillis
	PausedBy         string        // name of the user who paused the job
	TypicalRuntime   time.Duration // usual run time of jobs with the same command; 0 if unknown
}

// NewJobView converts a job to the form in which answers show jobs.
func NewJobView(j *queue.Job, v JobViewContext) Job {
	out := Job{
		ID: j.ID, Seq: j.Seq, Command: queue.CommandText(j.Command, j.Argv), Argv: j.Argv, State: j.State.String(),
		Reason: queue.NonZeroPtr(string(j.Reason)),
		Queue:  j.Queue, Priority: j.Priority, EffectivePriority: j.Priority,
		AttemptCount: j.Attempts, MaxRetries: j.MaxAttempts - 1, MaxAttempts: j.MaxAttempts,
		TimeoutMS: j.Timeout.Milliseconds(),
		CreatedAt: Time(j.CreatedAt), UpdatedAt: Time(j.UpdatedAt), RunAt: Time(j.RunAt), ExpiresAt: Time(j.ExpiresAt),
		StartedAt: Time(j.StartedAt), FinishedAt: Time(j.EndedAt),
		QueueTimeMS:      j.QueueWaitTime(v.CurrentTime).Milliseconds(),
		TypicalRuntimeMS: queue.NonZeroPtr(v.TypicalRuntime.Milliseconds()),
		ExitCode:         exitCodeOrNil(j.ExitCode), Signal: queue.NonZeroPtr(j.Signal),
		DependsOn: formatDependencies(j.DependsOn), Lock: queue.FirstDemandText(j, queue.GateLock),
		RateLimit: queue.FirstDemandText(j, queue.GateRate), NodeSelector: queue.FirstDemandText(j, queue.GateNode),
		Resources: queue.DemandedResourceUnits(j),
		UniqueKey: j.Unique, HeldUnits: v.HeldUnits,
		Error: queue.NonZeroPtr(j.Error), User: v.RunAsUser, Labels: j.Labels, Cwd: j.Cwd, OnLost: string(j.OnLost),
		OutputLimitBytes: j.OutputLimitBytes, Schedule: j.Schedule, HookCommands: j.HookCommands,
		RemovedInputParts: j.InputRemoved.FieldNames(),
	}
	if j.RunAsUID != nil && v.OwnerName != v.RunAsUser {
		out.Submitter = v.OwnerName
	}
	if p := j.Progress; p != nil {
		out.Progress = &JobProgress{Percent: p.Percent, Text: p.Text, ReportedAt: Time(p.ReportedAt)}
	}
	if out.Labels == nil {
		out.Labels = map[string]string{}
	}
	if j.State == queue.Pending && j.DueAt > v.CurrentTime { // the job's start was postponed
		out.RunAt = Time(j.DueAt)
	}
	switch {
	case j.State == queue.Processing:
		out.WorkerID, out.PID = queue.NonZeroPtr(j.WorkerID), queue.NonZeroPtr(j.PID)
		out.RunTimeMS = durationMillis(j.StartedAt, v.CurrentTime)
		out.PausedAt, out.PausedBy = Time(v.PausedAt), queue.NonZeroPtr(v.PausedBy)
	case j.State == queue.Failed:
		out.NextRetryAt = Time(j.DueAt)
	}
	if j.State.IsRunnable() {
		out.PriorityGainedByWaiting = v.JobOrder.AgingPoints(j.AgingSince, v.CurrentTime, j.ArrivalNumber, v.JobsEverEnqueued)
		out.EffectivePriority += out.PriorityGainedByWaiting
	}
	if j.State.HasEnded() && j.StartedAt != 0 {
		out.RunTimeMS = durationMillis(j.StartedAt, j.EndedAt)
	}
	return out
}

// formatDependencies returns dependencies in the syntax in which users write them.
func formatDependencies(dependencies []queue.Dependency) (texts []string) {
	for _, d := range dependencies {
		name := cmp.Or(d.ParentID, fmt.Sprintf("#%d", d.ParentSeq))
		if d.Condition != queue.ParentCompleted {
			name += ":" + d.Condition.String()
		}
		texts = append(texts, name)
	}
	return texts
}

// NewAttemptView converts an attempt to the form in which answers show attempts.
func NewAttemptView(a *queue.Attempt) Attempt {
	return Attempt{
		Attempt: a.Number, Worker: a.Worker, Node: a.Node, PID: a.PID,
		StartedAt: Time(a.StartedAt), FinishedAt: Time(a.EndedAt), RunTimeMS: durationMillis(a.StartedAt, a.EndedAt),
		ExitCode: exitCodeOrNil(a.ExitCode), Signal: queue.NonZeroPtr(a.Signal),
		Reason: queue.NonZeroPtr(string(a.Reason)), Error: queue.NonZeroPtr(a.Error),
		CountsTowardsMaxAttempts: a.CountsTowardMaxAttempts, CPUTimeMS: a.CPUTime.Milliseconds(),
		PeakRSSBytes: a.PeakRSSBytes,
		PeakTasks:    a.PeakTasks, LeftoverProcesses: a.LeftoverProcesses, DroppedOutputBytes: a.DroppedBytes,
		ResultError: queue.NonZeroPtr(a.ResultError),
	}
}

// NewEventView converts an event to the form in which answers show events. It does not set User; the caller looks up
// the name of the user.
func NewEventView(e *queue.Event) Event {
	return Event{
		Seq: e.Seq, OccurredAt: Time(e.Time), Kind: string(e.Kind), JobID: e.JobID, JobSeq: e.JobSeq, State: e.State.String(),
		Attempt: e.Detail.AttemptNumber, StartedAt: Time(e.Detail.StartedAt), ProgressPercent: e.Detail.ProgressPercent,
		ExitCode: e.Detail.ExitCode, Signal: e.Detail.Signal,
		Reason: string(e.Detail.Reason), HasOutput: e.Detail.HasOutput, SettingName: e.Detail.SettingName,
		SettingValue: e.Detail.SettingValue,
		Schedule:     e.Detail.ScheduleName, OccurrenceAt: Time(e.Detail.OccurrenceAt),
		MissedStarts: e.Detail.MissedOccurrences,
	}
}

// cliCommandByEventKind maps a kind of event to the command that causes events of this kind. It is used for events that
// do not contain their command.
var cliCommandByEventKind = map[queue.EventKind]string{
	queue.EventEnqueued: "enqueue", queue.EventCancelled: "cancel", queue.EventRetried: "retry", queue.EventRemoved: "rm",
	queue.EventHeld: "hold", queue.EventReleased: "release", queue.EventEdited: "edit", queue.EventPaused: "pause",
	queue.EventResumed: "resume", queue.EventSettingChanged: "config",
	queue.EventScheduleAdded: "schedule.add", queue.EventScheduleRemoved: "schedule.rm",
	queue.EventSchedulePaused: "schedule.pause", queue.EventScheduleResumed: "schedule.resume",
	queue.EventScheduleEnqueued: "schedule.run",
}

// AddAuditFields sets the fields of v that only an audit shows: the user, the client process, the command and its
// target.
func (v *Event) AddAuditFields(e *queue.Event) {
	v.UID, v.PeerPID = e.Detail.CausedByUID, e.Detail.ClientPID
	v.AuditCommand = cmp.Or(e.Detail.Verb, cliCommandByEventKind[e.Kind])
	v.CommandTarget = cmp.Or(e.Detail.ScheduleName, e.Detail.ActionTarget, e.JobID, e.Detail.SettingName)
	if e.JobID != "" && e.Detail.ActionTarget != "" {
		v.CommandTarget = e.JobID + " " + e.Detail.ActionTarget
	}
}

func exitCodeOrNil(exitCode int64) *int64 {
	if exitCode < 0 {
		return nil
	}
	return &exitCode
}

// durationMillis returns the milliseconds from one time to another. It returns nil if one of the times is not set.
func durationMillis(start, end queue.UnixMillis) *int64 {
	if start == 0 || end == 0 {
		return nil
	}
	n := max(0, int64(end-start))
	return &n
}

// Time is a point in time. In JSON it is text in the format RFC 3339, in UTC and with milliseconds; 0 is null.
type Time queue.UnixMillis

// MarshalJSON implements json.Marshaler.
func (t Time) MarshalJSON() ([]byte, error) {
	if t == 0 {
		return []byte("null"), nil
	}
	return json.Marshal(queue.UnixMillis(t).String())
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *Time) UnmarshalJSON(raw []byte) error {
	if string(raw) == "null" {
		*t = 0
		return nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return fmt.Errorf("must be an RFC 3339 time, like 2026-03-01T15:04:05Z")
	}
	m, err := queue.ParseTime(s)
	*t = Time(m)
	return err
}

// Duration is a duration. In JSON it is a number of seconds, or text like "90s".
type Duration time.Duration

// MarshalJSON implements json.Marshaler. It writes a text like "90s".
func (d Duration) MarshalJSON() ([]byte, error) {
	return json.Marshal(queue.FormatDuration(time.Duration(d)))
}

// UnmarshalJSON implements json.Unmarshaler.
func (d *Duration) UnmarshalJSON(raw []byte) error {
	decoded, err := queue.DecodeDuration(raw)
	*d = Duration(decoded)
	return err
}
