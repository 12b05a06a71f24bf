package queue

import (
	"hash/fnv"
	"strconv"
	"time"
)

// Limits on a job, in bytes unless the name says otherwise.
const (
	// DatabaseID identifies a queue's database file. It is the application id at byte 68: "qctl".
	DatabaseID = 0x7163746c

	MaxCommandBytes          = 131_071   // shell command line; also each entry of argv and env
	MaxArgsEnvBytes          = 512 << 10 // all entries of argv and env together
	MaxStdinBytes            = 256 << 10
	MaxLabels                = 32 // number of labels
	MaxLabelBytes            = 256
	MaxPriority              = 1_000_000 // priorities are from -MaxPriority to MaxPriority
	MaxAttempts              = 1_000_000
	MaxOutputLimit           = 1 << 30 // maximum of output_limit
	MinMemory                = 1 << 20 // minimum of memory
	MaxMemory                = 1 << 50
	MinCPUs                  = 0.01 // minimum of cpus
	MaxCPUs                  = 4096
	MaxTasks                 = 4 << 20 // maximum of tasks; Linux allows no more
	MinNice                  = -20     // minimum of nice
	MaxNice                  = 19
	MaxNoFile                = 1 << 20 // maximum of nofile; the default maximum on Linux
	MaxKeyBytes              = 128
	DefaultQueue             = "default"
	MaxJobsPerRequest        = 1000 // jobs in one request
	MaxExitCodes             = 256  // entries of each list of exit codes
	MaxDeferrals             = 100  // how many times defer_codes may postpone one job
	MaxErrorBytes            = 4 << 10
	MaxSecrets               = 32       // entries of env_secret
	MaxResultBytes           = 64 << 10 // result of an attempt, as JSON
	MaxProgressTextBytes     = 256      // text of an attempt's progress
	MaxDependencyResultBytes = 1 << 20  // input with the results of a job's dependencies
	MaxHookCommandBytes      = 16 << 10 // shell command line of each hook
	maxPathBytes             = 4096     // path, and command line of the shell itself
	maxAccountNameBytes      = 256      // account name
)

// OnLost selects what happens to a job when its runner or machine dies during an attempt.
type OnLost string

// The values of OnLost.
const (
	OnLostRetry OnLost = "retry"
	OnLostDead  OnLost = "dead"
	OnLostHold  OnLost = "hold"
)

