package engine

import (
	"cmp"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// minuteStatistics is the writer's cache of the statistics of one minute, so that it need not read them before
// it adds to them.
//
// Statistics are stored per queue and period. The grain of a period is a minute, an hour or a day. Upkeep
// sums up the minutes of a past hour in one row per queue, and the hours of a past day likewise. A
// period names queues with a rule and at most store.MaxNamedQueues others. It counts further queues together as
// store.OtherQueues.
// See docs/decisions/0024.
type minuteStatistics struct {
	minute queue.Millis              // start of the minute
	rows   map[string]*store.Figures // by queue; nil if they have not been read
	// namedQueues holds the queues that have their own name in the all-time statistics. It is nil if they have
	// not been read.
	namedQueues map[string]bool
	buffer      [1024]byte // memory for two encoded histograms
}

// putFigures writes the statistics of a queue in a period. It updates the row if exists is true, else inserts
// it.
func (t *Tx) putFigures(g store.Grain, at queue.Millis, name string, f *store.Figures, exists bool) (err error) {
	room := &t.s.minute.buffer
	waits := f.Waits.Append(room[: 0 : len(room)/2])
	runs := f.Runs.Append(room[len(room)/2 : len(room)/2])
	if exists {
		return t.Exec(`UPDATE figures SET started = ?, completed = ?, failed = ?, dead = ?, cancelled = ?, returned = ?, waits = ?, runs = ? WHERE grain = ? AND at = ? AND queue = ?`,
			f.Started, f.Completed, f.Failed, f.Dead, f.Cancelled, f.Returned, waits, runs, int64(g), int64(at), name)
	}
	var others int64
	if g == store.Minute {
		named, err := t.isNamedEver(name)
		if err != nil {
			return err
		}
		others = records.Bit(!named)
	}
	err = t.Exec(`INSERT INTO figures (grain, at, queue, started, completed, failed, dead, cancelled, returned, waits, runs, others) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (grain, at, queue) DO UPDATE SET started = excluded.started, completed = excluded.completed, failed = excluded.failed, dead = excluded.dead, cancelled = excluded.cancelled,
		returned = excluded.returned, waits = excluded.waits, runs = excluded.runs, others = excluded.others`,
		int64(g), int64(at), name, f.Started, f.Completed, f.Failed, f.Dead, f.Cancelled, f.Returned, waits, runs, others)
	return err
}

// isNamedEver reports whether a queue has its own name in the all-time statistics. A queue gets its name with its
// first measurement, if there is room for the name or hasOwnFigures reports true. It keeps the name for good. The
// measurements of a queue without a name are added to store.OtherQueues. The column "others" of each minute's row
// records whether the queue had a name, so measurements are never moved later. See docs/decisions/0086.
func (t *Tx) isNamedEver(name string) (bool, error) {
	cache := &t.s.minute
	if cache.namedQueues == nil {
		known := map[string]bool{}
		err := t.Query(func(r database.Row) (bool, error) {
			known[r.Text(0)] = true
			return true, nil
		}, `SELECT queue FROM figures WHERE grain = ? OR grain = ? AND at >= ? AND others = 0`, int64(records.AllTime),
			int64(store.Minute), int64(t.s.mem.summedUpTo[store.Hour]))
		if err != nil {
			return false, err
		}
		cache.namedQueues = known
	}
	if !cache.namedQueues[name] && statisticsName(cache.namedQueues, name, t.hasOwnFigures) == name {
		cache.namedQueues[name] = true
	}
	return cache.namedQueues[name], nil
}

// periodFigures returns the statistics from one instant until before another, by queue.
func (t *Tx) periodFigures(g store.Grain, from, before queue.Millis) (map[string]*store.Figures, error) {
	rows := map[string]*store.Figures{}
	err := t.Query(func(r database.Row) (bool, error) {
		var f store.Figures
		records.ReadFigures(r, &f)
		records.AddFigures(rows, r.Text(0), &f)
		return true, nil
	}, `SELECT `+records.StatisticsColumns+` FROM figures WHERE grain = ? AND at >= ? AND at < ?`, int64(g), int64(from),
		int64(before))
	return rows, err
}

// hasOwnFigures reports whether a queue always has its own statistics, even if a period already names the
// maximum number of queues.
func (t *Tx) hasOwnFigures(name string) bool {
	q := t.s.mem.lanes.queues[name]
	return alwaysNamed(name) || q != nil && q.rule != store.DefaultQueueRule
}

// alwaysNamed reports whether a queue without a rule always has its own statistics.
func alwaysNamed(name string) bool { return name == queue.DefaultQueue || name == store.OtherQueues }

// statisticsName returns the name under which a queue is counted in a period that has these rows.
func (t *Tx) statisticsName(rows map[string]*store.Figures, name string) string {
	return statisticsName(rows, name, t.hasOwnFigures)
}

// statisticsName implements Tx.statisticsName. The function own reports whether a queue always has its own
// statistics.
func statisticsName[V any](rows map[string]V, name string, own func(string) bool) string {
	if _, there := rows[name]; there || len(rows) < store.MaxNamedQueues || own(name) {
		return name
	}
	others := 0
	for known := range rows {
		if !own(known) {
			others++
		}
	}
	if others < store.MaxNamedQueues {
		return name
	}
	return store.OtherQueues
}

// writeFigures adds the measurements of the transaction to the statistics of its minute. If the clock was set
// back, the minute's hour or day may have been summed up already. writeFigures then also adds the measurements to
// the sums.
func (t *Tx) writeFigures() error {
	if len(t.measurements) == 0 {
		return nil
	}
	from := store.Minute.Floor(t.startTime)
	cache := &t.s.minute
	if cache.rows == nil || cache.minute != from {
		rows, err := t.periodFigures(store.Minute, from, from+1)
		if err != nil {
			return err
		}
		cache.minute, cache.rows = from, rows
	}
	var changedRows [4]changedFigures
	changed := changedRows[:0]
	for i := range t.measurements {
		m := &t.measurements[i]
		name := t.statisticsName(cache.rows, m.Queue)
		row := cache.rows[name]
		if !slices.ContainsFunc(changed, func(c changedFigures) bool { return c.name == name }) {
			changed = append(changed, changedFigures{name, row != nil})
		}
		if row == nil {
			row = new(store.Figures)
			cache.rows[name] = row
		}
		count(row, m)
	}
	for _, c := range changed {
		if t.delta != nil {
			t.delta.minuteQueues = append(t.delta.minuteQueues, c.name)
		}
		if err := t.putFigures(store.Minute, from, c.name, cache.rows[c.name], c.exists); err != nil {
			return err
		}
	}
	if from < t.s.mem.summedUpTo[store.Hour] {
		if err := t.addFigures(records.AllTime, 0); err != nil {
			return err
		}
	}
	for g := store.Hour; g <= store.Day && from < t.s.mem.summedUpTo[g]; g++ {
		if err := t.addFigures(g, g.Floor(from)); err != nil {
			return err
		}
	}
	return nil
}

// changedFigures names a changed row, and says whether it existed before.
type changedFigures struct {
	name   string
	exists bool
}

func count(f *store.Figures, m *rules.Measurement) {
	if m.End == 0 {
		f.Begin(m.Duration)
		return
	}
	f.End(m.End, m.Duration)
}

// addFigures adds the measurements of the transaction to a period that was summed up earlier.
func (t *Tx) addFigures(g store.Grain, at queue.Millis) error {
	rows, err := t.periodFigures(g, at, at+1)
	if err != nil {
		return err
	}
	changed := map[string]bool{} // by queue; true if the row existed
	for i := range t.measurements {
		m := &t.measurements[i]
		name := t.statisticsName(rows, m.Queue)
		if g == records.AllTime {
			name = store.OtherQueues
			if named, err := t.isNamedEver(m.Queue); err != nil {
				return err
			} else if named {
				name = m.Queue
			}
		}
		if _, known := changed[name]; !known {
			changed[name] = rows[name] != nil
		}
		if rows[name] == nil {
			rows[name] = new(store.Figures)
		}
		count(rows[name], m)
	}
	for name, exists := range changed {
		if err := t.putFigures(g, at, name, rows[name], exists); err != nil {
			return err
		}
	}
	return nil
}

// tidyFigures sums up the hours and days that are over, and removes statistics that are too old. Each call
// sums up at most one hour and one day. After everything is done, it does nothing until the next hour. It
// reports whether there is more to do.
func (t *Tx) tidyFigures() (more bool, err error) {
	m := &t.s.mem
	hour := store.Hour.Floor(t.startTime)
	if m.lastTidyHour == hour {
		return false, nil
	}
	hours, err := t.rollUp(store.Hour, hour)
	if err != nil {
		return false, err
	}
	by := hour // periods that end by this time are summed up
	if hours {
		by = m.summedUpTo[store.Hour]
	}
	days, err := t.rollUp(store.Day, by)
	if err != nil {
		return false, err
	}
	removed := int64(0)
	for g := store.Minute; g <= store.Day; g++ {
		old := store.Hour.Floor(g.Oldest(t.startTime)) // remove at most once an hour
		if g < store.Day {
			old = min(old, m.summedUpTo[g+1])
		}
		n, err := t.Count(
			`DELETE FROM figures WHERE grain = ? AND (at, queue) IN (SELECT at, queue FROM figures WHERE grain = ? AND at < ? ORDER BY at LIMIT `+step+`)`, int64(g), int64(g), int64(old))
		if err != nil {
			return false, err
		}
		removed = max(removed, n)
		if n > 0 && g == store.Minute {
			t.s.minute.rows = nil // discard the cache: the current minute's row is removed if the clock was ahead
		}
	}
	if more = hours || days || removed == promoteStep; !more {
		m.lastTidyHour = hour
	}
	return more, nil
}

// rollUp sums up the first period that is not summed up yet, if it ends by the given instant. It reports
// whether it did. The same transaction stores the end of the period, so each finer row is counted exactly
// once.
func (t *Tx) rollUp(g store.Grain, by queue.Millis) (bool, error) {
	mark := &t.s.mem.summedUpTo[g]
	// next is 0 if there is no such row.
	next, err := t.Number(`SELECT at + 1 FROM figures WHERE grain = ? AND at >= ? ORDER BY at LIMIT 1`, int64(g-1),
		int64(*mark))
	if err != nil || next == 0 {
		return false, err
	}
	at := g.Floor(queue.Millis(next - 1))
	end := at.Add(g.Length())
	if end > by {
		return false, nil
	}
	if g == store.Hour {
		if err := t.addEver(at, end); err != nil {
			return false, err
		}
	}
	rows, err := t.periodFigures(g-1, at, end)
	if err != nil {
		return false, err
	}
	for name, f := range t.fold(rows) {
		if err := t.putFigures(g, at, name, f, false); err != nil {
			return false, err
		}
	}
	*mark = end
	// A day is summed up only after all of its minutes, so its hours are summed up too.
	t.s.mem.summedUpTo[store.Hour] = max(t.s.mem.summedUpTo[store.Hour], end)
	err = t.Exec(`UPDATE meta SET hours_upto = ?, days_upto = ?`, int64(t.s.mem.summedUpTo[store.Hour]),
		int64(t.s.mem.summedUpTo[store.Day]))
	return true, err
}

// addEver adds minutes to the all-time statistics.
func (t *Tx) addEver(from, before queue.Millis) error {
	all, err := t.periodFigures(records.AllTime, 0, 1)
	if err != nil {
		return err
	}
	changed := map[string]bool{} // by queue; true if the row existed
	err = t.Query(func(r database.Row) (bool, error) {
		var f store.Figures
		records.ReadFigures(r, &f)
		name := records.EverName(r)
		if _, known := changed[name]; !known {
			changed[name] = all[name] != nil
		}
		records.AddFigures(all, name, &f)
		return true, nil
	}, `SELECT `+records.StatisticsColumns+`, others FROM figures WHERE grain = ? AND at >= ? AND at < ?`,
		int64(store.Minute), int64(from), int64(before))
	if err != nil {
		return err
	}
	for name, there := range changed {
		if err := t.putFigures(records.AllTime, 0, name, all[name], there); err != nil {
			return err
		}
	}
	return nil
}

// fold reduces the queues to the number that one period may name. It keeps those with the most starts, and
// adds up the others as store.OtherQueues.
func (t *Tx) fold(rows map[string]*store.Figures) map[string]*store.Figures {
	var names []string
	for name := range rows {
		if !t.hasOwnFigures(name) {
			names = append(names, name)
		}
	}
	if len(names) <= store.MaxNamedQueues {
		return rows
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(rows[b].Started, rows[a].Started), strings.Compare(a, b))
	})
	for _, name := range names[store.MaxNamedQueues:] {
		records.AddFigures(rows, store.OtherQueues, rows[name])
		delete(rows, name)
	}
	return rows
}
