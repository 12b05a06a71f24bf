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
	// Enqueue adds one job, and returns after the job is durable. A later request with the same Key adds no job
	// and returns the first request's job.
	Enqueue(ctx context.Context, p Enqueue) (EnqueueResult, error)
	// EnqueueBatch adds many jobs together, or discards them. The jobs are durable once the request with Commit
	// has returned.
	EnqueueBatch(ctx context.Context, p EnqueueBatch) (EnqueueBatchResult, error)
}

// Enqueue holds the parameters of the method enqueue, which adds one job. In JSON, the spec's fields, key, next and
// require_limits are all members of one object.
type Enqueue struct {
	Spec queue.Spec `json:"-"`
	Key  string     `json:"key" rule:"key"` // idempotency key; at most queue.MaxKeyBytes bytes
	// RequireLimits rejects the job if it has a limit that this machine cannot enforce.
	RequireLimits bool `json:"require_limits"`
	// RunNext makes the service choose the priority. The job then starts before all jobs of the caller that
	// could start now or wait for a retry.
	RunNext bool `json:"next"`
}

// EnqueueResult is the response to Enqueue. Duplicate means that no job was added: an earlier request had the
// same key, or another job has the same unique key. ID is then the id of the existing job.
type EnqueueResult struct {
	ID        string `json:"id"`
	Seq       int64  `json:"seq"`
	Duplicate bool   `json:"duplicate"`
	// UnenforcedLimits lists the job's limits that this machine does not enforce, or enforces only in
	// part.
	UnenforcedLimits []string `json:"unenforced,omitempty"`
	// NewQueues lists the queues that this request has created. Before, such a queue had no settings and no
	// unfinished jobs.
	NewQueues []NewQueue `json:"new_queues,omitempty"`
	// State is cancelled or held if the job got this state because a dependency had already failed. Otherwise
	// it is "".
	State string `json:"state,omitempty"`
	// MaxAttempts is the number of counted attempts after which the job is dead. It is 0 if Duplicate is true.
	MaxAttempts int `json:"max_attempts,omitempty"`
	// Notes are sentences to show to the user, for example that no service starts at boot although
	// the job is due later.
	Notes []string `json:"notes,omitempty"`
}

// EnqueueBatch holds the parameters of the method enqueue.batch, which enqueues all jobs of a batch or none of them.
// A batch is either one request with Commit and 1 to queue.MaxJobsPerRequest jobs, or several requests with the same
// Batch. Of several requests, only the last has Commit, and each of the others has at most MaxBatchRequestJobs jobs.
// The jobs are invisible until the commit, but their ids are already taken. A rejected request adds no jobs. A
// request with Abort discards the batch.
type EnqueueBatch struct {
	// Batch is a name that the caller chooses, of at most queue.MaxKeyBytes bytes.
	Batch  string       `json:"batch,omitempty" rule:"batchKey"`
	Jobs   []queue.Spec `json:"jobs,omitempty" rule:"jobs"`
	Commit bool         `json:"commit"`
	Key    string       `json:"key,omitempty" rule:"batchKey"` // idempotency key of the request with Commit
	Abort  bool         `json:"abort,omitempty"`
	// RequireLimits has the meaning of Enqueue.RequireLimits, for the jobs of this request.
	RequireLimits bool `json:"require_limits,omitempty"`
	// RunNext has the meaning of Enqueue.RunNext, for the jobs of this request.
	RunNext bool `json:"next,omitempty"`
	// EncodedJobs holds specs that are already JSON, each on one line. If it is not nil, it is sent instead of
	// Jobs.
	EncodedJobs [][]byte `json:"-"`
}

// MarshalJSON implements json.Marshaler. It copies the specs in EncodedJobs unchanged.
func (p *EnqueueBatch) MarshalJSON() ([]byte, error) {
	type plain EnqueueBatch
	line, err := json.Marshal((*plain)(p))
	if err != nil || p.EncodedJobs == nil {
		return line, err
	}
	rest := line[:len(line)-1] // the object without its last brace
	return slices.Concat(rest, []byte(`,"jobs":[`), bytes.Join(p.EncodedJobs, []byte(",")), []byte("]}")), nil
}

// MaxBatchRequestJobs is the maximum number of jobs in a request without Commit.
const MaxBatchRequestJobs = 1000

// EnqueueBatchResult is the response to one request of a batch. IDs are in the order of the
// request's jobs. The jobs exist once the batch is committed.
type EnqueueBatchResult struct {
	IDs       []string `json:"ids"`
	Duplicate bool     `json:"duplicate"`
	// FoundIndexes lists the indexes, from 0, of jobs that were not enqueued because another job already has
	// their unique key. At such an index, IDs holds the id of the existing job.
	FoundIndexes []int `json:"found,omitempty"`
	// UnenforcedLimits and NewQueues have the same meaning as in EnqueueResult, for all jobs of the
	// request together.
	UnenforcedLimits []string   `json:"unenforced,omitempty"`
	NewQueues        []NewQueue `json:"new_queues,omitempty"`
	// MaxAttempts is the highest EnqueueResult.MaxAttempts of the request's jobs. Notes has the same meaning as
	// EnqueueResult.Notes.
	MaxAttempts int      `json:"max_attempts,omitempty"`
	Notes       []string `json:"notes,omitempty"`
}

// NewQueue is a queue that had no settings and no unfinished jobs before this request. The new name may be a typing
// error, so SimilarQueue is the existing queue with the most similar name; "" if none is similar.
type NewQueue struct {
	Queue        string `json:"queue"`
	SimilarQueue string `json:"near,omitempty"`
}
