package rules

import (
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// CheckWaitingLimits returns an error if newJobCount more waiting jobs of a user would exceed a limit. totalLimit
// applies to the waiting jobs of all users, and userLimit to those of this user. 0 means unlimited. Jobs of committed
// batches count as waiting.
func CheckWaitingLimits(c Counters, uid int, newJobCount, totalLimit, userLimit int64) error {
	if err := CheckTotalWaitingLimit(c, newJobCount, totalLimit); err != nil {
		return err
	}
	return CheckUserWaitingLimit(c, uid, newJobCount, userLimit)
}

// CheckTotalWaitingLimit checks only the limit for all users together; see CheckWaitingLimits.
func CheckTotalWaitingLimit(c Counters, newJobCount, maxWaitingJobs int64) error {
	if waiting := c.Counts().WaitingJobs; maxWaitingJobs > 0 && waiting+newJobCount > maxWaitingJobs {
		return queue.Errorf(queue.CodeQueueFull,
			"the queue is full: %d jobs are waiting, and the setting max_pending is %d; try again later", waiting,
			maxWaitingJobs)
	}
	return nil
}

// CheckUserWaitingLimit checks only the limit for one user; see CheckWaitingLimits. For this limit, jobs of uncommitted
// batches count as waiting too.
func CheckUserWaitingLimit(c Counters, uid int, newJobCount, maxWaitingJobs int64) error {
	if maxWaitingJobs <= 0 {
		return nil
	}
	u := c.UserCounts(uid)
	if waiting := u.WaitingJobs + u.StagedJobs; waiting+newJobCount > maxWaitingJobs {
		return queue.Errorf(queue.CodeQueueFull, "the queue is full for this user: %d of their jobs are waiting, "+
			"and the setting max_pending_per_user is %d; try again later", waiting, maxWaitingJobs)
	}
	return nil
}

// CheckUserByteLimit returns an error if a user's jobs would hold more than maxUserBytes bytes after addedBytes are
// added. A limit of 0 means unlimited.
func CheckUserByteLimit(c Counters, uid int, addedBytes, maxUserBytes int64) error {
	if used := c.UserCounts(uid).UsedBytes; maxUserBytes > 0 && addedBytes > 0 && used+addedBytes > maxUserBytes {
		return store.NewQuotaError(used, maxUserBytes, addedBytes)
	}
	return nil
}

// CheckQueueWaitingLimits returns an error if new jobs would exceed a queue's limit on waiting jobs. newJobsByQueue
// holds the number of new jobs by queue.
func CheckQueueWaitingLimits(queues Queues, newJobsByQueue map[string]int64) error {
	for name, n := range newJobsByQueue {
		if q := queues.Queue(name); q.MaxWaitingJobs > 0 && q.WaitingJobs+n > q.MaxWaitingJobs {
			return queue.Errorf(queue.CodeQueueFull,
				"queue %s is full: %d jobs are waiting, and the queue's setting max_pending is %d; try again later",
				name, q.WaitingJobs, q.MaxWaitingJobs)
		}
	}
	return nil
}

// CountJobsByQueue counts jobs by queue.
func CountJobsByQueue(jobs []queue.Job) map[string]int64 {
	counts := make(map[string]int64, 1)
	for i := range jobs {
		counts[jobs[i].Queue]++
	}
	return counts
}
