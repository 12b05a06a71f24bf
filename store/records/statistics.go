package records

import (
	"fmt"
	"strings"

	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
)

// StatisticsColumns lists the columns that ReadStatistics reads. The first one is the queue.
const StatisticsColumns = `queue, started, completed, failed, dead, cancelled, returned, waits, runs`

// ReadStatistics reads the statistics of a queue in a period from a row with StatisticsColumns.
func ReadStatistics(r database.Row, f *store.AttemptStatistics) {
	f.Started, f.Completed, f.Failed, f.Dead, f.Cancelled, f.Returned = r.Num(1), r.Num(2), r.Num(3), r.Num(4), r.Num(5),
		r.Num(6)
	f.WaitTimes, f.RunTimes = store.ParseHistogram(r.View(7)), store.ParseHistogram(r.View(8))
}

// AllTime is the grain (the length of a period) of the all-time statistics. They form a single period, which
// is stored with the time 0. They lack the hours that are not summed up yet.
const AllTime = store.Day + 1

// AddStatistics adds f to the statistics of a queue in the map rows.
func AddStatistics(rows map[string]*store.AttemptStatistics, name string, f *store.AttemptStatistics) {
	if rows[name] == nil {
		rows[name] = new(store.AttemptStatistics)
	}
	rows[name].Add(f)
}

// AllTimeName returns the queue name under which the statistics in a row count for all time: the queue of the
// row, or store.OtherQueues if the column "others" is set. This column follows StatisticsColumns in the row.
func AllTimeName(r database.Row) string {
	if r.Num(9) != 0 {
		return store.OtherQueues
	}
	return r.Text(0)
}

// QueueCounts holds the stored counts of a queue.
type QueueCounts struct {
	Waiting       int64 `json:"w"`           // number of waiting jobs
	UID           int   `json:"u"`           // the user who created the queue, with its first job
	RetainedJobs  int64 `json:"e,omitempty"` // number of jobs that ended while the queue had its own retention
	RetainedBytes int64 `json:"o,omitempty"` // bytes of the outputs of RetainedJobs
}

// ParseQueueCounts parses the column queues of the table meta, which holds counts by the name of the queue.
func ParseQueueCounts(list string) (map[string]QueueCounts, error) {
	counts := map[string]QueueCounts{}
	for entry := range strings.FieldsSeq(list) {
		at := strings.LastIndexByte(entry, '=')
		if at < 0 {
			return nil, database.DamageError("the stored counts of jobs are damaged")
		}
		n, err := database.ParseNumbers(entry[at+1:])
		if err != nil {
			return nil, fmt.Errorf("queue %q: %w", entry[:at], err)
		}
		counts[entry[:at]] = QueueCounts{n[0], int(n[1]), n[2], n[3]}
	}
	return counts, nil
}
