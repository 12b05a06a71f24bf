package queue

import (
	"strconv"
	"time"
)

// Limits on a job, in bytes unless the name says otherwise.
const (
	// DatabaseID is what a queue's database says of itself, at byte 68 of the file: "qctl".
	DatabaseID = 0x7163746c

	MaxCommand    = 131_071   // one line for the shell; each entry of argv and env too
	MaxArgsEnv    = 512 << 10 // argv and env together
	MaxStdin      = 256 << 10
	MaxLabels     = 32 // entries
	MaxLabel      = 256
	MaxPriority   = 1_000_000 // either way
	MaxAttempts   = 1_000_000
	MaxOutput     = 1 << 30 // output_limit
	MinMemory     = 1 << 20 // memory
	MaxMemory     = 1 << 50
	MinCPUs       = 0.01 // cpus
	MaxCPUs       = 4096
	MaxTasks      = 4 << 20 // tasks: as many as Linux has
	MinNice       = -20     // nice
	MaxNice       = 19
	MaxNoFile     = 1 << 20 // nofile: as many as Linux has, unless told otherwise
	MaxKey        = 128
	DefaultQueue  = "default"
	MaxBatch      = 1000 // jobs in one request
	MaxExitCodes  = 256  // entries of each list of exit codes
	MaxDeferrals  = 100  // by defer_codes, of one job
	MaxErrorBytes = 4 << 10
	MaxSecrets    = 32       // entries of env_secret
	MaxResult     = 64 << 10 // of an attempt, as JSON
	MaxProgress   = 256      // text of it
	MaxDeps       = 1 << 20  // what a job is told of those that it waited for
	MaxHookLine   = 16 << 10 // for the shell, of each hook
	maxPath       = 4096     // of a path, and of the shell's command line
	maxAccount    = 256      // of the name of an account
)

// OnLost says what follows when an attempt's runner or machine died.
type OnLost string

// The ways of OnLost.
const (
	OnLostRetry OnLost = "retry"
	OnLostDead  OnLost = "dead"
	OnLostHold  OnLost = "hold"
)

