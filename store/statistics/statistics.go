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

// Writer adds to the statistics in one transaction. If a statement fails, later statements do nothing
// and return the same error.
//
// Statistics are stored per queue and period. A period is a minute, an hour or a day; this is its grain. Tidy
// adds up the minutes of a past hour in one row per queue, and the hours of a past day in the same way. In each
// period, queues with a rule and at most store.MaxNamedQueues other queues have a row for themselves. The
// remaining queues are counted together as store.OtherQueues. See docs/decisions/0024.
type Writer struct {
	database.Statements
	Now      queue.Millis // time of the transaction
	Progress *Progress
	Cache    *Cache
	HasRule  func(queue string) bool // reports whether a store.QueueRule is stored for a queue
}

// Progress says which minutes are already added up to hours, and which hours to days. If the transaction is
// rolled back, the caller restores the old value.
type Progress struct {
	// SummedUpTo holds, for hours and days, the end of the last period that was added up. The row of the table
	// meta stores these times.
	SummedUpTo   [store.Day + 1]queue.Millis
	LastTidyHour queue.Millis // start of the hour in which Tidy last finished
}

// Cache holds the statistics of the current minute, so that a Writer need not read them before each change. If
// the transaction is rolled back, the caller resets the cache to its zero value.
type Cache struct {
	minute queue.Millis                        // start of the minute
	rows   map[string]*store.AttemptStatistics // by queue; nil if they were not read yet
	// namedQueues holds the queues that are counted under their names in the all-time statistics. It is nil
	// if they were not read yet.
	namedQueues map[string]bool
}

// period holds the statistics of one period while a transaction adds to them.
type period struct {
	grain       store.Grain
	start       queue.Millis                        // start of the period
	rows        map[string]*store.AttemptStatistics // statistics by queue
	changedRows map[string]bool                     // by queue; true if the database already has the row
}

// row returns the statistics of a queue, and marks them as changed.
func (p *period) row(name string) *store.AttemptStatistics {
	f := p.rows[name]
	if _, known := p.changedRows[name]; !known {
		if p.changedRows == nil {
			p.changedRows = map[string]bool{}
		}
		p.changedRows[name] = f != nil
	}
	if f == nil {
		f = new(store.AttemptStatistics)
		p.rows[name] = f
	}
	return f
}

// writeChanged writes the changed rows of a period.
func (w *Writer) writeChanged(p *period) (err error) {
	for name, stored := range p.changedRows {
		var others int64
		if p.grain == store.Minute && !stored {
			named, _ := w.isNamedAllTime(name)
			others = records.BoolToInt(!named)
		}
		f := p.rows[name]
		err = w.Exec(`INSERT INTO figures (grain, at, queue, started, completed, failed, dead, cancelled, returned, waits,
			runs, others) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (grain, at, queue) DO UPDATE SET started = excluded.started, completed = excluded.completed,
			failed = excluded.failed, dead = excluded.dead, cancelled = excluded.cancelled, returned = excluded.returned,
			waits = excluded.waits, runs = excluded.runs`,
			int64(p.grain), int64(p.start), name, f.Started, f.Completed, f.Failed, f.Dead, f.Cancelled, f.Returned,
			f.WaitTimes.Append(nil), f.RunTimes.Append(nil), others)
	}
	return err
}

// isNamedAllTime reports whether the all-time statistics count a queue under its own name, not in
// store.OtherQueues. A queue gets its own entry there with a measurement, if there are fewer entries than the
// maximum or if alwaysHasOwnRow returns true, and keeps it forever. The column "others" of each minute
// records whether the queue had its own entry then. Earlier measurements stay in store.OtherQueues. See
// docs/decisions/0086.
func (w *Writer) isNamedAllTime(name string) (bool, error) {
	if w.Cache.namedQueues == nil {
		known := map[string]bool{}
		err := database.EachRow(w, func(r database.Row) { known[r.Text(0)] = true },
			`SELECT queue FROM figures WHERE grain = ? OR grain = ? AND at >= ? AND others = 0`, int64(records.AllTime),
			int64(store.Minute), int64(w.Progress.SummedUpTo[store.Hour]))
		if err != nil {
			return false, err
		}
		w.Cache.namedQueues = known
	}
	named := w.Cache.namedQueues
	if !named[name] && nameIn(named, name, w.alwaysHasOwnRow) == name {
		named[name] = true
	}
	return named[name], nil
}

// readSums adds up the statistics of each queue over the periods of grain g that begin in
// the range [from, until).
func (w *Writer) readSums(g store.Grain, from, until queue.Millis) (map[string]*store.AttemptStatistics, error) {
	rows := map[string]*store.AttemptStatistics{}
	err := database.EachRow(w, func(r database.Row) {
		var f store.AttemptStatistics
		records.ReadStatistics(r, &f)
		records.AddStatistics(rows, r.Text(0), &f)
	}, `SELECT `+records.StatisticsColumns+` FROM figures WHERE grain = ? AND at >= ? AND at < ?`, int64(g), int64(from),
		int64(until))
	return rows, err
}

