// Package control lets clients use a running queue. It defines the API, its wire format, a server
// and a client, and determines which user is at the other end of a connection.
//
// Start with API, which the service and Client both implement. Methods is the table of methods, and
// Server.Run serves them.
package control

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/queuectl/queuectl/queue"
)

// API lists the methods of a running queue. The service implements it. Client implements it too, by
// sending the calls to the service. Errors are a *queue.Error or wrap one. All methods are safe for
// concurrent use.
type API interface {
	Hello(ctx context.Context, p HelloParams) (Hello, error)
	// Whoami returns the caller's identity and rights. It needs no right.
	Whoami(ctx context.Context, p Nothing) (Whoami, error)
	Enqueue(ctx context.Context, p Enqueue) (Enqueued, error)
	EnqueueBatch(ctx context.Context, p EnqueueBatch) (EnqueuedBatch, error)
	Show(ctx context.Context, p Show) (JobDetail, error)
	List(ctx context.Context, p List) (JobPage, error)
	Status(ctx context.Context, p Nothing) (Status, error)
	// Screen returns an overview of the queue. The cost of a call does not depend on the number of
	// jobs.
	Screen(ctx context.Context, p ScreenRows) (Screen, error)
	// Wait waits for jobs to end. It calls the function each once for every job that has ended.
	Wait(ctx context.Context, p Wait, each func(Ended) error) (Waited, error)
	// Logs sends an attempt's output piece by piece.
	Logs(ctx context.Context, p Logs, each func(Piece) error) (LogsEnd, error)
	// Attach sets the size of a job's terminal and types text into it.
	Attach(ctx context.Context, p Attach) (Attached, error)
	Cancel(ctx context.Context, p Selection) (BulkResult, error)
	Retry(ctx context.Context, p Retry) (BulkResult, error)
	// Hold keeps waiting jobs from starting. Release undoes that.
	Hold(ctx context.Context, p Selection) (BulkResult, error)
	Release(ctx context.Context, p Selection) (BulkResult, error)
	// Pause freezes running jobs together with their timeouts. Resume continues them. With All, the
	// methods affect the whole queue and need the right "operate": running jobs are frozen and no
	// job starts, also after a restart, until everything is resumed. Jobs and queues that were
	// paused individually stay paused even then.
	Pause(ctx context.Context, p Selection) (BulkResult, error)
	Resume(ctx context.Context, p Selection) (BulkResult, error)
	// Requeue stops running jobs and puts them back in the queue. The attempt does not count.
	Requeue(ctx context.Context, p Selection) (BulkResult, error)
	Kill(ctx context.Context, p Kill) (BulkResult, error)
	Edit(ctx context.Context, p Edit) (BulkResult, error)
	Remove(ctx context.Context, p Remove) (BulkResult, error)
	// Clear removes all jobs that are not running.
	Clear(ctx context.Context, p Sure) (Removed, error)
	DLQList(ctx context.Context, p DLQList) (JobPage, error)
	DLQRetry(ctx context.Context, p DLQRetry) (BulkResult, error)
	DLQClear(ctx context.Context, p Sure) (Removed, error)
	// QueueList lists the queues that have settings or unfinished jobs.
	QueueList(ctx context.Context, p Queues) (QueueList, error)
	QueueSet(ctx context.Context, p QueueSet) (QueueView, error)
	// QueuePause prevents jobs of queues from starting, also after a restart, until QueueResume or
	// until a given time.
	QueuePause(ctx context.Context, p QueuePause) (QueueList, error)
	QueueResume(ctx context.Context, p QueueName) (QueueList, error)
	// QueueRemove deletes the settings of an empty queue.
	QueueRemove(ctx context.Context, p QueueRemove) (QueueList, error)
	// Tree returns all direct and indirect dependencies and dependants of a job.
	Tree(ctx context.Context, p Tree) (TreeView, error)
	// Why returns the reasons why a job is not running.
	Why(ctx context.Context, p WhyParams) (Why, error)
	// Simulate returns the jobs that would start next if workers were free now. It changes nothing.
	Simulate(ctx context.Context, p Simulate) (Simulated, error)
	// Stats returns how many attempts started and ended, their waiting times and their run times.
	Stats(ctx context.Context, p StatsParams) (Stats, error)
	WorkerStart(ctx context.Context, p Count) (WorkerCount, error)
	WorkerStop(ctx context.Context, p WorkerStop) (WorkerCount, error)
	WorkerScale(ctx context.Context, p WorkerScale) (WorkerCount, error)
	WorkerList(ctx context.Context, p Nothing) (WorkerList, error)
	// ScheduleAdd stores a recurring job. Adding an identical schedule again is not an error.
	ScheduleAdd(ctx context.Context, p ScheduleAdd) (ScheduleDetail, error)
	ScheduleList(ctx context.Context, p ScheduleList) (SchedulePage, error)
	ScheduleShow(ctx context.Context, p ScheduleName) (ScheduleDetail, error)
	ScheduleRemove(ctx context.Context, p ScheduleName) (Schedule, error)
	SchedulePause(ctx context.Context, p ScheduleName) (Schedule, error)
	ScheduleResume(ctx context.Context, p ScheduleName) (Schedule, error)
	// ScheduleRun enqueues a job of a schedule now.
	ScheduleRun(ctx context.Context, p ScheduleName) (Enqueued, error)
	// GateList lists locks, rates and resources: the shared ones and the caller's. GateSet sets the
	// rule of a shared key.
	GateList(ctx context.Context, p Gates) (GateList, error)
	GateSet(ctx context.Context, p GateSet) (GateView, error)
	// NodeList lists the nodes that share the queue. NodeDrain stops a node from claiming jobs, or
	// lets it claim again. NodeRemove deletes a node whose service is not running.
	NodeList(ctx context.Context, p Nodes) (NodeList, error)
	NodeDrain(ctx context.Context, p NodeDrain) (NodeView, error)
	NodeRemove(ctx context.Context, p NodeName) (NodeView, error)
	// HookTest enqueues a hook or a webhook from the settings with the data of a fictitious job, so
	// that users can test it.
	HookTest(ctx context.Context, p HookName) (Enqueued, error)
	// WebStart serves the web page until the service ends, overriding the settings. WebStop turns
	// the page off.
	WebStart(ctx context.Context, p WebStart) (WebState, error)
	WebStop(ctx context.Context, p Nothing) (WebState, error)
	// WebOpen returns a link with which the caller can open the page. The link is valid for one
	// minute.
	WebOpen(ctx context.Context, p Nothing) (WebLink, error)
	ConfigList(ctx context.Context, p Nothing) (ConfigList, error)
	ConfigGet(ctx context.Context, p ConfigKey) (ConfigValue, error)
	ConfigSet(ctx context.Context, p ConfigSet) (ConfigValue, error)
	ConfigUnset(ctx context.Context, p ConfigKey) (ConfigValue, error)
	// Events sends the stored events after a given number and, with Follow, the events that happen
	// later.
	Events(ctx context.Context, p Events, each func(Event) error) (EventsEnd, error)
	// Cleanup removes old ended jobs. It reports its progress by calling the function each.
	Cleanup(ctx context.Context, p Cleanup, each func(Removed) error) (Removed, error)
	// Backup sends a copy of the queue's database in pieces. The copy contains every change that
	// was acknowledged before the call.
	Backup(ctx context.Context, p Nothing, each func(BackupPiece) error) (BackupEnd, error)
	// Doctor checks the queue and its environment. It reports its progress by calling the function
	// each.
	Doctor(ctx context.Context, p Doctor, each func(Progress) error) (Diagnosis, error)
	// Drain prevents jobs from starting until the drain is turned off, even after a restart. It
	// returns once no job can start any more. If jobs can still start after a time limit, Drain
	// returns an error that names the job or the node. The drain stays on even after that error.
	Drain(ctx context.Context, p Drain) (Draining, error)
	// Reload reads the settings file again.
	Reload(ctx context.Context, p Nothing) (Reloaded, error)
	ServiceStop(ctx context.Context, p ServiceStop) (Stopping, error)
}

