package control

import (
	"github.com/queuectl/queuectl/queue"
)

// StatsParams asks for the figures of attempts that were recorded in a range, of a queue or of all.
type StatsParams struct {
	Queue string `json:"queue,omitempty"`
	// Since and Until are the range: the last 24 hours, and up to now, if they are left out. It is told by whole
	// periods.
	Since Time `json:"since,omitzero"`
	Until Time `json:"until,omitzero"`
	// By asks for each minute, hour or day too. Minutes are kept for 2 days, hours for 60, days for 3 years; without
	// it they are the finest that are kept of the range.
	By string `json:"by,omitempty"`
	// Buckets asks for the histograms too: of at most MaxBucketPeriods periods.
	Buckets bool `json:"buckets,omitempty"`
	// Ever asks for all that was ever recorded instead of a range, by queues that keep their names: no figure becomes
	// less.
	Ever bool `json:"ever,omitempty"`
}

// MaxBucketPeriods is of how many periods one answer has histograms.
const MaxBucketPeriods = 1000

// Stats are the figures of a range. Without By there are no periods.
type Stats struct {
	Grain string `json:"grain"` // of which periods it is made: minute, hour or day
	Since Time   `json:"since"` // from here on, no earlier than is kept
	Until Time   `json:"until"` // up to here; the last period may not be over
	// Queues are those of which something was recorded, by name, at most 1,000: (others) stands for the rest, and
	// for queues without settings beyond the first 64 of a period.
	Queues []QueueStats `json:"queues"`
	// Periods are those in which something was recorded, the first one first, of all Queues together.
	Periods []PeriodStats `json:"periods,omitempty"`
}

// QueueStats are the figures of a queue.
type QueueStats struct {
	Queue string `json:"queue"`
	Figures
}

// PeriodStats are the figures of a period, which begins at At, of UTC.
type PeriodStats struct {
	At Time `json:"at"`
	Figures
}

// Figures are how many attempts began, and how many ended, by what their job came to.
type Figures struct {
	Started   int64 `json:"started"`
	Completed int64 `json:"completed"`
	Failed    int64 `json:"failed"` // to be tried again
	Dead      int64 `json:"dead"`
	Cancelled int64 `json:"cancelled"`
	Returned  int64 `json:"returned"` // stopped or deferred, to run again without having failed; or held
	// FailureRate is the part of the completed, failed and dead ones that did not complete, null of none.
	FailureRate *float64 `json:"failure_rate"`
	Wait        Spread   `json:"wait"` // of what began: since its job was due and ready
	Run         Spread   `json:"run"`  // of what ended
}

// Spread is how something spreads, in ms; null if there is none. Half of all take P50 at most, 95 of 100 P95. Each is
// less than √2 times too long or too short. Buckets are pairs: a number i, and how many took at most 2^(i/2) seconds, and
// longer than 2^((i-1)/2); as those of Prometheus' native histograms of schema 1.
type Spread struct {
	P50MS   *int64    `json:"p50_ms"`
	P95MS   *int64    `json:"p95_ms"`
	P99MS   *int64    `json:"p99_ms"`
	MeanMS  *int64    `json:"mean_ms"`
	SumMS   int64     `json:"sum_ms"` // of all
	Buckets [][]int64 `json:"buckets,omitempty"`
}

func (p *StatsParams) many() bool { return true }

func (p *StatsParams) check() error {
	if p.Until != 0 && p.Since != 0 && p.Until <= p.Since {
		return queue.Invalid("until", `must be later than parameter "since"`)
	}
	return nil
}
