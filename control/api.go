// Package control is how anyone talks to a running queue: the API, its wire, a
// server, a client, and who is at the other end.
package control

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/queuectl/queuectl/queue"
)

// API is what a running queue answers. The service implements it, and so does
// Client, so that nobody can tell them apart. Errors are *queue.Error, or carry
// one. All methods may be called at once.
type API interface {
	Hello(ctx context.Context, p HelloParams) (Hello, error)
	// Whoami says who asks, and what they may do. Everybody gets an answer.
	Whoami(ctx context.Context, p Nothing) (Whoami, error)
	Enqueue(ctx context.Context, p Enqueue) (Enqueued, error)
	EnqueueBatch(ctx context.Context, p EnqueueBatch) (EnqueuedBatch, error)
	Show(ctx context.Context, p Show) (JobDetail, error)
	List(ctx context.Context, p List) (JobPage, error)
	Status(ctx context.Context, p Nothing) (Status, error)
	// Screen is what a person asks first. It costs the same however many jobs there are.
	Screen(ctx context.Context, p ScreenRows) (Screen, error)
	// Wait tells of each job once it has ended.
	Wait(ctx context.Context, p Wait, each func(Ended) error) (Waited, error)
	// Logs tells an attempt's output, piece by piece.
	Logs(ctx context.Context, p Logs, each func(Piece) error) (LogsEnd, error)
	// Attach joins the terminal of a job: it sets its size, and types into it.
	Attach(ctx context.Context, p Attach) (Attached, error)
	Cancel(ctx context.Context, p Selection) (BulkResult, error)
	Retry(ctx context.Context, p Retry) (BulkResult, error)
	// Hold keeps jobs that wait from being run; Release lets them.
	Hold(ctx context.Context, p Selection) (BulkResult, error)
	Release(ctx context.Context, p Selection) (BulkResult, error)
	// Pause freezes jobs that run, with their timeouts; Resume has them go on. With All it is about
	// everything, which needs the right operate: whatever runs is frozen and nothing starts, also
	// after a restart, until everything is resumed. What was paused by itself stays so then.
	Pause(ctx context.Context, p Selection) (BulkResult, error)
	Resume(ctx context.Context, p Selection) (BulkResult, error)
	// Requeue ends what runs, without counting it, and has it wait again.
	Requeue(ctx context.Context, p Selection) (BulkResult, error)
	Kill(ctx context.Context, p Kill) (BulkResult, error)
	Edit(ctx context.Context, p Edit) (BulkResult, error)
	Remove(ctx context.Context, p Remove) (BulkResult, error)
	// Clear removes every job that does not run.
	Clear(ctx context.Context, p Sure) (Removed, error)
	DLQList(ctx context.Context, p DLQList) (JobPage, error)
	DLQRetry(ctx context.Context, p DLQRetry) (BulkResult, error)
	DLQClear(ctx context.Context, p Sure) (Removed, error)
	// QueueList lists the queues that have settings, or jobs which have not ended.
	QueueList(ctx context.Context, p Queues) (QueueList, error)
	QueueSet(ctx context.Context, p QueueSet) (QueueView, error)
	// QueuePause has nothing of queues start, also after a restart, until QueueResume.
	QueuePause(ctx context.Context, p QueuePause) (QueueList, error)
	QueueResume(ctx context.Context, p QueueName) (QueueList, error)
	// QueueRemove forgets what an empty queue goes by.
	QueueRemove(ctx context.Context, p QueueRemove) (QueueList, error)
	// Tree tells what a job waits for, and what waits for it, in all steps.
	Tree(ctx context.Context, p Tree) (TreeView, error)
	// Why says why a job does not run.
	Why(ctx context.Context, p WhyParams) (Why, error)
	// Simulate says which jobs would start next, were there workers for them now. Nothing is changed.
	Simulate(ctx context.Context, p Simulate) (Simulated, error)
	// Stats tells how many attempts began and ended, and how long they waited and ran.
	Stats(ctx context.Context, p StatsParams) (Stats, error)
	WorkerStart(ctx context.Context, p Count) (WorkerCount, error)
	WorkerStop(ctx context.Context, p WorkerStop) (WorkerCount, error)
	WorkerScale(ctx context.Context, p WorkerScale) (WorkerCount, error)
	WorkerList(ctx context.Context, p Nothing) (WorkerList, error)
	// ScheduleAdd stores a recurring job. The same one again is no error.
	ScheduleAdd(ctx context.Context, p ScheduleAdd) (ScheduleDetail, error)
	ScheduleList(ctx context.Context, p ScheduleList) (SchedulePage, error)
	ScheduleShow(ctx context.Context, p ScheduleName) (ScheduleDetail, error)
	ScheduleRemove(ctx context.Context, p ScheduleName) (Schedule, error)
	SchedulePause(ctx context.Context, p ScheduleName) (Schedule, error)
	ScheduleResume(ctx context.Context, p ScheduleName) (Schedule, error)
	// ScheduleRun makes a job of a schedule now.
	ScheduleRun(ctx context.Context, p ScheduleName) (Enqueued, error)
	// GateList lists locks, rates and resources: everybody's, and the caller's own. GateSet sets the rule of
	// everybody's key.
	GateList(ctx context.Context, p Gates) (GateList, error)
	GateSet(ctx context.Context, p GateSet) (GateView, error)
	// NodeList lists the machines that share the queue. NodeDrain has one claim nothing more, or again, and NodeRemove
	// forgets one whose service does not run.
	NodeList(ctx context.Context, p Nodes) (NodeList, error)
	NodeDrain(ctx context.Context, p NodeDrain) (NodeView, error)
	NodeRemove(ctx context.Context, p NodeName) (NodeView, error)
	// HookTest makes a hook of the settings, or a webhook, for a job that is made up.
	HookTest(ctx context.Context, p HookName) (Enqueued, error)
	// WebStart has the page served until the service ends, over what the settings say, and WebStop has it off.
	WebStart(ctx context.Context, p WebStart) (WebState, error)
	WebStop(ctx context.Context, p Nothing) (WebState, error)
	// WebOpen makes a link to the page for the caller, which a minute ends.
	WebOpen(ctx context.Context, p Nothing) (WebLink, error)
	ConfigList(ctx context.Context, p Nothing) (ConfigList, error)
	ConfigGet(ctx context.Context, p ConfigKey) (ConfigValue, error)
	ConfigSet(ctx context.Context, p ConfigSet) (ConfigValue, error)
	ConfigUnset(ctx context.Context, p ConfigKey) (ConfigValue, error)
	// Events tells the durable events after a number, and those that come.
	Events(ctx context.Context, p Events, each func(Event) error) (EventsEnd, error)
	// Cleanup removes old ended jobs, telling how many so far.
	Cleanup(ctx context.Context, p Cleanup, each func(Removed) error) (Removed, error)
	// Backup tells the bytes of a copy of the queue that holds all that was answered
	// before it was asked for.
	Backup(ctx context.Context, p Nothing, each func(BackupPiece) error) (BackupEnd, error)
	// Doctor looks for what is wrong, telling how far it has come.
	Doctor(ctx context.Context, p Doctor, each func(Progress) error) (Diagnosis, error)
	// Drain prevents jobs from starting until the drain is turned off, even after a restart. It returns once no job
	// can start any more. If a job can still start after a time limit, Drain returns an error that says where. The
	// drain stays on even then.
	Drain(ctx context.Context, p Drain) (Draining, error)
	// Reload reads the settings file again.
	Reload(ctx context.Context, p Nothing) (Reloaded, error)
	ServiceStop(ctx context.Context, p ServiceStop) (Stopping, error)
}