// alwaysHasOwnRow reports whether a queue has its own row in every period, even if the period already has the
// maximum number of queues.
func (w *Writer) alwaysHasOwnRow(name string) bool {
	return name == queue.DefaultQueue || name == store.OtherQueues || w.HasRule(name)
}

// nameIn returns the name under which a period counts a queue: the queue's name, or store.OtherQueues. rows are
// the rows of the period, by queue. alwaysOwn reports whether a queue always has its own row.
func nameIn[V any](rows map[string]V, name string, alwaysOwn func(string) bool) string {
	if _, there := rows[name]; there || len(rows) < store.MaxNamedQueues || alwaysOwn(name) {
		return name
	}
	others := 0
	for known := range rows {
		if !alwaysOwn(known) {
			others++
		}
	}
	if others < store.MaxNamedQueues {
		return name
	}
	return store.OtherQueues
}

// Add adds measurements to the statistics of the current minute, and returns the names under which it counted
// them. If the clock was set back, the current hour or day may be summed up already. Add then also adds the
// measurements to the row of the hour or day.
func (w *Writer) Add(measurements []rules.Measurement) (changedNames []string, err error) {
	if len(measurements) == 0 {
		return nil, nil
	}
	from := store.Minute.PeriodStart(w.Now)
	cache, upTo := w.Cache, w.Progress.SummedUpTo
	if cache.rows == nil || cache.minute != from {
		rows, err := w.readSums(store.Minute, from, from+1)
		if err != nil {
			return nil, err
		}
		cache.minute, cache.rows = from, rows
	}
	minute := &period{grain: store.Minute, start: from, rows: cache.rows}
	if err := w.addTo(minute, measurements); err != nil {
		return nil, err
	}
	if from < upTo[store.Hour] {
		err = w.addToStored(records.AllTime, 0, measurements)
	}
	for g := store.Hour; g <= store.Day && from < upTo[g] && err == nil; g++ {
		err = w.addToStored(g, g.PeriodStart(from), measurements)
	}
	return slices.Collect(maps.Keys(minute.changedRows)), err
}

// addToStored adds measurements to the stored statistics of the period that begins at start: an hour, a day
// or all time, as g says.
func (w *Writer) addToStored(g store.Grain, start queue.Millis, measurements []rules.Measurement) error {
	rows, _ := w.readSums(g, start, start+1)
	return w.addTo(&period{grain: g, start: start, rows: rows}, measurements)
}

// addTo adds measurements to a period and writes it.
func (w *Writer) addTo(p *period, measurements []rules.Measurement) error {
	for i := range measurements {
		m := &measurements[i]
		name := m.Queue
		if p.grain != records.AllTime {
			name = nameIn(p.rows, name, w.alwaysHasOwnRow)
		} else if named, err := w.isNamedAllTime(name); err != nil {
			return err
		} else if !named {
			name = store.OtherQueues
		}
		if f := p.row(name); m.EndState == 0 {
			f.CountStart(m.Duration)
		} else {
			f.CountEnd(m.EndState, m.Duration)
		}
	}
	return w.writeChanged(p)
}

// maxDeletedRows limits the rows of each grain that one call of Tidy deletes.
const maxDeletedRows = 1000

// Tidy adds up the minutes of past hours and the hours of past days, and deletes statistics that are too old.
// Each call adds up at most one hour and one day. more reports whether Tidy must be called again. Once it has
// finished, calls do nothing until the next hour.
func (w *Writer) Tidy() (more bool, err error) {
	hour := store.Hour.PeriodStart(w.Now)
	if w.Progress.LastTidyHour == hour {
		return false, nil
	}
	hours, _ := w.rollUp(store.Hour, hour)
	by := hour // only periods that end at this time or earlier are summed up
	if hours {
		by = w.Progress.SummedUpTo[store.Hour]
	}
	days, _ := w.rollUp(store.Day, by)
	removed := int64(0)
	for g := store.Minute; g <= store.Day; g++ {
		old := store.Hour.PeriodStart(g.OldestPeriodStart(w.Now)) // whole hours, so that rows expire once an hour
		if g < store.Day {
			old = min(old, w.Progress.SummedUpTo[g+1])
		}
		n := int64(0)
		n, err = w.ExecCount(`DELETE FROM figures WHERE grain = ? AND (at, queue) IN
			(SELECT at, queue FROM figures WHERE grain = ? AND at < ? ORDER BY at LIMIT ?)`,
			int64(g), int64(g), int64(old), int64(maxDeletedRows))
		removed = max(removed, n)
		if n > 0 && g == store.Minute {
			w.Cache.rows = nil // discard the cache: the deleted rows may include the current minute, if the clock was set back
		}
	}
	if more = hours || days || removed == maxDeletedRows; !more {
		w.Progress.LastTidyHour = hour
	}
	return more, err
}

