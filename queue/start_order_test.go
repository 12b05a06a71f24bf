package queue_test

import (
	"cmp"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/queuectl/queuectl/queue"
)

// With rankOrderByTime, jobs gain priority with time. With rankOrderByEnqueues, they gain priority with each job that
// is enqueued.
var rankOrderByTime = queue.RankPolicy{Scheduling: queue.SchedulingByAging, AgingUnit: queue.AgingByTime,
	AgingInterval: time.Minute}
var rankOrderByEnqueues = queue.RankPolicy{Scheduling: queue.SchedulingByAging, AgingUnit: queue.AgingByEnqueues,
	AgingInterval: time.Minute}

// Jobs start in the order of their sums of priority and points. Here, four jobs have these priorities and points:
// (3,5), (5,3), (8,0) and (2,7). The last job has the sum nine, so it starts first. The others have the sum eight, so
// they start in the order of arrival.
func TestAgingOrdersByPriorityPlusPoints(t *testing.T) {
	const arrivals = 100
	type job struct{ seq, priority, points int64 }
	jobs := []job{{2, 3, 5}, {3, 5, 3}, {4, 8, 0}, {1, 2, 7}}
	for _, j := range jobs {
		if got := rankOrderByEnqueues.AgingPoints(1, 2, arrivals-j.points, arrivals); got != j.points {
			t.Errorf("job %d: got %d points, want %d", j.seq, got, j.points)
		}
	}
	slices.SortFunc(jobs, func(a, b job) int {
		return cmp.Or(cmp.Compare(rankOrderByEnqueues.Rank(a.priority, 1, arrivals-a.points),
			rankOrderByEnqueues.Rank(b.priority, 1, arrivals-b.points)), cmp.Compare(a.seq, b.seq))
	})
	if want := []job{{1, 2, 7}, {2, 3, 5}, {3, 5, 3}, {4, 8, 0}}; !slices.Equal(jobs, want) {
		t.Errorf("the jobs run in the order %v, want %v", jobs, want)
	}
}

// At any time, two runnable jobs have the same order by rank as by effective priority. Ranks never change, although
// effective priorities grow. This holds for both units of ageing.
func TestRankOrdersJobsLikeEffectivePriority(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := rapid.SampledFrom([]queue.RankPolicy{rankOrderByTime, rankOrderByEnqueues}).Draw(t, "order")
		interval := o.AgingInterval.Milliseconds()
		draw := func(name string) (priority, since int64) {
			return rapid.Int64Range(-queue.MaxPriority, queue.MaxPriority).Draw(t, name),
				rapid.Int64Range(1, 1<<42).Draw(t, name+" since")
		}
		p1, s1 := draw("one")
		p2, s2 := draw("other")
		now := max(s1, s2) + rapid.Int64Range(0, 1<<42).Draw(t, "later")
		// These are the exact effective priorities of both jobs, in milliseconds of ageing or in points.
		e1, e2 := p1*interval+now-s1, p2*interval+now-s2
		if o.AgingUnit == queue.AgingByEnqueues {
			e1, e2 = p1+now-s1, p2+now-s2
		}
		r1, r2 := o.Rank(p1, queue.UnixMillis(s1), s1), o.Rank(p2, queue.UnixMillis(s2), s2)
		if cmp.Compare(r1, r2) != cmp.Compare(e2, e1) {
			t.Fatalf("ranks %d, %d but effective priorities %d, %d", r1, r2, e1, e2)
		}
	})
}

