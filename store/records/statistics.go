package records

import (
	"fmt"
	"strings"

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

// QueueCount holds the stored counts of a queue.
type QueueCount struct {
	Waiting   int64 `json:"w"`
	UID       int   `json:"u"`
	KeptJobs  int64 `json:"e,omitempty"`
	KeptBytes int64 `json:"o,omitempty"` // bytes of the outputs of KeptJobs
}

// ParseQueueCounts parses meta.queues.
func ParseQueueCounts(list string) (map[string]QueueCount, error) {
	of := map[string]QueueCount{}
	for entry := range strings.FieldsSeq(list) {
		at := strings.LastIndexByte(entry, '=')
		if at < 0 {
			return nil, database.Damage("the stored counts of jobs are damaged")
		}
		n, err := database.ParseNumbers(entry[at+1:])
		if err != nil {
			return nil, fmt.Errorf("queue %q: %w", entry[:at], err)
		}
		of[entry[:at]] = QueueCount{n[0], int(n[1]), n[2], n[3]}
	}
	return of, nil
}