// Nothing is the type of the parameters of a method that has none.
type Nothing struct{}

// HelloParams describes the client. All fields are optional.
type HelloParams struct {
	Version string `json:"version,omitempty"`
}

// Hello describes the service.
type Hello struct {
	Version  string   `json:"version"`
	Protocol Range    `json:"protocol"`
	Features []string `json:"features"`
}

// Range is the range of protocol versions that a service supports.
type Range struct {
	Min int `json:"min"`
	Max int `json:"max"`
}

// Whoami holds the caller's identity, as the kernel reports it, and the caller's rights.
type Whoami struct {
	UID    int       `json:"uid"`
	User   string    `json:"user"` // name of the user
	GID    int       `json:"gid"`
	Group  string    `json:"group"`
	Groups []GroupID `json:"groups"` // supplementary groups, at most 1,000
	PID    int       `json:"pid"`
	Right  Right     `json:"right"`
	Rights []Right   `json:"rights"` // Right and the rights that it includes
	RunAs  string    `json:"run_as"` // value of the setting run_as
	// JobsRunAs is the account that runs the caller's jobs. It is "" if the caller may not enqueue
	// jobs.
	JobsRunAs string `json:"jobs_run_as"`
	// MaxPending and MaxRunning limit how many of the caller's jobs may wait and may run at the
	// same time. 0 means unlimited.
	MaxPending int64 `json:"max_pending"`
	MaxRunning int   `json:"max_running"`
	// Bytes is the number of bytes that the caller's jobs use. MaxBytes limits it; 0 means
	// unlimited.
	Bytes    int64 `json:"bytes"`
	MaxBytes int64 `json:"max_bytes"`
	// Next describes how the caller can get a right. It is "" if the caller has one.
	Next string `json:"next,omitempty"`
	// Service is the kind of service that answers (own, system or directory). Socket is the path on
	// which it listens.
	Service string `json:"service"`
	Socket  string `json:"socket"`
}

