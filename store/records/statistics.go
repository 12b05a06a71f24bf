package records

import (
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
)

// StatisticsColumns lists the columns that ReadFigures reads. The first one is the queue.
const StatisticsColumns = `queue, started, completed, failed, dead, cancelled, returned, waits, runs`

// ReadFigures reads the statistics of a queue in a period.
func ReadFigures(r database.Row, f *store.Figures) {
	f.Started, f.Completed, f.Failed, f.Dead, f.Cancelled, f.Returned = r.Num(1), r.Num(2), r.Num(3), r.Num(4), r.Num(5),
		r.Num(6)
	f.Waits, f.Runs = store.ReadHistogram(r.View(7)), store.ReadHistogram(r.View(8))
}

// AllTime is the grain of the all-time statistics. They form one period, which is stored with the time 0 and
// covers all hours that were summed up.
const AllTime = store.Day + 1

// AddFigures adds statistics to those of a queue.
func AddFigures(rows map[string]*store.Figures, name string, f *store.Figures) {
	if rows[name] == nil {
		rows[name] = new(store.Figures)
	}
	rows[name].Add(f)
}

// EverName returns the name under which a row counts in the all-time statistics. The row has the column
// "others" after StatisticsColumns.
func EverName(r database.Row) string {
	if r.Num(9) != 0 {
		return store.OtherQueues
	}
	return r.Text(0)
}
