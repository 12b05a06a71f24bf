package rules

import (
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Admit returns an error if n more waiting jobs of a user would exceed a limit. totalLimit applies to the
// waiting jobs of all users, and userLimit to those of this user. 0 means unlimited. Jobs of committed
// batches count as waiting.
func Admit(c Counters, uid int, n, totalLimit, userLimit int64) error {
	if err := AdmitAll(c, n, totalLimit); err != nil {
		return err
	}
	return AdmitUser(c, uid, n, userLimit)
}

// AdmitAll checks only the limit for all users together; see Admit.
func AdmitAll(c Counters, n, limit int64) error {
	if waiting := c.Counts().Waiting; limit > 0 && waiting+n > limit {
		return queue.Errorf(queue.CodeQueueFull,
			"the queue is full: %d jobs are waiting, and the setting max_pending is %d; try again later", waiting, limit)
	}
	return nil
}

// AdmitUser checks only the limit for one user; see Admit. For this limit, jobs of uncommitted batches count
// as waiting too.
func AdmitUser(c Counters, uid int, n, limit int64) error {
	if limit <= 0 {
		return nil
	}
	u := c.UserCounts(uid)
	if waiting := u.Waiting + u.StagedJobs; waiting+n > limit {
		return queue.Errorf(queue.CodeQueueFull, "the queue is full for this user: %d of their jobs are waiting, "+
			"and the setting max_pending_per_user is %d; try again later", waiting, limit)
	}
	return nil
}

// AdmitBytes returns an error if a user's jobs would hold more than maxBytes bytes after addedBytes are
// added. 0 means unlimited.
func AdmitBytes(c Counters, uid int, addedBytes, maxBytes int64) error {
	if used := c.UserCounts(uid).Bytes; maxBytes > 0 && addedBytes > 0 && used+addedBytes > maxBytes {
		return store.NewQuotaError(used, maxBytes, addedBytes)
	}
	return nil
}

// AdmitQueues returns an error if new jobs would exceed a queue's limit on waiting jobs. newJobs holds the
// number of new jobs by queue.
func AdmitQueues(queues Queues, newJobs map[string]int64) error {
	for name, n := range newJobs {
		if q := queues.Queue(name); q.MaxWaiting > 0 && q.Waiting+n > q.MaxWaiting {
			return queue.Errorf(queue.CodeQueueFull,
				"queue %s is full: %d jobs are waiting, and the queue's setting max_pending is %d; try again later",
				name, q.Waiting, q.MaxWaiting)
		}
	}
	return nil
}

// CountByQueue counts jobs by queue.
func CountByQueue(jobs []queue.Job) map[string]int64 {
	counts := make(map[string]int64, 1)
	for i := range jobs {
		counts[jobs[i].Queue]++
	}
	return counts
}
