// Package statistics counts the starts and ends of attempts per queue and period, in the transaction that
// records them, so that each attempt is counted exactly once.
//
// Start with Writer. Package store/reads reads the statistics.
package statistics

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// Writer adds to the statistics in one transaction. If a statement fails, later statements do nothing and return the
// same error.
//
// Statistics are stored per queue and period. A period is a minute, an hour or a day; its length is called the grain.
// RollUpAndDeleteOld adds up the minutes of each past hour in one row per queue, and the hours of each past day in the
// same way. In each period, queues with a store.QueueRule and at most store.MaxQueuesWithStats other queues have a row
// for themselves. The remaining queues are counted together as store.OtherQueuesName. See docs/decisions/0024.
type Writer struct {
	database.Statements
	TxTime       queue.UnixMillis // time of the transaction
	Progress     *RollUpProgress
	Cache        *MinuteCache
	QueueHasRule func(queue string) bool // reports whether a store.QueueRule is stored for a queue
}

// RollUpProgress says which minutes are already added up to hours, and which hours to days. If the transaction is
// rolled back, the caller restores the old value.
type RollUpProgress struct {
	// RolledUpUntilByGrain holds, for hours and days, the end of the last period that was added up. The row of the table
	// meta stores these times.
	RolledUpUntilByGrain [store.PerDay + 1]queue.UnixMillis
	LastRollUpHour       queue.UnixMillis // start of the hour in which RollUpAndDeleteOld last finished
}

// MinuteCache holds the statistics of the current minute, so that a Writer need not read them before each change. If
// the transaction is rolled back, the caller resets the cache to its zero value.
type MinuteCache struct {
	minuteStart queue.UnixMillis                    // start of the minute
	rowsByQueue map[string]*store.AttemptStatistics // by queue; nil if the rows were not read yet
	// queuesWithAllTimeRow holds the queues that are counted under their names in the all-time statistics. It is nil if
	// these names were not read yet.
	queuesWithAllTimeRow map[string]bool
}

// periodStatistics holds the statistics of one period while a transaction adds to them.
type periodStatistics struct {
	grain                  store.Granularity
	start                  queue.UnixMillis                    // start of the period
	rowsByQueue            map[string]*store.AttemptStatistics // statistics by queue
	isStoredByChangedQueue map[string]bool                     // by queue; true if the database already has the row
}

// rowToChange returns the statistics of a queue, and marks them as changed.
func (p *periodStatistics) rowToChange(queueName string) *store.AttemptStatistics {
	f := p.rowsByQueue[queueName]
	if _, known := p.isStoredByChangedQueue[queueName]; !known {
		if p.isStoredByChangedQueue == nil {
			p.isStoredByChangedQueue = map[string]bool{}
		}
		p.isStoredByChangedQueue[queueName] = f != nil
	}
	if f == nil {
		f = new(store.AttemptStatistics)
		p.rowsByQueue[queueName] = f
	}
	return f
}

// writeChangedRows writes the changed rows of a period.
func (w *Writer) writeChangedRows(p *periodStatistics) (err error) {
	for name, stored := range p.isStoredByChangedQueue {
		others := false
		if p.grain == store.PerMinute && !stored {
			named, _ := w.hasOwnAllTimeRow(name)
			others = !named
		}
		f := p.rowsByQueue[name]
		err = w.Exec(`INSERT INTO figures (grain, at, queue, started, completed, failed, dead, cancelled, returned, waits,
			runs, others) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (grain, at, queue) DO UPDATE SET started = excluded.started, completed = excluded.completed,
			failed = excluded.failed, dead = excluded.dead, cancelled = excluded.cancelled, returned = excluded.returned,
			waits = excluded.waits, runs = excluded.runs`,
			p.grain, p.start, name, f.Started, f.Completed, f.Failed, f.Dead, f.Cancelled, f.ReturnedToQueue,
			f.WaitTimes.AppendEncoded(nil), f.RunTimes.AppendEncoded(nil), others)
	}
	return err
}

