package worker

import "time"

// This file defines the deadlines by which the pool notices that a runner or the start of a job does not
// respond. Each sign of life sets a new deadline. If no other sign of life follows within the limit, the
// deadline passes:
//
//	sign of life                  limit                         then
//	message of a runner           Config.HeartbeatInterval      the pool checks that the runner is alive
//	message of a worker's runner  Config.WorkerStaleAfter       ListWorkers reports the worker as stale
//	last connection to a runner   unreachableRunnerTimeout      another runner gets the new jobs
//	last connection to a runner   livenessCheckTimeout          requests about the runner's jobs fail
//	Start frame of a job          startDeadline and its margin  the pool takes the job back
//	SetLeaseDeadline              its argument                  other nodes may have the leases
//
// A single liveness check (a request that a live runner answers) has no such deadline: its context limits
// how long it waits for the answer.

// deadline is the end of a time limit. The zero deadline never passes.
type deadline struct{ time time.Time }

// deadlineAfter returns the deadline that passes when limit has elapsed since the last sign of
// life.
func deadlineAfter(lastSignOfLife time.Time, limit time.Duration) deadline {
	return deadline{lastSignOfLife.Add(limit)}
}

// isNever reports whether the deadline never passes.
func (d deadline) isNever() bool { return d.time.IsZero() }

// hasPassed reports whether the deadline has passed at the time now.
func (d deadline) hasPassed(now time.Time) bool { return !d.isNever() && !now.Before(d.time) }

// earlierOf returns the earlier one of two deadlines. The zero deadline is later than any other.
func (d deadline) earlierOf(other deadline) deadline {
	if d.isNever() || !other.isNever() && other.time.Before(d.time) {
		return other
	}
	return d
}