// Nothing is the parameters of a method that takes none.
type Nothing struct{}

// HelloParams is what a client may say of itself.
type HelloParams struct {
	Version string `json:"version,omitempty"`
}

// Hello is what a service says of itself.
type Hello struct {
	Version  string   `json:"version"`
	Protocol Range    `json:"protocol"`
	Features []string `json:"features"`
}

// Range is the versions of the protocol that a service speaks.
type Range struct {
	Min int `json:"min"`
	Max int `json:"max"`
}

// Whoami is who somebody is by the kernel's word, and what they may do.
type Whoami struct {
	UID    int       `json:"uid"`
	User   string    `json:"user"` // by name
	GID    int       `json:"gid"`
	Group  string    `json:"group"`
	Groups []GroupID `json:"groups"` // the supplementary ones, at most 1,000
	PID    int       `json:"pid"`
	Right  Right     `json:"right"`
	Rights []Right   `json:"rights"` // those that it includes
	RunAs  string    `json:"run_as"` // the setting
	// JobsRunAs is the user that a job runs as which they enqueue, "" if they may not.
	JobsRunAs string `json:"jobs_run_as"`
	// MaxPending and MaxRunning are how many of their jobs may wait, and run at once; 0
	// is any number.
	MaxPending int64 `json:"max_pending"`
	MaxRunning int   `json:"max_running"`
	// Bytes is how many bytes their jobs hold, and MaxBytes how many these may hold; 0 is any number.
	Bytes    int64 `json:"bytes"`
	MaxBytes int64 `json:"max_bytes"`
	// Next is how they could be given a right, if they have none.
	Next string `json:"next,omitempty"`
	// Service says whose service answers (own, system or directory), and Socket where it listens.
	Service string `json:"service"`
	Socket  string `json:"socket"`
}

