// Package metrics exports the state and the counters of a queue to Prometheus. It reads them through the
// control API, with the rights of the user who requests them. It keeps no state, because the store keeps all
// counters across restarts.
package metrics

import (
	"context"
	"maps"
	"math"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/queuectl/queuectl/control"
)

// MaxLabelledQueues limits how many queues get a label with their name. All other queues share the label
// OtherQueuesLabel. Two kinds of queues always get a label with their name: queues that are paused or have a
// concurrency limit, and queues that the store's statistics list by name. If the counts of a listed queue moved to
// another label, the counter of the queue's label would decrease. See docs/decisions/0086.
const (
	MaxLabelledQueues = 100
	OtherQueuesLabel  = "(others)"
)

// NewRegistry returns a registry with the current metrics of a queue, limited to the data that the user of api may
// see.
func NewRegistry(ctx context.Context, api control.API) (*prometheus.Registry, error) {
	st, err := api.Status(ctx, control.NoParams{})
	if err != nil {
		return nil, err
	}
	stats, err := api.ReadStats(ctx, control.StatsParams{AllTime: true, WithHistograms: true})
	if err != nil {
		return nil, err
	}
	c := &queueCollector{serviceStatus: st, metricsByQueue: map[string]*queueMetrics{}}
	for i := range stats.Queues {
		c.ensureQueue(stats.Queues[i].Queue).addAttempts(&stats.Queues[i].AttemptStatistics)
	}
	for ask := (control.QueueListParams{}); ; {
		list, err := api.ListQueues(ctx, ask)
		if err != nil {
			return nil, err
		}
		for i := range list.Queues {
			c.addQueueState(&list.Queues[i])
		}
		if ask.AfterName = list.Next; list.Next == "" {
			break
		}
	}
	registry := prometheus.NewPedanticRegistry()
	return registry, registry.Register(c)
}

// queueMetrics contains the values of one queue.
type queueMetrics struct {
	runningJobs, waitingJobs, concurrencyLimit, pausedGauge float64
	startedAttempts                                         int64
	endedAttempts                                           [len(attemptOutcomes)]int64 // by index in attemptOutcomes
	waitTimes, runTimes                                     histogram
}

// attemptOutcomes lists the ways in which an attempt can end. They are the values of the label outcome.
var attemptOutcomes = [...]string{"completed", "failed", "dead", "cancelled", "returned"}

// addAttempts adds the numbers and durations of attempts.
func (q *queueMetrics) addAttempts(statistics *control.AttemptStatistics) {
	q.startedAttempts += statistics.Started
	for i, n := range [...]int64{statistics.Completed, statistics.Failed, statistics.Dead, statistics.Cancelled,
		statistics.StoppedOrDeferred} {
		q.endedAttempts[i] += n
	}
	q.waitTimes.addDurations(&statistics.WaitTimes)
	q.runTimes.addDurations(&statistics.RunTimes)
}

// histogram counts durations. Bucket i of a native histogram with schema 1 ends at 2^(i/2) seconds.
type histogram struct {
	// countByBucket contains the number of durations in each bucket, by the number of the bucket.
	countByBucket map[int]int64
	sumSeconds    float64 // sum of all durations
}

// addDurations adds the durations that s contains to the histogram.
func (h *histogram) addDurations(s *control.DurationStatistics) {
	if h.countByBucket == nil {
		h.countByBucket = map[int]int64{}
	}
	for _, b := range s.HistogramBuckets {
		h.countByBucket[int(b[0])] += b[1]
	}
	h.sumSeconds += float64(s.SumMS) / 1000
}

// queueCollector is a prometheus.Collector. It reports the values that Registry has read.
type queueCollector struct {
	serviceStatus  control.Status
	metricsByQueue map[string]*queueMetrics
}

// ensureQueue returns the values of a queue. If the collector has no values for the queue yet, it adds zeros.
func (c *queueCollector) ensureQueue(name string) *queueMetrics {
	q := c.metricsByQueue[name]
	if q == nil {
		q = &queueMetrics{}
		c.metricsByQueue[name] = q
	}
	return q
}