// rollUp adds up the next hour or day, as g says, from its minutes or hours, unless the hour or day ends
// after latestEnd. It reports whether it did. The same transaction stores the end of that period, so each row
// is added exactly once.
func (w *Writer) rollUp(g store.Grain, latestEnd queue.Millis) (bool, error) {
	upTo := &w.Progress.SummedUpTo
	// next is 1 plus the start of the first finer period that is not summed up yet, or 0.
	next, err := w.QueryNumber(`SELECT at + 1 FROM figures WHERE grain = ? AND at >= ? ORDER BY at LIMIT 1`, int64(g-1),
		int64(upTo[g]))
	if err != nil || next == 0 {
		return false, err
	}
	at := g.PeriodStart(queue.Millis(next - 1))
	end := at.Add(g.Length())
	if end > latestEnd {
		return false, nil
	}
	if g == store.Hour {
		w.addAllTime(at, end)
	}
	rows, _ := w.readSums(g-1, at, end)
	sum := &period{grain: g, start: at, rows: map[string]*store.AttemptStatistics{}}
	for name, f := range w.foldQueues(rows) {
		sum.row(name).Add(f)
	}
	w.writeChanged(sum)
	upTo[g] = end
	// When a day is summed up, all of its hours are already summed up or have no statistics.
	upTo[store.Hour] = max(upTo[store.Hour], end)
	return true, w.Exec(`UPDATE meta SET hours_upto = ?, days_upto = ?`, int64(upTo[store.Hour]), int64(upTo[store.Day]))
}

// addAllTime adds the minutes that begin in the range [from, before) to the all-time statistics.
func (w *Writer) addAllTime(from, before queue.Millis) {
	rows, _ := w.readSums(records.AllTime, 0, 1)
	all := &period{grain: records.AllTime, rows: rows}
	database.EachRow(w, func(r database.Row) {
		var f store.AttemptStatistics
		records.ReadStatistics(r, &f)
		all.row(records.AllTimeName(r)).Add(&f)
	}, `SELECT `+records.StatisticsColumns+`, others FROM figures WHERE grain = ? AND at >= ? AND at < ?`,
		int64(store.Minute), int64(from), int64(before))
	w.writeChanged(all)
}

// foldQueues reduces the number of queues to the maximum for one period. It keeps the queues with the most
// starts, and adds up all other queues in store.OtherQueues.
func (w *Writer) foldQueues(rows map[string]*store.AttemptStatistics) map[string]*store.AttemptStatistics {
	var names []string
	for name := range rows {
		if !w.alwaysHasOwnRow(name) {
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
		records.AddStatistics(rows, store.OtherQueues, rows[name])
		delete(rows, name)
	}
	return rows
}

// Delta holds the rows of the current minute that a transaction has changed. Other nodes
// update their caches with it.
type Delta struct {
	Minute queue.Millis `json:"f,omitempty"` // start of the minute whose statistics are in Rows
	Rows   []deltaRow   `json:"g,omitempty"`
}

// deltaRow holds the statistics of one queue, or of store.OtherQueues, in the minute of a Delta.
type deltaRow struct {
	Queue string `json:"q"`
	// Counts holds the numbers of attempts that were started, completed, failed, dead, cancelled and
	// returned, in this order.
	Counts [6]int64 `json:"c"`
	Waits  []byte   `json:"w"` // wait times, encoded by Histogram.Append
	Runs   []byte   `json:"r"` // run times, encoded by Histogram.Append
}

// Delta returns the rows of the current minute for the given names. Writer.Add has returned these names.
func (c *Cache) Delta(names []string) (d Delta) {
	for _, name := range names {
		f := c.rows[name]
		d.Minute = c.minute
		d.Rows = append(d.Rows, deltaRow{name, [...]int64{f.Started, f.Completed, f.Failed, f.Dead, f.Cancelled, f.Returned},
			f.WaitTimes.Append(nil), f.RunTimes.Append(nil)})
	}
	return d
}

// Apply replaces statistics of the current minute by those that another node has stored.
func (c *Cache) Apply(d *Delta) {
	if c.minute != d.Minute {
		if d.Minute > c.minute {
			c.rows, c.namedQueues = nil, nil
		}
		return
	}
	if c.rows == nil {
		return
	}
	for i := range d.Rows {
		f := &d.Rows[i]
		if c.rows[f.Queue] == nil {
			c.namedQueues = nil // the queue may have got its own name in the all-time statistics
		}
		c.rows[f.Queue] = &store.AttemptStatistics{Started: f.Counts[0], Completed: f.Counts[1], Failed: f.Counts[2],
			Dead: f.Counts[3], Cancelled: f.Counts[4], Returned: f.Counts[5],
			WaitTimes: store.ParseHistogram(f.Waits), RunTimes: store.ParseHistogram(f.Runs)}
	}
}