// Execution holds the settings with which a job runs. They are fixed when it is enqueued, and
// stored as JSON. Exactly one of Command and Argv is set.
type Execution struct {
	Command string   `json:"command,omitempty"`
	Argv    []string `json:"argv,omitempty"`
	Env     []string `json:"env,omitempty"` // NAME=value, sorted by name
	// Secrets holds NAME=reference, sorted by name. It never contains a secret itself.
	Secrets     []string      `json:"env_secret,omitempty"`
	MaskSecrets bool          `json:"mask_secrets,omitempty"`
	Cwd         string        `json:"cwd,omitempty"` // "" means the account's home directory
	Umask       int           `json:"umask"`
	Shell       string        `json:"shell,omitempty"` // set only with Command
	Stdin       string        `json:"stdin,omitempty"`
	StdinFile   string        `json:"stdin_file,omitempty"` // an absolute path
	Timeout     time.Duration `json:"timeout,omitempty"`    // 0 means no limit
	IdleTimeout time.Duration `json:"idle_timeout,omitempty"`
	KillAfter   time.Duration `json:"kill_after"`
	Backoff     Backoff       `json:"backoff,omitzero"` // replaces the service's backoff settings
	ExitCodes
	OnLost          OnLost            `json:"on_lost"`
	AllowBackground bool              `json:"allow_background,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	OutputLimit     int64             `json:"output_limit"` // bytes per output stream
	Limits
	TTY bool `json:"tty,omitempty"`
	HookCommands
	User string `json:"user,omitempty"`
	// AsUID is the uid of the account User that the job runs as. nil means that no account was requested. The
	// service's rule then decides which account is used.
	AsUID *int `json:"as_uid,omitempty"`
}

// ExitCodes lists the exit codes that have a special meaning for a job.
type ExitCodes struct {
	OkCodes      []int `json:"ok_codes,omitempty"`       // success; empty means only 0
	NoRetryCodes []int `json:"no_retry_codes,omitempty"` // the job is dead without a retry
	DeferCodes   []int `json:"defer_codes,omitempty"`    // the job is postponed; the attempt does not count
}

// Limits restrict the processes of a job. In Memory, CPUs and Tasks, which apply to all processes
// together, 0 means no limit.
type Limits struct {
	Memory          int64   `json:"memory,omitempty"` // bytes
	CPUs            float64 `json:"cpus,omitempty"`   // CPU time limit, in processors
	Tasks           int64   `json:"tasks,omitempty"`  // limit of processes; on Linux, threads count too
	Nice            int64   `json:"nice,omitempty"`   // 0 means the runner's own nice value
	NoFile          int64   `json:"nofile,omitempty"` // open files per process; 0 means the default
	NoNewPrivileges bool    `json:"no_new_privileges,omitempty"`
}

// Job is a command to be run to completion, as the store keeps it. Resolve returns a draft: it has
// no Seq, an ID only if one was requested, and no times except those that were requested.
type Job struct {
	Seq      int64
	ID       string
	Queue    string
	UID      int // uid that enqueued the job; negative if that uid now belongs to another account
	Priority int64
	// MaxAttempts is the number of counted attempts after which the job is dead.
	MaxAttempts int
	// Demands lists the gates that the job needs in order to start, except its user's quota. The list has the
	// order that CheckDemands requires. No two demands have the same kind and key.
	Demands []Demand
	// DependsOn lists the dependencies of a draft, at most MaxDependencies. OnDependencyFailure selects what happens
	// to the job if one of them does not end as required, or is removed.
	DependsOn           []Dependency        `json:"After"`
	OnDependencyFailure OnDependencyFailure `json:"OtherwiseDo"`
	ParentCount         int                 // number of dependencies, including removed ones
	// DependencyResults holds the results of the job's dependencies as JSON, for the attempt. It is not stored.
	DependencyResults []byte `json:"-"`
	// Unique, if not "", is a key of the job's user. No other unfinished job of this user has it, and none
	// that ended less than UniqueFor ago. OnConflict selects what happens to a draft if another job already
	// has its key.
	Unique     string
	UniqueFor  time.Duration
	OnConflict ConflictAction
	Schedule   string // schedule that created the job; "" if none did
	// HookEvents holds the events for which HookCommands has a command, and whether the job is a hook
	// itself.
	HookEvents HookEvents
	// OwnRetention reports that the job's queue had its own retention when the job ended. OutputBytes is the
	// size of its outputs in bytes.
	OwnRetention bool `json:"Kept"`
	HookUID      int  // for a hook: uid of the user whose job caused it
	OutputBytes  int64
	// InputRemoved holds the parts of Env and Stdin that were removed after the job had ended. Such
	// a job cannot run again.
	InputRemoved InputParts
	Execution

	State           State
	Reason          Reason
	Error           string // error of the last attempt; "" if it succeeded
	Attempts        int    // counted attempts since the job was last put in the queue
	StartedAttempts int    // attempts ever started; the next attempt has number StartedAttempts + 1
	Deferrals       int    // attempts postponed by defer_codes since the job was last put in the queue
	// Shortages counts the starts that failed because the machine lacked resources, since the last
	// attempt or since the job was last put in the queue.
	Shortages      int
	NeedsIsolation bool   // a runner died during an attempt, so the next attempt gets a separate runner
	RunnerCrashes  int    // runners that died while running only this job, since the job was last put in the queue
	Fence          int64  // number of the job's newest lease; each claim raises it
	ExitCode       int64  // exit code of the last attempt; -1 means none
	Signal         int    // signal that ended the last attempt; 0 means none
	WorkerID       string // worker that runs the job, while processing
	// HeldUnits lists the units of resources that the leased job holds, in the format of FormatUnits.
	HeldUnits string
	Progress  *Progress // progress of the last attempt; nil if it reported none; never modified
	PID       int       // process id of the job, while processing
	// PausedAt is when a user paused the running job; 0 if it is not paused.
	PausedAt Millis
	PausedBy int // uid of the user who paused the job

	Delay         time.Duration // time from the insertion of a draft until it is due
	CreatedAt     Millis
	UpdatedAt     Millis
	RunAt         Millis // when the job was first due
	DueAt         Millis // when the job is due now; for a failed job, the time of its retry
	AgingSince    Millis // when ageing started, which is when the job was first runnable
	ArrivalNumber int64  // number of jobs that had been enqueued when ageing started, including this one
	Rank          int64  // result of Order.Rank; 0 unless a claim or the list of leases returned the job
	// StartPosition is the place of a claimed job in the order of starts; zero for other jobs. It usually
	// contains the job's own Rank and Seq. If fairness lets the job's user go first, the job goes
	// before a better-ranked one and gets the Rank and Seq of that job. Jobs with the same place
	// start in the order of their claims.
	StartPosition StartPosition
	ExpiresAt     Millis
	StartedAt     Millis // start of the last attempt
	EndedAt       Millis // time when the job ended; 0 if it has not
}

// StartPosition is a position in the order in which the claimed jobs of a queue start.
type StartPosition struct{ Rank, Seq int64 }

// Disowned reports whether the job has no account to run as: the account that enqueued it no longer exists,
// and the job does not name another one.
func (j *Job) Disowned() bool { return j.UID < 0 && j.AsUID == nil }

// Fingerprint returns a hash of the user, the queue, the working directory, and the command or argv. Jobs for
// which these are the same have the same hash. The hash is the same in all versions of queuectl and never 0.
func (j *Job) Fingerprint() uint64 {
	h := fnv.New64a()
	for _, text := range append([]string{strconv.Itoa(j.UID), j.Queue, j.Cwd, j.Command}, j.Argv...) {
		h.Write(append([]byte(text), 0xff)) // the terminator 0xff does not occur in UTF-8
	}
	return max(1, h.Sum64())
}

// ConflictAction selects what happens to a draft whose unique key another job has.
type ConflictAction uint8

// The values of ConflictAction.
const (
	ConflictReturn  ConflictAction = iota // nothing is stored; the request returns the other job
	ConflictReject                        // the request fails with ErrExists
	ConflictReplace                       // the other job is cancelled if it waits; otherwise as ConflictReject
)

// conflictNames maps the values to their names.
var conflictNames = []string{ConflictReturn: "return", ConflictReject: "reject", ConflictReplace: "replace"}

// InputParts is the set of parts of a job's input that were removed after the job had ended, to
// make room for other jobs.
type InputParts uint8

// The parts of an input.
const (
	InputEnv InputParts = 1 << iota
	InputStdin
)

// Fields returns the names of the fields that held the removed parts.
func (p InputParts) Fields() (list []string) {
	if p&InputEnv != 0 {
		list = append(list, "env")
	}
	if p&InputStdin != 0 {
		list = append(list, "stdin")
	}
	return list
}

// Lease is the right to run one attempt of a job. It consists of the job's number and the fence of
// the claim.
type Lease struct {
	Seq   int64
	Fence int64
}

// Lease returns the lease of a claimed job.
func (j *Job) Lease() Lease { return Lease{j.Seq, j.Fence} }

// QueueTime returns how long the job waited until it started or ended, or until now. It measures from the
// time when the job could first run or, if later, was last released or retried.
func (j *Job) QueueTime(now Millis) time.Duration {
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
	Number       int // number of the attempt, from 1; equal to the job's StartedAttempts after it started
	Fence        int64
	Worker       string
	Node         string
	PID          int
	StartedAt    Millis
	EndedAt      Millis // 0 while the attempt runs
	ExitCode     int64  // -1 means none
	Signal       int
	Reason       Reason
	Error        string
	Counted      bool
	CPUTime      time.Duration // user and system time of all processes that the runner reaped
	PeakRSS      int64         // bytes
	PeakTasks    int64         // highest number of concurrent processes and threads; 0 if unknown
	Leftovers    int           // background processes that were ended after the main process
	DroppedBytes int64         // bytes that were printed but not kept
	// Output contains the output as a list of records, which output.Decode reads. If the output is
	// too large to be stored here, OutputRef names the runner's file that contains it. At most one
	// of them is set.
	Output    []byte
	OutputRef string
	// OutputBytes is the number of bytes of output that are kept. It is OutputOverRetention or OutputOverQuota if
	// the output was removed to make room.
	OutputBytes int64
	// Result is the attempt's result as JSON; nil means none. ResultError says why the attempt's
	// result was not kept. The result counts as output and is removed together with it.
	Result      []byte
	ResultError string
}

// Progress is how far an attempt has come, as reported by the attempt.
type Progress struct {
	Percent    int    `json:"percent"` // 0 to 100
	Text       string `json:"text,omitempty"`
	ReportedAt Millis `json:"at"`
}

// Values of an attempt's output size after the output was removed to make room.
const (
	OutputOverRetention = -1 // all outputs, or those of the queue, exceeded retention_output
	OutputOverQuota     = -2 // the jobs of the user exceeded max_bytes_per_user
)

// EventKind is the kind of an Event.
type EventKind string

// The kinds of events.
const (
	EventEnqueued EventKind = "enqueued"
	// EventStarted means that an attempt has started. It is recorded only if the attempt was reported while
	// it ran.
	EventStarted EventKind = "started"
	// EventProgress means that an attempt has reported progress. It occurs at most twice a second per
	// attempt.
	EventProgress EventKind = "progress"
	// EventEnded is the end of an attempt. It contains the start and the job's new state.
	EventEnded     EventKind = "ended"
	EventExpired   EventKind = "expired"
	EventCancelled EventKind = "cancelled" // by a user
	EventRetried   EventKind = "retried"   // by a user
	EventRemoved   EventKind = "removed"   // by a user
	// EventHeld means that a job was held: by a user, or because it cannot be read or its owner no
	// longer exists.
	EventHeld           EventKind = "held"
	EventReleased       EventKind = "released" // by a user
	EventEdited         EventKind = "edited"   // by a user
	EventPaused         EventKind = "paused"   // a user paused a running job, or all jobs
	EventResumed        EventKind = "resumed"  // by a user
	EventSettingChanged EventKind = "setting"
	EventAudit          EventKind = "audit" // an action of a user that no other event records
	// EventHookDropped records that a hook was not created: too many hooks wait, the quota is used up,
	// or the user no longer exists.
	EventHookDropped EventKind = "hook_dropped"

	// EventScheduleAdded means that a schedule was added or replaced. All events below name the
	// schedule.
	EventScheduleAdded    EventKind = "schedule_added"
	EventScheduleRemoved  EventKind = "schedule_removed"
	EventSchedulePaused   EventKind = "schedule_paused"
	EventScheduleResumed  EventKind = "schedule_resumed"
	EventScheduleEnqueued EventKind = "schedule_fired"  // an occurrence created a job
	EventScheduleMissed   EventKind = "schedule_missed" // occurrences were missed; this is the last of them
	// EventScheduleSkipped records that an occurrence created no job, because of its overlap policy
	// or lack of room.
	EventScheduleSkipped EventKind = "schedule_skipped"
)

// EventKinds returns all kinds.
func EventKinds() []EventKind {
	return []EventKind{EventEnqueued, EventStarted, EventProgress, EventEnded, EventExpired, EventCancelled, EventRetried,
		EventRemoved, EventHeld, EventReleased, EventEdited, EventPaused, EventResumed, EventSettingChanged, EventAudit,
		EventHookDropped,
		EventScheduleAdded, EventScheduleRemoved, EventSchedulePaused, EventScheduleResumed, EventScheduleEnqueued,
		EventScheduleMissed, EventScheduleSkipped}
}

// Event is one row of the event sequence, which is durable and has no gaps.
type Event struct {
	Seq             int64
	Time            Millis
	Kind            EventKind
	JobSeq          int64 // number of the job; 0 if the event concerns no job
	JobID           string
	State           State // state of the job after the event; 0 if it was removed
	Detail          EventDetail
	RestrictedToUID *int // see JobSeq.RestrictedToUID
}

// EventDetail holds the data of an event in addition to its kind and job.
type EventDetail struct {
	Attempt      int    `json:"attempt,omitempty"`
	StartedAt    Millis `json:"started_at,omitempty"`
	ExitCode     *int64 `json:"exit_code,omitempty"`
	Signal       int    `json:"signal,omitempty"`
	Reason       Reason `json:"reason,omitempty"`
	Output       bool   `json:"output,omitempty"`  // the attempt has printed something
	Percent      *int   `json:"percent,omitempty"` // progress in percent
	UID          *int   `json:"uid,omitempty"`     // user who caused the event
	Setting      string `json:"key,omitempty"`     // name of the setting
	Value        string `json:"value,omitempty"`
	Verb         string `json:"verb,omitempty"`   // action that caused the event, if the kind does not imply it
	Target       string `json:"target,omitempty"` // object of the action, if that is not a job
	ClientPID    int    `json:"pid,omitempty"`    // process id of the client that caused the event
	Schedule     string `json:"schedule,omitempty"`
	OccurrenceAt Millis `json:"instant,omitempty"` // planned time of the occurrence
	Count        int    `json:"count,omitempty"`   // number of missed occurrences
}
