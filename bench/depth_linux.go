package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
)

const (
	// maxFullToEmptyQueueCostRatio is the maximum ratio of a cost in a full queue to the same cost in an empty queue. The
	// costs are the time of an enqueue and the CPU time of a job.
	maxFullToEmptyQueueCostRatio = 1.3
	enqueuesPerDepthRun          = 500 // number of enqueues in each run
	jobsPerDepthRun              = 500 // number of jobs that run in each run
)

// measureFullQueue measures whether an enqueue or a claim is slower in a queue with many waiting jobs than in an
// empty one.
func (b *bench) measureFullQueue(emptyQueue *service) (err error) {
	waiting := b.itemsToMeasure(1_000_000, 100_000)
	long, err := b.startService()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, long.stopAndRemoveDir()) }()
	began := time.Now()
	if err := long.fillQueue(waiting, "true"); err != nil {
		return err
	}
	b.results.addRow(fmt.Sprintf("enqueue %d jobs in batches of %d", waiting, queue.MaxJobsPerRequest),
		formatRate(float64(waiting)/time.Since(began).Seconds()), "", "")
	return b.compareQueueCosts([2]*service{emptyQueue, long}, [2]int{}, fmt.Sprintf("%d waiting jobs", waiting))
}

// compareQueueCosts measures how much slower an enqueue and a claim are in the second queue than in the first.
// endedJobs[i] is the number of jobs that emptyAndFullQueue[i] has already completed. fullQueueDescription describes
// the second queue in the report.
func (b *bench) compareQueueCosts(emptyAndFullQueue [2]*service, endedJobs [2]int, fullQueueDescription string) error {
	var enqueueCosts, drainCosts [2][]float64
	for range b.measurementRounds {
		for i, s := range emptyAndFullQueue {
			w, err := s.enqueueOneByOne(enqueuesPerDepthRun)
			if err != nil {
				return err
			}
			enqueueCosts[i] = append(enqueueCosts[i], median(w))
		}
		for i, s := range emptyAndFullQueue {
			endedJobs[i] += jobsPerDepthRun
			d, err := s.runJobsUntilTotalEnded(&endedJobs[i])
			if err != nil {
				return err
			}
			drainCosts[i] = append(drainCosts[i], d)
		}
	}
	b.reportCostRatio("`enqueue` with "+fullQueueDescription+", p50", enqueueCosts)
	b.reportCostRatio("CPU time of the service per job with "+fullQueueDescription, drainCosts)
	return nil
}

// reportCostRatio reports two costs, each as a list of measurements in seconds: emptyAndFullCosts[0] of an empty queue
// and emptyAndFullCosts[1] of a full queue. It also reports whether the ratio of the two costs meets the target.
func (b *bench) reportCostRatio(measurement string, emptyAndFullCosts [2][]float64) {
	ratio := median(pairwiseRatios(emptyAndFullCosts[1], emptyAndFullCosts[0]))
	b.results.addRowWithVerdict(row{measurement, formatMicros(median(emptyAndFullCosts[1])), "empty queue " +
		formatMicros(median(emptyAndFullCosts[0])),
		formatRatio(ratio), "≤ " + formatRatio(maxFullToEmptyQueueCostRatio), ""}, ratio <= maxFullToEmptyQueueCostRatio)
}

// enqueueOneByOne enqueues n jobs one after another. It returns the duration of each request, in seconds.
func (s *service) enqueueOneByOne(jobCount int) (latencies []float64, err error) {
	l, err := s.dial()
	if err != nil {
		return nil, err
	}
	defer l.Close()
	for range jobCount {
		began := time.Now()
		if err := l.sendRequest(encodedEnqueueRequest); err != nil {
			return nil, err
		}
		latencies = append(latencies, time.Since(began).Seconds())
	}
	return latencies, nil
}

// runJobsUntilTotalEnded runs jobs on two workers until *endedJobs jobs are completed in total. It returns the CPU time
// of the service, in seconds, per job completed during the call. It sets *endedJobs to the actual total, which may be
// slightly higher.
func (s *service) runJobsUntilTotalEnded(totalEndedJobs *int) (float64, error) {
	before, err := s.cpuTimes()
	if err != nil {
		return 0, err
	}
	had := *totalEndedJobs - jobsPerDepthRun
	if err := s.setWorkers(2); err != nil {
		return 0, err
	}
	if err := s.waitForState(queue.Completed, *totalEndedJobs); err != nil {
		return 0, err
	}
	if err := s.setWorkers(0); err != nil {
		return 0, err
	}
	after, err := s.cpuTimes()
	if err != nil {
		return 0, err
	}
	if *totalEndedJobs, err = s.completedJobCount(); err != nil {
		return 0, err
	}
	return after.minus(before).service.Seconds() / float64(*totalEndedJobs-had), nil
}