// addQueueState adds the state of a queue. If the queue does not get a label with its name (see MaxLabelledQueues), its
// state is added to that of OtherQueuesLabel.
func (c *queueCollector) addQueueState(q *control.QueueView) {
	if c.metricsByQueue[q.Queue] == nil && len(c.metricsByQueue) >= MaxLabelledQueues && q.Concurrency == 0 && !q.Paused {
		of := c.ensureQueue(OtherQueuesLabel)
		of.runningJobs, of.waitingJobs = of.runningJobs+float64(q.Running), of.waitingJobs+float64(q.Waiting)
		return
	}
	of := c.ensureQueue(q.Queue)
	of.runningJobs, of.waitingJobs, of.concurrencyLimit, of.pausedGauge = float64(q.Running), float64(q.Waiting),
		float64(q.Concurrency), boolAsNumber(q.Paused)
}

const healthyMetricHelp = "1 if the service accepts and runs jobs, 0 if it is degraded, failing or stopped."

// Describe implements prometheus.Collector. It sends nothing, because Collect contains the only list of the metrics.
func (c *queueCollector) Describe(chan<- *prometheus.Desc) {}

func newMetricDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("queuectl_"+name, help, labels, nil)
}

// Collect implements prometheus.Collector.
func (c *queueCollector) Collect(metricValues chan<- prometheus.Metric) {
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	// metric returns a function that sends one value of a metric.
	metric := func(kind prometheus.ValueType, name, help string, labels ...string) func(v float64, labelValues ...string) {
		desc := newMetricDesc(name, help, labels...)
		return func(v float64, labelValues ...string) {
			metricValues <- prometheus.MustNewConstMetric(desc, kind, v, labelValues...)
		}
	}
	st := &c.serviceStatus
	metric(gauge, "build_info", "Always 1; the label version holds the version of the service.", "version")(1, st.Version)
	metric(gauge, "start_time_seconds", "Start time of the service, in seconds since 1970.")(unixSeconds(st.StartedAt))
	metric(gauge, "healthy", healthyMetricHelp)(boolAsNumber(st.Health == "ok"))
	metric(gauge, "draining", "1 while the service is draining (it starts no new jobs), otherwise 0.")(
		boolAsNumber(st.Draining))
	metric(gauge, "paused", "1 while all jobs are paused, otherwise 0.")(boolAsNumber(st.PausedAt != 0))
	jobs := metric(gauge, "jobs", "Number of jobs, by state.", "state")
	for state, n := range st.Jobs {
		jobs(float64(n), state)
	}
	metric(counter, "jobs_enqueued_total", "Number of jobs enqueued since the queue was created.")(
		float64(st.JobsEverEnqueued))
	metric(gauge, "oldest_waiting_timestamp_seconds", "Time since which the oldest waiting job has been ready to run, in "+
		"seconds since 1970; 0 if no job is waiting.")(unixSeconds(st.OldestReadySince))
	workers := metric(gauge, "workers", "Number of busy and idle workers, by state.", "state")
	workers(float64(st.Workers.Busy), "busy")
	workers(float64(st.Workers.Idle), "idle")
	metric(gauge, "database_bytes", "Size of the database in bytes.")(float64(st.DatabaseBytes))
	metric(gauge, "output_bytes", "Size of the stored output of all jobs in bytes.")(float64(st.OutputBytes))

	running := metric(gauge, "queue_running", "Number of running jobs, by queue.", "queue")
	waiting := metric(gauge, "queue_waiting", "Number of waiting jobs, by queue.", "queue")
	limit := metric(gauge, "queue_concurrency_limit",
		"Largest number of jobs that may run at the same time, by queue; 0 means unlimited.", "queue")
	paused := metric(gauge, "queue_paused", "1 while the queue is paused and starts no jobs, otherwise 0.", "queue")
	started := metric(counter, "attempts_started_total", "Number of started attempts, by queue.", "queue")
	ended := metric(counter, "attempts_ended_total", "Number of ended attempts, by queue and outcome. \"failed\" means "+
		"that the job is retried; \"returned\" means that the job is back in the queue and the attempt does not count.",
		"queue", "outcome")
	waitTimes := newMetricDesc("attempt_wait_seconds",
		"Time from when a job is ready to run until its attempt starts, in seconds.", "queue")
	runTimes := newMetricDesc("attempt_run_seconds", "Run time of attempts, in seconds.", "queue")
	for name, q := range c.metricsByQueue {
		running(q.runningJobs, name)
		waiting(q.waitingJobs, name)
		limit(q.concurrencyLimit, name)
		paused(q.pausedGauge, name)
		started(float64(q.startedAttempts), name)
		for i, n := range q.endedAttempts {
			ended(float64(n), name, attemptOutcomes[i])
		}
		metricValues <- &nativeHistogram{waitTimes, name, &q.waitTimes}
		metricValues <- &nativeHistogram{runTimes, name, &q.runTimes}
	}
}

