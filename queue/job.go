package queue

import (
	"hash/fnv"
	"strconv"
	"time"
)

// These are limits on jobs. The unit is bytes unless the comment names another.
const (
	// DatabaseApplicationID identifies a queue's SQLite database file. It is the application id at byte 68 of the file:
	// "qctl".
	DatabaseApplicationID = 0x7163746c

	MaxCommandBytes          = 131_071   // shell command line; also each entry of argv and env
	MaxArgsEnvBytes          = 512 << 10 // all entries of argv and env together
	MaxStdinBytes            = 256 << 10
	MaxLabels                = 32        // number of labels
	MaxLabelBytes            = 256       // name and value of one label together
	MaxPriority              = 1_000_000 // priorities are from -MaxPriority to MaxPriority
	MaxAttempts              = 1_000_000 // number of attempts
	MaxOutputLimitBytes      = 1 << 30   // maximum of output_limit
	MinMemoryBytes           = 1 << 20   // minimum of memory
	MaxMemoryBytes           = 1 << 50   // maximum of memory
	MinCPUs                  = 0.01      // minimum of cpus
	MaxCPUs                  = 4096      // maximum of cpus
	MaxTasks                 = 4 << 20   // maximum of tasks, as in Linux
	MinNice                  = -20       // minimum of nice
	MaxNice                  = 19        // maximum of nice
	MaxOpenFilesPerProcess   = 1 << 20   // maximum of nofile, as in Linux by default
	MaxKeyBytes              = 128       // a key, such as the idempotency key of a request
	DefaultQueue             = "default" // not a limit: the queue of a job that names no queue
	MaxJobsPerRequest        = 1000      // jobs in one request
	MaxExitCodes             = 256       // entries of each list of exit codes
	MaxDeferrals             = 100       // how many times defer_codes may postpone one job
	MaxErrorBytes            = 4 << 10   // text of an error
	MaxSecrets               = 32        // entries of env_secret
	MaxResultBytes           = 64 << 10  // result of an attempt, as JSON
	MaxProgressTextBytes     = 256       // text of an attempt's progress
	MaxDependencyResultBytes = 1 << 20   // results of all dependencies of a job together
	MaxHookCommandBytes      = 16 << 10  // shell command line of each hook
	maxPathBytes             = 4096      // a path, or the command line of the shell
	maxAccountNameBytes      = 256       // account name
)

// OnLost says what happens to a job when its runner or machine dies during an attempt.
type OnLost string

// These are the values of OnLost.
const (
	OnLostRetry OnLost = "retry"
	OnLostDead  OnLost = "dead"
	OnLostHold  OnLost = "hold"
)

// ExecutionSettings holds the settings with which a job runs. They are fixed when the job is enqueued, and stored as
// JSON. Exactly one of Command and Argv is set.
type ExecutionSettings struct {
	Command string   `json:"command,omitempty"`
	Argv    []string `json:"argv,omitempty"`
	Env     []string `json:"env,omitempty"` // NAME=value, sorted by name
	// SecretReferences holds references to secrets in the form NAME=reference, sorted by name. It never contains a
	// secret.
	SecretReferences []string      `json:"env_secret,omitempty"`
	MaskSecrets      bool          `json:"mask_secrets,omitempty"`
	Cwd              string        `json:"cwd,omitempty"` // "" means the account's home directory
	Umask            int           `json:"umask"`
	Shell            string        `json:"shell,omitempty"` // set only with Command
	Stdin            string        `json:"stdin,omitempty"`
	StdinFile        string        `json:"stdin_file,omitempty"` // an absolute path
	Timeout          time.Duration `json:"timeout,omitempty"`    // 0 means no limit
	IdleTimeout      time.Duration `json:"idle_timeout,omitempty"`
	KillAfter        time.Duration `json:"kill_after"`
	Backoff          Backoff       `json:"backoff,omitzero"` // set fields override the service's settings
	SpecialExitCodes
	OnLost           OnLost            `json:"on_lost"`
	AllowBackground  bool              `json:"allow_background,omitempty"`
	Labels           map[string]string `json:"labels,omitempty"`
	OutputLimitBytes int64             `json:"output_limit"` // bytes per output stream
	ResourceLimits
	TTY bool `json:"tty,omitempty"`
	HookCommands
	RunAsUser string `json:"user,omitempty"`
	// RunAsUID is the uid of the account RunAsUser, if the request named an account. If RunAsUID is nil, the setting
	// run_as of the service decides under which account the job runs.
	RunAsUID *int `json:"as_uid,omitempty"`
}

