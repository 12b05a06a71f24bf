package control

import "time"

// ConfigKey names a setting.
type ConfigKey struct {
	Key string `json:"key"`
}

// ConfigSet stores a setting.
type ConfigSet struct {
	Key   string `json:"key"`
	Value Scalar `json:"value"`
}

// ConfigValue is a setting and where its value comes from.
type ConfigValue struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Origin string `json:"origin"` // default, file, stored, environment, flag or running
	// Note says what a person should know: that the stored value is hidden by
	// another, or that it holds from the next start.
	Note string `json:"note,omitempty"`
}

// ConfigList lists every setting.
type ConfigList struct {
	Settings []ConfigValue `json:"settings"`
}

// Events asks for events. Since is the number of the last one that is not wanted;
// nil is all there are or, with Follow, those to come.
type Events struct {
	Since  *int64 `json:"since,omitempty"`
	Follow bool   `json:"follow,omitempty"`
	From   Time   `json:"from,omitzero"`   // happened at or after
	Until  Time   `json:"until,omitzero"`  // happened before
	ID     Names  `json:"id,omitempty"`    // of these jobs only
	Event  Texts  `json:"event,omitempty"` // of these kinds only
	// Audit asks for all that people did, with who, how and to what. It is for admins.
	Audit bool `json:"audit,omitempty"`
}

// Event is one event; what it does not tell is left out.
type Event struct {
	Seq       int64  `json:"seq"` // rising by one; those that an audit alone tells are left out
	At        Time   `json:"at"`
	Event     string `json:"event"`
	ID        string `json:"id,omitempty"` // of the job
	JobSeq    int64  `json:"job_seq,omitempty"`
	State     string `json:"state,omitempty"` // of the job, after
	Attempt   int    `json:"attempt,omitempty"`
	StartedAt Time   `json:"started_at,omitzero"`
	Percent   *int   `json:"percent,omitempty"` // of the attempt's progress
	ExitCode  *int64 `json:"exit_code,omitempty"`
	Signal    int    `json:"signal,omitempty"`
	Reason    string `json:"reason,omitempty"`
	Output    bool   `json:"output,omitempty"` // the attempt printed something
	User      string `json:"user,omitempty"`   // who asked
	Key       string `json:"key,omitempty"`    // of a setting
	Value     string `json:"value,omitempty"`
	Schedule  string `json:"schedule,omitempty"`
	Instant   Time   `json:"instant,omitzero"` // of a schedule
	Count     int    `json:"count,omitempty"`  // of instants that were missed, up to that one
	// Of an audit: who did it, from which process, by which verb, and to what.
	UID     *int   `json:"uid,omitempty"`
	PeerPID int    `json:"peer_pid,omitempty"`
	Verb    string `json:"verb,omitempty"`
	Target  string `json:"target,omitempty"`
}

// EventsEnd is the number of the last event that was told, or Since.
type EventsEnd struct {
	Last int64 `json:"last"`
}

// Cleanup asks for the removal of jobs that ended so many days ago (7 if nil), in
// these states (completed and cancelled if none are given); at least Keep ended jobs
// of these states stay, the newest.
type Cleanup struct {
	Days   *float64 `json:"days,omitempty"`
	State  Texts    `json:"state,omitempty"`
	Keep   int64    `json:"keep,omitempty"`
	DryRun bool     `json:"dry_run,omitempty"` // only count them
}

// BackupPiece is a piece of a backup, or tells how far it has come before the first
// one.
type BackupPiece struct {
	Base64 []byte `json:"base64,omitempty"`
	Done   int64  `json:"done"` // bytes
	Of     int64  `json:"of"`   // about how many
}

// BackupEnd is what the pieces make together.
type BackupEnd struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"` // in hexadecimal
}

// Doctor asks for a look at the queue and its surroundings; Verify holds all that the
// database says against each other and against the output files too.
type Doctor struct {
	Verify bool `json:"verify,omitempty"`
}

// Progress is how far something long has come.
type Progress struct {
	Done int64 `json:"done"` // bytes
	Of   int64 `json:"of"`   // about how many
}

// Diagnosis is what was found: the worst level, and all that was looked at.
type Diagnosis struct {
	Level    string    `json:"level"` // ok, warning or failure
	Findings []Finding `json:"findings"`
}

// Finding is one thing that was looked at.
type Finding struct {
	Check   string `json:"check"`
	Level   string `json:"level"` // ok, warning or failure
	Message string `json:"message"`
	Next    string `json:"next,omitempty"` // what to do about it
}

// Drain begins a drain, or ends it. Wait answers once nothing runs.
type Drain struct {
	Off  bool `json:"off,omitempty"`
	Wait bool `json:"wait,omitempty"`
}

// Draining is how a drain stands.
type Draining struct {
	Draining bool `json:"draining"`
	Running  int  `json:"running"` // jobs that run still
}

// Reloaded names the keys of the settings file that stronger settings hide, and says what does not hold yet, for people.
type Reloaded struct {
	Hidden []string `json:"hidden"`
	Note   string   `json:"note,omitempty"`
}

// ServiceStop ends the service as SIGTERM does; KeepJobs leaves the jobs running.
type ServiceStop struct {
	KeepJobs bool `json:"keep_jobs,omitempty"`
}

// Stopping is the answer to service.stop. The service sends it when it begins to stop.
type Stopping struct {
	PID    int    `json:"pid"`
	Folder string `json:"folder"` // state directory; its lock is free when the service has ended
	// RunnerDir is the directory of the runners that run as root; it is empty if the service uses none.
	RunnerDir string `json:"runner_dir,omitempty"`
}

// DefaultStopTimeout is how long worker.stop lets jobs finish.
const DefaultStopTimeout = 30 * time.Second