func unixSeconds(at control.Time) float64 { return float64(at) / 1000 }

func boolAsNumber(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// nativeHistogram is the histogram of one queue. Clients that request native histograms get all buckets. Other
// clients get a classic histogram with every fourth bucket.
type nativeHistogram struct {
	desc  *prometheus.Desc
	queue string
	*histogram
}

// Desc implements prometheus.Metric.
func (n *nativeHistogram) Desc() *prometheus.Desc { return n.desc }

// The store counts durations in a histogram of schema 1: bucket i ends at 2^(i/2) seconds. The classic
// histogram has every fourth of these buckets, from 1 ms to 12 days.
const (
	histogramSchema    = 1
	firstClassicBucket = -20
	lastClassicBucket  = 40
	classicBucketStep  = 4
)

// Write implements prometheus.Metric.
func (n *nativeHistogram) Write(out *dto.Metric) error {
	out.Label = prometheus.MakeLabelPairs(n.desc, []string{n.queue})
	h := &dto.Histogram{SampleSum: new(n.sumSeconds), Schema: new(int32(histogramSchema)),
		ZeroThreshold: new(prometheus.DefNativeHistogramZeroThreshold), ZeroCount: new(uint64(0))}
	out.Histogram = h
	total, last, next := int64(0), int64(0), firstClassicBucket
	var classicBuckets []*dto.Bucket
	addClassicBefore := func(i int) { // adds the classic buckets that end where bucket i begins or earlier
		for ; next < i && next <= lastClassicBucket; next += classicBucketStep {
			classicBuckets = append(classicBuckets, &dto.Bucket{UpperBound: new(math.Exp2(float64(next) / 2)),
				CumulativeCount: new(uint64(total))})
		}
	}
	for _, i := range slices.Sorted(maps.Keys(n.countByBucket)) {
		count := n.countByBucket[i]
		addClassicBefore(i)
		h.PositiveSpan = appendBucket(h.PositiveSpan, i)
		h.PositiveDelta = append(h.PositiveDelta, count-last)
		total, last = total+count, count
	}
	addClassicBefore(math.MaxInt)
	h.Bucket, h.SampleCount = classicBuckets, new(uint64(total))
	return nil
}

// appendBucket adds a bucket to the spans of a native histogram. A span is a range of consecutive buckets;
// its offset is the number of buckets between it and the previous span. Call appendBucket in the order of the
// buckets.
func appendBucket(spans []*dto.BucketSpan, bucket int) []*dto.BucketSpan {
	end := int32(0)
	for _, s := range spans {
		end += s.GetOffset() + int32(s.GetLength())
	}
	gap := int32(bucket) - end
	if len(spans) > 0 && gap == 0 {
		spans[len(spans)-1].Length = new(spans[len(spans)-1].GetLength() + 1)
		return spans
	}
	return append(spans, &dto.BucketSpan{Offset: new(gap), Length: new(uint32(1))})
}
