package store

import (
	"context"
	"encoding/binary"
	"math"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Statistics returns totals of the whole queue, and statistics of attempts and run times.
type Statistics interface {
	// Counts returns the number of jobs in each state and the number of jobs ever enqueued,
	// without reading a table.
	Counts() Counts
	// OldestReadySince returns the time since when a job has been ready, for the job that has been ready longest; 0 if no
	// job is ready.
	OldestReadySince(ctx context.Context) (queue.UnixMillis, error)
	// Stats returns statistics of attempts. The transaction that records the start or end of an attempt also updates the
	// statistics. So a crash loses no start or end and counts none twice. Removing a job does not change the statistics.
	Stats(ctx context.Context, f StatsFilter) (Stats, error)
	// TypicalRuntime returns the typical run time of completed jobs with this queue.Job.Fingerprint; 0 if unknown.
	// TypicalRuntime reads no table. After a crash, the runs of the last two minutes may be missing.
	TypicalRuntime(fingerprint uint64) time.Duration
}

// AttemptStatistics contains the statistics of the attempts of one queue in one period. The start of an attempt counts
// in the period in which the start was recorded. The end of an attempt counts in the period in which the end was
// recorded. Over all periods, Started equals the number of ends plus the number of running attempts. A job that ends
// without an attempt does not count, for example a job that is cancelled while it waits.
type AttemptStatistics struct {
	Started   int64
	Completed int64 // attempts that completed their job; the fields below count attempts with other results
	Failed    int64 // attempts that failed and whose job is to be retried
	Dead      int64
	Cancelled int64
	// attempts that do not count, for example because they were stopped; the job is pending or held again
	ReturnedToQueue int64

	WaitTimes Histogram // one entry per start: the time between the job being ready and due, and its start
	RunTimes  Histogram // one entry per end: the run time of the attempt
}

// AddStartedAttempt counts the start of an attempt whose job has waited for waitTime.
func (s *AttemptStatistics) AddStartedAttempt(waitTime time.Duration) {
	s.Started++
	s.WaitTimes.AddDuration(waitTime)
}

// AddEndedAttempt counts the end of an attempt that leaves its job in the given state.
func (s *AttemptStatistics) AddEndedAttempt(state queue.State, runTime time.Duration) {
	switch state {
	case queue.Completed:
		s.Completed++
	case queue.Failed:
		s.Failed++
	case queue.Dead:
		s.Dead++
	case queue.Cancelled:
		s.Cancelled++
	default:
		s.ReturnedToQueue++
	}
	s.RunTimes.AddDuration(runTime)
}

// Add adds the counts of other to s.
func (s *AttemptStatistics) Add(other *AttemptStatistics) {
	s.Started += other.Started
	s.Completed += other.Completed
	s.Failed += other.Failed
	s.Dead += other.Dead
	s.Cancelled += other.Cancelled
	s.ReturnedToQueue += other.ReturnedToQueue
	s.WaitTimes.add(&other.WaitTimes)
	s.RunTimes.add(&other.RunTimes)
}

// The buckets of a Histogram. Bucket k contains durations longer than BucketUpperBoundSeconds(k-1) and up to
// BucketUpperBoundSeconds(k). The first bucket also contains all shorter durations, and the last bucket all longer
// ones.
const (
	HistogramBucketCount       = 64
	FirstPrometheusBucketIndex = -20 // index of the first bucket in the schema of Prometheus
)

// BucketUpperBoundSeconds returns the upper bound of a bucket in seconds:
// 2^((bucketIndex+FirstPrometheusBucketIndex)/2). The bounds range from just under 1 ms to 34 days. They are the bounds
// of Prometheus' native histograms with schema 1.
func BucketUpperBoundSeconds(bucketIndex int) float64 {
	return math.Exp2(float64(bucketIndex+FirstPrometheusBucketIndex) / 2)
}

// Histogram counts durations in exponential buckets.
type Histogram struct {
	BucketCounts [HistogramBucketCount]int64 // number of durations in each bucket
	SumMillis    int64                       // sum of all durations in milliseconds
}

// maxCountedDuration is the longest duration that is counted. A longer duration is counted as maxCountedDuration.
const maxCountedDuration = 34 * 24 * time.Hour

// AddDuration counts one duration, truncated to milliseconds. A negative duration counts as 0.
func (h *Histogram) AddDuration(d time.Duration) {
	d = min(max(0, d.Truncate(time.Millisecond)), maxCountedDuration)
	h.SumMillis += d.Milliseconds()
	k := 0
	if d > 0 {
		k = int(math.Ceil(2*math.Log2(d.Seconds()))) - FirstPrometheusBucketIndex
	}
	h.BucketCounts[min(max(0, k), HistogramBucketCount-1)]++
}

func (h *Histogram) add(other *Histogram) {
	h.SumMillis += other.SumMillis
	for k, n := range other.BucketCounts {
		h.BucketCounts[k] += n
	}
}

// Count returns how many durations were counted.
func (h *Histogram) Count() (n int64) {
	for _, c := range h.BucketCounts {
		n += c
	}
	return n
}

// Quantile returns the duration that the given fraction of all durations does not exceed. The fraction is above
// 0 and at most 1; 0.5 gives the median. The result is inexact, because only buckets are stored: it differs
// from the exact value by a factor below √2. For an empty histogram, isKnown is false.
func (h *Histogram) Quantile(fraction float64) (d time.Duration, isKnown bool) {
	rank, below := fraction*float64(h.Count()), 0.0
	for k, n := range h.BucketCounts {
		if n == 0 || below+float64(n) < rank {
			below += float64(n)
			continue
		}
		if k == 0 {
			return 0, true
		}
		seconds := BucketUpperBoundSeconds(k) * math.Exp2(((rank-below)/float64(n)-1)/2)
		return time.Duration(seconds*1000+0.5) * time.Millisecond, true
	}
	return 0, false
}

// AppendEncoded appends the histogram to b in a compact form, which ParseHistogram reads. It appends nothing if the
// histogram is empty.
func (h *Histogram) AppendEncoded(b []byte) []byte {
	empty := uint64(0)
	started := false
	for _, n := range h.BucketCounts {
		if n == 0 {
			empty++
			continue
		}
		if !started {
			b, started = binary.AppendUvarint(b, uint64(h.SumMillis)), true
		}
		b = binary.AppendUvarint(binary.AppendUvarint(b, empty), uint64(n))
		empty = 0
	}
	return b
}

// ParseHistogram reads what AppendEncoded has written. It returns an empty histogram if b is damaged.
func ParseHistogram(b []byte) (h Histogram) {
	damaged := false
	next := func(maxValue uint64) uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > maxValue {
			damaged, b = true, nil
			return 0
		}
		b = b[n:]
		return v
	}
	if len(b) > 0 {
		h.SumMillis = int64(next(math.MaxInt64))
	}
	for k := 0; len(b) > 0; k++ {
		if k += int(next(HistogramBucketCount)); k < HistogramBucketCount {
			h.BucketCounts[k] = int64(next(math.MaxInt64))
		} else {
			damaged = true
		}
	}
	if damaged {
		return Histogram{}
	}
	return h
}

