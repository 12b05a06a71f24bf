package queue

import (
	"math"
	"time"
)

// Scheduling is the rule by which waiting jobs are ordered.
type Scheduling string

// The rules: by priority that grows with waiting, by priority alone, by arrival.
const (
	ByAging    Scheduling = "aging"
	ByPriority Scheduling = "priority"
	ByArrival  Scheduling = "fifo"
)

// Aging is what earns a waiting job its points.
type Aging string

// The ways: a point an interval of time, or a point a job enqueued since.
const (
	AgingTime    Aging = "time"
	AgingEnqueue Aging = "enqueue"
)

// Order is how ranks are made. Interval is what one point of priority is worth
// in waiting, with AgingTime.
type Order struct {
	Scheduling Scheduling
	Aging      Aging
	Interval   time.Duration
}

// Rank is a job's sort key, lower first; equal ranks run in order of seq. It is
// fixed when the job becomes runnable: linear ageing orders two jobs the same at
// every instant, because now cancels. It saturates and never overflows.
func (o Order) Rank(priority int64, since Millis, arrival int64) int64 {
	switch {
	case o.Scheduling == ByPriority:
		return -priority
	case o.Scheduling == ByArrival:
		return int64(since)
	case o.Aging == AgingEnqueue:
		return saturatingSub(arrival, priority)
	}
	return saturatingSub(int64(since), saturatingMul(priority, o.Interval.Milliseconds()))
}

// Points is how much priority a job has earned by waiting: a whole number at
// least 0. arrivals counts all jobs enqueued so far.
func (o Order) Points(since, now Millis, arrival, arrivals int64) int64 {
	switch {
	case o.Scheduling != ByAging || since == 0:
		return 0
	case o.Aging == AgingEnqueue:
		return max(0, arrivals-arrival)
	}
	return max(0, int64(now-since)/max(1, o.Interval.Milliseconds()))
}

// EffectivePriority returns the highest effective priority, points for waiting included, that a job with this rank or a
// worse one can have. arrivals counts all jobs ever enqueued. Scheduling must not be ByArrival.
func (o Order) EffectivePriority(rank int64, now Millis, arrivals int64) int64 {
	switch {
	case o.Scheduling == ByPriority:
		return saturatingSub(0, rank)
	case o.Aging == AgingEnqueue:
		return saturatingSub(arrivals, rank)
	}
	return saturatingSub(int64(now), rank) / max(1, o.Interval.Milliseconds())
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
