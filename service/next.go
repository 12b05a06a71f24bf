package service

import (
	"context"
	"fmt"
	"sync"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// A job that is enqueued with next gets a priority one above the effective priority of its owner's best-ranked job that
// could start now or waits to be retried, so it starts before all of these. Waiting raises effective priorities without
// limit, but the right submit limits the priority that a user may set. If that limit is too low, the job gets the
// highest priority that its owner may set, and a note says so.
//
// With aging = enqueue, the new job's own enqueue gives each waiting job one more point, so the new job needs a priority
// that is one higher. Otherwise both would have the same rank, and the older job would start first. Each job of a batch
// gives a point too, to the waiting jobs and to the batch's jobs before it. So the jobs of a batch get rising priorities,
// all of them have the same rank, and they start in their order.

// bestWaiting returns the highest effective priority of the jobs that a user has waiting, and how many jobs the earlier
// requests of the batch have. jobs is the number of those in this request. All requests of a batch get the same priority,
// so that its jobs start in their order.
func (s *Service) bestWaiting(
	ctx context.Context, uid int, batch string, jobs int,
) (best store.WaitingPriority, earlier int, err error) {
	name, now := batchName{uid, batch}, s.store.Now()
	if b, known := s.nextBatches.priority(name, now, jobs); known {
		return b.best, b.jobs, nil
	}
	err = s.shares.Do(ctx, control.One, func() (err error) {
		best, err = s.store.BestWaiting(ctx, uid)
		return err
	})
	if err == nil && batch != "" {
		s.nextBatches.put(name, nextBatch{best, now, jobs})
	}
	return best, 0, err
}

// batchName names a batch of a user.
type batchName struct {
	uid  int
	name string
}

// nextBatches remembers what bestWaiting returned for the first request of each batch. A batch is removed once it is
// committed or aborted, or when no request came for it within store.StageMemory.
type nextBatches struct {
	mu     sync.Mutex
	byName map[batchName]nextBatch
}

// nextBatch holds the answer for one batch.
type nextBatch struct {
	best store.WaitingPriority
	last queue.Millis // when the last request came
	jobs int          // in the requests that came
}

// priority returns what was remembered for a batch, and notes that a request with this number of jobs came.
func (n *nextBatches) priority(name batchName, now queue.Millis, jobs int) (b nextBatch, known bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	b, known = n.byName[name]
	if known {
		n.byName[name] = nextBatch{b.best, now, b.jobs + jobs}
	}
	return b, known
}

// put remembers the first request of a batch and forgets abandoned batches. It remembers as many batches of a user as
// the store keeps, those whose last requests are the newest.
func (n *nextBatches) put(name batchName, first nextBatch) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.byName == nil {
		n.byName = map[batchName]nextBatch{}
	}
	count, oldest := 0, name
	for other, b := range n.byName {
		switch {
		case b.last.Add(store.StageMemory) < first.last:
			delete(n.byName, other)
		case other.uid == name.uid:
			if count++; count == 1 || b.last < n.byName[oldest].last {
				oldest = other
			}
		}
	}
	if count >= store.MaxStagedUser {
		delete(n.byName, oldest)
	}
	n.byName[name] = first
}

// remove forgets a batch.
func (n *nextBatches) remove(uid int, batch string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.byName, batchName{uid, batch})
}

// putNext raises the priority of a new job above that of its owner's waiting jobs, up to the highest one that the owner
// may set. earlier is how many jobs of the batch come before it. putNext returns a note for the owner if some of the
// waiting jobs still start first.
func (s *Service) putNext(p *control.Peer, j *queue.Job, best store.WaitingPriority, earlier int) (notes []string) {
	order := s.store.Order()
	if order.Scheduling == queue.ByArrival {
		return []string{`next: has no effect, because the setting "scheduling" is "fifo": the job that has waited longest starts first`}
	}
	if !best.Found {
		return nil
	}
	if order.Scheduling == queue.ByAging && order.Aging == queue.AgingEnqueue {
		best.Priority += int64(earlier) + 1 // the points that the new jobs give
	}
	_, most := s.priorityBounds(p, j.Queue)
	j.Priority = max(j.Priority, min(best.Priority+1, most))
	if best.Priority < j.Priority {
		return nil
	}
	still := "still"
	if best.Bound {
		still = "may still"
	}
	return []string{fmt.Sprintf("next: priority %d is the highest that you may set in queue %s, and some of your jobs %s start "+
		"earlier because they have waited longer; ask a user with the right operate to raise it", j.Priority, j.Queue, still)}
}
