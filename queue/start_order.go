package queue

import (
	"math"
	"time"
)

// Scheduling is the rule by which a queue orders its waiting jobs.
type Scheduling string

// These are the rules. SchedulingByAging orders jobs by priority, but a job gains priority while it waits.
// SchedulingByPriority orders jobs by the priority that their users have set. SchedulingByArrival orders jobs by the
// time of their arrival.
const (
	SchedulingByAging    Scheduling = "aging"
	SchedulingByPriority Scheduling = "priority"
	SchedulingByArrival  Scheduling = "fifo"
)

// AgingUnit says for what a waiting job gains priority: for the time that it waits, or for the jobs that are enqueued
// after it.
type AgingUnit string

// These are the values of AgingUnit. With AgingByTime, a job gains one point of priority per AgingInterval.
// With AgingByEnqueues, it gains one point for each job that is enqueued after it.
const (
	AgingByTime     AgingUnit = "time"
	AgingByEnqueues AgingUnit = "enqueue"
)

// RankPolicy defines how ranks are computed. AgingInterval is used only with AgingByTime: a job gains one point of
// priority for each AgingInterval that it waits.
type RankPolicy struct {
	Scheduling    Scheduling
	AgingUnit     AgingUnit
	AgingInterval time.Duration
}

// Rank returns a job's sort key. Jobs with a lower rank start first, and jobs with equal ranks start in the order of
// Seq. The parameters are the job's Priority, AgingSince and ArrivalNumber.
//
// The rank of a job does not change while the job waits. This is possible because all waiting jobs gain points at the
// same speed, so their order stays the same. If the rank does not fit an int64, the result is the nearest int64.
func (o RankPolicy) Rank(priority int64, agingSince UnixMillis, arrivalNumber int64) int64 {
	switch {
	case o.Scheduling == SchedulingByPriority:
		return -priority
	case o.Scheduling == SchedulingByArrival:
		return int64(agingSince)
	case o.AgingUnit == AgingByEnqueues:
		return saturatingSub(arrivalNumber, priority)
	}
	return saturatingSub(int64(agingSince), saturatingMul(priority, o.AgingInterval.Milliseconds()))
}

// AgingPoints returns how many points of priority a job has gained by waiting. enqueuedJobCount is the number of all
// jobs that were enqueued until now. agingSince and arrivalNumber are fields of the job, as for Rank.
func (o RankPolicy) AgingPoints(agingSince, now UnixMillis, arrivalNumber, enqueuedJobCount int64) int64 {
	switch {
	case o.Scheduling != SchedulingByAging || agingSince == 0:
		return 0
	case o.AgingUnit == AgingByEnqueues:
		return max(0, enqueuedJobCount-arrivalNumber)
	}
	return max(0, int64(now-agingSince)/max(1, o.AgingInterval.Milliseconds()))
}

// MaxEffectivePriority returns an upper bound for the effective priority of all jobs that have the given rank or a
// higher one. The effective priority is the priority plus the points gained by waiting. enqueuedJobCount is the number
// of all jobs that were enqueued until now. Scheduling must not be SchedulingByArrival.
func (o RankPolicy) MaxEffectivePriority(rank int64, now UnixMillis, enqueuedJobCount int64) int64 {
	switch {
	case o.Scheduling == SchedulingByPriority:
		return saturatingSub(0, rank)
	case o.AgingUnit == AgingByEnqueues:
		return saturatingSub(enqueuedJobCount, rank)
	}
	return saturatingSub(int64(now), rank) / max(1, o.AgingInterval.Milliseconds())
}

func saturatingMul(a, b int64) int64 {
	if a == 0 || b == 0 {
		return 0
	}
	if c := a * b; c/b == a && (a != -1 || b != math.MinInt64) && (b != -1 || a != math.MinInt64) {
		return c
	}
	if (a < 0) != (b < 0) {
		return math.MinInt64
	}
	return math.MaxInt64
}

func saturatingSub(a, b int64) int64 {
	c := a - b
	switch {
	case b > 0 && c > a:
		return math.MinInt64
	case b < 0 && c < a:
		return math.MaxInt64
	}
	return c
}
