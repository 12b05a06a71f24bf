package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// These constants apply to a drain: the service runs all jobs of a full queue.
const (
	maxCPURatio = 1 / 0.85 // maximum ratio of the CPU time per job to that per command in the bare loop
	printedText = "abc"    // output of each job, in the run that checks the stored outputs
)

// measureDrain measures how fast the service empties a full queue. For comparison, it also runs the same number
// of commands in a bare loop, with xargs and with make.
func (b *bench) measureDrain() error {
	for _, workers := range []int{2, 8} {
		if err := b.measureDrainsWith(workers); err != nil {
			return err
		}
	}
	s, _, err := b.drainNewQueue(8, b.drainJobs, "printf "+printedText)
	if err != nil {
		return err
	}
	return b.checkAndRemove(s, b.drainJobs, printedText)
}

// measureDrainsWith measures the service, the bare loop, xargs and make with the given number of workers.
func (b *bench) measureDrainsWith(workers int) error {
	var queuectl, bareRuns, xargs, makes []timing
	ways := []struct {
		run     func(workers, n int) (timing, error)
		results *[]timing
	}{{b.measureBareCommands, &bareRuns}, {b.drainAndCheck, &queuectl},
		{b.measureXargs, &xargs}, {b.measureMake, &makes}}
	for range b.rounds {
		for _, w := range ways {
			e, err := w.run(workers, b.drainJobs)
			if err != nil {
				return err
			}
			*w.results = append(*w.results, e)
		}
	}
	n := float64(b.drainJobs)
	figures := func(timings []timing, metric func(timing) time.Duration) []float64 {
		seconds := make([]float64, len(timings))
		for i := range timings {
			seconds[i] = metric(timings[i]).Seconds()
		}
		return seconds
	}
	wall := func(e timing) time.Duration { return e.wall }
	cpu := func(e timing) time.Duration { return e.cpu }
	name := fmt.Sprintf("drain, %d workers: ", workers)
	for _, o := range []struct {
		name     string
		timings  []timing
		target   string
		maxRatio float64 // the measured ratio must be lower than this; 0 means that there is no target
	}{{"loop of fork and exec", bareRuns, "", 0}, {"`xargs -P`", xargs, "< 1", 1}, {"`make -j`", makes, "", 0}} {
		ratio := median(ratios(figures(queuectl, wall), figures(o.timings, wall)))
		r := row{name + "jobs/s", formatRate(n / median(figures(queuectl, wall))),
			o.name + " " + formatRate(n/median(figures(o.timings, wall))), formatRatio(ratio), o.target, ""}
		if o.maxRatio == 0 {
			b.report.add(r.measurement, r.queuectl, r.baseline, r.ratio)
		} else {
			b.report.judge(r, ratio < o.maxRatio)
		}
	}
	ratio := median(ratios(figures(queuectl, cpu), figures(bareRuns, cpu)))
	b.report.judge(row{name + "CPU time per job", formatMicros(median(figures(queuectl, cpu)) / n),
		"loop of fork and exec " + formatMicros(median(figures(bareRuns, cpu))/n),
		formatRatio(ratio) + " (inverse " + formatRatio(1/ratio) + ")", "≤ " + formatRatio(maxCPURatio), ""},
		ratio <= maxCPURatio)
	for _, o := range []struct {
		name    string
		timings []timing
	}{{"`xargs -P`", xargs}, {"`make -j`", makes}} {
		b.report.add(name+"CPU time per job", formatMicros(median(figures(queuectl, cpu))/n),
			o.name+" "+formatMicros(median(figures(o.timings, cpu))/n),
			formatRatio(median(ratios(figures(queuectl, cpu), figures(o.timings, cpu)))))
	}
	service := median(figures(queuectl, func(e timing) time.Duration { return e.serviceCPU.service }))
	runner := median(figures(queuectl, func(e timing) time.Duration { return e.serviceCPU.runner }))
	children := median(figures(queuectl, func(e timing) time.Duration { return e.serviceCPU.children }))
	b.report.add(name+"CPU time of queuectl itself per job",
		fmt.Sprintf("service %s, runner %s", formatMicros(service/n), formatMicros(runner/n)),
		"the processes of the jobs "+formatMicros(children/n), "")
	return nil
}

// drainAndCheck fills a new queue with n jobs, lets the service run them, and checks that nothing was lost.
func (b *bench) drainAndCheck(workers, n int) (timing, error) {
	s, e, err := b.drainNewQueue(workers, n, "true")
	if err != nil {
		return e, err
	}
	return e, b.checkAndRemove(s, n, "")
}

// drainNewQueue fills a new queue with n jobs and measures how long the service takes to run them. The service
// keeps running.
func (b *bench) drainNewQueue(workers, n int, command string) (*service, timing, error) {
	s, err := b.startService()
	if err != nil {
		return nil, timing{}, err
	}
	e, err := s.fillAndDrain(workers, n, command)
	if err != nil {
		return nil, timing{}, errors.Join(err, s.stop())
	}
	return s, e, nil
}

// fillAndDrain fills the queue with n jobs and measures how long the workers take to run them.
func (s *service) fillAndDrain(workers, n int, command string) (e timing, err error) {
	if err := s.fillQueue(n, command); err != nil {
		return e, err
	}
	before, err := s.cpuTimes()
	if err != nil {
		return e, err
	}
	began := time.Now()
	if err := s.setWorkers(workers); err != nil {
		return e, err
	}
	if err := s.waitForState(queue.Completed, n); err != nil {
		return e, err
	}
	e.wall = time.Since(began)
	after, err := s.cpuTimes()
	if err != nil {
		return e, err
	}
	e.serviceCPU = after.minus(before)
	e.cpu = e.serviceCPU.total()
	return e, nil
}
