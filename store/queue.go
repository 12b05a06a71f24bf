package store

import (
	"context"
	"slices"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Queue accepts new jobs, and changes of stored jobs that users request.
type Queue interface {
	// Enqueue stores all drafts of a request as jobs, or none of them; see Receipt.
	Enqueue(ctx context.Context, r EnqueueRequest) (Receipt, error)
	// ChangeJob applies a verb to a job; queue.Verb.EffectOn returns the effect. ChangeJob returns ErrJobLeased for a
	// leased job. A retried job has used no attempts, and has no error and no expires_at. A released job keeps the number
	// of used attempts, the error and expires_at, but has at least one attempt left. The history of the job stays, except
	// when the job is removed.
	ChangeJob(ctx context.Context, seq int64, c JobChange) error
	// RecordAudit records a user's action that no other event records.
	RecordAudit(ctx context.Context, a AuditRecord) error
}

// EnqueueRequest contains the jobs to be enqueued by one call of Enqueue.
type EnqueueRequest struct {
	Drafts    []queue.Job // drafts made by queue.ResolveSpec, at most queue.MaxJobsPerRequest
	UID       int         // the user who made the request
	OwnerName string      // the current account name of UID; the store keeps the first name that it gets for a UID
	// IdempotencyKey, if set, makes it safe to repeat the request for IdempotencyKeyRetention. A later request with the
	// same UID and IdempotencyKey stores nothing. It gets the receipt of the first request, or ErrExists if its
	// RequestChecksum differs.
	IdempotencyKey  string
	RequestChecksum [32]byte // checksum of the request's content
	// BatchName, if set, is the name of the batch to which earlier requests have added jobs. This request commits
	// the batch.
	BatchName string
	// SubmissionNumber, if not 0, is the number of the submission, a job from the Inbox, that this request
	// enqueues. The same transaction deletes the submission. If the submission does not exist any more,
	// nothing is enqueued, and the receipt has Duplicate set.
	SubmissionNumber int64
	// MaxPendingJobs limits the waiting jobs of all users, and MaxPendingJobsPerUser the waiting jobs of UID. 0 means
	// unlimited. Enqueue returns ErrQueueFull if the request would exceed a limit.
	MaxPendingJobs        int64
	MaxPendingJobsPerUser int64
	// MaxBytesPerUser limits the bytes that the jobs of UID hold; see UserStoredBytes. 0 means unlimited. Enqueue
	// returns ErrQueueFull if the request would exceed the limit.
	MaxBytesPerUser int64
}

// IdempotencyKeyRetention is the minimum time for which the store remembers an idempotency key.
const IdempotencyKeyRetention = 10 * time.Minute

// Receipt names the stored jobs, in the order of their drafts. If another job already has the unique key of a draft,
// the receipt may name that job instead; see IsExisting. If the id of a draft is taken, Enqueue returns ErrExists and
// no receipt.
type Receipt struct {
	IDs           []string
	Seqs          []int64
	IsExisting    []bool   `json:"Found"` // whether the job IDs[i] existed before the request; nil if all jobs are new
	CreatedQueues []string `json:"Begun"` // names of the queues that the request has created
	Duplicate     bool
	Staged        bool  // the jobs are staged in a batch, and ApplyBatch must move them into the queue
	Batch         int64 // the argument for ApplyBatch, if Staged
}

// JobChange is a change of a job that a user requests.
type JobChange struct {
	Verb       queue.Verb
	UID        int            // the user who made the request
	NewTimeout *time.Duration // new timeout of a retried job, if not nil
	// EditJob changes the job, for VerbEdit. It must have no side effects. If it returns an error, the change is rejected.
	EditJob func(*queue.Job) error
	// KeepDependantsCancelled has an effect when the job is retried. If it is true, dependants that were cancelled because
	// of this job stay cancelled. If it is false, these dependants wait for the job again.
	KeepDependantsCancelled bool
	// AllowedStates lists the states in which the job may be changed. If the job is in another state, ChangeJob returns
	// ErrJobStateChanged. An empty list allows all states.
	AllowedStates []queue.State
	// MaxPendingJobs and MaxPendingJobsPerUser limit waiting jobs as in EnqueueRequest. They apply only if the change
	// makes an ended job wait again.
	MaxPendingJobs        int64
	MaxPendingJobsPerUser int64
	// MaxBytesPerUser limits the user's bytes as in EnqueueRequest. It applies only to an edit that makes the job larger.
	MaxBytesPerUser int64
}

// EffectOn returns the effect of the change on a job in its current state, as queue.Verb.EffectOn does. If
// AllowedStates does not allow that state, it returns ErrJobStateChanged.
func (c *JobChange) EffectOn(j *queue.Job) (newState queue.State, event queue.EventKind, hasEffect bool, err error) {
	if len(c.AllowedStates) > 0 && !slices.Contains(c.AllowedStates, j.State) {
		return 0, "", false, ErrJobStateChanged
	}
	newState, event, hasEffect, err = c.Verb.EffectOn(j)
	if err == nil && hasEffect && newState.IsWaiting() && !j.State.IsWaiting() {
		err = CheckInputNotRemoved(j)
	}
	return newState, event, hasEffect, err
}

// AuditRecord describes a user's action: the verb, the process that requested it, and the object that it changed.
// The object is a job, named by JobSeq and JobID, or something else, described by Target.
type AuditRecord struct {
	UserName string // name of the user at the time of the action; "" if it is unknown
	UID      int
	PID      int
	Verb     string
	JobSeq   int64
	JobID    string
	Target   string // object of the action, described for people
}