// hasOwnAllTimeRow reports whether the all-time statistics count a queue under its own name, not in
// store.OtherQueuesName. A queue gets its own row when it is first measured, if the number of rows is below the maximum
// or if alwaysHasOwnRow returns true. The queue then keeps the row forever. Measurements from before the queue had its
// own row stay in store.OtherQueuesName. The column "others" of each row of a minute records whether the queue had its
// own all-time row in that minute (0) or not (1). See docs/decisions/0086.
func (w *Writer) hasOwnAllTimeRow(queueName string) (bool, error) {
	if w.Cache.queuesWithAllTimeRow == nil {
		known := map[string]bool{}
		err := database.ForEachRow(w, func(r database.Row) { known[r.Text(0)] = true },
			`SELECT queue FROM figures WHERE grain = ? OR grain = ? AND at >= ? AND others = 0`, records.AllTimeGranularity,
			store.PerMinute, w.Progress.RolledUpUntilByGrain[store.PerHour])
		if err != nil {
			return false, err
		}
		w.Cache.queuesWithAllTimeRow = known
	}
	named := w.Cache.queuesWithAllTimeRow
	if !named[queueName] && queueRowName(named, queueName, w.alwaysHasOwnRow) == queueName {
		named[queueName] = true
	}
	return named[queueName], nil
}

// readSumsByQueue adds up the statistics of each queue over the periods of grain (length) g that begin in the range
// [from, until).
func (w *Writer) readSumsByQueue(g store.Granularity, from,
	until queue.UnixMillis) (map[string]*store.AttemptStatistics, error) {
	rows := map[string]*store.AttemptStatistics{}
	err := database.ForEachRow(w, func(r database.Row) {
		var f store.AttemptStatistics
		records.ReadStatistics(r, &f)
		records.AddStatistics(rows, r.Text(0), &f)
	}, `SELECT `+records.StatisticsColumns+` FROM figures WHERE grain = ? AND at >= ? AND at < ?`, g, from, until)
	return rows, err
}

// alwaysHasOwnRow reports whether a queue has its own row in every period, even if the period already has rows for the
// maximum number of queues.
func (w *Writer) alwaysHasOwnRow(queueName string) bool {
	return queueName == queue.DefaultQueue || queueName == store.OtherQueuesName || w.QueueHasRule(queueName)
}

// queueRowName returns the name under which a period counts a queue: the queue's name, or store.OtherQueuesName.
// rowsByQueue contains the rows of the period. alwaysHasOwnRow reports whether a queue always has its own row.
func queueRowName[V any](rowsByQueue map[string]V, queueName string, alwaysHasOwnRow func(string) bool) string {
	if _, there := rowsByQueue[queueName]; there || len(rowsByQueue) < store.MaxQueuesWithStats ||
		alwaysHasOwnRow(queueName) {
		return queueName
	}
	others := 0
	for known := range rowsByQueue {
		if !alwaysHasOwnRow(known) {
			others++
		}
	}
	if others < store.MaxQueuesWithStats {
		return queueName
	}
	return store.OtherQueuesName
}

// AddMeasurements adds measurements to the statistics of the current minute, and returns the names of the rows to which
// it added them. If the clock was set back, the minutes of the current hour or day may already be added up.
// AddMeasurements then also adds the measurements to the row of that hour or day.
func (w *Writer) AddMeasurements(measurements []rules.AttemptMeasurement) (changedRowNames []string, err error) {
	if len(measurements) == 0 {
		return nil, nil
	}
	from := store.PerMinute.PeriodStart(w.TxTime)
	cache, upTo := w.Cache, w.Progress.RolledUpUntilByGrain
	if cache.rowsByQueue == nil || cache.minuteStart != from {
		rows, err := w.readSumsByQueue(store.PerMinute, from, from+1)
		if err != nil {
			return nil, err
		}
		cache.minuteStart, cache.rowsByQueue = from, rows
	}
	minute := &periodStatistics{grain: store.PerMinute, start: from, rowsByQueue: cache.rowsByQueue}
	if err := w.addToPeriod(minute, measurements); err != nil {
		return nil, err
	}
	if from < upTo[store.PerHour] {
		err = w.addToStoredPeriod(records.AllTimeGranularity, 0, measurements)
	}
	for g := store.PerHour; g <= store.PerDay && from < upTo[g] && err == nil; g++ {
		err = w.addToStoredPeriod(g, g.PeriodStart(from), measurements)
	}
	return slices.Collect(maps.Keys(minute.isStoredByChangedQueue)), err
}

// addToStoredPeriod adds measurements to the stored statistics of the period that begins at start: an hour, a day
// or all time, as g says.
func (w *Writer) addToStoredPeriod(g store.Granularity, start queue.UnixMillis,
	measurements []rules.AttemptMeasurement) error {
	rows, _ := w.readSumsByQueue(g, start, start+1)
	return w.addToPeriod(&periodStatistics{grain: g, start: start, rowsByQueue: rows}, measurements)
}