// GroupID is the id and the name of a group.
type GroupID struct {
	GID  int    `json:"gid"`
	Name string `json:"name"`
}

// Enqueue requests one job. In JSON, the spec's fields, key, next and require_limits are all
// members of one object.
type Enqueue struct {
	Spec queue.Spec
	Key  string // idempotency key; at most queue.MaxKey bytes
	// RequireLimits rejects the job if it has a limit that this machine cannot enforce.
	RequireLimits bool
	// Next makes the service choose the priority. With that priority, the job starts before all
	// other jobs of the caller that could start now or that wait for a retry.
	Next bool
}

// Enqueued is the response to Enqueue. Duplicate means that the job already existed: an earlier
// request had the same key, or another job has the same unique key.
type Enqueued struct {
	ID        string `json:"id"`
	Seq       int64  `json:"seq"`
	Duplicate bool   `json:"duplicate"`
	// Unenforced lists the job's limits that this machine does not enforce, or enforces only in
	// part.
	Unenforced []string `json:"unenforced,omitempty"`
	// NewQueues lists the queues that are new with this request: they have no settings and had no
	// unfinished jobs before.
	NewQueues []NewQueue `json:"new_queues,omitempty"`
	// State is cancelled or held if the job has this state because one of its dependencies had
	// already failed. Otherwise it is "".
	State string `json:"state,omitempty"`
	// MaxAttempts is the number of counted attempts after which the job is dead. It is 0 for a
	// duplicate.
	MaxAttempts int `json:"max_attempts,omitempty"`
	// Notes are sentences to show to the user, for example that no service starts at boot although
	// the job is due later.
	Notes []string `json:"notes,omitempty"`
}

