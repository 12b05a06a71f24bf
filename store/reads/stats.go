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
func (s *Reads) Stats(ctx context.Context, f store.StatsFilter) (out store.Stats, err error) {
	if f.AllTime {
		f = store.StatsFilter{AllTime: true}
	}
	g, since, until := f.Range(s.Now())
	err = s.Read(ctx, func(r *Reader) error {
		var aggregatedUntil [store.Day + 1]queue.Millis
		_, err := database.FirstRow(r, func(r database.Row) {
			aggregatedUntil[store.Hour], aggregatedUntil[store.Day] = queue.Millis(r.Num(0)), queue.Millis(r.Num(1))
		}, `SELECT hours_upto, days_upto FROM meta`)
		if err != nil {
			return err
		}
		out = store.Stats{Grain: g, Since: since, Until: until}
		queues := map[string]*store.AttemptStatistics{}
		if f.AllTime {
			if err := r.readAllTimeStatistics(aggregatedUntil[store.Hour], queues); err != nil {
				return err
			}
			out.Queues = sortedByName(queues)
			return nil
		}
		before := until
		for fine := store.Minute; fine <= g && before > since; fine++ { // sums of recent periods are not stored yet
			from := since
			if fine < g {
				from = max(since, aggregatedUntil[fine+1])
			}
			if err := r.readStatistics(fine, from, before, f, &out, queues); err != nil {
				return err
			}
			before = min(before, from)
		}
		out.Queues = sortedByName(queues)
		slices.Reverse(out.Periods)
		return nil
	})
	return out, err
}

// readAllTimeStatistics reads the statistics of all time: the stored sums, and the minutes from since on,
// which the sums do not include.
func (r *Reader) readAllTimeStatistics(since queue.Millis, queues map[string]*store.AttemptStatistics) error {
	return database.EachRow(r, func(r database.Row) {
		var statistics store.AttemptStatistics
		records.ReadStatistics(r, &statistics)
		records.AddStatistics(queues, records.AllTimeName(r), &statistics)
	}, `SELECT `+records.StatisticsColumns+`, others FROM figures WHERE grain = ? OR grain = ? AND at >= ?`,
		int64(records.AllTime), int64(store.Minute), int64(since))
}

// readStatistics reads the statistics of grain g (the length of a period) for the periods that begin at
// firstPeriod or later and before endPeriod, newest first.
func (r *Reader) readStatistics(g store.Grain, firstPeriod, endPeriod queue.Millis, f store.StatsFilter,
	out *store.Stats, queues map[string]*store.AttemptStatistics) error {
	return database.EachRow(r, func(r database.Row) {
		var statistics store.AttemptStatistics
		records.ReadStatistics(r, &statistics)
		name := r.Text(0)
		if queues[name] == nil && len(queues) >= store.MaxStatsQueues {
			name = store.OtherQueues
		}
		records.AddStatistics(queues, name, &statistics)
		if !f.WithPeriods {
			return
		}
		at := out.Grain.PeriodStart(queue.Millis(r.Num(9)))
		if n := len(out.Periods); n == 0 || out.Periods[n-1].StartTime != at {
			out.Periods = append(out.Periods, store.PeriodStatistics{StartTime: at})
		}
		out.Periods[len(out.Periods)-1].Add(&statistics)
	}, `SELECT `+records.StatisticsColumns+`, at FROM figures
		WHERE grain = ? AND at >= ? AND at < ? AND (? = '' OR queue = ?) ORDER BY at DESC, queue DESC`,
		int64(g), int64(firstPeriod), int64(endPeriod), f.Queue, f.Queue)
}

// sortedByName returns the statistics of the queues, sorted by name, with store.OtherQueues last.
func sortedByName(queues map[string]*store.AttemptStatistics) (list []store.QueueStatistics) {
	for name, f := range queues {
		list = append(list, store.QueueStatistics{Queue: name, AttemptStatistics: *f})
	}
	slices.SortFunc(list, func(a, b store.QueueStatistics) int {
		return cmp.Or(cmp.Compare(records.BoolToInt(a.Queue == store.OtherQueues),
			records.BoolToInt(b.Queue == store.OtherQueues)),
			strings.Compare(a.Queue, b.Queue))
	})
	return list
}
