package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// These constants apply to a drain: the service runs all jobs of a full queue.
const (
	maxServiceToBareCPURatio = 1 / 0.85 // maximum ratio of the CPU time per job to that per command of the bare loop
	printedJobOutput         = "abc"    // output of each job in the drain that also checks the stored outputs
)

// measureDrain measures how fast the service empties a full queue. For comparison, it also runs the same number
// of commands in a bare loop, with xargs and with make.
func (b *bench) measureDrain() error {
	for _, workers := range []int{2, 8} {
		if err := b.measureDrainsWithWorkers(workers); err != nil {
			return err
		}
	}
	s, _, err := b.drainNewQueue(8, b.jobsPerDrain, "printf "+printedJobOutput)
	if err != nil {
		return err
	}
	return b.checkJobsAndRemoveService(s, b.jobsPerDrain, printedJobOutput)
}

// measureDrainsWithWorkers measures the service, the bare loop, xargs and make with the given number of workers.
func (b *bench) measureDrainsWithWorkers(workerCount int) error {
	var queuectl, bareRuns, xargs, makes []commandTimes
	ways := []struct {
		run     func(workers, n int) (commandTimes, error)
		results *[]commandTimes
	}{{b.measureBareCommands, &bareRuns}, {b.drainAndCheckQueue, &queuectl},
		{b.measureXargs, &xargs}, {b.measureMake, &makes}}
	for range b.measurementRounds {
		for _, w := range ways {
			e, err := w.run(workerCount, b.jobsPerDrain)
			if err != nil {
				return err
			}
			*w.results = append(*w.results, e)
		}
	}
	n := float64(b.jobsPerDrain)
	figures := func(timings []commandTimes, metric func(commandTimes) time.Duration) []float64 {
		seconds := make([]float64, len(timings))
		for i := range timings {
			seconds[i] = metric(timings[i]).Seconds()
		}
		return seconds
	}
	wall := func(e commandTimes) time.Duration { return e.elapsed }
	cpu := func(e commandTimes) time.Duration { return e.totalCPU }
	name := fmt.Sprintf("drain, %d workers: ", workerCount)
	for _, o := range []struct {
		name     string
		timings  []commandTimes
		target   string
		maxRatio float64 // the measured ratio must be lower than this; 0 means that there is no target
	}{{"loop of fork and exec", bareRuns, "", 0}, {"`xargs -P`", xargs, "< 1", 1}, {"`make -j`", makes, "", 0}} {
		ratio := median(pairwiseRatios(figures(queuectl, wall), figures(o.timings, wall)))
		r := row{name + "jobs/s", formatRate(n / median(figures(queuectl, wall))),
			o.name + " " + formatRate(n/median(figures(o.timings, wall))), formatRatio(ratio), o.target, ""}
		if o.maxRatio == 0 {
			b.results.addRow(r.measurement, r.queuectlResult, r.baselineResult, r.ratioToBaseline)
		} else {
			b.results.addRowWithVerdict(r, ratio < o.maxRatio)
		}
	}
	ratio := median(pairwiseRatios(figures(queuectl, cpu), figures(bareRuns, cpu)))
	b.results.addRowWithVerdict(row{name + "CPU time per job", formatMicros(median(figures(queuectl, cpu)) / n),
		"loop of fork and exec " + formatMicros(median(figures(bareRuns, cpu))/n),
		formatRatio(ratio) + " (inverse " + formatRatio(1/ratio) + ")", "≤ " + formatRatio(maxServiceToBareCPURatio), ""},
		ratio <= maxServiceToBareCPURatio)
	for _, o := range []struct {
		name    string
		timings []commandTimes
	}{{"`xargs -P`", xargs}, {"`make -j`", makes}} {
		b.results.addRow(name+"CPU time per job", formatMicros(median(figures(queuectl, cpu))/n),
			o.name+" "+formatMicros(median(figures(o.timings, cpu))/n),
			formatRatio(median(pairwiseRatios(figures(queuectl, cpu), figures(o.timings, cpu)))))
	}
	service := median(figures(queuectl, func(e commandTimes) time.Duration { return e.serviceCPU.service }))
	runner := median(figures(queuectl, func(e commandTimes) time.Duration { return e.serviceCPU.runner }))
	children := median(figures(queuectl, func(e commandTimes) time.Duration { return e.serviceCPU.endedRunnerChildren }))
	b.results.addRow(name+"CPU time of queuectl itself per job",
		fmt.Sprintf("service %s, runner %s", formatMicros(service/n), formatMicros(runner/n)),
		"the processes of the jobs "+formatMicros(children/n), "")
	return nil
}

// drainAndCheckQueue fills a new queue with jobs, lets the service run them, and checks that no job and no output was
// lost.
func (b *bench) drainAndCheckQueue(workers, jobCount int) (commandTimes, error) {
	s, e, err := b.drainNewQueue(workers, jobCount, "true")
	if err != nil {
		return e, err
	}
	return e, b.checkJobsAndRemoveService(s, jobCount, "")
}

// drainNewQueue fills a new queue with jobs and measures how long the service takes to run them. The service keeps
// running.
func (b *bench) drainNewQueue(workers, jobCount int, command string) (*service, commandTimes, error) {
	s, err := b.startService()
	if err != nil {
		return nil, commandTimes{}, err
	}
	e, err := s.fillAndDrain(workers, jobCount, command)
	if err != nil {
		return nil, commandTimes{}, errors.Join(err, s.stop())
	}
	return s, e, nil
}

// fillAndDrain fills the queue with jobs and measures how long the workers take to run them.
func (s *service) fillAndDrain(workers, jobCount int, command string) (drainTimes commandTimes, err error) {
	if err := s.fillQueue(jobCount, command); err != nil {
		return drainTimes, err
	}
	before, err := s.cpuTimes()
	if err != nil {
		return drainTimes, err
	}
	began := time.Now()
	if err := s.setWorkers(workers); err != nil {
		return drainTimes, err
	}
	if err := s.waitForState(queue.Completed, jobCount); err != nil {
		return drainTimes, err
	}
	drainTimes.elapsed = time.Since(began)
	after, err := s.cpuTimes()
	if err != nil {
		return drainTimes, err
	}
	drainTimes.serviceCPU = after.minus(before)
	drainTimes.totalCPU = drainTimes.serviceCPU.total()
	return drainTimes, nil
}