// EnqueueBatch enqueues all jobs of a batch or none of them. A batch is either one request with
// Commit and 1 to queue.MaxBatch jobs, or several requests with the same Batch. If there are
// several, only the last one has Commit, and each of the others has at most BatchStep jobs. The
// jobs are invisible until the commit, but their ids are already taken. A rejected request adds no
// jobs. Abort discards the batch.
type EnqueueBatch struct {
	Batch  string       `json:"batch,omitempty"` // name chosen by the caller, at most queue.MaxKey bytes
	Jobs   []queue.Spec `json:"jobs,omitempty"`
	Commit bool         `json:"commit"`
	Key    string       `json:"key,omitempty"` // idempotency key of the request with Commit
	Abort  bool         `json:"abort,omitempty"`
	// RequireLimits does the same as Enqueue.RequireLimits for the jobs of this request.
	RequireLimits bool `json:"require_limits,omitempty"`
	// Next does the same as Enqueue.Next for the jobs of this request.
	Next bool `json:"next,omitempty"`
	// Encoded replaces Jobs if it is not nil. It holds specs that are already JSON, each on one
	// line.
	Encoded []json.RawMessage `json:"-"`
}

// MarshalJSON writes the request, copying the specs of Encoded unchanged.
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

// BatchStep is the maximum number of jobs in a request without Commit.
const BatchStep = 1000

// EnqueuedBatch is the response to one request of a batch. IDs are in the order of the request's
// jobs. The jobs exist once the batch is committed.
type EnqueuedBatch struct {
	IDs       []string `json:"ids"`
	Duplicate bool     `json:"duplicate"`
	// Found lists the request's jobs that were not enqueued, by their index from 0. For each of
	// them, a job with the same unique key already exists. IDs holds the id of the existing job at
	// that index.
	Found []int `json:"found,omitempty"`
	// Unenforced and NewQueues have the same meaning as in Enqueued, for all jobs of the request
	// together.
	Unenforced []string   `json:"unenforced,omitempty"`
	NewQueues  []NewQueue `json:"new_queues,omitempty"`
	// MaxAttempts is the largest value of Enqueued.MaxAttempts among the request's jobs. Notes has
	// the same meaning as Enqueued.Notes.
	MaxAttempts int      `json:"max_attempts,omitempty"`
	Notes       []string `json:"notes,omitempty"`
}

// Show requests one job and its newest attempts. If HistoryBefore is set, only attempts with a
// lower number are returned.
type Show struct {
	ID            Name `json:"id"`
	HistoryBefore int  `json:"history_before,omitempty"`
	// WithoutEnv hides the values of environment variables. A request that shows the values of
	// another user's job is recorded as an audit event.
	WithoutEnv bool `json:"without_env,omitempty"`
}

// List selects jobs, newest first.
type List struct {
	// State selects jobs in any of these states. "waiting" means blocked, held, pending and failed;
	// "done" means completed.
	State  Texts  `json:"state,omitempty"`
	Failed bool   `json:"failed,omitempty"` // the same as the states dead and failed
	Label  Labels `json:"label,omitempty"`  // the job must have all of these labels
	Queue  string `json:"queue,omitempty"`
	Batch  string `json:"batch,omitempty"` // value of the label batch; selects only the caller's jobs
	User   string `json:"user,omitempty"`
	IDGlob string `json:"id_glob,omitempty"` // pattern for the id; wildcards: *, ? and sets such as [a-z]
	// Since and Until select the jobs that ended at the time Since or later, and before the time
	// Until. For an unfinished job, the time at which it was enqueued counts instead.
	Since  Time   `json:"since,omitzero"`
	Until  Time   `json:"until,omitzero"`
	Limit  int    `json:"limit,omitempty"` // 1 to 1000; 0 means 1000
	Cursor string `json:"cursor,omitempty"`
}

// DLQList selects dead jobs, newest first.
type DLQList struct {
	Label  Labels `json:"label,omitempty"` // the job must have all of these labels
	Queue  string `json:"queue,omitempty"`
	Batch  string `json:"batch,omitempty"` // value of the label batch; selects only the caller's jobs
	User   string `json:"user,omitempty"`
	IDGlob string `json:"id_glob,omitempty"` // pattern for the id; wildcards: *, ? and sets such as [a-z]
	Since  Time   `json:"since,omitzero"`    // only jobs that ended at this time or later
	Until  Time   `json:"until,omitzero"`    // only jobs that ended before this time
	Limit  int    `json:"limit,omitempty"`   // 1 to 1000; 0 means 1000
	Cursor string `json:"cursor,omitempty"`
}

