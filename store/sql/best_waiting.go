package sql

import (
	"context"

	"github.com/queuectl/queuectl/queue"
)

// BestWaiting returns the effective priority of a user's best-ranked job that is due or waits to be retried. The index
// jobs_user holds these jobs only. Claimed jobs that are not known to have started are in it too, and are skipped.
func (s *engine) BestWaiting(ctx context.Context, uid int) (priority int64, found bool, err error) {
	s.mu.Lock()
	waiting, enqueued := s.usage[uid].waiting, s.counts.Enqueued
	s.mu.Unlock()
	if waiting == 0 {
		return 0, false, nil
	}
	err = s.reading(ctx, func(r *reader) error {
		reserved := s.reservations()
		priority, found = 0, false
		return r.query(func(r row) (bool, error) {
			if _, claimed := reserved[r.num(0)]; claimed {
				return true, nil
			}
			points := s.Order().Points(queue.Millis(r.num(2)), s.Now(), r.num(3), enqueued)
			priority, found = r.num(1)+points, true
			return false, nil
		}, `SELECT seq, priority, since, arrival FROM jobs INDEXED BY jobs_user
			WHERE uid = ? AND (place = 1 OR place = 2 AND state = 4) ORDER BY rank, seq LIMIT ?`,
			int64(uid), int64(len(reserved)+1))
	})
	return priority, found, err
}
