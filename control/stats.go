package control

import (
	"context"

	"github.com/queuectl/queuectl/queue"
)

// StatsAPI returns statistics about attempts. An attempt is one execution of a job.
type StatsAPI interface {
	// ReadStats returns how many attempts started and ended, their waiting times and their run times.
	ReadStats(ctx context.Context, p StatsParams) (Stats, error)
}

// StatsParams requests statistics about attempts in a time range, for one queue or for all queues.
type StatsParams struct {
	Queue string `json:"queue,omitempty" rule:"queue"`
	// Since and Until define the time range, which is rounded to whole periods. The default is the last 24 hours.
	Since Time `json:"since,omitzero"`
	Until Time `json:"until,omitzero"`
	// PeriodLength requests separate statistics for each minute, hour or day in the range, in addition to the totals. The
	// service keeps minutes for 2 days, hours for 60 days and days for 3 years. Without PeriodLength, the totals are
	// computed from the shortest periods that the service has kept for the whole range.
	PeriodLength string `json:"by,omitempty" rule:"grain"`
	// WithHistograms also requests histograms, for at most MaxHistogramPeriods periods.
	WithHistograms bool `json:"buckets,omitempty"`
	// AllTime requests all statistics ever recorded, instead of the statistics of a time range. If an answer has an entry
	// for a queue, all later answers have it too, so the counts of an entry never decrease.
	AllTime bool `json:"ever,omitempty"`
}

// MaxHistogramPeriods is the maximum number of periods with histograms that one answer contains.
const MaxHistogramPeriods = 1000

// Stats holds statistics of a time range. Periods is empty if StatsParams.PeriodLength was "".
type Stats struct {
	Grain string `json:"grain"` // length of the periods: minute, hour or day
	Since Time   `json:"since"` // start of the range; not earlier than the oldest period that is kept
	Until Time   `json:"until"` // end of the range; the last period may not be over yet
	// Queues holds the statistics of each queue with recorded attempts, sorted by name. It has at most 1,000 entries, and
	// the entry (others) combines the remaining queues. In each period, attempts are recorded separately for at most 64
	// queues without settings; the attempts of further queues without settings are recorded as (others).
	Queues []QueueStats `json:"queues"`
	// Periods holds the statistics of all queues together, for each period with recorded attempts, the oldest
	// first.
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

// AttemptStatistics counts the attempts that started. It also counts the attempts that ended, by outcome.
type AttemptStatistics struct {
	Started   int64 `json:"started"`
	Completed int64 `json:"completed"`
	Failed    int64 `json:"failed"` // attempts that failed and will be retried
	Dead      int64 `json:"dead"`
	Cancelled int64 `json:"cancelled"`
	// StoppedOrDeferred counts attempts that ended without a failure because the job was stopped or deferred. The job
	// runs again or is held.
	StoppedOrDeferred int64 `json:"returned"`
	// FailureRate is (Failed + Dead) / (Completed + Failed + Dead), null if these are all 0.
	FailureRate *float64 `json:"failure_rate"`
	// WaitTimes is the distribution of the waiting times. The waiting time of an attempt is the time from the
	// moment at which the job could start until the attempt starts.
	WaitTimes DurationStatistics `json:"wait"`
	// RunTimes is the distribution of the run times of ended attempts.
	RunTimes DurationStatistics `json:"run"`
}

// DurationStatistics describes the distribution of a duration, in milliseconds. Half of the durations are at
// most P50MS, and 95 % at most P95MS. These percentiles may be wrong by a factor of √2. The percentiles and the
// mean are nil if nothing was measured.
//
// Buckets is a histogram. A pair (i, n) means that n durations were at most 2^(i/2) seconds and longer than
// 2^((i-1)/2) seconds. These are the buckets of a Prometheus native histogram with schema 1.
type DurationStatistics struct {
	P50MS            *int64    `json:"p50_ms"`
	P95MS            *int64    `json:"p95_ms"`
	P99MS            *int64    `json:"p99_ms"`
	MeanMS           *int64    `json:"mean_ms"`
	SumMS            int64     `json:"sum_ms"` // sum of all durations
	HistogramBuckets [][]int64 `json:"buckets,omitempty"`
}

func (p *StatsParams) checkGivenParams() error {
	if p.Until != 0 && p.Since != 0 && p.Until <= p.Since {
		return queue.InvalidFieldError("until", `must be later than parameter "since"`)
	}
	return nil
}
