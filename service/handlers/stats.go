package handlers

import (
	"context"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// defaultStatsRange is the length of the period for which statistics are returned by default.
const defaultStatsRange = 24 * time.Hour

// Stats implements control.API.
func (h *API) ReadStats(ctx context.Context, p control.StatsParams) (result control.Stats, err error) {
	now := h.Store.Now()
	f := store.StatsFilter{Queue: p.Queue, Since: queue.UnixMillis(p.Since), Until: queue.UnixMillis(p.Until),
		IncludePeriods: p.PeriodLength != "", OnlyAllTimeTotals: p.AllTime}
	if p.AllTime && (p.Queue != "" || p.Since != 0 || p.Until != 0 || p.PeriodLength != "") {
		return result, queue.InvalidFieldError("ever",
			`covers all queues and all times; leave out parameters "queue", "since", "until" and "by"`)
	}
	if f.Since == 0 {
		from := now
		if f.Until != 0 {
			from = min(from, f.Until)
		}
		f.Since = max(1, from-queue.UnixMillis(defaultStatsRange.Milliseconds()))
	}
	for g := store.PerMinute; g <= store.PerDay; g++ {
		if g.String() == p.PeriodLength {
			f.Granularity = g
		}
	}
	if g, since, until := f.PeriodRange(now); p.WithHistograms && f.IncludePeriods &&
		time.Duration(until-since)*time.Millisecond > control.MaxHistogramPeriods*g.PeriodLength() {
		return result, queue.InvalidFieldError("buckets",
			`histograms are limited to %d periods; set parameter "since" to a later time, or parameter "by" to a longer period`,
			control.MaxHistogramPeriods)
	}
	return control.AnswerInSlot(ctx, h.UserLimits, control.ClassManyJobsRead, func() (out control.Stats, err error) {
		got, err := h.Store.Stats(ctx, f)
		if err != nil {
			return out, err
		}
		out = control.Stats{Grain: got.Granularity.String(), Since: control.Time(got.Since), Until: control.Time(got.Until),
			Queues: []control.QueueStats{}}
		for i := range got.Queues {
			q := &got.Queues[i]
			out.Queues = append(out.Queues, control.QueueStats{Queue: q.QueueName,
				AttemptStatistics: newStatisticsView(&q.AttemptStatistics, p.WithHistograms)})
		}
		for i := range got.Periods {
			q := &got.Periods[i]
			out.Periods = append(out.Periods, control.PeriodStats{StartTime: control.Time(q.StartTime),
				AttemptStatistics: newStatisticsView(&q.AttemptStatistics, p.WithHistograms)})
		}
		return out, nil
	})
}

// newStatisticsView converts statistics to their form in a reply.
func newStatisticsView(stats *store.AttemptStatistics, withBuckets bool) control.AttemptStatistics {
	v := control.AttemptStatistics{
		Started: stats.Started, Completed: stats.Completed, Failed: stats.Failed, Dead: stats.Dead,
		Cancelled: stats.Cancelled, StoppedOrDeferred: stats.ReturnedToQueue,
		WaitTimes: newHistogramView(&stats.WaitTimes, withBuckets), RunTimes: newHistogramView(&stats.RunTimes, withBuckets),
	}
	if all := stats.Completed + stats.Failed + stats.Dead; all > 0 {
		v.FailureRate = new(float64(stats.Failed+stats.Dead) / float64(all))
	}
	return v
}

// newHistogramView converts a histogram to its form in a reply. If withBuckets is false, it leaves out
// individual buckets.
func newHistogramView(h *store.Histogram, withBuckets bool) (v control.DurationStatistics) {
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
	for k, n := range h.BucketCounts {
		if withBuckets && n > 0 {
			v.HistogramBuckets = append(v.HistogramBuckets, []int64{int64(k + store.FirstPrometheusBucketIndex), n})
		}
	}
	return v
}