// SpecialExitCodes lists the exit codes that have a special meaning for a job.
type SpecialExitCodes struct {
	OkCodes      []int `json:"ok_codes,omitempty"`       // success; empty means that only 0 is success
	NoRetryCodes []int `json:"no_retry_codes,omitempty"` // the job is dead without a retry
	DeferCodes   []int `json:"defer_codes,omitempty"`    // the job is postponed; the attempt does not count
}

// ResourceLimits restrict the processes of a job. MemoryBytes, CPUs and Tasks limit all processes together; 0 means no
// limit.
type ResourceLimits struct {
	MemoryBytes     int64   `json:"memory,omitempty"` // bytes
	CPUs            float64 `json:"cpus,omitempty"`   // processors; 0.5 allows half of one processor's time
	Tasks           int64   `json:"tasks,omitempty"`  // number of processes; on Linux, threads count too
	Nice            int64   `json:"nice,omitempty"`   // 0 means the nice value of the runner
	MaxOpenFiles    int64   `json:"nofile,omitempty"` // open files per process; 0 means the default
	NoNewPrivileges bool    `json:"no_new_privileges,omitempty"`
}

// Job is a command to be run to completion, as the store keeps it. A draft is a new job that is not stored yet.
// It has no Seq. It has an ID and times only if the request contains them.
type Job struct {
	Seq      int64
	ID       string
	Queue    string
	UID      int // uid that enqueued the job; negative if that uid now belongs to another account
	Priority int64
	// MaxAttempts is the number of attempts (see Attempts) after which the job is dead.
	MaxAttempts int
	// Demands lists the gates (limited things such as locks) that the job needs in order to start, except its
	// user's quota. CheckDemands defines their order. No two demands have the same kind and key.
	Demands []Demand
	// DependsOn lists the dependencies of a draft, at most MaxDependencies. OnDependencyFailure says what
	// happens to the job if a parent does not end as required, or is removed.
	DependsOn           []Dependency        `json:"After"`
	OnDependencyFailure OnDependencyFailure `json:"OtherwiseDo"`
	ParentCount         int                 // number of dependencies, including those on removed jobs
	// DependencyResults contains the results of the job's parents, as JSON. The service passes it to the attempt, and does
	// not store it.
	DependencyResults []byte `json:"-"`
	// Unique is a key that only one unfinished job of the user may have. "" means that the job has no key. After the job
	// has ended, no other job may have the key until UniqueFor has passed. OnConflict says what happens to a draft if
	// another job has the same key.
	Unique     string
	UniqueFor  time.Duration
	OnConflict ConflictAction
	Schedule   string // schedule that created the job; "" if none did
	// HookEvents contains the events for which HookCommands has a command, and the flags for hook jobs.
	HookEvents HookEvents
	// UsesQueueRetention means that the job's queue had retention settings when the job ended. They apply instead of the
	// general retention settings.
	UsesQueueRetention bool  `json:"Kept"`
	HookUID            int   // uid of the user whose job caused this hook; 0 for other jobs
	OutputBytes        int64 // size of the job's outputs in bytes
	// InputRemoved says which parts of the job's input were removed after the job had ended. A job without its
	// input cannot run again.
	InputRemoved InputParts
	ExecutionSettings

	State           State
	Reason          Reason
	Error           string // error of the last attempt; "" if it succeeded
	Attempts        int    // attempts that count towards MaxAttempts, since the job was last put in the queue
	StartedAttempts int    // attempts ever started; the next attempt has number StartedAttempts + 1
	Deferrals       int    // attempts postponed by defer_codes since the job was last put in the queue
	// Shortages counts how many times in a row the job could not start because the machine lacked resources. It is set to
	// 0 after an attempt that has started, and when the job is put in the queue.
	Shortages      int
	NeedsIsolation bool   // the next attempt gets a runner without other jobs, because a runner died
	RunnerCrashes  int    // runners that died while running only this job, since the job was last put in the queue
	Fence          int64  // number of the job's newest lease; each claim raises it
	ExitCode       int64  // exit code of the last attempt; -1 means none
	Signal         int    // signal that ended the last attempt; 0 means none
	WorkerID       string // worker that runs the job; "" while it is not running
	// HeldUnits lists the units of resources that the leased job holds, in the format of AppendResourceUnits.
	HeldUnits string
	Progress  *Progress // last reported progress; nil if none; the Progress itself is never modified
	PID       int       // process id of the running job
	// PausedAt is when a user paused the running job; 0 means that it is not paused.
	PausedAt UnixMillis
	PausedBy int // uid of the user who paused the job

	Delay         time.Duration // for a draft: time from its insertion until it is due
	CreatedAt     UnixMillis
	UpdatedAt     UnixMillis
	RunAt         UnixMillis // when the job was first due
	DueAt         UnixMillis // when the job is due; in state failed, the time of the retry
	AgingSince    UnixMillis // when ageing (gaining rank by waiting) started
	ArrivalNumber int64      // number of jobs enqueued until AgingSince, including this one
	Rank          int64      // result of RankPolicy.Rank; set only in the result of a claim or of a list of leases
	// StartPosition is the position of a claimed job in the order in which jobs start. It is zero for all other jobs.
	// Normally it consists of the job's own Rank and Seq. If fairness lets the job start before a job of another user with
	// a better rank, it consists of the Rank and Seq of the other user's job. Jobs with equal StartPosition start in the
	// order in which they were claimed.
	StartPosition StartPosition
	ExpiresAt     UnixMillis
	StartedAt     UnixMillis // start of the last attempt
	EndedAt       UnixMillis // when the job ended; 0 if it has not ended
}