// Granularity is the length of a period of statistics. Periods begin at whole minutes, hours and days in UTC.
type Granularity int

// The values of Granularity, from the shortest period to the longest.
const (
	PerMinute Granularity = iota + 1
	PerHour
	PerDay
)

// granularities lists, for each Granularity, its name, the length of a period, and how long statistics are kept.
var granularities = [...]struct {
	name              string
	length, retention time.Duration
}{
	PerMinute: {"minute", time.Minute, 2 * 24 * time.Hour},
	PerHour:   {"hour", time.Hour, 60 * 24 * time.Hour},
	PerDay:    {"day", 24 * time.Hour, 3 * 365 * 24 * time.Hour},
}

func (g Granularity) String() string { return granularities[g].name }

// PeriodLength returns the length of a period.
func (g Granularity) PeriodLength() time.Duration { return granularities[g].length }

// PeriodRetention returns the minimum time for which the statistics of a period are kept.
func (g Granularity) PeriodRetention() time.Duration { return granularities[g].retention }

// PeriodStart returns the start of the period that contains the given time.
func (g Granularity) PeriodStart(instant queue.UnixMillis) queue.UnixMillis {
	return instant - instant%queue.UnixMillis(g.PeriodLength().Milliseconds())
}

// OldestPeriodStart returns the start of the oldest period that is kept at the given time.
func (g Granularity) OldestPeriodStart(now queue.UnixMillis) queue.UnixMillis {
	return g.PeriodStart(now - queue.UnixMillis(g.PeriodRetention().Milliseconds()))
}

// Limits of statistics.
const (
	// MaxQueuesWithStats limits the queues with separate statistics in one period, and in the totals of all time. The
	// default queue does not count toward this limit. In a period, queues that have a rule at that time do not count
	// either. The remaining queues are combined under OtherQueuesName.
	MaxQueuesWithStats = 64
	// MaxQueuesPerStatsResult limits the queues in one result. If there are more queues, the result contains the queues
	// that had attempts most recently.
	MaxQueuesPerStatsResult = 1000
	// OtherQueuesName is the combined entry of queues without separate statistics. No queue can have this name.
	OtherQueuesName = "(others)"
)