// GroupID is a group by number and name.
type GroupID struct {
	GID  int    `json:"gid"`
	Name string `json:"name"`
}

// Enqueue requests one job. In JSON, the spec's fields, key, next and require_limits are all members of one object.
type Enqueue struct {
	Spec queue.Spec
	Key  string // makes the request repeatable; at most queue.MaxKey bytes
	// RequireLimits refuses the job if it asks for a limit that is not enforced here.
	RequireLimits bool
	// Next makes the service choose the priority, so that the job starts before those of the caller's own jobs that could
	// start now or wait to be retried.
	Next bool
}

// Enqueued is the receipt of one job. Duplicate means that an earlier request
// with the same key stored it.
type Enqueued struct {
	ID        string `json:"id"`
	Seq       int64  `json:"seq"`
	Duplicate bool   `json:"duplicate"`
	// Unenforced names the limits of the job that are not enforced here as they are meant.
	Unenforced []string `json:"unenforced,omitempty"`
	// NewQueues are the queues, without settings, in which nothing else waits or runs.
	NewQueues []NewQueue `json:"new_queues,omitempty"`
	// State is cancelled or held if that is what became of it at once, for what it waits for did not end as
	// asked; else it is left out.
	State string `json:"state,omitempty"`
	// MaxAttempts is how many attempts may count before the job is dead, 0 for a job that was not enqueued.
	MaxAttempts int `json:"max_attempts,omitempty"`
	// Notes are sentences for the caller, such as that no service starts at boot when the job is due.
	Notes []string `json:"notes,omitempty"`
}

// EnqueueBatch asks for many jobs, all or none: 1 to queue.MaxBatch in one request
// with Commit, or BatchStep at most in each of several with the same Batch, of which
// the last one has Commit. Until then nobody sees the jobs, but their ids are taken.
// A request that is refused adds nothing; Abort gives the batch up.
type EnqueueBatch struct {
	Batch  string       `json:"batch,omitempty"` // at most queue.MaxKey bytes; the caller's choice
	Jobs   []queue.Spec `json:"jobs,omitempty"`
	Commit bool         `json:"commit"`
	Key    string       `json:"key,omitempty"` // of the request with Commit
	Abort  bool         `json:"abort,omitempty"`
	// RequireLimits is as that of Enqueue, for the jobs of this request.
	RequireLimits bool `json:"require_limits,omitempty"`
	// Next does the same as Enqueue.Next for the jobs of this request.
	Next bool `json:"next,omitempty"`
	// Encoded, if not nil, stands for Jobs: specs that are JSON already, on one line.
	Encoded []json.RawMessage `json:"-"`
}