// StartPosition is a position in the order in which the claimed jobs of a queue start. Positions are compared by Rank,
// then by Seq.
type StartPosition struct{ Rank, Seq int64 }

// IsDisowned reports whether the job has no account under which it can run: the uid of its user now belongs to another
// account, and the job does not name an account.
func (j *Job) IsDisowned() bool { return j.UID < 0 && j.RunAsUID == nil }

// CommandFingerprint returns a hash of the job's user, queue, working directory and command or argv, to recognise jobs
// that run the same command. The hash is never 0 and does not change between versions of queuectl.
func (j *Job) CommandFingerprint() uint64 {
	h := fnv.New64a()
	for _, text := range append([]string{strconv.Itoa(j.UID), j.Queue, j.Cwd, j.Command}, j.Argv...) {
		h.Write(append([]byte(text), 0xff)) // the separator 0xff does not occur in UTF-8
	}
	return max(1, h.Sum64())
}

// ConflictAction says what happens to a draft if another job has its unique key.
type ConflictAction uint8

// These are the values of ConflictAction.
const (
	ConflictReturnExisting ConflictAction = iota // the draft is not stored; the request returns the other job
	ConflictReject                               // the request fails with ErrExists
	// if the other job is waiting, it is cancelled; otherwise like ConflictReject
	ConflictReplaceExisting
)

// conflictActionNames contains the names of the values of ConflictAction, as users write them.
var conflictActionNames = []string{ConflictReturnExisting: "return", ConflictReject: "reject",
	ConflictReplaceExisting: "replace"}

// InputParts is a set of parts of a job's input that were removed after the job had ended, to free space.
type InputParts uint8

