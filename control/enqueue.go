package control

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"

	"github.com/queuectl/queuectl/queue"
)

// EnqueueAPI adds jobs to the queue.
type EnqueueAPI interface {
	// Enqueue adds one job. It returns when the job is durable. If an earlier request had the same IdempotencyKey, Enqueue
	// adds no job and returns the job of the earlier request.
	Enqueue(ctx context.Context, p EnqueueParams) (EnqueueResult, error)
	// EnqueueBatch adds many jobs together, with one or several requests. All jobs are durable when the request with
	// Commit has returned. A request with Abort discards the jobs of earlier requests instead.
	EnqueueBatch(ctx context.Context, p EnqueueBatchParams) (EnqueueBatchResult, error)
}

// EnqueueParams holds the parameters of the method enqueue, which adds one job. In JSON, the fields of JobSpec are
// members of the same object as key, next and require_limits.
type EnqueueParams struct {
	JobSpec        queue.Spec `json:"-"`
	IdempotencyKey string     `json:"key" rule:"key"` // idempotency key; at most queue.MaxKeyBytes bytes
	// RequireEnforceableLimits rejects the job if it has a limit that this machine cannot enforce.
	RequireEnforceableLimits bool `json:"require_limits"`
	// RunBeforeCallersJobs makes the service choose a priority with which the job starts before all other jobs of the
	// caller that are waiting to start now or to be retried.
	RunBeforeCallersJobs bool `json:"next"`
}

// EnqueueResult is the response to Enqueue. AlreadyExisted means that no job was added, because an earlier request had
// the same idempotency key or another job has the same unique key. JobID is then the id of the job that already exists.
type EnqueueResult struct {
	JobID          string `json:"id"`
	JobSeq         int64  `json:"seq"`
	AlreadyExisted bool   `json:"duplicate"`
	// UnenforcedLimits lists the limits of the job that this machine enforces only in part or not at all.
	UnenforcedLimits []string `json:"unenforced,omitempty"`
	// CreatedQueues lists the queues of the job that had no settings and no unfinished jobs before this request.
	CreatedQueues []CreatedQueue `json:"new_queues,omitempty"`
	// State is cancelled or held if a dependency of the job had already failed, and "" otherwise.
	State string `json:"state,omitempty"`
	// MaxAttempts is the number of counted attempts after which the job is dead. It is 0 if AlreadyExisted is true.
	MaxAttempts int `json:"max_attempts,omitempty"`
	// Notes are sentences for the user, for example a warning that the service does not start at boot, although
	// the job is due later.
	Notes []string `json:"notes,omitempty"`
}

// EnqueueBatchParams holds the parameters of the method enqueue.batch, which enqueues all jobs of a batch or none of
// them.
//
// A small batch is one request with Commit and 1 to queue.MaxJobsPerRequest jobs. A larger batch consists of several
// requests with the same BatchName. Only the last of them has Commit, and each of the others has at most
// MaxJobsPerPartialBatch jobs. The ids of the jobs are reserved immediately, but the jobs are invisible until the
// commit. If a request is rejected, none of its jobs is added. A request with Abort discards the batch.
type EnqueueBatchParams struct {
	// BatchName is a name that the caller chooses, of at most queue.MaxKeyBytes bytes.
	BatchName      string       `json:"batch,omitempty" rule:"batchKey"`
	Jobs           []queue.Spec `json:"jobs,omitempty" rule:"jobs"`
	Commit         bool         `json:"commit"`
	IdempotencyKey string       `json:"key,omitempty" rule:"batchKey"` // idempotency key of the request with Commit
	Abort          bool         `json:"abort,omitempty"`
	// RequireEnforceableLimits rejects the request if one of its jobs has a limit that this machine cannot enforce.
	RequireEnforceableLimits bool `json:"require_limits,omitempty"`
	// RunBeforeCallersJobs makes the service choose a priority with which the jobs of this request start before all other
	// jobs of the caller that are waiting to start now or to be retried.
	RunBeforeCallersJobs bool `json:"next,omitempty"`
	// JSONEncodedJobs holds specs that are already encoded as JSON, each on one line. If it is not nil, it replaces
	// Jobs.
	JSONEncodedJobs [][]byte `json:"-"`
}

// MarshalJSON implements json.Marshaler. It copies the specs in JSONEncodedJobs unchanged.
func (p *EnqueueBatchParams) MarshalJSON() ([]byte, error) {
	type plain EnqueueBatchParams
	line, err := json.Marshal((*plain)(p))
	if err != nil || p.JSONEncodedJobs == nil {
		return line, err
	}
	rest := line[:len(line)-1] // the object without its closing brace
	return slices.Concat(rest, []byte(`,"jobs":[`), bytes.Join(p.JSONEncodedJobs, []byte(",")), []byte("]}")), nil
}

// MaxJobsPerPartialBatch is the maximum number of jobs in a request of a batch that does not commit the batch.
const MaxJobsPerPartialBatch = 1000

// EnqueueBatchResult is the response to one request of a batch. JobIDs are the ids of the request's jobs, in the order
// of the request. The jobs exist only after the batch is committed.
type EnqueueBatchResult struct {
	JobIDs         []string `json:"ids"`
	AlreadyExisted bool     `json:"duplicate"`
	// ExistingJobIndexes lists jobs of the request, by index from 0, that were not enqueued because another job has the
	// same unique key. At these indexes, JobIDs contains the id of that other job.
	ExistingJobIndexes []int `json:"found,omitempty"`
	// UnenforcedLimits and CreatedQueues have the same meaning as in EnqueueResult, for all jobs of the
	// request together.
	UnenforcedLimits []string       `json:"unenforced,omitempty"`
	CreatedQueues    []CreatedQueue `json:"new_queues,omitempty"`
	// MaxAttempts is the highest EnqueueResult.MaxAttempts among the jobs of the request. Notes has the same
	// meaning as EnqueueResult.Notes.
	MaxAttempts int      `json:"max_attempts,omitempty"`
	Notes       []string `json:"notes,omitempty"`
}

// CreatedQueue is a queue that had no settings and no unfinished jobs before this request. The name may be a typing
// error. So SimilarQueue is the existing queue with the most similar name, or "" if no name is similar.
type CreatedQueue struct {
	Queue        string `json:"queue"`
	SimilarQueue string `json:"near,omitempty"`
}