// MarshalJSON writes the request.
func (p *EnqueueBatch) MarshalJSON() ([]byte, error) {
	type plain EnqueueBatch
	if p.Encoded == nil {
		return json.Marshal((*plain)(p))
	}
	head, err := json.Marshal(struct {
		Batch  string `json:"batch,omitempty"`
		Commit bool   `json:"commit"`
		Key    string `json:"key,omitempty"`
		Limits bool   `json:"require_limits,omitempty"`
		Next   bool   `json:"next,omitempty"`
	}{p.Batch, p.Commit, p.Key, p.RequireLimits, p.Next})
	if err != nil {
		return nil, err
	}
	size := len(head) + len(`,"jobs":[]}`) + len("\n")
	for _, job := range p.Encoded {
		size += len(job) + 1
	}
	b := append(make([]byte, 0, size), head[:len(head)-1]...)
	b = append(b, `,"jobs":[`...)
	for i, job := range p.Encoded {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, job...)
	}
	return append(b, "]}"...), nil
}

// BatchStep is how many jobs a request without Commit may have.
const BatchStep = 1000

// EnqueuedBatch is the receipt of one request of a batch, in its order. It holds
// once the batch is committed.
type EnqueuedBatch struct {
	IDs       []string `json:"ids"`
	Duplicate bool     `json:"duplicate"`
	// Found are the jobs of the request, by their places from 0 on, that were not enqueued, for others have their
	// unique keys: their ids are those of these.
	Found []int `json:"found,omitempty"`
	// Unenforced and NewQueues are as those of Enqueued, of all jobs of the request.
	Unenforced []string   `json:"unenforced,omitempty"`
	NewQueues  []NewQueue `json:"new_queues,omitempty"`
	// MaxAttempts is the largest one of these jobs. Notes are as those of Enqueued.
	MaxAttempts int      `json:"max_attempts,omitempty"`
	Notes       []string `json:"notes,omitempty"`
}

// Show asks for one job, with its newest attempts: of those before one, if that is given.
type Show struct {
	ID            Name `json:"id"`
	HistoryBefore int  `json:"history_before,omitempty"`
	WithoutEnv    bool `json:"without_env,omitempty"` // leave the environment out: that of others' jobs is shown on record
}

// List selects jobs, newest first.
type List struct {
	State  Texts  `json:"state,omitempty"`  // any of them; "waiting" is blocked, held, pending and failed, "done" is completed
	Failed bool   `json:"failed,omitempty"` // the same as the states dead and failed
	Label  Labels `json:"label,omitempty"`  // all of them
	Queue  string `json:"queue,omitempty"`
	Batch  string `json:"batch,omitempty"` // the caller's own that carry the label batch with this value
	User   string `json:"user,omitempty"`
	IDGlob string `json:"id_glob,omitempty"` // with * ? and [a-z]
	Since  Time   `json:"since,omitzero"`    // ended, or else enqueued, at or after
	Until  Time   `json:"until,omitzero"`    // ended, or else enqueued, before
	Limit  int    `json:"limit,omitempty"`   // 1 to 1000, the default
	Cursor string `json:"cursor,omitempty"`
}

// DLQList selects dead jobs, newest first.
type DLQList struct {
	Label  Labels `json:"label,omitempty"` // all of them
	Queue  string `json:"queue,omitempty"`
	Batch  string `json:"batch,omitempty"` // the caller's own jobs whose label batch has this value
	User   string `json:"user,omitempty"`
	IDGlob string `json:"id_glob,omitempty"` // with * ? and [a-z]
	Since  Time   `json:"since,omitzero"`    // ended at or after
	Until  Time   `json:"until,omitzero"`    // ended before
	Limit  int    `json:"limit,omitempty"`   // 1 to 1000, the default
	Cursor string `json:"cursor,omitempty"`
}

// List returns the list of the same dead jobs.
func (p DLQList) List() List {
	return List{State: Texts{queue.Dead.String()}, Label: p.Label, Queue: p.Queue, Batch: p.Batch, User: p.User,
		IDGlob: p.IDGlob, Since: p.Since, Until: p.Until, Limit: p.Limit, Cursor: p.Cursor}
}

