package service

import (
	"context"
	"fmt"
	"math"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// A job that is enqueued with next gets a priority one above the effective priorities of its owner's waiting jobs, so
// it starts before them. Waiting raises effective priorities without limit, but the right submit limits the priority
// that a user may set. If that limit is too low, the job gets the highest priority that its owner may set, and a note
// says so.

// maxNextPages is how many pages of a user's waiting jobs bestWaiting reads at most.
const maxNextPages = 50

// nothingWaits is the effective priority that bestWaiting returns for a user who has no waiting jobs.
const nothingWaits = math.MinInt64

// bestWaiting returns the highest effective priority among a user's waiting jobs.
func (s *Service) bestWaiting(ctx context.Context, uid int) (int64, error) {
	best := int64(nothingWaits)
	order, now, enqueued := s.store.Order(), s.store.Now(), s.store.Counts().Enqueued
	note := func(jobs []queue.Job) {
		for i := range jobs {
			if j := &jobs[i]; j.UID == uid {
				effective := j.Priority
				if j.State.Runnable() {
					effective += order.Points(j.Since, now, j.Arrival, enqueued)
				}
				best = max(best, effective)
			}
		}
	}
	err := s.shares.Do(ctx, control.Many, func() error { // the jobs that start first usually include one of the user's
		screen, err := s.store.Screen(ctx, store.ScreenFilter{Rows: store.MaxScreen, Submitter: new(-1)})
		note(screen.Ready)
		return err
	})
	f := store.Filter{States: []queue.State{queue.Pending, queue.Failed}, UID: &uid, Limit: store.MaxPage}
	for more, pages := best == nothingWaits, 0; err == nil && more && pages < maxNextPages; pages++ {
		err = s.shares.Do(ctx, control.Many, func() error {
			page, err := s.store.List(ctx, f)
			note(page.Jobs)
			f.Before, more = page.Next, page.Next != 0
			return err
		})
	}
	return best, err
}

// putNext raises a new job's priority above those of its owner's waiting jobs, as far as the owner may raise it. It
// returns a note for the owner if some of these jobs start first anyway.
func (s *Service) putNext(p *control.Peer, j *queue.Job, best int64) (notes []string) {
	if s.store.Order().Scheduling == queue.ByArrival {
		return []string{"next: has no effect while scheduling is fifo, where the job that has waited longest starts first"}
	}
	if best == nothingWaits {
		return nil
	}
	_, most := s.priorityBounds(p, j.Queue)
	j.Priority = max(j.Priority, min(best+1, most))
	if best < j.Priority {
		return nil
	}
	return []string{fmt.Sprintf("next: priority %d is the highest that you may set in queue %s, so those "+
		"of your jobs that have waited longest start first; a user with the right operate can raise the priority", j.Priority, j.Queue)}
}
