package control

import "time"

// ConfigKey is the name of a setting.
type ConfigKey struct {
	Key string `json:"key"`
}

// ConfigSet stores a setting.
type ConfigSet struct {
	Key   string `json:"key"`
	Value Scalar `json:"value"`
}

// ConfigValue is a setting and the origin of its value.
type ConfigValue struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Origin string `json:"origin"` // default, file, stored, environment, flag or running
	// Note is a hint for the user: for example, another origin overrides the stored value, or the
	// value takes effect when the service restarts.
	Note string `json:"note,omitempty"`
}

// ConfigList lists every setting.
type ConfigList struct {
	Settings []ConfigValue `json:"settings"`
}

// Events requests events with a number higher than Since. If Since is nil, the service sends all
// stored events or, with Follow, only future ones.
type Events struct {
	Since  *int64 `json:"since,omitempty"`
	Follow bool   `json:"follow,omitempty"`
	From   Time   `json:"from,omitzero"`   // only events that happened at this time or later
	Until  Time   `json:"until,omitzero"`  // only events that happened before this time
	ID     Names  `json:"id,omitempty"`    // only events of these jobs
	Event  Texts  `json:"event,omitempty"` // only events of these kinds
	// Audit requests the events that users caused, including those that only an audit shows, with
	// the user, the command and its target. It is for admins only.
	Audit bool `json:"audit,omitempty"`
}

// Event is one event. Fields that do not apply to it are left out.
type Event struct {
	// Seq is the number of the event; each event has the number of the previous one plus 1. Events
	// that are not sent leave gaps.
	Seq       int64  `json:"seq"`
	At        Time   `json:"at"`
	Event     string `json:"event"`
	ID        string `json:"id,omitempty"` // id of the job
	JobSeq    int64  `json:"job_seq,omitempty"`
	State     string `json:"state,omitempty"` // state of the job after the event
	Attempt   int    `json:"attempt,omitempty"`
	StartedAt Time   `json:"started_at,omitzero"`
	Percent   *int   `json:"percent,omitempty"` // progress of the attempt
	ExitCode  *int64 `json:"exit_code,omitempty"`
	Signal    int    `json:"signal,omitempty"`
	Reason    string `json:"reason,omitempty"`
	Output    bool   `json:"output,omitempty"` // the attempt printed something
	User      string `json:"user,omitempty"`   // user who caused the event
	Key       string `json:"key,omitempty"`    // name of the setting
	Value     string `json:"value,omitempty"`
	Schedule  string `json:"schedule,omitempty"`
	Instant   Time   `json:"instant,omitzero"` // planned time of a schedule's occurrence
	Count     int    `json:"count,omitempty"`  // number of missed occurrences up to and including Instant
	// These fields are for an audit: the user, the client process, the command and its target.
	UID     *int   `json:"uid,omitempty"`
	PeerPID int    `json:"peer_pid,omitempty"`
	Verb    string `json:"verb,omitempty"`
	Target  string `json:"target,omitempty"`
}

// EventsEnd is the response to Events. Last is the number of the last event that was sent, or Since
// if there was none.
type EventsEnd struct {
	Last int64 `json:"last"`
}

// Cleanup removes jobs in the given states (default: completed and cancelled) that ended at least
// Days days ago (nil means 7). It keeps at least the Keep newest jobs in these states.
type Cleanup struct {
	Days   *float64 `json:"days,omitempty"`
	State  Texts    `json:"state,omitempty"`
	Keep   int64    `json:"keep,omitempty"`
	DryRun bool     `json:"dry_run,omitempty"` // count the jobs without removing them
}

// BackupPiece is a piece of a backup or, before the first piece, a progress report.
type BackupPiece struct {
	Base64 []byte `json:"base64,omitempty"`
	Done   int64  `json:"done"` // bytes so far
	Of     int64  `json:"of"`   // estimated total number of bytes
}

// BackupEnd is the response to Backup: the size and the hash of all pieces together.
type BackupEnd struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"` // SHA-256 of the backup, in hexadecimal
}

// Doctor checks the queue and its environment. Verify also checks the whole database for
// consistency with itself and with the output files.
type Doctor struct {
	Verify bool `json:"verify,omitempty"`
}

// Progress is the progress of a long operation.
type Progress struct {
	Done int64 `json:"done"` // bytes so far
	Of   int64 `json:"of"`   // estimated total number of bytes
}

// Diagnosis lists all checks. Level is the worst level among them.
type Diagnosis struct {
	Level    string    `json:"level"` // ok, warning or failure
	Findings []Finding `json:"findings"`
}

// Finding is the result of one check.
type Finding struct {
	Check   string `json:"check"`
	Level   string `json:"level"` // ok, warning or failure
	Message string `json:"message"`
	Next    string `json:"next,omitempty"` // what the user can do about it
}

// Drain starts or ends a drain. With Wait, the response is sent once no job is running.
type Drain struct {
	Off  bool `json:"off,omitempty"`
	Wait bool `json:"wait,omitempty"`
}

// Draining is the response to Drain.
type Draining struct {
	Draining bool `json:"draining"`
	Running  int  `json:"running"` // number of jobs that are still running
}

// Reloaded is the response to Reload. Hidden lists the keys of the settings file whose values other
// origins override. Note tells the user which changes have no effect yet.
type Reloaded struct {
	Hidden []string `json:"hidden"`
	Note   string   `json:"note,omitempty"`
}

// ServiceStop stops the service like SIGTERM. With KeepJobs, the jobs continue to run.
type ServiceStop struct {
	KeepJobs bool `json:"keep_jobs,omitempty"`
}

// Stopping is the answer to service.stop. The service sends it when it begins to stop.
type Stopping struct {
	PID    int    `json:"pid"`
	Folder string `json:"folder"` // state directory; its lock is free when the service has ended
	// RunnerDir is the directory of the runners that run as root; it is empty if the service uses
	// none.
	RunnerDir string `json:"runner_dir,omitempty"`
}

// DefaultStopTimeout is how long worker.stop waits for running jobs to finish.
const DefaultStopTimeout = 30 * time.Second
