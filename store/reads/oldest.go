package reads

import (
	"context"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
)

// FillOldestReadySince sets the field OldestReadySince of each queue in the list: since when the job that has been
// ready longest could have started, or 0 if no job is ready. It compares only the first jobs of the queue's lanes,
// which are lists of jobs that need the same locks and other limits. It reads at most MaxScreenLanes lanes in total,
// and leaves the field 0 for the remaining queues.
func (s *JobReader) FillOldestReadySince(ctx context.Context, queues []store.QueueState) error {
	return s.RunRead(ctx, func(r *ReadSnapshot) error {
		left := MaxScreenLanes
		for i := range queues {
			if left <= 0 {
				return nil
			}
			n, err := r.fillOldestReadySince(&queues[i], left)
			if err != nil {
				return err
			}
			left -= n
		}
		return nil
	})
}

// fillOldestReadySince sets the field OldestReadySince of a queue. It reads at most maxLanes lanes (lists of jobs that
// need the same locks and other limits), and returns how many it has read.
func (r *ReadSnapshot) fillOldestReadySince(q *store.QueueState, maxLanes int) (lanesRead int, err error) {
	lanes, err := database.ReadRows(r, database.FirstColumnInt64,
		`SELECT id FROM lanes INDEXED BY lanes_name WHERE queue = ? LIMIT ?`, q.Name, int64(maxLanes))
	q.OldestReadySince = 0
	for _, id := range lanes {
		if err != nil {
			break
		}
		var since int64
		since, err = r.QueryNumber(
			`SELECT since FROM jobs INDEXED BY jobs_ready WHERE place = 1 AND lane = ? ORDER BY rank, seq LIMIT 1`, id)
		if at := queue.UnixMillis(since); at != 0 && (q.OldestReadySince == 0 || at < q.OldestReadySince) {
			q.OldestReadySince = at
		}
	}
	return len(lanes), err
}