// DeadOnly returns the same selection of dead jobs. It ignores State and Failed.
func (p List) DeadOnly() DLQList {
	return DLQList{Label: p.Label, Queue: p.Queue, Batch: p.Batch, User: p.User,
		IDGlob: p.IDGlob, Since: p.Since, Until: p.Until, Limit: p.Limit, Cursor: p.Cursor}
}

// JobPage is part of a list; Next is the next one's cursor, nil at the end.
type JobPage struct {
	Jobs []Job   `json:"jobs"`
	Next *string `json:"next"`
}

// Status is how the queue is.
type Status struct {
	Jobs     map[string]int64 `json:"jobs"` // by state, zeros too
	Workers  WorkerSummary    `json:"workers"`
	Oldest   Time             `json:"oldest_waiting"` // when the job that waits longest became runnable
	Enqueued int64            `json:"enqueued"`       // ever
	// LastEvent is the number of an event that all of this comes after.
	LastEvent int64 `json:"last_event"`
	// Throughput is how many attempts have ended in the last minute, on all nodes.
	Throughput int    `json:"throughput_per_minute"`
	Database   string `json:"database"`        // its folder
	Store      string `json:"store,omitempty"` // where the queue is, if it is not there
	Bytes      int64  `json:"database_bytes"`
	Outputs    int64  `json:"output_bytes"` // of all outputs that are kept
	// UserBytes is how many bytes the caller's jobs use, and MaxBytesUser how many they may use; 0 means unlimited.
	UserBytes    int64 `json:"user_bytes"`
	MaxBytesUser int64 `json:"max_bytes_per_user"`
	// NearQuota lists, for admins, the other users whose jobs use 90 % of max_bytes_per_user or more: those that use most
	// first, at most 20.
	NearQuota []UserBytes `json:"users_near_quota,omitempty"`
	Settings  string      `json:"settings_file"`
	Service   string      `json:"service"` // whose service answers: own, system or directory; "" if none runs
	Socket    string      `json:"socket"`
	PID       int         `json:"pid"`
	Node      string      `json:"node,omitempty"` // whose workers these are, where machines share the queue
	Version   string      `json:"version"`
	Started   Time        `json:"started_at"`
	Draining  bool        `json:"draining"`
	// PausedAt is since when everything is paused, PausedBy who did it; null if it is not.
	PausedAt  Time    `json:"paused_at"`
	PausedBy  *string `json:"paused_by"`
	Reranking bool    `json:"reranking"` // waiting jobs are being ranked again, since the order was changed
	// Away is why the store cannot be read now: what is said of jobs is as of before.
	Away   string `json:"away,omitempty"`
	Health string `json:"health"` // ok, or degraded or failing with what is wrong
}

// UserBytes is how many bytes the jobs of a user use.
type UserBytes struct {
	UID   int    `json:"uid"`
	User  string `json:"user"` // by name
	Bytes int64  `json:"bytes"`
}

// ScreenRows is how many jobs of each part of a screen are wanted: 1 to 100, 10 if 0.
type ScreenRows struct {
	Rows int `json:"rows,omitempty"`
}

// Screen is how the queue stands, with the first jobs of each part. Commands and errors are cut
// at 1 KiB, and more labels than that left out.
type Screen struct {
	Status  Status      `json:"status"`
	Running []ScreenJob `json:"running"` // the oldest first
	Ready   []Job       `json:"ready"`   // that wait for a worker or a gate, in the order in which they start if no gate is full
	Timed   []Job       `json:"timed"`   // that wait for their time, the next first
	Kept    []Job       `json:"kept"`    // held and blocked ones, the oldest first
	Dead    []ScreenJob `json:"dead"`    // the last ended first
	Paused  []QueueView `json:"paused"`  // queues of which nothing starts and jobs wait, at most 100
	Done    []Job       `json:"done"`    // completed and cancelled ones, the last ended first
}

// ScreenJob is a job with the last line that it has printed. Of a dead one it is told if an exit
// code is all that is known of why: the last line of its standard error, or else of its output.
type ScreenJob struct {
	Job
	LastLine string `json:"last_line"`
}

