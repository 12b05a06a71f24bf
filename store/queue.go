package store

import (
	"context"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Queue accepts new jobs, and changes of stored jobs that users request.
type Queue interface {
	// Enqueue stores all drafts of a request, or none; see Receipt.
	Enqueue(ctx context.Context, r Request) (Receipt, error)
	// Change applies a verb to a job, with the effect that queue.Verb.EffectOn returns. Change returns
	// ErrLeased for a leased job. A retried job starts with no used attempts, no error and no expires_at. A
	// released job keeps these values, but has at least one attempt left. The job's history stays; removing the
	// job also removes its history.
	Change(ctx context.Context, seq int64, c Change) error
	// Audit records a user's action that no other event records.
	Audit(ctx context.Context, a Audit) error
}

// Request contains the jobs to be enqueued by one call of Enqueue.
type Request struct {
	Drafts []queue.Job // drafts made by queue.Resolve, at most queue.MaxJobsPerRequest
	UID    int         // the user who made the request
	Owner  string      // the current name of UID; the store keeps the first name that it receives for a UID
	// IdempotencyKey, if set, makes the request safe to repeat for IdempotencyKeyRetention. A later
	// request with the same UID and IdempotencyKey gets the receipt of the first one. If its Checksum
	// differs, it gets ErrExists.
	IdempotencyKey string
	Checksum       [32]byte // checksum of the request's content
	// Batch, if set, is the name under which the batch's frames were staged.
	Batch string
	// Submission, if not 0, is the number of the Inbox submission that this request enqueues. The same
	// transaction deletes the submission. If it was already deleted, nothing is enqueued, and the receipt has
	// Duplicate set.
	Submission int64
	// MaxPending limits all waiting jobs, and MaxPendingPerUser those of UID. Enqueue returns ErrQueueFull for a
	// request that would exceed either limit. 0 means unlimited.
	MaxPending        int64
	MaxPendingPerUser int64
	// MaxBytesPerUser limits the bytes that UID's jobs hold; see UserBytes. Enqueue returns ErrQueueFull for a
	// request that would exceed it. 0 means unlimited.
	MaxBytesPerUser int64
}

// IdempotencyKeyRetention is the minimum time for which the store remembers an idempotency key.
const IdempotencyKeyRetention = 10 * time.Minute

// Receipt names the stored jobs, in the order of their drafts. Enqueue returns ErrExists instead if the id of a
// draft is taken. If another job has the unique key of a draft, the receipt may contain that job's id instead;
// see IsExisting.
type Receipt struct {
	IDs        []string
	Seqs       []int64
	IsExisting []bool   `json:"Found"` // whether IDs[i] is the id of an older job; nil if all jobs are new
	NewQueues  []string `json:"Begun"` // names of the queues that the request has created
	Duplicate  bool
	Staged     bool  // the jobs are stored, but not in the queue until ApplyBatch has moved them
	Batch      int64 // the argument for ApplyBatch, if Staged
}

// Change is a change of a job that a user requests.
type Change struct {
	Verb    queue.Verb
	UID     int            // the user who made the request
	Timeout *time.Duration // new timeout of a retried job, if not nil
	// Edit changes the job, for VerbEdit. It must have no side effects. Its error rejects the change.
	Edit func(*queue.Job) error
	// KeepDependants applies to dependants that were cancelled because of this job, when the job is retried. If
	// it is true, these dependants stay cancelled. If it is false, they wait for the job again.
	KeepDependants bool
	// OnlyStates lists the states in which the change applies; in other states, Change returns ErrStateChanged.
	// An empty list means all states.
	OnlyStates []queue.State
	// MaxPending and MaxPendingPerUser limit waiting jobs as in Request. They are checked only if the change
	// makes an ended job wait again.
	MaxPending        int64
	MaxPendingPerUser int64
	// MaxBytesPerUser limits the user's bytes as in Request. It is checked only for an edit that makes the job
	// larger.
	MaxBytesPerUser int64
}

// EffectOn returns the effect of the change on a job in its current state; see queue.Verb.EffectOn. It returns
// ErrStateChanged if OnlyStates does not list that state.
func (c *Change) EffectOn(j *queue.Job) (newState queue.State, event queue.EventKind, hasEffect bool, err error) {
	if len(c.OnlyStates) > 0 && !slices.Contains(c.OnlyStates, j.State) {
		return 0, "", false, ErrStateChanged
	}
	newState, event, hasEffect, err = c.Verb.EffectOn(j)
	if err == nil && hasEffect && newState.Waiting() && !j.State.Waiting() {
		err = CheckInputKept(j)
	}
	return newState, event, hasEffect, err
}

// Audit describes a user's action: the verb, the process that requested it, and its object. The object is a
// job, named by JobSeq and JobID, or something else, described by Target.
type Audit struct {
	UID    int
	PID    int
	Verb   string
	JobSeq int64
	JobID  string
	Target string // object of the action, described for people
}
