package handlers

import (
	"context"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// statsRange is the length of the period for which statistics are returned by default.
const statsRange = 24 * time.Hour

// Stats implements control.API.
func (h *API) Stats(ctx context.Context, p control.StatsParams) (control.Stats, error) {
	now := h.Store.Now()
	f := store.StatsFilter{Queue: p.Queue, Since: queue.Millis(p.Since), Until: queue.Millis(p.Until),
		WithPeriods: p.Grain != "", AllTime: p.AllTime}
	if p.AllTime && (p.Queue != "" || p.Since != 0 || p.Until != 0 || p.Grain != "") {
		return control.Stats{}, queue.Invalid("ever",
			`covers all queues and all times; leave out parameters "queue", "since", "until" and "by"`)
	}
	if f.Since == 0 {
		from := now
		if f.Until != 0 {
			from = min(from, f.Until)
		}
		f.Since = max(1, from-queue.Millis(statsRange.Milliseconds()))
	}
	for g := store.Minute; g <= store.Day; g++ {
		if g.String() == p.Grain {
			f.Grain = g
		}
	}
	if g, since, until := f.Range(now); p.Buckets && f.WithPeriods &&
		time.Duration(until-since)*time.Millisecond > control.MaxBucketPeriods*g.Length() {
		return control.Stats{}, queue.Invalid("buckets",
			`histograms are limited to %d periods; set parameter "since" to a later time, or parameter "by" to a longer period`,
			control.MaxBucketPeriods)
	}
	return control.AnswerInSlot(ctx, h.UserLimits, control.ClassManyJobs, func() (control.Stats, error) {
		got, err := h.Store.Stats(ctx, f)
		if err != nil {
			return control.Stats{}, err
		}
		out := control.Stats{Grain: got.Grain.String(), Since: control.Time(got.Since), Until: control.Time(got.Until),
			Queues: []control.QueueStats{}}
		for i := range got.Queues {
			q := &got.Queues[i]
			out.Queues = append(out.Queues, control.QueueStats{Queue: q.Queue,
				AttemptStatistics: viewStatistics(&q.AttemptStatistics, p.Buckets)})
		}
		for i := range got.Periods {
			q := &got.Periods[i]
			out.Periods = append(out.Periods, control.PeriodStats{StartTime: control.Time(q.StartTime),
				AttemptStatistics: viewStatistics(&q.AttemptStatistics, p.Buckets)})
		}
		return out, nil
	})
}

// viewStatistics converts statistics to their form in a reply.
func viewStatistics(stats *store.AttemptStatistics, withBuckets bool) control.AttemptStatistics {
	v := control.AttemptStatistics{
		Started: stats.Started, Completed: stats.Completed, Failed: stats.Failed, Dead: stats.Dead,
		Cancelled: stats.Cancelled, Returned: stats.Returned,
		WaitTimes: viewHistogram(&stats.WaitTimes, withBuckets), RunTimes: viewHistogram(&stats.RunTimes, withBuckets),
	}
	if all := stats.Completed + stats.Failed + stats.Dead; all > 0 {
		v.FailureRate = new(float64(stats.Failed+stats.Dead) / float64(all))
	}
	return v
}

// viewHistogram converts a histogram to its form in a reply. If withBuckets is false, it leaves out
// individual buckets.
func viewHistogram(h *store.Histogram, withBuckets bool) (v control.DurationStatistics) {
	quantile := func(fraction float64) *int64 {
		if d, known := h.Quantile(fraction); known {
			return new(d.Milliseconds())
		}
		return nil
	}
	v.P50MS, v.P95MS, v.P99MS = quantile(0.5), quantile(0.95), quantile(0.99)
	v.SumMS = h.SumMillis
	if n := h.Count(); n > 0 {
		v.MeanMS = new(h.SumMillis / n)
	}
	for k, n := range h.Counts {
		if withBuckets && n > 0 {
			v.Buckets = append(v.Buckets, []int64{int64(k + store.FirstBucketIndex), n})
		}
	}
	return v
}