// List returns the equivalent parameters for the method list.
func (p DLQList) List() List {
	return List{State: Texts{queue.Dead.String()}, Label: p.Label, Queue: p.Queue, Batch: p.Batch, User: p.User,
		IDGlob: p.IDGlob, Since: p.Since, Until: p.Until, Limit: p.Limit, Cursor: p.Cursor}
}

// DeadOnly returns the same selection for the method dlq.list. It ignores State and Failed.
func (p List) DeadOnly() DLQList {
	return DLQList{Label: p.Label, Queue: p.Queue, Batch: p.Batch, User: p.User,
		IDGlob: p.IDGlob, Since: p.Since, Until: p.Until, Limit: p.Limit, Cursor: p.Cursor}
}

// JobPage is one page of a list. Next is the cursor of the next page, nil on the last page.
type JobPage struct {
	Jobs []Job   `json:"jobs"`
	Next *string `json:"next"`
}

// Status describes the state of the queue and of the service.
type Status struct {
	Jobs    map[string]int64 `json:"jobs"` // number of jobs by state, including zeros
	Workers WorkerSummary    `json:"workers"`
	// Oldest is the time at which the longest-waiting runnable job was first runnable. It is null if
	// no job is runnable.
	Oldest   Time  `json:"oldest_waiting"`
	Enqueued int64 `json:"enqueued"` // number of jobs that were ever enqueued
	// LastEvent is the number of the newest event whose effects are included in the other fields.
	LastEvent int64 `json:"last_event"`
	// Throughput is the number of attempts that ended in the last minute on all nodes.
	Throughput int    `json:"throughput_per_minute"`
	Database   string `json:"database"`        // state directory of the service
	Store      string `json:"store,omitempty"` // where the queue is stored, if not in Database
	Bytes      int64  `json:"database_bytes"`
	Outputs    int64  `json:"output_bytes"` // size of all stored outputs
	// UserBytes is how many bytes the caller's jobs use, and MaxBytesUser how many they may use; 0
	// means unlimited.
	UserBytes    int64 `json:"user_bytes"`
	MaxBytesUser int64 `json:"max_bytes_per_user"`
	// NearQuota is for admins only. It lists the other users whose jobs use 90 % of
	// max_bytes_per_user or more, at most 20, the largest first.
	NearQuota []UserBytes `json:"users_near_quota,omitempty"`
	Settings  string      `json:"settings_file"`
	// Service is the kind of the service: own, system or directory. It is "" if no service runs.
	Service string `json:"service"`
	Socket  string `json:"socket"`
	PID     int    `json:"pid"`
	// Node is the node of the service. It is "" unless several nodes share the queue.
	Node     string `json:"node,omitempty"`
	Version  string `json:"version"`
	Started  Time   `json:"started_at"`
	Draining bool   `json:"draining"`
	// PausedAt is when the whole queue was paused, and PausedBy is the user who did it. Both are
	// null if it is not paused.
	PausedAt Time    `json:"paused_at"`
	PausedBy *string `json:"paused_by"`
	// Reranking is true while the priorities of waiting jobs are recomputed after a change of the
	// settings for the order.
	Reranking bool `json:"reranking"`
	// Away is the reason why the store cannot be read, "" if it can be read. While Away is set, the
	// other fields hold the last known values.
	Away   string `json:"away,omitempty"`
	Health string `json:"health"` // "ok", or "degraded" or "failing" followed by the reason
}

// UserBytes holds how many bytes the jobs of one user use.
type UserBytes struct {
	UID   int    `json:"uid"`
	User  string `json:"user"` // name of the user
	Bytes int64  `json:"bytes"`
}

// ScreenRows sets the number of jobs in each section of the screen: 1 to 100; 0 means 10.
type ScreenRows struct {
	Rows int `json:"rows,omitempty"`
}

