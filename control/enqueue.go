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
	// Enqueue adds one job, and returns after the job is durable. A later request with the same Key
	// adds nothing, and returns the job of the first one.
	Enqueue(ctx context.Context, p Enqueue) (EnqueueResult, error)
	// EnqueueBatch adds many jobs, or discards a batch. The jobs are durable once the request with
	// Commit has returned.
	EnqueueBatch(ctx context.Context, p EnqueueBatch) (EnqueueBatchResult, error)
}

// Enqueue requests one job. In JSON, the spec's fields, key, next and require_limits are all
// members of one object.
type Enqueue struct {
	Spec queue.Spec `json:"-"`
	Key  string     `json:"key" rule:"key"` // idempotency key; at most queue.MaxKeyBytes bytes
	// RequireLimits rejects the job if it has a limit that this machine cannot enforce.
	RequireLimits bool `json:"require_limits"`
	// RunNext makes the service choose the priority. With that priority, the job starts before all
	// other jobs of the caller that could start now or that wait for a retry.
	RunNext bool `json:"next"`
}

// EnqueueResult is the response to Enqueue. Duplicate means that the job already existed: an
// earlier request had the same key, or another job has the same unique key.
type EnqueueResult struct {
	ID        string `json:"id"`
	Seq       int64  `json:"seq"`
	Duplicate bool   `json:"duplicate"`
	// UnenforcedLimits lists the job's limits that this machine does not enforce, or enforces only in
	// part.
	UnenforcedLimits []string `json:"unenforced,omitempty"`
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
// Commit and 1 to queue.MaxJobsPerRequest jobs, or several requests with the same Batch. If there are
// several, only the last one has Commit, and each of the others has at most MaxBatchRequestJobs jobs. The
// jobs are invisible until the commit, but their ids are already taken. A rejected request adds no
// jobs. Abort discards the batch.
type EnqueueBatch struct {
	// Batch is a name that the caller chooses, of at most queue.MaxKeyBytes bytes.
	Batch  string       `json:"batch,omitempty" rule:"batchKey"`
	Jobs   []queue.Spec `json:"jobs,omitempty" rule:"jobs"`
	Commit bool         `json:"commit"`
	Key    string       `json:"key,omitempty" rule:"batchKey"` // idempotency key of the request with Commit
	Abort  bool         `json:"abort,omitempty"`
	// RequireLimits does the same as Enqueue.RequireLimits for the jobs of this request.
	RequireLimits bool `json:"require_limits,omitempty"`
	// RunNext does the same as Enqueue.RunNext for the jobs of this request.
	RunNext bool `json:"next,omitempty"`
	// EncodedJobs replaces Jobs if it is not nil. It holds specs that are already JSON, each on one
	// line.
	EncodedJobs [][]byte `json:"-"`
}

// MarshalJSON writes the request, copying the specs of EncodedJobs unchanged.
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
	// FoundIndexes lists the request's jobs that were not enqueued, by their index from 0. For each of
	// them, a job with the same unique key already exists. IDs holds the id of the existing job at
	// that index.
	FoundIndexes []int `json:"found,omitempty"`
	// UnenforcedLimits and NewQueues have the same meaning as in EnqueueResult, for all jobs of the
	// request together.
	UnenforcedLimits []string   `json:"unenforced,omitempty"`
	NewQueues        []NewQueue `json:"new_queues,omitempty"`
	// MaxAttempts is the largest value of EnqueueResult.MaxAttempts among the request's jobs. Notes
	// has the same meaning as EnqueueResult.Notes.
	MaxAttempts int      `json:"max_attempts,omitempty"`
	Notes       []string `json:"notes,omitempty"`
}

// NewQueue is a queue that had no unfinished jobs before this request. Near is the existing queue
// with the most similar name, since the new name may be a typing error. Near is "" if no name is
// similar.
type NewQueue struct {
	Queue        string `json:"queue"`
	SimilarQueue string `json:"near,omitempty"`
}
