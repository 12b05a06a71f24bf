package handlers

import (
	"context"
	"fmt"
	"sync"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// checkMaySetPriority returns an error if the peer may not set the job's priority, because the priority is too far from
// the default of the queue. Without this limit, users who have only the right "submit" could rank their jobs before all
// other users' jobs.
func (h *API) checkMaySetPriority(p *control.Peer, j *queue.Job) error {
	low, high := h.allowedPriorityBounds(p, j.Queue)
	if j.Priority >= low && j.Priority <= high {
		return nil
	}
	return queue.InvalidFieldError("priority",
		`%d is outside the range %d to %d that the right "submit" allows in queue %s; `+
			`choose a priority in that range, or ask a user with the right "operate" to set it`, j.Priority, low, high, j.Queue)
}

// allowedPriorityBounds returns the lowest and the highest priority that a peer may set in a queue.
func (h *API) allowedPriorityBounds(p *control.Peer, queueName string) (minPriority, maxPriority int64) {
	if p.Right.Covers(control.RightOperate) {
		return -queue.MaxPriority, queue.MaxPriority
	}
	most := h.Settings.CurrentConfig().SubmitterPriorityRange
	def := h.QueueRules.DefaultPriority(queueName)
	return max(def-most, -queue.MaxPriority), min(def+most, queue.MaxPriority)
}

// A job that is enqueued with the option "next" starts before its owner's other waiting jobs: the jobs that could start
// now and the jobs that wait to be retried. For this, the new job gets a priority that is one above the highest
// effective priority of these jobs.
//
// Waiting raises effective priorities without limit, but a user with only the right "submit" may set
// priorities only up to a limit. If the needed priority is above that limit, the job gets the limit, and a
// note in the reply says so.
//
// With the setting aging = enqueue, each new job raises the effective priority of every waiting job by one. The new job
// therefore gets a priority that is higher by one more. Otherwise it would have the same rank as the best waiting job,
// and the older of the two would start first. For the same reason, each job of a batch gets a priority that is one
// higher than the priority of the job before it. All jobs of the batch then have the same rank and start in their
// order.

// bestWaitingPriority returns the highest effective priority of a user's waiting jobs. earlierJobCount is the number of
// jobs in the earlier requests of the batch, and jobCount is the number of jobs in this request. All requests of a
// batch get the result that was computed for the first request, so that the batch's jobs start in their order.
func (h *API) bestWaitingPriority(
	ctx context.Context, uid int, batch string, jobCount int,
) (bestWaiting store.WaitingPriority, earlierJobCount int, err error) {
	name, now := batchKey{uid, batch}, h.Store.Now()
	if b, known := h.runNextBatches.recordBatchRequest(name, now, jobCount); known {
		return b.bestWaiting, b.earlierJobCount, nil
	}
	bestWaiting, err = withReadSlot(ctx, h.UserLimits, control.ClassOneJobRead,
		func() (store.WaitingPriority, error) { return h.Store.BestWaitingPriority(ctx, uid) })
	if err == nil && batch != "" {
		h.runNextBatches.rememberFirstBatchRequest(name, runNextBatch{bestWaiting, now, jobCount})
	}
	return bestWaiting, 0, err
}

// batchKey identifies a batch of a user.
type batchKey struct {
	uid       int
	batchName string
}

// runNextBatches remembers the result of bestWaitingPriority for the first request of each batch. A batch is
// removed when it is committed or aborted, or after store.BatchStagingTimeout without a request.
type runNextBatches struct {
	mu         sync.Mutex
	batchByKey map[batchKey]runNextBatch
}

// runNextBatch holds the result of bestWaitingPriority for one batch.
type runNextBatch struct {
	bestWaiting     store.WaitingPriority
	lastRequestAt   queue.UnixMillis // time of the batch's last request
	earlierJobCount int              // number of jobs in the batch's earlier requests
}

// recordBatchRequest returns what is remembered about a batch from its earlier requests. It then adds jobCount, the
// number of jobs in this request, to the remembered number of jobs. isKnown is false if nothing is remembered about the
// batch.
func (n *runNextBatches) recordBatchRequest(key batchKey, now queue.UnixMillis,
	jobCount int) (earlierRequests runNextBatch, isKnown bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	earlierRequests, isKnown = n.batchByKey[key]
	if isKnown {
		n.batchByKey[key] = runNextBatch{earlierRequests.bestWaiting, now, earlierRequests.earlierJobCount + jobCount}
	}
	return earlierRequests, isKnown
}

// rememberFirstBatchRequest records the first request of a batch, and removes abandoned batches. If the user has as
// many batches as the store allows, it removes the batch whose last request is the oldest.
func (n *runNextBatches) rememberFirstBatchRequest(key batchKey, firstRequest runNextBatch) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.batchByKey == nil {
		n.batchByKey = map[batchKey]runNextBatch{}
	}
	count, oldest := 0, key
	for other, b := range n.batchByKey {
		switch {
		case b.lastRequestAt.Add(store.BatchStagingTimeout) < firstRequest.lastRequestAt:
			delete(n.batchByKey, other)
		case other.uid == key.uid:
			if count++; count == 1 || b.lastRequestAt < n.batchByKey[oldest].lastRequestAt {
				oldest = other
			}
		}
	}
	if count >= store.MaxStagedBatchesPerUser {
		delete(n.batchByKey, oldest)
	}
	n.batchByKey[key] = firstRequest
}

// forgetBatch forgets a batch.
func (n *runNextBatches) forgetBatch(uid int, batch string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.batchByKey, batchKey{uid, batch})
}

// raisePriorityForRunNext raises the priority of a new job above that of its owner's waiting jobs, but not above the
// highest priority that the owner may set. earlierJobCount is the number of jobs of the batch before this job. If some
// waiting jobs still start before the new job, notes says so.
func (h *API) raisePriorityForRunNext(p *control.Peer, j *queue.Job, bestWaiting store.WaitingPriority,
	earlierJobCount int) (notes []string) {
	order := h.Store.RankOrder()
	if order.Scheduling == queue.SchedulingByArrival {
		return []string{`next: the job is enqueued at its usual place, because the setting "scheduling" is "fifo": ` +
			"the job that has waited longest starts first"}
	}
	if !bestWaiting.JobFound {
		return nil
	}
	if order.Scheduling == queue.SchedulingByAging && order.AgingUnit == queue.AgingByEnqueues {
		// each new job raises the effective priorities of waiting jobs by one
		bestWaiting.Priority += int64(earlierJobCount) + 1
	}
	_, most := h.allowedPriorityBounds(p, j.Queue)
	j.Priority = max(j.Priority, min(bestWaiting.Priority+1, most))
	if bestWaiting.Priority < j.Priority {
		return nil
	}
	verb := "still"
	if bestWaiting.IsUpperBound {
		verb = "may still"
	}
	return []string{fmt.Sprintf("next: the job is enqueued with priority %d, the highest that you may set in queue %s, "+
		`but some of your jobs %s start earlier because they have waited longer; ask a user `+
		`with the right "operate" to raise the priority`, j.Priority, j.Queue, verb)}
}