// Screen is an overview of the queue: its status and the first jobs of each section. Commands and
// errors are truncated to 1 KiB. A job's labels are left out if they are longer than that in total.
type Screen struct {
	Status  Status      `json:"status"`
	Running []ScreenJob `json:"running"` // oldest first
	// Ready holds the jobs that wait only for a worker or a gate, in the order in which they start
	// if no gate is full.
	Ready  []Job       `json:"ready"`
	Timed  []Job       `json:"timed"`  // jobs that wait for their start time, the earliest first
	Kept   []Job       `json:"kept"`   // held and blocked jobs, the oldest first
	Dead   []ScreenJob `json:"dead"`   // the most recently ended first
	Paused []QueueView `json:"paused"` // paused queues with waiting jobs, at most 100
	Done   []Job       `json:"done"`   // completed and cancelled jobs, the most recently ended first
}

// ScreenJob is a job with the last line of its output. For a dead job, LastLine is set only if the
// job failed with an exit code. It is the last line of standard error or, if standard error is
// empty, of standard output.
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

// Wait waits until all of the given jobs have ended or, with Any, until one has.
type Wait struct {
	ID      Name  `json:"id,omitempty"`
	IDs     Names `json:"ids,omitempty"`
	Any     bool  `json:"any,omitempty"`
	Timeout Span  `json:"timeout,omitempty"` // longest wait; 0 means unlimited
}

// Ended is sent when a job has ended.
type Ended struct {
	Job Job `json:"job"`
}

// Waited is the response to Wait. Open lists the jobs that have not ended. It is empty unless the
// wait timed out or had Any set.
type Waited struct {
	Open     []string `json:"open"`
	TimedOut bool     `json:"timed_out"`
}

// Logs requests the output of an attempt or, with Follow, of the job's attempts.
type Logs struct {
	ID      Name `json:"id"`
	Attempt int  `json:"attempt,omitempty"` // number of the attempt; 0 means the latest
	All     bool `json:"all,omitempty"`     // with Follow: start with the first attempt
	Follow  bool `json:"follow,omitempty"`  // keep sending output until the job has ended
	Stdout  bool `json:"stdout,omitempty"`  // standard output only
	Stderr  bool `json:"stderr,omitempty"`  // standard error only
	N       *int `json:"n,omitempty"`       // only the last N lines; at most MaxLines
	Since   Time `json:"since,omitzero"`    // only output printed at this time or later
	Until   Time `json:"until,omitzero"`    // only output printed before this time
	// Ends requests a report each time an attempt has ended and another one will follow. It works
	// only with Follow.
	Ends bool `json:"ends,omitempty"`
}

// MaxTyped is the maximum number of bytes that one request may type into a terminal.
const MaxTyped = 64 << 10

// Attach types Text or Base64 into the terminal of a job, at most MaxTyped bytes. Rows and Cols,
// which must be set together, change the terminal's size. Controls requests the control sequences
// with which the job has changed the modes of its terminal.
type Attach struct {
	ID       Name   `json:"id"`
	Attempt  int    `json:"attempt,omitempty"` // number of the attempt; 0 means the running one
	Wait     bool   `json:"wait,omitempty"`    // wait until the attempt has started
	Rows     int    `json:"rows,omitempty"`
	Cols     int    `json:"cols,omitempty"`
	Text     string `json:"text,omitempty"`
	Base64   []byte `json:"base64,omitempty"`
	Controls bool   `json:"controls,omitempty"`
}

// Attached is the response to Attach. Taken is the number of typed bytes that the terminal
// accepted; the client can type the rest once the job has read some. Controls holds the control
// sequences with which the job has changed the modes of its terminal, if the request asked for
// them.
type Attached struct {
	Attempt  int    `json:"attempt"`
	Taken    int    `json:"taken"`
	Controls string `json:"controls,omitempty"`
}

