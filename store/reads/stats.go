package reads

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/records"
)

// Stats returns the statistics that match a filter.
func (s *JobReader) Stats(ctx context.Context, f store.StatsFilter) (stats store.Stats, err error) {
	if f.OnlyAllTimeTotals {
		f = store.StatsFilter{OnlyAllTimeTotals: true}
	}
	g, since, until := f.PeriodRange(s.Now())
	err = s.RunRead(ctx, func(r *ReadSnapshot) error {
		var aggregatedUntil [store.PerDay + 1]queue.UnixMillis
		_, err := database.ScanFirstRow(r, []any{&aggregatedUntil[store.PerHour], &aggregatedUntil[store.PerDay]},
			`SELECT hours_upto, days_upto FROM meta`)
		if err != nil {
			return err
		}
		stats = store.Stats{Granularity: g, Since: since, Until: until}
		queues := map[string]*store.AttemptStatistics{}
		if f.OnlyAllTimeTotals {
			if err := r.readAllTimeStatistics(aggregatedUntil[store.PerHour], queues); err != nil {
				return err
			}
			stats.Queues = sortQueueStatsByName(queues)
			return nil
		}
		before := until
		for fine := store.PerMinute; fine <= g && before > since; fine++ { // sums of recent periods are not stored yet
			from := since
			if fine < g {
				from = max(since, aggregatedUntil[fine+1])
			}
			if err := r.readStatistics(fine, from, before, f, &stats, queues); err != nil {
				return err
			}
			before = min(before, from)
		}
		stats.Queues = sortQueueStatsByName(queues)
		slices.Reverse(stats.Periods)
		return nil
	})
	return stats, err
}

// readAllTimeStatistics reads the statistics of all time: the stored sums, and the minutes from since on,
// which the sums do not include.
func (r *ReadSnapshot) readAllTimeStatistics(since queue.UnixMillis,
	statsByQueue map[string]*store.AttemptStatistics) error {
	return database.ForEachRow(r, func(r database.Row) {
		var statistics store.AttemptStatistics
		records.ReadStatistics(r, &statistics)
		records.AddStatistics(statsByQueue, records.AllTimeQueueName(r), &statistics)
	}, `SELECT `+records.StatisticsColumns+`, others FROM figures WHERE grain = ? OR grain = ? AND at >= ?`,
		int64(records.AllTimeGranularity), int64(store.PerMinute), int64(since))
}

// readStatistics reads the statistics of a grain (the length of a period) for the periods that begin at firstPeriod or
// later and before endPeriod, newest first.
func (r *ReadSnapshot) readStatistics(granularity store.Granularity, firstPeriod, endPeriod queue.UnixMillis,
	filter store.StatsFilter,
	stats *store.Stats, statsByQueue map[string]*store.AttemptStatistics) error {
	return database.ForEachRow(r, func(r database.Row) {
		var statistics store.AttemptStatistics
		records.ReadStatistics(r, &statistics)
		name := r.Text(0)
		if statsByQueue[name] == nil && len(statsByQueue) >= store.MaxQueuesPerStatsResult {
			name = store.OtherQueuesName
		}
		records.AddStatistics(statsByQueue, name, &statistics)
		if !filter.IncludePeriods {
			return
		}
		at := stats.Granularity.PeriodStart(queue.UnixMillis(r.Int64(9)))
		if n := len(stats.Periods); n == 0 || stats.Periods[n-1].StartTime != at {
			stats.Periods = append(stats.Periods, store.PeriodStatistics{StartTime: at})
		}
		stats.Periods[len(stats.Periods)-1].Add(&statistics)
	}, `SELECT `+records.StatisticsColumns+`, at FROM figures
		WHERE grain = ? AND at >= ? AND at < ? AND (? = '' OR queue = ?) ORDER BY at DESC, queue DESC`,
		int64(granularity), int64(firstPeriod), int64(endPeriod), filter.Queue, filter.Queue)
}

// sortQueueStatsByName returns the statistics of the queues, sorted by name, with store.OtherQueuesName last.
func sortQueueStatsByName(statsByQueue map[string]*store.AttemptStatistics) (sorted []store.QueueStatistics) {
	for name, f := range statsByQueue {
		sorted = append(sorted, store.QueueStatistics{QueueName: name, AttemptStatistics: *f})
	}
	slices.SortFunc(sorted, func(a, b store.QueueStatistics) int {
		return cmp.Or(cmp.Compare(records.BoolToInt(a.QueueName == store.OtherQueuesName),
			records.BoolToInt(b.QueueName == store.OtherQueuesName)), strings.Compare(a.QueueName, b.QueueName))
	})
	return sorted
}