// These are the parts of an input.
const (
	InputEnv InputParts = 1 << iota
	InputStdin
)

// FieldNames returns the names of the job fields that contained the removed parts.
func (p InputParts) FieldNames() (names []string) {
	if p&InputEnv != 0 {
		names = append(names, "env")
	}
	if p&InputStdin != 0 {
		names = append(names, "stdin")
	}
	return names
}

// Lease is the right to run one attempt of a job. Each claim of the job raises the job's Fence. So the store can
// recognise, and reject, the result of an earlier lease.
type Lease struct {
	Seq   int64
	Fence int64
}

// Lease returns the lease of a claimed job.
func (j *Job) Lease() Lease { return Lease{j.Seq, j.Fence} }

// QueueWaitTime returns how long the job has waited to start. The wait begins when the job could first run, or when it
// was last released or retried. It ends when the job starts or ends. If the job is still waiting, the wait lasts until
// now.
func (j *Job) QueueWaitTime(now UnixMillis) time.Duration {
	from := max(j.RunAt, j.CreatedAt, j.AgingSince)
	end := now
	if j.StartedAt >= from {
		end = j.StartedAt
	} else if j.EndedAt != 0 {
		end = j.EndedAt
	}
	return max(0, time.Duration(end-from)*time.Millisecond)
}

// Attempt is one execution of a job.
type Attempt struct {
	Number                  int   // number, from 1
	Fence                   int64 // number of the attempt's lease
	Worker                  string
	Node                    string
	PID                     int
	StartedAt               UnixMillis
	EndedAt                 UnixMillis // 0 while the attempt runs
	ExitCode                int64      // -1 means none
	Signal                  int        // signal that ended the attempt; 0 means none
	Reason                  Reason
	Error                   string
	CountsTowardMaxAttempts bool          // the attempt counts towards the job's MaxAttempts
	CPUTime                 time.Duration // user and system time of the ended processes
	PeakRSSBytes            int64         // bytes
	PeakTasks               int64         // highest number of concurrent processes and threads; 0 if unknown
	LeftoverProcesses       int           // number of background processes that were ended
	DroppedBytes            int64         // bytes that were printed but not kept
	// Output contains the output as records, which output.DecodeJSON reads. If the output is too large for the store,
	// OutputFileRef names a file of the runner that contains the output. At most one of the two fields is set.
	Output        []byte
	OutputFileRef string
	// OutputBytes is the number of bytes of output that are kept. If the output was removed to free space,
	// OutputBytes is OutputRemovedByRetention or OutputRemovedByQuota.
	OutputBytes int64
	// Result is the attempt's result as JSON, or nil if the attempt has no result. ResultError says why a result was not
	// kept. If the output is removed to free space, the result is removed too.
	Result      []byte
	ResultError string
}

// Progress is the progress that an attempt has reported.
type Progress struct {
	Percent    int        `json:"percent"` // 0 to 100
	Text       string     `json:"text,omitempty"`
	ReportedAt UnixMillis `json:"at"`
}

// These values of Attempt.OutputBytes mean that the output was removed to free space.
const (
	OutputRemovedByRetention = -1 // all outputs, or those of the queue, exceeded retention_output
	OutputRemovedByQuota     = -2 // the user's jobs exceeded max_bytes_per_user
)

// EventKind is the kind of an Event.
type EventKind string