// Piece is a piece of a job's output, or a report about it. Output is in Text if it is valid UTF-8,
// otherwise in Base64. Dropped is the number of bytes of the stream that were not stored. Damage
// describes stored bytes that cannot be read. A piece with Ended has none of these: the attempt has
// ended, and another attempt will follow. TTY means that the job has a terminal, so its output may
// contain control sequences.
type Piece struct {
	ID      string  `json:"id"` // id of the job
	Attempt int     `json:"attempt"`
	Stream  string  `json:"stream"` // stdout or stderr; "" with Ended, and for damage of an unknown stream
	At      Time    `json:"at"`
	Text    string  `json:"text,omitempty"`
	Base64  []byte  `json:"base64,omitempty"`
	Dropped int64   `json:"dropped,omitempty"`
	Damage  *Damage `json:"damage,omitempty"`
	TTY     bool    `json:"tty,omitempty"`
	Ended   bool    `json:"ended,omitempty"`
}

// Damage reports stored bytes of a stream that cannot be read, because the output file is damaged
// or truncated. Offset is the number of bytes of the stream before the damage. It is 0 if the
// stream is unknown.
type Damage struct {
	Offset int64 `json:"offset"`
	Bytes  int64 `json:"bytes"`
}

// Gap returns a text to show instead of output that was not stored or is damaged. It returns "" if
// nothing is missing.
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

// String returns the output of the piece.
func (p *Piece) String() string {
	if p.Base64 != nil {
		return string(p.Base64)
	}
	return p.Text
}

// Bytes returns the output of the piece.
func (p *Piece) Bytes() []byte {
	if p.Base64 != nil {
		return p.Base64
	}
	return []byte(p.Text)
}

// AppendTo appends the piece to the output before it. If output is missing in between, it appends
// the text from Gap on a separate line instead.
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

// LogsEnd is the response to Logs. State is the job's state when the output ended.
type LogsEnd struct {
	State string `json:"state"`
}

// Selection selects jobs either by their ids, in ID or IDs, or by the other fields. The service
// processes at most SelectStep jobs selected by the other fields in a request, the newest first.
// BulkResult.Next is then the Cursor for the remaining jobs.
type Selection struct {
	ID  Name  `json:"id,omitempty"`
	IDs Names `json:"ids,omitempty"`
	All bool  `json:"all,omitempty"` // every job whose state the method accepts
	// State selects jobs in any of these states. Empty means the states that the method accepts.
	State  Texts  `json:"state,omitempty"`
	Failed bool   `json:"failed,omitempty"` // the same as the states dead and failed
	Label  Labels `json:"label,omitempty"`  // only jobs that have all of these labels
	Queue  string `json:"queue,omitempty"`
	Batch  string `json:"batch,omitempty"` // value of the label batch; selects only the caller's jobs
	User   string `json:"user,omitempty"`  // user who enqueued the jobs
	// OlderThan selects jobs that ended at least this long ago. For an unfinished job, the time at
	// which it was enqueued counts instead.
	OlderThan Span   `json:"older_than,omitempty"`
	IDGlob    string `json:"id_glob,omitempty"` // pattern; wildcards: *, ? and sets such as [a-z]
	DryRun    bool   `json:"dry_run,omitempty"` // count the jobs without changing them
	Cursor    string `json:"cursor,omitempty"`
}

// PauseSelection selects jobs for the methods pause and resume. For these methods, All means the
// whole queue. It therefore cannot be combined with fields that select some of the jobs.
type PauseSelection struct{ Selection }

// SelectStep is the maximum number of selected jobs that one request processes.
const SelectStep = 1000

// Kill sends a signal to all processes of running jobs. Signal is a number or a name, with or
// without SIG; "" means TERM.
type Kill struct {
	Selection
	Signal string `json:"signal,omitempty"`
}

// Edit changes waiting jobs. Set is an object of job fields; null restores the default of a field.
type Edit struct {
	Selection
	Set json.RawMessage `json:"set"`
}

// Retry runs ended jobs again, and failed jobs without waiting for their retry time. It also
// retries the jobs that were cancelled because the selected jobs failed, unless Only is set.
type Retry struct {
	Selection
	Only bool `json:"only,omitempty"`
}

// Remove removes jobs and their history. With Force, it first ends the jobs that are running.
type Remove struct {
	Selection
	Force bool `json:"force,omitempty"`
}

// Names returns the ids in ID and IDs.
func (s Selection) Names() []string {
	if s.ID == "" {
		return s.IDs
	}
	return append([]string{string(s.ID)}, s.IDs...)
}