// Execution is what a job runs by: fixed when it is enqueued, and kept as JSON.
// Exactly one of Command and Argv is set.
type Execution struct {
	Command         string            `json:"command,omitempty"`
	Argv            []string          `json:"argv,omitempty"`
	Env             []string          `json:"env,omitempty"`        // NAME=value, sorted by name
	Secrets         []string          `json:"env_secret,omitempty"` // NAME=reference, sorted by name; never the secret itself
	MaskSecrets     bool              `json:"mask_secrets,omitempty"`
	Cwd             string            `json:"cwd,omitempty"` // "" is the account's home
	Umask           int               `json:"umask"`
	Shell           string            `json:"shell,omitempty"` // with Command only
	Stdin           string            `json:"stdin,omitempty"`
	StdinFile       string            `json:"stdin_file,omitempty"` // an absolute path
	Timeout         time.Duration     `json:"timeout,omitempty"`    // 0 is none
	IdleTimeout     time.Duration     `json:"idle_timeout,omitempty"`
	KillAfter       time.Duration     `json:"kill_after"`
	Backoff         Backoff           `json:"backoff,omitzero"` // what the job set itself
	OkCodes         []int             `json:"ok_codes,omitempty"`
	NoRetryCodes    []int             `json:"no_retry_codes,omitempty"`
	DeferCodes      []int             `json:"defer_codes,omitempty"`
	OnLost          OnLost            `json:"on_lost"`
	AllowBackground bool              `json:"allow_background,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	OutputLimit     int64             `json:"output_limit"`     // bytes a stream
	Memory          int64             `json:"memory,omitempty"` // bytes of its processes together; 0 is no limit, as of the next two
	CPUs            float64           `json:"cpus,omitempty"`   // time on so many processors
	Tasks           int64             `json:"tasks,omitempty"`  // processes, and threads where the system counts them, at once
	Nice            int64             `json:"nice,omitempty"`   // 0 is the runner's
	NoFile          int64             `json:"nofile,omitempty"` // open files of each process; 0 is the default
	NoNewPrivileges bool              `json:"no_new_privileges,omitempty"`
	TTY             bool              `json:"tty,omitempty"`
	HookLines
	User string `json:"user,omitempty"`
	// AsUID is whom the job runs as, User by name, where a user was asked for; nil
	// leaves it to the service's rule.
	AsUID *int `json:"as_uid,omitempty"`
}

// Job is one command to be run to success, as the store keeps it. A draft, as
// Resolve makes it, has no Seq, no ID unless one was asked for, and no times
// but those a person named.
type Job struct {
	Seq      int64
	ID       string
	Queue    string
	UID      int // who enqueued it; below 0 an account whose uid belongs to another one now
	Priority int64
	// MaxAttempts is how many attempts may count before the job is dead.
	MaxAttempts int
	// Demands are the gates that it needs room at, beside its user's quota, in the order
	// that CheckDemands asks for; no two are of one kind and key.
	Demands []Demand
	// After are the jobs that a draft waits for, at most MaxDependencies, and OtherwiseDo is what
	// becomes of it if one of them ends otherwise, or is removed.
	After       []Dependency
	OtherwiseDo Otherwise
	Parents     int // that it has waited for, or does: whether they were removed or not
	// Deps is what an attempt is told of them, as JSON; not kept.
	Deps []byte `json:"-"`
	// Unique, if set, is a key of the user's own that no other unfinished job of theirs has, nor one
	// that ended less than UniqueFor ago; OnConflict is what becomes of a draft whose key another has.
	Unique     string
	UniqueFor  time.Duration
	OnConflict Conflict
	Schedule   string // that made it, "" if none did
	// Hooks are the moments that its HookLines have a line for, and whether it is a hook itself.
	Hooks HookSet
	// Kept says that its queue had a retention of its own when it ended, and Outputs how many bytes its
	// outputs take.
	Kept    bool
	HookUID int // of a hook: whose job it is for
	Outputs int64
	// InputRemoved names what was removed of Env and Stdin after the job had ended; such a job does not run again.
	InputRemoved InputParts
	Execution

	State    State
	Reason   Reason
	Error    string    // of the last attempt, "" if it went well
	Attempts int       // attempts that counted since the job was last put in the queue
	Runs     int       // attempts begun, ever; the next attempt's number is Runs + 1
	Deferred int       // attempts that asked to be run later, since the job was last put in the queue
	Refunds  int       // times that it could not be started for want of our own resources, since its last attempt or since it was put in the queue
	Suspect  bool      // its runner died while it ran: the next attempt gets one of its own
	Crashes  int       // runners that died while they ran it alone, since the job was last put in the queue
	Fence    int64     // raised by each claim
	ExitCode int64     // of the last attempt; -1 is none
	Signal   int       // of the last attempt; 0 is none
	WorkerID string    // while processing
	Units    string    // of the resources that it holds while it is leased, as FormatUnits writes them
	Progress *Progress // of the last attempt, nil if it has told none; never changed
	PID      int       // while processing
	PausedAt Millis    // while processing: since when a person has it paused, 0 if nobody has
	PausedBy int       // the uid of that person

	Delay     time.Duration // of a draft: due so long after it is stored
	CreatedAt Millis
	UpdatedAt Millis
	RunAt     Millis // when it was first due
	DueAt     Millis // when it is due now; of a failed job its next retry
	Since     Millis // when it began to earn points: runnable for the first time
	Arrival   int64  // how many jobs had been enqueued, itself too, when it began to
	Rank      int64  // what Order.Rank made of these; 0 unless the job was read as a leased one
	// Start is the place of a claimed job: its own Rank and Seq or, if its user has the turn, those of the job that it
	// goes before. It is zero unless the job comes from a claim. Jobs that go before the same one do so in the order in
	// which they were claimed.
	Start     Place
	ExpiresAt Millis
	StartedAt Millis // of the last attempt
	EndedAt   Millis // of the job, 0 unless it has ended
}

// Place is a position in the order in which the claimed jobs of a queue start.
type Place struct{ Rank, Seq int64 }

// Disowned reports whether the account that enqueued the job is no more, so that there
// is nobody whom it could run as, unless a user was named.
func (j *Job) Disowned() bool { return j.UID < 0 && j.AsUID == nil }

// Fingerprint tells jobs that run the same from others: those of one user and queue, with the same
// command or argv and the same folder. It stays the same over versions, and is never 0.
func (j *Job) Fingerprint() uint64 {
	h := fingerprint(14695981039346656037) // FNV's offset
	h.add(strconv.Itoa(j.UID))
	h.add(j.Queue)
	h.add(j.Cwd)
	h.add(j.Command)
	for _, a := range j.Argv {
		h.add(a)
	}
	return max(1, uint64(h))
}

// fingerprint is a hash of texts, by FNV-1a, each with an end.
type fingerprint uint64

func (h *fingerprint) add(text string) {
	const prime = 1099511628211
	v := uint64(*h)
	for i := range len(text) {
		v = (v ^ uint64(text[i])) * prime
	}
	*h = fingerprint((v ^ 0xff) * prime) // which no text has
}

// Conflict is what becomes of a draft whose unique key another job has.
type Conflict uint8

// The ways.
const (
	ConflictReturn  Conflict = iota // nothing is stored, and the other job is what it gets
	ConflictReject                  // ErrExists
	ConflictReplace                 // the other one is cancelled, if it waits
)

// conflicts are their names.
var conflicts = []string{ConflictReturn: "return", ConflictReject: "reject", ConflictReplace: "replace"}

// InputParts are the parts of a job's input that were removed after the job had ended, to make room for other jobs.
type InputParts uint8

// The parts of an input.
const (
	InputEnv InputParts = 1 << iota
	InputStdin
)

// Fields returns the names of the fields that held these parts.
func (p InputParts) Fields() (list []string) {
	if p&InputEnv != 0 {
		list = append(list, "env")
	}
	if p&InputStdin != 0 {
		list = append(list, "stdin")
	}
	return list
}

// Lease is the right to run one attempt of a job: the job and the fence it was
// claimed with.
type Lease struct {
	Seq   int64
	Fence int64
}

// Lease is the job's lease as claimed.
func (j *Job) Lease() Lease { return Lease{j.Seq, j.Fence} }

// QueueTime is how long the job waited to be started, from when it could first
// run, or was last released or revived, as of now.
func (j *Job) QueueTime(now Millis) time.Duration {
	from := max(j.RunAt, j.CreatedAt, j.Since)
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
	N         int // 1, 2, …; the job's Runs at the time
	Fence     int64
	Worker    string
	Node      string
	PID       int
	StartedAt Millis
	EndedAt   Millis // 0 while it runs
	ExitCode  int64  // -1 is none
	Signal    int
	Reason    Reason
	Error     string
	Counted   bool
	CPU       time.Duration // user and system time of the tree that was waited for
	PeakRSS   int64         // bytes
	PeakTasks int64         // processes and threads at once, 0 if it is not known
	Leftovers int           // processes ended after the main one, because they were left behind
	Dropped   int64         // bytes of output not kept
	// Output is what output.Decode reads; OutputRef names the runner's file of
	// an output too large for it. At most one is set.
	Output    []byte
	OutputRef string
	// OutputBytes is the size of the output as it is kept; OutputForgotten or OutputOverQuota if it was removed to
	// make room.
	OutputBytes int64
	// Result is JSON that the attempt has left, nil for none; ResultError is why what it left
	// is not kept. It counts as output, and is forgotten with it.
	Result      []byte
	ResultError string
}

// Progress is how far an attempt says that it is.
type Progress struct {
	Percent int    `json:"percent"` // 0 to 100
	Text    string `json:"text,omitempty"`
	At      Millis `json:"at"`
}

// Values of an attempt's output size once the output was removed to make room.
const (
	OutputForgotten = -1 // all outputs, or those of a queue, were over retention_output
	OutputOverQuota = -2 // the jobs of the user were over max_bytes_per_user
)

// EventKind says what an Event tells.
type EventKind string

// The kinds of events, one for each thing that is told.
const (
	EventEnqueued  EventKind = "enqueued"
	EventStarted   EventKind = "started"  // only when the attempt was reported while it ran
	EventProgress  EventKind = "progress" // at most twice a second of an attempt
	EventEnded     EventKind = "ended"    // of an attempt; carries its start and what became of the job
	EventExpired   EventKind = "expired"
	EventCancelled EventKind = "cancelled" // by a person
	EventRetried   EventKind = "retried"   // by a person
	EventRemoved   EventKind = "removed"   // by a person
	EventHeld      EventKind = "held"      // by a person, because it cannot be read, or because its owner is no more
	EventReleased  EventKind = "released"  // by a person
	EventEdited    EventKind = "edited"    // by a person
	EventPaused    EventKind = "paused"    // by a person: a job that runs, or everything
	EventResumed   EventKind = "resumed"   // by a person
	EventSetting   EventKind = "setting"
	EventAudit     EventKind = "audit"        // what a person did that no other event tells of
	EventNoHook    EventKind = "hook_dropped" // a hook was not created: too many wait, the quota is used up, or the user is gone

	EventScheduleAdded   EventKind = "schedule_added" // or replaced; each of these names the schedule
	EventScheduleRemoved EventKind = "schedule_removed"
	EventSchedulePaused  EventKind = "schedule_paused"
	EventScheduleResumed EventKind = "schedule_resumed"
	EventScheduleFired   EventKind = "schedule_fired"   // an instant made a job
	EventScheduleMissed  EventKind = "schedule_missed"  // instants up to this one passed without a job
	EventScheduleSkipped EventKind = "schedule_skipped" // an instant made none, for its overlap or for want of room
)

// EventKinds lists the kinds.
func EventKinds() []EventKind {
	return []EventKind{EventEnqueued, EventStarted, EventProgress, EventEnded, EventExpired, EventCancelled, EventRetried, EventRemoved, EventHeld, EventReleased, EventEdited, EventPaused, EventResumed, EventSetting, EventAudit, EventNoHook,
		EventScheduleAdded, EventScheduleRemoved, EventSchedulePaused, EventScheduleResumed, EventScheduleFired, EventScheduleMissed, EventScheduleSkipped}
}

// Event is one row of the durable, gapless event sequence.
type Event struct {
	Seq     int64
	At      Millis
	Kind    EventKind
	Job     int64 // its seq; 0 if the event is of no job
	ID      string
	State   State // of the job, after
	Detail  EventDetail
	Private *int // see Job.Private
}

// EventDetail is what an event tells beside its kind and job.
type EventDetail struct {
	Attempt   int    `json:"attempt,omitempty"`
	StartedAt Millis `json:"started_at,omitempty"`
	ExitCode  *int64 `json:"exit_code,omitempty"`
	Signal    int    `json:"signal,omitempty"`
	Reason    Reason `json:"reason,omitempty"`
	Output    bool   `json:"output,omitempty"`  // the attempt printed something
	Percent   *int   `json:"percent,omitempty"` // of its progress
	UID       *int   `json:"uid,omitempty"`     // who asked
	Key       string `json:"key,omitempty"`     // of a setting
	Value     string `json:"value,omitempty"`
	Verb      string `json:"verb,omitempty"`   // by which it was asked for, where the kind does not say
	Target    string `json:"target,omitempty"` // what was asked, if it was no job
	PID       int    `json:"pid,omitempty"`    // of who asked
	Schedule  string `json:"schedule,omitempty"`
	Instant   Millis `json:"instant,omitempty"` // of a schedule
	Count     int    `json:"count,omitempty"`   // of instants that were missed
}