// These are the kinds of events.
const (
	EventEnqueued EventKind = "enqueued"
	// EventStarted means that an attempt has started. It is missing if the service learned of the start only
	// after the attempt had ended.
	EventStarted EventKind = "started"
	// EventProgress means that an attempt has reported progress. At most two such events per second are
	// recorded for one attempt.
	EventProgress EventKind = "progress"
	// EventEnded means that an attempt has ended. The event contains its start time and the job's new state.
	EventEnded     EventKind = "ended"
	EventExpired   EventKind = "expired"
	EventCancelled EventKind = "cancelled" // by a user
	EventRetried   EventKind = "retried"   // by a user
	EventRemoved   EventKind = "removed"   // by a user
	// EventHeld means that a job was held: by a user, because it cannot be read, or because its owner's account
	// no longer exists.
	EventHeld           EventKind = "held"
	EventReleased       EventKind = "released" // by a user
	EventEdited         EventKind = "edited"   // by a user
	EventPaused         EventKind = "paused"   // a user paused a running job, or all jobs
	EventResumed        EventKind = "resumed"  // by a user
	EventSettingChanged EventKind = "setting"
	EventAudit          EventKind = "audit" // an action of a user that no other kind of event records
	// EventHookDropped means that a hook job was not created, because too many hook jobs wait, the user's quota
	// is used up, or the user's account no longer exists.
	EventHookDropped EventKind = "hook_dropped"

	// EventScheduleAdded means that a schedule was added or replaced. This event and all kinds below contain
	// the name of the schedule.
	EventScheduleAdded    EventKind = "schedule_added"
	EventScheduleRemoved  EventKind = "schedule_removed"
	EventSchedulePaused   EventKind = "schedule_paused"
	EventScheduleResumed  EventKind = "schedule_resumed"
	EventScheduleEnqueued EventKind = "schedule_fired"  // an occurrence created a job
	EventScheduleMissed   EventKind = "schedule_missed" // occurrences were missed; the event names the last one
	// EventScheduleSkipped means that an occurrence created no job, because of the schedule's overlap setting or
	// because the queue was full.
	EventScheduleSkipped EventKind = "schedule_skipped"
)

// EventKinds returns all kinds of events.
func EventKinds() []EventKind {
	return []EventKind{EventEnqueued, EventStarted, EventProgress, EventEnded, EventExpired, EventCancelled, EventRetried,
		EventRemoved, EventHeld, EventReleased, EventEdited, EventPaused, EventResumed, EventSettingChanged, EventAudit,
		EventHookDropped,
		EventScheduleAdded, EventScheduleRemoved, EventSchedulePaused, EventScheduleResumed, EventScheduleEnqueued,
		EventScheduleMissed, EventScheduleSkipped}
}

// Event is one row of the stored list of events. Seq is the number of the event. No number is skipped.
type Event struct {
	Seq             int64
	Time            UnixMillis
	Kind            EventKind
	JobSeq          int64 // number of the job; 0 if the event concerns no job
	JobID           string
	State           State // state of the job after the event; 0 if the event removed the job
	Detail          EventDetail
	RestrictedToUID *int // see Job.RestrictedToUID
}

// EventDetail contains the data of an event, except its kind and its job.
type EventDetail struct {
	AttemptNumber   int        `json:"attempt,omitempty"`
	StartedAt       UnixMillis `json:"started_at,omitempty"`
	ExitCode        *int64     `json:"exit_code,omitempty"`
	Signal          int        `json:"signal,omitempty"`
	Reason          Reason     `json:"reason,omitempty"`
	HasOutput       bool       `json:"output,omitempty"`  // the attempt has printed something
	ProgressPercent *int       `json:"percent,omitempty"` // progress in percent
	CausedByUID     *int       `json:"uid,omitempty"`     // user who caused the event
	CausedByUser    string     `json:"user,omitempty"`    // name of this user then; only in audit events
	SettingName     string     `json:"key,omitempty"`     // name of the setting
	SettingValue    string     `json:"value,omitempty"`
	// action that caused the event; empty if the event's kind already names the action
	Verb              string     `json:"verb,omitempty"`
	ActionTarget      string     `json:"target,omitempty"` // object of the action, if it is not a job
	ClientPID         int        `json:"pid,omitempty"`    // process id of the client that caused the event
	ScheduleName      string     `json:"schedule,omitempty"`
	OccurrenceAt      UnixMillis `json:"instant,omitempty"` // planned time of the occurrence
	MissedOccurrences int        `json:"count,omitempty"`   // number of missed occurrences
}
