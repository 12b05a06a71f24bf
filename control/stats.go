package control

import (
	"context"

	"github.com/queuectl/queuectl/queue"
)

// StatsAPI returns statistics of attempts.
type StatsAPI interface {
	// Stats returns how many attempts started and ended, their waiting times and their run times.
	Stats(ctx context.Context, p StatsParams) (Stats, error)
}

// StatsParams requests statistics about the attempts of one queue, or of all queues, in a time
// range.
type StatsParams struct {
	Queue string `json:"queue,omitempty" rule:"queue"`
	// Since and Until are the time range, rounded to whole periods. By default, it is the last 24
	// hours.
	Since Time `json:"since,omitzero"`
	Until Time `json:"until,omitzero"`
	// Grain also requests statistics for each minute, hour or day. The store keeps minutes for 2 days,
	// hours for 60 days and days for 3 years. Without Grain, the statistics are computed from the
	// finest periods that are kept for the whole range.
	Grain string `json:"by,omitempty" rule:"grain"`
	// Buckets also requests histograms, of at most MaxBucketPeriods periods.
	Buckets bool `json:"buckets,omitempty"`
	// AllTime requests all statistics ever recorded, instead of a time range. A queue with its own
	// entry keeps the entry for good, so that no count decreases.
	AllTime bool `json:"ever,omitempty"`
}

// MaxBucketPeriods is the maximum number of periods with histograms in one answer.
const MaxBucketPeriods = 1000

// Stats holds statistics of a time range. Periods is empty unless StatsParams.Grain was set.
type Stats struct {
	Grain string `json:"grain"` // length of the periods: minute, hour or day
	Since Time   `json:"since"` // start of the range, moved forward to the oldest period that is kept
	Until Time   `json:"until"` // end of the range; the last period may not be over yet
	// Queues holds statistics of each queue for which something was recorded, by name, at most
	// 1,000. The entry (others) combines the remaining queues. In each period it also includes
	// queues without settings beyond the first 64.
	Queues []QueueStats `json:"queues"`
	// Periods holds statistics of all Queues together, for each period in which something was
	// recorded, the oldest first.
	Periods []PeriodStats `json:"periods,omitempty"`
}

// QueueStats holds the statistics of one queue.
type QueueStats struct {
	Queue string `json:"queue"`
	AttemptStatistics
}

// PeriodStats holds the statistics of one period. StartTime is in UTC.
type PeriodStats struct {
	StartTime Time `json:"at"`
	AttemptStatistics
}

// AttemptStatistics counts the attempts that started, and the attempts that ended by their outcome.
type AttemptStatistics struct {
	Started   int64 `json:"started"`
	Completed int64 `json:"completed"`
	Failed    int64 `json:"failed"` // failed and will be retried
	Dead      int64 `json:"dead"`
	Cancelled int64 `json:"cancelled"`
	// Returned counts attempts that were stopped or deferred without having failed. Their jobs will
	// run again or are held.
	Returned int64 `json:"returned"`
	// FailureRate is (Failed + Dead) / (Completed + Failed + Dead), null if these are all 0.
	FailureRate *float64 `json:"failure_rate"`
	// WaitTimes is the distribution of the waiting times. A waiting time begins when a job is ready and
	// due, and ends when its attempt starts.
	WaitTimes DurationStatistics `json:"wait"`
	// RunTimes is the distribution of the run times of ended attempts.
	RunTimes DurationStatistics `json:"run"`
}

// DurationStatistics describes the distribution of a duration, in milliseconds. The pointers are nil if nothing
// was measured. P50MS is a value that half of all durations do not exceed, P95MS one that 95 % do
// not exceed. Percentiles are accurate to a factor of √2.
//
// Buckets holds pairs (i, n): n durations were at most 2^(i/2) seconds and longer than 2^((i-1)/2)
// seconds, as in a Prometheus native histogram with schema 1.
type DurationStatistics struct {
	P50MS   *int64    `json:"p50_ms"`
	P95MS   *int64    `json:"p95_ms"`
	P99MS   *int64    `json:"p99_ms"`
	MeanMS  *int64    `json:"mean_ms"`
	SumMS   int64     `json:"sum_ms"` // sum of all durations
	Buckets [][]int64 `json:"buckets,omitempty"`
}

func (p *StatsParams) isForManyJobs() bool { return true }

func (p *StatsParams) check() error {
	if p.Until != 0 && p.Since != 0 && p.Until <= p.Since {
		return queue.Invalid("until", `must be later than parameter "since"`)
	}
	return nil
}