// If a rank does not fit an int64, it is the nearest int64. Even then, a job with a higher priority never ranks behind
// a job with a lower priority, and an earlier job never ranks behind a later one.
func TestRankSaturatesOnOverflow(t *testing.T) {
	any64 := rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{math.MinInt64, math.MinInt64 + 1, -1, 0, 1,
		math.MaxInt64 - 1, math.MaxInt64}))
	rapid.Check(t, func(t *rapid.T) {
		o := queue.RankPolicy{Scheduling: queue.SchedulingByAging,
			AgingUnit:     rapid.SampledFrom([]queue.AgingUnit{queue.AgingByTime, queue.AgingByEnqueues}).Draw(t, "aging"),
			AgingInterval: time.Duration(rapid.Int64Range(int64(time.Millisecond), math.MaxInt64).Draw(t, "interval"))}
		p, q := any64.Draw(t, "p"), any64.Draw(t, "q")
		s := any64.Draw(t, "since")
		if lo, hi := min(p, q), max(p, q); o.Rank(hi, queue.UnixMillis(s), s) > o.Rank(lo, queue.UnixMillis(s), s) {
			t.Fatalf("priority %d ranks behind %d", hi, lo)
		}
		if r := any64.Draw(t, "other"); o.Rank(p, queue.UnixMillis(min(s, r)), min(s, r)) > o.Rank(p,
			queue.UnixMillis(max(s, r)),
			max(s, r)) {
			t.Fatalf("the job since %d ranks behind the one since %d", min(s, r), max(s, r))
		}
	})
}

// SchedulingByPriority uses only the priority. SchedulingByArrival ignores the priority.
func TestRankWithoutAgingFollowsScheduling(t *testing.T) {
	p, f := queue.RankPolicy{Scheduling: queue.SchedulingByPriority},
		queue.RankPolicy{Scheduling: queue.SchedulingByArrival}
	if p.Rank(5, 1, 1) != p.Rank(5, 99, 99) || p.Rank(6, 99, 99) >= p.Rank(5, 1, 1) {
		t.Error("ByPriority considers more than the priority, or puts a lower priority first")
	}
	if f.Rank(5, 7, 1) != f.Rank(9, 7, 1) || f.Rank(5, 7, 1) >= f.Rank(9, 8, 1) {
		t.Error("ByArrival considers the priority, or does not put the earlier job first")
	}
	if got := p.AgingPoints(1, 1<<40, 0, 9) + f.AgingPoints(1, 1<<40, 0, 9); got != 0 {
		t.Errorf("got %d points without ageing, want 0", got)
	}
}

// A job gains one point for each whole interval that it waits, but none before it is runnable. It never has
// negative points, even if the clock is set back.
func TestAgingPointsCountWholeIntervals(t *testing.T) {
	for _, c := range []struct {
		since, now queue.UnixMillis
		want       int64
	}{{1, 60_000, 0}, {1, 60_001, 1}, {1, 600_001, 10}, {0, 600_000, 0}, {600_000, 1, 0}} {
		if got := rankOrderByTime.AgingPoints(c.since, c.now, 0, 0); got != c.want {
			t.Errorf("since %d, now %d: got %d, want %d", c.since, c.now, got, c.want)
		}
	}
}

// For the rank of a job, MaxEffectivePriority returns the job's effective priority or one more. No job with this rank
// or a higher one has a higher effective priority.
func TestEffectivePriorityOfRankIsAnUpperBound(t *testing.T) {
	const now, arrivals = queue.UnixMillis(1_000_000), 500
	for _, o := range []queue.RankPolicy{
		{Scheduling: queue.SchedulingByPriority}, {Scheduling: queue.SchedulingByAging, AgingUnit: queue.AgingByEnqueues},
		{Scheduling: queue.SchedulingByAging, AgingUnit: queue.AgingByTime, AgingInterval: time.Minute},
	} {
		for _, priority := range []int64{-queue.MaxPriority, -5, 0, 15, queue.MaxPriority} {
			for _, waited := range []int64{0, 1, 59, 60, 61, 400} {
				since, arrival := now-queue.UnixMillis(waited*1000), arrivals-waited
				want := priority + o.AgingPoints(since, now, arrival, arrivals)
				rank := o.Rank(priority, since, arrival)
				if got := o.MaxEffectivePriority(rank, now, arrivals); got < want || got > want+1 {
					t.Errorf("%v: a job of priority %d that waited %d: got %d, want %d", o, priority, waited, got, want)
				}
			}
		}
		if got := o.MaxEffectivePriority(math.MinInt64, now, arrivals); got < queue.MaxPriority {
			t.Errorf("%v: the best rank has the effective priority %d", o, got)
		}
	}
}