// addToPeriod adds measurements to a period and writes it.
func (w *Writer) addToPeriod(p *periodStatistics, measurements []rules.AttemptMeasurement) error {
	for i := range measurements {
		m := &measurements[i]
		name := m.Queue
		if p.grain != records.AllTimeGranularity {
			name = queueRowName(p.rowsByQueue, name, w.alwaysHasOwnRow)
		} else if named, err := w.hasOwnAllTimeRow(name); err != nil {
			return err
		} else if !named {
			name = store.OtherQueuesName
		}
		if f := p.rowToChange(name); m.EndState == 0 {
			f.AddStartedAttempt(m.WaitOrRunTime)
		} else {
			f.AddEndedAttempt(m.EndState, m.WaitOrRunTime)
		}
	}
	return w.writeChangedRows(p)
}

// maxDeletedRowsPerGrain limits, for each grain (length of a period), the rows that one call of RollUpAndDeleteOld
// deletes.
const maxDeletedRowsPerGrain = 1000

// RollUpAndDeleteOld adds up the minutes of past hours and the hours of past days, and deletes statistics that are too
// old. Each call adds up at most one hour and one day. more is true if there is more to do, so that RollUpAndDeleteOld
// must be called again. Once more is false, calls do nothing until the next hour.
func (w *Writer) RollUpAndDeleteOld() (more bool, err error) {
	hour := store.PerHour.PeriodStart(w.TxTime)
	if w.Progress.LastRollUpHour == hour {
		return false, nil
	}
	hours, _ := w.rollUpNextPeriod(store.PerHour, hour)
	by := hour // only periods that end at this time or earlier are summed up
	if hours {
		by = w.Progress.RolledUpUntilByGrain[store.PerHour]
	}
	days, _ := w.rollUpNextPeriod(store.PerDay, by)
	removed := int64(0)
	for g := store.PerMinute; g <= store.PerDay; g++ {
		old := store.PerHour.PeriodStart(g.OldestPeriodStart(w.TxTime)) // whole hours, so that rows expire once an hour
		if g < store.PerDay {
			old = min(old, w.Progress.RolledUpUntilByGrain[g+1])
		}
		n := int64(0)
		n, err = w.ExecRowsAffected(`DELETE FROM figures WHERE grain = ? AND (at, queue) IN
			(SELECT at, queue FROM figures WHERE grain = ? AND at < ? ORDER BY at LIMIT ?)`,
			g, g, old, maxDeletedRowsPerGrain)
		removed = max(removed, n)
		if n > 0 && g == store.PerMinute {
			// discard the cache: the deleted rows may include the current minute, if the clock was set back
			w.Cache.rowsByQueue = nil
		}
	}
	if more = hours || days || removed == maxDeletedRowsPerGrain; !more {
		w.Progress.LastRollUpHour = hour
	}
	return more, err
}

// rollUpNextPeriod adds up the next hour from its minutes (if g is PerHour) or the next day from its hours (if g is
// PerDay). It does nothing if that hour or day ends after latestEnd. It reports whether it added up a period. The same
// transaction stores the end of that period, so each row is added exactly once.
func (w *Writer) rollUpNextPeriod(g store.Granularity, latestEnd queue.UnixMillis) (bool, error) {
	upTo := &w.Progress.RolledUpUntilByGrain
	// next is 1 plus the start of the first minute or hour that is not added up yet, or 0 if no such period is stored.
	next, err := w.QueryNumber(`SELECT at + 1 FROM figures WHERE grain = ? AND at >= ? ORDER BY at LIMIT 1`, g-1,
		upTo[g])
	if err != nil || next == 0 {
		return false, err
	}
	at := g.PeriodStart(queue.UnixMillis(next - 1))
	end := at.Add(g.PeriodLength())
	if end > latestEnd {
		return false, nil
	}
	if g == store.PerHour {
		w.addMinutesToAllTime(at, end)
	}
	rows, _ := w.readSumsByQueue(g-1, at, end)
	sum := &periodStatistics{grain: g, start: at, rowsByQueue: map[string]*store.AttemptStatistics{}}
	for name, f := range w.mergeExcessQueues(rows) {
		sum.rowToChange(name).Add(f)
	}
	w.writeChangedRows(sum)
	upTo[g] = end
	// When a day is summed up, all of its hours are already summed up or have no statistics.
	upTo[store.PerHour] = max(upTo[store.PerHour], end)
	return true, w.Exec(`UPDATE meta SET hours_upto = ?, days_upto = ?`, upTo[store.PerHour], upTo[store.PerDay])
}