// WorkerSummary counts workers.
type WorkerSummary struct {
	Total int `json:"total"`
	Busy  int `json:"busy"`
	Idle  int `json:"idle"`
}

// Wait asks to be told when jobs have ended: all of them, or any.
type Wait struct {
	ID      Name  `json:"id,omitempty"`
	IDs     Names `json:"ids,omitempty"`
	Any     bool  `json:"any,omitempty"`
	Timeout Span  `json:"timeout,omitempty"` // 0 is none
}

// Ended tells of a job that has ended.
type Ended struct {
	Job Job `json:"job"`
}

// Waited says which jobs have not ended: none, unless the wait timed out or was
// for any.
type Waited struct {
	Open     []string `json:"open"`
	TimedOut bool     `json:"timed_out"`
}

// Logs asks for the output of one attempt.
type Logs struct {
	ID      Name `json:"id"`
	Attempt int  `json:"attempt,omitempty"` // 0 is the last
	All     bool `json:"all,omitempty"`     // with Follow: from the first attempt on
	Follow  bool `json:"follow,omitempty"`  // until the job has ended, over its attempts
	Stdout  bool `json:"stdout,omitempty"`  // this stream only
	Stderr  bool `json:"stderr,omitempty"`  // this stream only
	N       *int `json:"n,omitempty"`       // the last N lines only, at most MaxLines
	Since   Time `json:"since,omitzero"`    // printed at or after
	Until   Time `json:"until,omitzero"`    // printed before
	Ends    bool `json:"ends,omitempty"`    // tell also, with Follow, that an attempt has ended and another is to come
}

// MaxTyped is how much may be typed into a terminal at once, in bytes.
const MaxTyped = 64 << 10

// Attach joins the terminal of a job that has one. Text or Base64 is typed there, at most
// 65536 bytes; Rows and Cols, given together, are its new size. Controls asks for the
// control sequences by which the job has changed its modes.
type Attach struct {
	ID       Name   `json:"id"`
	Attempt  int    `json:"attempt,omitempty"` // 0 is the one that runs
	Wait     bool   `json:"wait,omitempty"`    // until that attempt has started
	Rows     int    `json:"rows,omitempty"`
	Cols     int    `json:"cols,omitempty"`
	Text     string `json:"text,omitempty"`
	Base64   []byte `json:"base64,omitempty"`
	Controls bool   `json:"controls,omitempty"`
}

// Attached says whose terminal was joined, and how many bytes of what was typed were taken:
// the rest can be typed once the job has read some. Controls are the control sequences by which
// the job has changed the modes of its terminal, if the request has controls.
type Attached struct {
	Attempt  int    `json:"attempt"`
	Taken    int    `json:"taken"`
	Controls string `json:"controls,omitempty"`
}

// Piece is a piece of output. Text is set unless the bytes are not UTF-8, which are in Base64
// then. Dropped bytes of the stream were not kept, and those of Damage cannot be read any more.
// One with Ended has none of these: the attempt has ended, and the job's next one follows. TTY says
// that the job has a terminal, so the output has control sequences.
type Piece struct {
	ID      string  `json:"id"` // of the job
	Attempt int     `json:"attempt"`
	Stream  string  `json:"stream"` // stdout or stderr, "" with Ended and for damage of an unknown stream
	At      Time    `json:"at"`
	Text    string  `json:"text,omitempty"`
	Base64  []byte  `json:"base64,omitempty"`
	Dropped int64   `json:"dropped,omitempty"`
	Damage  *Damage `json:"damage,omitempty"`
	TTY     bool    `json:"tty,omitempty"`
	Ended   bool    `json:"ended,omitempty"`
}

// Damage says that bytes of a stream were kept but cannot be read any more: its file is
// damaged or was cut. Offset is how many bytes the stream had before them, 0 if nothing that is left
// shows which stream they were of.
type Damage struct {
	Offset int64 `json:"offset"`
	Bytes  int64 `json:"bytes"`
}

