package service

import (
	"context"
	"fmt"
	"math"
	"sync"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// A job that is enqueued with next gets a priority one above the effective priority of its owner's best-ranked job that
// could start now or waits to be retried, so it starts before all of these. Waiting raises effective priorities without
// limit, but the right submit limits the priority that a user may set. If that limit is too low, the job gets the
// highest priority that its owner may set, and a note says so.

// nothingWaits is the effective priority that bestWaiting returns for a user without waiting jobs.
const nothingWaits = math.MinInt64

// bestWaiting returns the highest effective priority of the jobs that a user has waiting. All requests of a batch get
// the same answer, so that its jobs start in their order.
func (s *Service) bestWaiting(ctx context.Context, uid int, batch string) (best int64, err error) {
	name, now := batchName{uid, batch}, s.store.Now()
	if best, known := s.nextBatches.priority(name, now); known {
		return best, nil
	}
	best = nothingWaits
	err = s.shares.Do(ctx, control.One, func() error {
		priority, found, err := s.store.BestWaiting(ctx, uid)
		if found {
			best = priority
		}
		return err
	})
	if err == nil && batch != "" {
		s.nextBatches.put(name, best, now)
	}
	return best, err
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
	best int64
	last queue.Millis // when the last request came
}

// priority returns what was remembered for a batch, and notes that a request came.
func (n *nextBatches) priority(name batchName, now queue.Millis) (best int64, known bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	b, known := n.byName[name]
	if known {
		n.byName[name] = nextBatch{b.best, now}
	}
	return b.best, known
}

// put remembers the answer for a batch and forgets those of abandoned batches. It remembers as many batches of a user as
// the store keeps, those whose last requests are the newest.
func (n *nextBatches) put(name batchName, best int64, now queue.Millis) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.byName == nil {
		n.byName = map[batchName]nextBatch{}
	}
	count, oldest := 0, name
	for other, b := range n.byName {
		switch {
		case b.last.Add(store.StageMemory) < now:
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
	n.byName[name] = nextBatch{best, now}
}

// remove forgets a batch.
func (n *nextBatches) remove(uid int, batch string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.byName, batchName{uid, batch})
}

// putNext raises the priority of a new job above that of its owner's waiting jobs, up to the highest one that the owner
// may set. It returns a note for the owner if some of these jobs still start first.
func (s *Service) putNext(p *control.Peer, j *queue.Job, best int64) (notes []string) {
	if s.store.Order().Scheduling == queue.ByArrival {
		return []string{"next: has no effect, because scheduling is fifo: the job that has waited longest starts first"}
	}
	if best == nothingWaits {
		return nil
	}
	_, most := s.priorityBounds(p, j.Queue)
	j.Priority = max(j.Priority, min(best+1, most))
	if best < j.Priority {
		return nil
	}
	return []string{fmt.Sprintf("next: you may set priorities up to %d in queue %s, and some of your jobs are ahead because "+
		"they have waited longer; ask a user with the right operate to raise the priority", j.Priority, j.Queue)}
}