// BulkResult lists the jobs that a method has changed, and the jobs for which the method was
// refused, with the reasons.
type BulkResult struct {
	// Done and Refused are always sent, even if empty, except after a dry run.
	Done    []string  `json:"done,omitempty"`
	Refused []Refusal `json:"refused,omitempty"`
	Matched *int      `json:"matched,omitempty"` // after a dry run: the number of selected jobs
	Next    *string   `json:"next,omitempty"`    // cursor for the remaining jobs
	// For an edit, Unenforced lists those of the new limits that this machine does not enforce, or
	// enforces only in part.
	Unenforced []string `json:"unenforced,omitempty"`
	// For an edit, Notes has the same meaning as Enqueued.Notes.
	Notes []string `json:"notes,omitempty"`
}

// MarshalJSON implements json.Marshaler. After a dry run it writes only Matched and Next.
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
	Field   string     `json:"field,omitempty"` // the invalid field of the job; "" if the reason is not a field
	Message string     `json:"message"`
}

// Err returns the refusal as an error.
func (r *Refusal) Err() *queue.Error {
	return &queue.Error{Code: r.Code, Field: r.Field, Message: r.Message}
}

// DLQRetry puts dead jobs back in the queue: the jobs with the given ids, all dead jobs, or all
// dead jobs in a batch of the caller. Like a Selection, it processes at most SelectStep jobs in a
// request.
type DLQRetry struct {
	ID      Name   `json:"id,omitempty"`
	IDs     Names  `json:"ids,omitempty"`
	All     bool   `json:"all,omitempty"`
	Batch   string `json:"batch,omitempty"`
	Timeout *Span  `json:"timeout,omitempty"` // replaces the timeout of the jobs
	DryRun  bool   `json:"dry_run,omitempty"` // count the jobs without changing them
	Cursor  string `json:"cursor,omitempty"`
}

// Sure holds the parameters of methods that remove jobs permanently: all jobs, or all jobs in a
// batch of the caller.
type Sure struct {
	Yes    bool   `json:"yes"` // confirms the removal; required unless DryRun is set
	Batch  string `json:"batch,omitempty"`
	DryRun bool   `json:"dry_run,omitempty"`
}

// Removed counts removed jobs.
type Removed struct {
	Removed int  `json:"removed,omitempty"` // always sent, even if 0, except after a dry run
	Matched *int `json:"matched,omitempty"` // after a dry run: the number of selected jobs
	Of      int  `json:"of,omitempty"`      // in a progress report: the number of jobs to remove in total
}

// MarshalJSON implements json.Marshaler. After a dry run it writes only Matched.
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

// Count is the number of workers to add. nil means 1.
type Count struct {
	Count *int `json:"count,omitempty"`
}

// WorkerScale sets the number of workers.
type WorkerScale struct {
	Count int `json:"count"`
}

// WorkerStop removes Count workers, or all of them. Running jobs get Timeout (nil means
// DefaultStopTimeout) to finish. Jobs that are still running after that time are ended and put back
// in the queue.
type WorkerStop struct {
	Count   *int  `json:"count,omitempty"`
	All     bool  `json:"all,omitempty"`
	Timeout *Span `json:"timeout,omitempty"`
	Force   bool  `json:"force,omitempty"`
}

// WorkerCount holds the configured number of workers after the change.
type WorkerCount struct {
	Workers int `json:"workers"`
}

// WorkerList lists the workers.
type WorkerList struct {
	Workers []Worker `json:"workers"`
}

// Worker is one worker.
type Worker struct {
	ID   string `json:"id"`
	Node string `json:"node"`
	// PID is the pid of the worker's job. For a stuck worker, it is the pid of the process that
	// survived SIGKILL.
	PID           *int `json:"pid"`
	StartedAt     Time `json:"started_at"`
	LastHeartbeat Time `json:"last_heartbeat"`
	// State is idle, busy, paused, stopping, stale, or stuck. A stuck worker's job has ended, but a
	// process of it has survived SIGKILL.
	State string  `json:"state"`
	Job   *string `json:"job"`
}
