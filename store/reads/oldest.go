package reads

import (
	"context"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
)

// ReadOldest sets the field OldestReadySince of each queue in the list: since when the job that has been
// ready longest could have started, or 0 if no job is ready. It compares only the first jobs of the queue's
// lanes, which are lists of jobs with the same demands. It reads at most MaxScreenLanes lanes in total, and
// leaves the field 0 for the remaining queues.
func (s *Reads) ReadOldest(ctx context.Context, queues []store.QueueState) error {
	return s.Read(ctx, func(r *Reader) error {
		left := MaxScreenLanes
		for i := range queues {
			if left <= 0 {
				return nil
			}
			n, err := r.readOldest(&queues[i], left)
			if err != nil {
				return err
			}
			left -= n
		}
		return nil
	})
}

// readOldest sets the field OldestReadySince of a queue. It reads at most limit lanes (lists of jobs with the
// same demands), and returns how many it has read.
func (r *Reader) readOldest(q *store.QueueState, limit int) (n int, err error) {
	lanes, err := database.Rows(r, database.NumOf,
		`SELECT id FROM lanes INDEXED BY lanes_name WHERE queue = ? LIMIT ?`, q.Name, int64(limit))
	q.OldestReadySince = 0
	for _, id := range lanes {
		if err != nil {
			break
		}
		var since int64
		since, err = r.QueryNumber(
			`SELECT since FROM jobs INDEXED BY jobs_ready WHERE place = 1 AND lane = ? ORDER BY rank, seq LIMIT 1`, id)
		if at := queue.Millis(since); at != 0 && (q.OldestReadySince == 0 || at < q.OldestReadySince) {
			q.OldestReadySince = at
		}
	}
	return len(lanes), err
}