// StatsFilter selects a queue and a range of time. An empty Queue selects all queues. All periods that overlap the
// range from Since to Until (0 means now) are selected. Periods older than Granularity.PeriodRetention are not
// available.
type StatsFilter struct {
	Queue        string
	Since, Until queue.UnixMillis
	// Granularity is the length of the periods. 0 selects the shortest periods that are still kept for the whole range.
	Granularity Granularity
	// IncludePeriods adds the statistics of each single period to the result.
	IncludePeriods bool
	// OnlyAllTimeTotals selects the totals of all time by queue instead of periods. The totals never decrease. If
	// OnlyAllTimeTotals is set, the other fields are ignored.
	OnlyAllTimeTotals bool
}

// PeriodRange returns which periods the filter selects when the time is now. grain is their granularity. The periods
// begin at since or later, and before until.
func (f *StatsFilter) PeriodRange(now queue.UnixMillis) (grain Granularity, since, until queue.UnixMillis) {
	grain = f.Granularity
	if grain == 0 {
		for grain = PerMinute; grain < PerDay && grain.PeriodStart(f.Since) < grain.OldestPeriodStart(now); {
			grain++
		}
	}
	if until = f.Until; until == 0 || until > now {
		until = now + 1
	}
	return grain, max(grain.PeriodStart(f.Since), grain.OldestPeriodStart(now)),
		grain.PeriodStart(until - 1).Add(grain.PeriodLength())
}

// Stats contains the statistics of a range of whole periods.
type Stats struct {
	Granularity  Granularity
	Since, Until queue.UnixMillis  // start and end of the range; the last period may not have ended yet
	Queues       []QueueStatistics // ordered by name, with OtherQueuesName last
	// Periods contains the periods that have statistics, oldest first. The statistics of each period are the sums over all
	// selected queues.
	Periods []PeriodStatistics
}

// QueueStatistics contains the statistics of a queue over the whole range.
type QueueStatistics struct {
	QueueName string
	AttemptStatistics
}

// PeriodStatistics contains the statistics of the period that begins at StartTime.
type PeriodStatistics struct {
	StartTime queue.UnixMillis
	AttemptStatistics
}

// MaxRuntimeEstimates limits the number of commands whose typical run time is stored. If there are more, the commands
// that completed most recently are kept.
const MaxRuntimeEstimates = 4096

// RuntimeEstimate is the typical run time of a command: a geometric mean of the run times. About the last eight runs
// have most of the weight in the mean. The zero value contains no runs.
type RuntimeEstimate struct {
	LogMeanMillis float64 // natural logarithm of the mean run time in milliseconds
	WeightedRuns  uint8   // number of runs, up to maxWeightedRuns
}

// maxWeightedRuns limits how much weight old runs have in the mean: each new run has a weight of at least
// 1/maxWeightedRuns.
const maxWeightedRuns = 8

// AddRuntime adds the run time of one more run to the mean.
func (e *RuntimeEstimate) AddRuntime(runTime time.Duration) {
	e.WeightedRuns = min(e.WeightedRuns+1, maxWeightedRuns)
	e.LogMeanMillis += (math.Log(float64(max(1, runTime.Milliseconds()))) - e.LogMeanMillis) / float64(e.WeightedRuns)
}

// TypicalRuntime returns the mean of the runs, at least 1 ms; 0 if there were no runs.
func (e *RuntimeEstimate) TypicalRuntime() time.Duration {
	if e.WeightedRuns == 0 {
		return 0
	}
	return time.Duration(math.Exp(e.LogMeanMillis)+0.5) * time.Millisecond
}

// Counts contains totals of the whole queue. Every change updates the totals. So the time to read them does not depend
// on the number of jobs.
type Counts struct {
	JobsByState      [queue.Cancelled + 1]int64 // number of jobs in each state, by state
	JobsEverEnqueued int64                      // number of jobs ever enqueued
	// IsRerankUnfinished reports that some jobs still have ranks from old settings, so RerankWaitingJobs must be
	// called again.
	IsRerankUnfinished bool
	DatabaseBytes      int64 // size of the database in bytes
	OutputBytes        int64 // size of all outputs, in the database and in files, in bytes
	// JobsUnderQueueRetention is the number of completed and cancelled jobs whose queue had its own retention settings
	// when they ended.
	JobsUnderQueueRetention int64
}

// StatesWithRetention lists the states for which a retention setting limits how many jobs are kept. Dead jobs are
// kept until a user handles them.
var StatesWithRetention = []queue.State{queue.Completed, queue.Cancelled}

// JobsUnderGeneralRetention returns the number of jobs to which the retention for all queues applies.
func (c Counts) JobsUnderGeneralRetention() int64 {
	n := -c.JobsUnderQueueRetention
	for _, s := range StatesWithRetention {
		n += c.JobsByState[s]
	}
	return n
}

// WaitingJobs returns the number of jobs in states that precede running.
func (c Counts) WaitingJobs() int64 {
	return c.JobsByState[queue.Blocked] + c.JobsByState[queue.Held] + c.JobsByState[queue.Pending] +
		c.JobsByState[queue.Failed]
}
