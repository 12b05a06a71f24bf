package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
)

const (
	maxDepthRatio = 1.3 // maximum ratio of the cost with many waiting jobs to the cost with none
	depthEnqueues = 500 // number of enqueues in each run
	depthJobs     = 500 // number of jobs that run in each run
)

// measureDepth measures whether many waiting jobs make an enqueue or a claim slower.
func (b *bench) measureDepth(short *service) (err error) {
	waiting := b.size(1_000_000, 100_000)
	long, err := b.serve()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, long.discard()) }()
	began := time.Now()
	if err := long.fill(waiting, "true"); err != nil {
		return err
	}
	b.report.add(fmt.Sprintf("enqueue %d jobs in batches of %d", waiting, queue.MaxJobsPerRequest),
		rate(float64(waiting)/time.Since(began).Seconds()), "", "")
	return b.compare([2]*service{short, long}, [2]int{}, fmt.Sprintf("%d waiting jobs", waiting))
}

// compare measures how much slower an enqueue and a claim are in the second queue than in the first. For each
// queue, ended contains the number of jobs that have already ended. full describes the second queue in the report.
func (b *bench) compare(pair [2]*service, ended [2]int, full string) error {
	var asks, drains [2][]float64
	for range b.pairs {
		for i, s := range pair {
			w, err := s.enqueueMany(depthEnqueues)
			if err != nil {
				return err
			}
			asks[i] = append(asks[i], median(w))
		}
		for i, s := range pair {
			ended[i] += depthJobs
			d, err := s.drainUntil(&ended[i])
			if err != nil {
				return err
			}
			drains[i] = append(drains[i], d)
		}
	}
	b.judgeCosts("`enqueue` with "+full+", p50", asks)
	b.judgeCosts("CPU time of the service per job with "+full, drains)
	return nil
}

// judgeCosts reports the costs of an empty queue, costs[0], and of a full queue, costs[1], in seconds. It also
// reports whether their ratio meets the target.
func (b *bench) judgeCosts(what string, costs [2][]float64) {
	ratio := median(ratios(costs[1], costs[0]))
	b.report.judge(row{what, us(median(costs[1])), "empty queue " + us(median(costs[0])), asRatio(ratio),
		"≤ " + asRatio(maxDepthRatio), ""}, ratio <= maxDepthRatio)
}

// enqueueMany enqueues n jobs one after another. It returns the duration of each request, in seconds.
func (s *service) enqueueMany(n int) (waits []float64, err error) {
	l, err := s.dial()
	if err != nil {
		return nil, err
	}
	defer l.Close()
	for range n {
		began := time.Now()
		if err := l.request(enqueueRequest); err != nil {
			return nil, err
		}
		waits = append(waits, time.Since(began).Seconds())
	}
	return waits, nil
}

// drainUntil lets two workers run jobs until the queue has as many ended jobs as *ended says. It returns the
// service's CPU time, in seconds, per job that ended during the call. It sets *ended to the actual number of
// ended jobs, which may be slightly higher.
func (s *service) drainUntil(ended *int) (float64, error) {
	before, err := s.cost()
	if err != nil {
		return 0, err
	}
	had := *ended - depthJobs
	if err := s.scale(2); err != nil {
		return 0, err
	}
	if err := s.waitForState(queue.Completed, *ended); err != nil {
		return 0, err
	}
	if err := s.scale(0); err != nil {
		return 0, err
	}
	after, err := s.cost()
	if err != nil {
		return 0, err
	}
	if *ended, err = s.completedCount(); err != nil {
		return 0, err
	}
	return after.minus(before).service.Seconds() / float64(*ended-had), nil
}
