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
func ReadStatistics(r database.Row, stats *store.AttemptStatistics) {
	stats.Started, stats.Completed, stats.Failed, stats.Dead, stats.Cancelled, stats.ReturnedToQueue = r.Int64(1),
		r.Int64(2), r.Int64(3), r.Int64(4), r.Int64(5),
		r.Int64(6)
	stats.WaitTimes, stats.RunTimes = store.ParseHistogram(r.BytesView(7)), store.ParseHistogram(r.BytesView(8))
}

// AllTimeGranularity is the grain (the length of a period) of the all-time statistics. These statistics form a single
// period, which is stored with the time 0. The stored sums lack the hours that are not summed up yet.
const AllTimeGranularity = store.PerDay + 1

// AddStatistics adds the statistics in added to those of a queue in statsByQueue.
func AddStatistics(statsByQueue map[string]*store.AttemptStatistics, queueName string, added *store.AttemptStatistics) {
	if statsByQueue[queueName] == nil {
		statsByQueue[queueName] = new(store.AttemptStatistics)
	}
	statsByQueue[queueName].Add(added)
}

// AllTimeQueueName returns the queue name under which the statistics in a row count for all time: the queue of the
// row, or store.OtherQueuesName if the column "others" is set. This column follows StatisticsColumns in the row.
func AllTimeQueueName(r database.Row) string {
	if r.Int64(9) != 0 {
		return store.OtherQueuesName
	}
	return r.Text(0)
}

// QueueCounts holds the stored counts of a queue.
type QueueCounts struct {
	WaitingJobs         int64 `json:"w"`           // number of waiting jobs
	CreatorUID          int   `json:"u"`           // the user who created the queue, with its first job
	RetainedJobs        int64 `json:"e,omitempty"` // number of jobs that ended while the queue had its own retention
	RetainedOutputBytes int64 `json:"o,omitempty"` // bytes of the outputs of RetainedJobs
}

// ParseQueueCounts parses the column queues of the table meta, which holds counts by the name of the queue.
func ParseQueueCounts(encodedCounts string) (map[string]QueueCounts, error) {
	counts := map[string]QueueCounts{}
	for entry := range strings.FieldsSeq(encodedCounts) {
		at := strings.LastIndexByte(entry, '=')
		if at < 0 {
			return nil, database.DamageError("the stored counts of jobs are damaged")
		}
		n, err := database.ParseSlashNumbers(entry[at+1:])
		if err != nil {
			return nil, fmt.Errorf("queue %q: %w", entry[:at], err)
		}
		counts[entry[:at]] = QueueCounts{n[0], int(n[1]), n[2], n[3]}
	}
	return counts, nil
}