// addMinutesToAllTime adds the minutes that begin in the range [from, before) to the all-time statistics.
func (w *Writer) addMinutesToAllTime(from, before queue.UnixMillis) {
	rows, _ := w.readSumsByQueue(records.AllTimeGranularity, 0, 1)
	all := &periodStatistics{grain: records.AllTimeGranularity, rowsByQueue: rows}
	database.ForEachRow(w, func(r database.Row) {
		var f store.AttemptStatistics
		records.ReadStatistics(r, &f)
		all.rowToChange(records.AllTimeQueueName(r)).Add(&f)
	}, `SELECT `+records.StatisticsColumns+`, others FROM figures WHERE grain = ? AND at >= ? AND at < ?`,
		store.PerMinute, from, before)
	w.writeChangedRows(all)
}

// mergeExcessQueues reduces the number of queues to the maximum for one period. It keeps the queues with the most
// starts, and adds up all other queues in store.OtherQueuesName.
func (w *Writer) mergeExcessQueues(
	rowsByQueue map[string]*store.AttemptStatistics) map[string]*store.AttemptStatistics {
	var names []string
	for name := range rowsByQueue {
		if !w.alwaysHasOwnRow(name) {
			names = append(names, name)
		}
	}
	if len(names) <= store.MaxQueuesWithStats {
		return rowsByQueue
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(rowsByQueue[b].Started, rowsByQueue[a].Started), strings.Compare(a, b))
	})
	for _, name := range names[store.MaxQueuesWithStats:] {
		records.AddStatistics(rowsByQueue, store.OtherQueuesName, rowsByQueue[name])
		delete(rowsByQueue, name)
	}
	return rowsByQueue
}

// MinuteDelta holds the rows of the current minute that a transaction has changed. Other nodes
// update their caches with it.
type MinuteDelta struct {
	MinuteStart queue.UnixMillis `json:"f,omitempty"` // start of the minute whose statistics are in Rows
	Rows        []deltaRow       `json:"g,omitempty"`
}

// deltaRow holds the statistics of one queue, or of store.OtherQueuesName, in the minute of a MinuteDelta.
type deltaRow struct {
	Queue string `json:"q"`
	// AttemptCounts holds the numbers of attempts that were started, completed, failed, dead, cancelled and
	// returned, in this order.
	AttemptCounts    [6]int64 `json:"c"`
	EncodedWaitTimes []byte   `json:"w"` // wait times, encoded by Histogram.Append
	EncodedRunTimes  []byte   `json:"r"` // run times, encoded by Histogram.Append
}

// DeltaOfRows returns the rows of the current minute with the given names, which AddMeasurements has returned.
func (c *MinuteCache) DeltaOfRows(rowNames []string) (d MinuteDelta) {
	for _, name := range rowNames {
		f := c.rowsByQueue[name]
		d.MinuteStart = c.minuteStart
		d.Rows = append(d.Rows, deltaRow{name, [...]int64{f.Started, f.Completed, f.Failed, f.Dead, f.Cancelled,
			f.ReturnedToQueue},
			f.WaitTimes.AppendEncoded(nil), f.RunTimes.AppendEncoded(nil)})
	}
	return d
}

// ApplyDelta replaces statistics of the current minute by those that another node has stored.
func (c *MinuteCache) ApplyDelta(d *MinuteDelta) {
	if c.minuteStart != d.MinuteStart {
		if d.MinuteStart > c.minuteStart {
			c.rowsByQueue, c.queuesWithAllTimeRow = nil, nil
		}
		return
	}
	if c.rowsByQueue == nil {
		return
	}
	for i := range d.Rows {
		f := &d.Rows[i]
		if c.rowsByQueue[f.Queue] == nil {
			c.queuesWithAllTimeRow = nil // the queue may have got its own name in the all-time statistics
		}
		c.rowsByQueue[f.Queue] = &store.AttemptStatistics{Started: f.AttemptCounts[0], Completed: f.AttemptCounts[1],
			Failed: f.AttemptCounts[2],
			Dead:   f.AttemptCounts[3], Cancelled: f.AttemptCounts[4], ReturnedToQueue: f.AttemptCounts[5],
			WaitTimes: store.ParseHistogram(f.EncodedWaitTimes), RunTimes: store.ParseHistogram(f.EncodedRunTimes)}
	}
}
