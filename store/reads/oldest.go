package reads

import (
	"context"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
)

// ReadOldest sets the field OldestReadySince of each queue in the list. It compares the first jobs of the queue's
// lanes, and takes the one that has been ready the longest; the field is 0 if no lane has a ready job. ReadOldest
// reads at most MaxScreenLanes lanes, and leaves the field 0 for the remaining queues.
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

// readOldest sets the field OldestReadySince of a queue. It reads up to limit lanes and returns how many it read.
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
