package store

import (
	"context"
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Batches accepts a batch (a list of jobs under one name) that is too large for one EnqueueRequest. The client sends
// the batch in parts, which are called frames. The jobs of a batch are staged, that is, stored but not in the queue,
// until the client commits the batch.
type Batches interface {
	// StageBatch stores one frame of the batch named r.BatchName. Claims, lists and counts ignore the staged jobs, but no
	// other job can get their ids. MaxPendingJobsPerUser is the only limit that counts staged jobs.
	//
	// To commit the batch, the client calls Enqueue with the same BatchName. The jobs in that request are the last frame.
	// If the jobs do not fit in MaxPendingJobs, the commit is rejected. The batch then stays staged, and the client can
	// repeat the commit.
	//
	// A batch is discarded if no frame comes within BatchStagingTimeout, or if it is not committed when the store
	// is closed. StageBatch then returns ErrBatchDiscarded for further frames of the batch.
	StageBatch(ctx context.Context, r EnqueueRequest) (Receipt, error)
	// AbortBatch discards a staged batch that its client no longer wants to commit.
	AbortBatch(ctx context.Context, uid int, batchName string) error
	// ApplyBatch moves the next frame of a committed batch into the queue. batchNumber is the value of Receipt.Batch.
	// ApplyBatch returns true if there may be more frames. If the caller stops calling ApplyBatch, ApplyDueChanges or the
	// next opening of the store moves the remaining frames. From the commit on, other jobs of the user can depend on jobs
	// of the batch that have a chosen id. Such a job waits for its parent even if the parent is not in the queue yet.
	ApplyBatch(ctx context.Context, batchNumber int64) (more bool, err error)
}

// Limits of staged batches.
const (
	MaxStagedBatchesPerUser = 16        // limit of the staged batches of one user
	MaxStagedJobsPerBatch   = 1_000_000 // limit of the jobs of one batch
	// limit of the jobs whose ids were chosen by the client, in all staged batches of one user
	MaxStagedChosenIDs  = 1_000_000
	BatchStagingTimeout = 10 * time.Minute // a batch is discarded if no frame comes for this time
	// DiscardedBatchNameRetention is how long the store remembers, at least, that a batch with a certain name was
	// discarded.
	DiscardedBatchNameRetention = 24 * time.Hour
)

// BatchAuditVerb is the verb of audit events about staged batches, that is, batches that are not committed
// yet.
const BatchAuditVerb = "enqueue.batch"

// BatchAuditTarget returns the target of an audit event about a staged batch. The target consists of the batch's name,
// the action (what happened to the batch) and the number of its jobs.
func BatchAuditTarget(name, action string, jobCount int64) string {
	return fmt.Sprintf("%q %s with %d jobs", name, action, jobCount)
}

// ErrTooManyStagedBatches is returned if a user who already has MaxStagedBatchesPerUser staged batches begins another.
// ErrTooManyChosenIDs is returned if a user's staged batches would contain more than MaxStagedChosenIDs jobs with an
// id.
var (
	ErrTooManyStagedBatches = queue.Errorf(queue.CodeUnavailable,
		"you have %d unfinished batches (lists of jobs that are still "+
			"being sent), the maximum per user; wait until one is finished; abandoned ones are removed after %v",
		MaxStagedBatchesPerUser, BatchStagingTimeout)
	ErrTooManyChosenIDs = queue.Errorf(queue.CodeUnavailable,
		"your unfinished batches (lists of jobs that are still being "+
			"sent) contain more than %d jobs with ids; wait until one is finished, or leave the ids out", MaxStagedChosenIDs)
)

// ErrBatchDiscarded is returned for further frames of a batch that was discarded.
var ErrBatchDiscarded = queue.Errorf(queue.CodeWrongState,
	"the batch was discarded, because the service was restarted "+
		"or no request for the batch came for %v; send the batch again from the beginning under another name",
	BatchStagingTimeout)

// StagedIDError returns the error for a draft whose id belongs to a job of a staged batch, that is, of a batch that is
// not committed yet. batchName is "" if the batch belongs to another user than the draft.
func StagedIDError(id, batchName string) *queue.Error {
	e := queue.Errorf(queue.CodeExists, "the id %q belongs to a job of another user's batch, which is not committed yet; "+
		"choose another id, or try again in %v", id, BatchStagingTimeout)
	if batchName != "" {
		e = queue.Errorf(queue.CodeExists, "the id %q belongs to a job of your batch %q, which is not committed yet; commit "+
			"or abort the batch, or choose another id; the service discards an abandoned batch after %v", id, batchName,
			BatchStagingTimeout)
	}
	e.Field = "id"
	return e
}

// StagedParentError returns the error for a job that depends on a job of a staged batch, that is, of a batch that is
// not committed yet. Only later jobs of the same batch can depend on that job.
func StagedParentError(parentID, batchName string) *queue.Error {
	return queue.InvalidFieldError("depends_on",
		"job %q is in the batch %q, which is not committed yet; commit the batch "+
			"first, or add this job to the batch", parentID, batchName)
}