// Gap returns what is shown instead of output that was not kept or is damaged, "" for a piece that is there.
func (p *Piece) Gap() string {
	stream := cmp.Or(p.Stream, "output")
	switch {
	case p.Dropped > 0:
		return fmt.Sprintf("[%d bytes of %s were not kept]", p.Dropped, stream)
	case p.Damage != nil:
		return fmt.Sprintf("[%d bytes of %s are damaged]", p.Damage.Bytes, stream)
	}
	return ""
}

// String is the piece's output.
func (p *Piece) String() string {
	if p.Base64 != nil {
		return string(p.Base64)
	}
	return p.Text
}

// Bytes is the piece's output.
func (p *Piece) Bytes() []byte {
	if p.Base64 != nil {
		return p.Base64
	}
	return []byte(p.Text)
}

// AppendTo appends the piece to the output before it. If output is missing in between, it appends the text from Gap
// on a separate line instead.
func (p *Piece) AppendTo(text []byte) []byte {
	gap := p.Gap()
	if gap == "" {
		return append(text, p.Bytes()...)
	}
	if len(text) > 0 && text[len(text)-1] != '\n' {
		text = append(text, '\n')
	}
	return append(append(text, gap...), '\n')
}

// LogsEnd says where the job stood when the output ended.
type LogsEnd struct {
	State string `json:"state"`
}

// Selection names jobs, or says which: never both. A single one may stand in ID.
// What is selected by the other members is dealt with SelectStep at a time, the
// newest first; the verdict's Next is the Cursor of the rest.
type Selection struct {
	ID        Name   `json:"id,omitempty"`
	IDs       Names  `json:"ids,omitempty"`
	All       bool   `json:"all,omitempty"`    // of those that the verb takes
	State     Texts  `json:"state,omitempty"`  // any of them; default: those that the verb takes
	Failed    bool   `json:"failed,omitempty"` // the same as the states dead and failed
	Label     Labels `json:"label,omitempty"`  // all of them
	Queue     string `json:"queue,omitempty"`
	Batch     string `json:"batch,omitempty"`      // the caller's own that carry the label batch with this value
	User      string `json:"user,omitempty"`       // who enqueued them
	OlderThan Span   `json:"older_than,omitempty"` // ended, or else enqueued, so long ago
	IDGlob    string `json:"id_glob,omitempty"`    // with * ? and [a-z]
	DryRun    bool   `json:"dry_run,omitempty"`    // only count them
	Cursor    string `json:"cursor,omitempty"`
}

// PauseSelection selects jobs for the methods pause and resume. Its field All means everything, so it cannot be
// combined with fields that select some of the jobs.
type PauseSelection struct{ Selection }

// SelectStep is how many selected jobs one request deals with.
const SelectStep = 1000

// Kill sends a signal to every process of running jobs: its name, with or without
// SIG, or its number; default TERM.
type Kill struct {
	Selection
	Signal string `json:"signal,omitempty"`
}

// Edit changes jobs that wait. Set is an object of a job's fields; null is the
// default.
type Edit struct {
	Selection
	Set json.RawMessage `json:"set"`
}

// Retry has jobs run again. Only has those be left as they are that were cancelled for their sake.
type Retry struct {
	Selection
	Only bool `json:"only,omitempty"`
}

// Remove removes jobs with their history. Force ends what runs first.
type Remove struct {
	Selection
	Force bool `json:"force,omitempty"`
}

// Names is all that the selection names.
func (s Selection) Names() []string {
	if s.ID == "" {
		return s.IDs
	}
	return append([]string{string(s.ID)}, s.IDs...)
}

// BulkResult says which jobs a verb was carried out on, and why not on others.
type BulkResult struct {
	// Done and Refused are there, also if empty, unless it was a dry run.
	Done    []string  `json:"done,omitempty"`
	Refused []Refusal `json:"refused,omitempty"`
	Matched *int      `json:"matched,omitempty"` // of a dry run: how many it would be
	Next    *string   `json:"next,omitempty"`    // the cursor of what is left
	// Unenforced names the limits that an edit has set and that are not enforced here as they are meant.
	Unenforced []string `json:"unenforced,omitempty"`
	// Notes are as those of Enqueued, after an edit.
	Notes []string `json:"notes,omitempty"`
}

