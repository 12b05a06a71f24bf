package queue

import (
	"math"
	"time"
)

// Scheduling is the rule that orders waiting jobs.
type Scheduling string

// The rules: ByAging uses a priority that grows while a job waits, ByPriority the priority alone, and
// ByArrival the order of arrival.
const (
	ByAging    Scheduling = "aging"
	ByPriority Scheduling = "priority"
	ByArrival  Scheduling = "fifo"
)

// AgingUnit is the unit in which a job's waiting is measured.
type AgingUnit string

// The values of AgingUnit. With AgingByTime, a job earns one point per interval of time; with
// AgingByEnqueues, one point for each job enqueued after it.
const (
	AgingByTime     AgingUnit = "time"
	AgingByEnqueues AgingUnit = "enqueue"
)

// Order defines how ranks are computed. With AgingByTime, AgingInterval is the waiting time that is worth one
// point of priority.
type Order struct {
	Scheduling    Scheduling
	AgingUnit     AgingUnit
	AgingInterval time.Duration
}

// Rank returns a job's sort key, lower first. Jobs with equal ranks run in order of Seq. The rank is fixed
// when the job is first runnable. That is enough for linear ageing: any two waiting jobs gain the same number
// of points, so their order never changes. Rank saturates and never overflows.
func (o Order) Rank(priority int64, since Millis, arrival int64) int64 {
	switch {
	case o.Scheduling == ByPriority:
		return -priority
	case o.Scheduling == ByArrival:
		return int64(since)
	case o.AgingUnit == AgingByEnqueues:
		return saturatingSub(arrival, priority)
	}
	return saturatingSub(int64(since), saturatingMul(priority, o.AgingInterval.Milliseconds()))
}

// AgingPoints returns how much priority a job has earned by waiting, at least 0. arrivals is the number
// of jobs ever enqueued.
func (o Order) AgingPoints(since, now Millis, arrival, arrivals int64) int64 {
	switch {
	case o.Scheduling != ByAging || since == 0:
		return 0
	case o.AgingUnit == AgingByEnqueues:
		return max(0, arrivals-arrival)
	}
	return max(0, int64(now-since)/max(1, o.AgingInterval.Milliseconds()))
}

// EffectivePriority returns an upper bound: no job with this rank or a worse one has a higher priority,
// including the points for waiting. arrivals is the number of jobs ever enqueued. Scheduling must not be
// ByArrival.
func (o Order) EffectivePriority(rank int64, now Millis, arrivals int64) int64 {
	switch {
	case o.Scheduling == ByPriority:
		return saturatingSub(0, rank)
	case o.AgingUnit == AgingByEnqueues:
		return saturatingSub(arrivals, rank)
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