// MarshalJSON implements json.Marshaler: of a dry run it says how many jobs it would be, and nothing else.
func (r BulkResult) MarshalJSON() ([]byte, error) {
	if r.Matched != nil {
		return json.Marshal(struct {
			Matched int     `json:"matched"`
			Next    *string `json:"next,omitempty"`
		}{*r.Matched, r.Next})
	}
	type whole BulkResult
	return json.Marshal(struct {
		Done    []string  `json:"done"`
		Refused []Refusal `json:"refused"`
		whole
	}{r.Done, r.Refused, whole(r)})
}

// Refusal describes why a verb was refused for one job.
type Refusal struct {
	ID      string     `json:"id"`
	Code    queue.Code `json:"code"`
	Field   string     `json:"field,omitempty"` // the invalid field of the job; "" if the refusal is not about a field
	Message string     `json:"message"`
}

// Err returns the refusal as an error.
func (r *Refusal) Err() *queue.Error {
	return &queue.Error{Code: r.Code, Field: r.Field, Message: r.Message}
}

// DLQRetry names dead jobs to put back: by id, or all, or all of a batch of the caller's,
// SelectStep at a time as a Selection does.
type DLQRetry struct {
	ID      Name   `json:"id,omitempty"`
	IDs     Names  `json:"ids,omitempty"`
	All     bool   `json:"all,omitempty"`
	Batch   string `json:"batch,omitempty"`
	Timeout *Span  `json:"timeout,omitempty"` // replaces the jobs' own
	DryRun  bool   `json:"dry_run,omitempty"` // only count them
	Cursor  string `json:"cursor,omitempty"`
}

// Sure guards what cannot be undone, of all jobs or those of a batch of the caller's.
type Sure struct {
	Yes    bool   `json:"yes"` // needed unless they are only counted
	Batch  string `json:"batch,omitempty"`
	DryRun bool   `json:"dry_run,omitempty"`
}

// Removed counts what was removed.
type Removed struct {
	Removed int  `json:"removed,omitempty"` // there, also if 0, unless it was a dry run
	Matched *int `json:"matched,omitempty"` // of a dry run: how many it would be
	Of      int  `json:"of,omitempty"`      // how many it is to be, while it goes on
}

// MarshalJSON implements json.Marshaler: of a dry run it says how many jobs it would be, and nothing else.
func (r Removed) MarshalJSON() ([]byte, error) {
	if r.Matched != nil {
		return json.Marshal(struct {
			Matched int `json:"matched"`
		}{*r.Matched})
	}
	type whole Removed
	return json.Marshal(struct {
		Removed int `json:"removed"`
		whole
	}{r.Removed, whole(r)})
}

// Count is the number of workers to add, 1 if it is nil.
type Count struct {
	Count *int `json:"count,omitempty"`
}

// WorkerScale sets the number of workers.
type WorkerScale struct {
	Count int `json:"count"`
}

// WorkerStop takes workers away: Count, or all of them. Running jobs may finish
// until Timeout (30 s if nil); what runs then is ended and given back.
type WorkerStop struct {
	Count   *int  `json:"count,omitempty"`
	All     bool  `json:"all,omitempty"`
	Timeout *Span `json:"timeout,omitempty"`
	Force   bool  `json:"force,omitempty"`
}

// WorkerCount is how many workers are wanted now.
type WorkerCount struct {
	Workers int `json:"workers"`
}

// WorkerList lists the workers.
type WorkerList struct {
	Workers []Worker `json:"workers"`
}

// Worker is one worker.
type Worker struct {
	ID            string  `json:"id"`
	Node          string  `json:"node"`
	PID           *int    `json:"pid"` // of the job it runs, or of what is stuck
	StartedAt     Time    `json:"started_at"`
	LastHeartbeat Time    `json:"last_heartbeat"`
	State         string  `json:"state"` // idle, busy, paused, stopping, stale, or stuck: its job has ended but outlives SIGKILL
	Job           *string `json:"job"`
}
