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

// measureDrain measures how fast the service empties a full queue. It compares the time with that of a bare loop of
// commands, of xargs and of make.
func (b *bench) measureDrain() error {
	for _, workers := range []int{2, 8} {
		if err := b.drainWith(workers); err != nil {
			return err
		}
	}
	s, _, err := b.drainOnce(8, b.jobs, "printf "+printedText)
	if err != nil {
		return err
	}
	return b.checkAndRemove(s, b.jobs, printedText)
}

// drainWith measures drains, the bare loop, xargs and make with a number of workers.
func (b *bench) drainWith(workers int) error {
	var queuectl, bareRuns, xargs, makes []effort
	ways := []struct {
		run     func(workers, n int) (effort, error)
		results *[]effort
	}{{b.measureBareCommands, &bareRuns}, {b.drainChecked, &queuectl},
		{b.measureXargs, &xargs}, {b.measureMake, &makes}}
	for range b.pairs {
		for _, w := range ways {
			e, err := w.run(workers, b.jobs)
			if err != nil {
				return err
			}
			*w.results = append(*w.results, e)
		}
	}
	n := float64(b.jobs)
	figures := func(list []effort, of func(effort) time.Duration) []float64 {
		seconds := make([]float64, len(list))
		for i := range list {
			seconds[i] = of(list[i]).Seconds()
		}
		return seconds
	}
	wall := func(e effort) time.Duration { return e.wall }
	cpu := func(e effort) time.Duration { return e.cpu }
	name := fmt.Sprintf("drain, %d workers: ", workers)
	for _, o := range []struct {
		name     string
		list     []effort
		target   string
		maxRatio float64 // the measured ratio must be lower; 0 means that there is no target
	}{{"loop of fork and exec", bareRuns, "", 0}, {"`xargs -P`", xargs, "< 1", 1}, {"`make -j`", makes, "", 0}} {
		ratio := median(ratios(figures(queuectl, wall), figures(o.list, wall)))
		r := row{name + "jobs/s", rate(n / median(figures(queuectl, wall))),
			o.name + " " + rate(n/median(figures(o.list, wall))), asRatio(ratio), o.target, ""}
		if o.maxRatio == 0 {
			b.report.add(r.what, r.queuectl, r.limit, r.ratio)
		} else {
			b.report.judge(r, ratio < o.maxRatio)
		}
	}
	ratio := median(ratios(figures(queuectl, cpu), figures(bareRuns, cpu)))
	b.report.judge(row{name + "CPU time per job", us(median(figures(queuectl, cpu)) / n),
		"loop of fork and exec " + us(median(figures(bareRuns, cpu))/n),
		asRatio(ratio) + " (inverse " + asRatio(1/ratio) + ")", "≤ " + asRatio(maxCPURatio), ""}, ratio <= maxCPURatio)
	for _, o := range []struct {
		name string
		list []effort
	}{{"`xargs -P`", xargs}, {"`make -j`", makes}} {
		b.report.add(name+"CPU time per job", us(median(figures(queuectl, cpu))/n),
			o.name+" "+us(median(figures(o.list, cpu))/n),
			asRatio(median(ratios(figures(queuectl, cpu), figures(o.list, cpu)))))
	}
	service := median(figures(queuectl, func(e effort) time.Duration { return e.ownCost.service }))
	runner := median(figures(queuectl, func(e effort) time.Duration { return e.ownCost.runner }))
	children := median(figures(queuectl, func(e effort) time.Duration { return e.ownCost.children }))
	b.report.add(name+"CPU time of queuectl itself per job",
		fmt.Sprintf("service %s, runner %s", us(service/n), us(runner/n)), "the processes of the jobs "+us(children/n), "")
	return nil
}

// drainChecked fills a new queue with n jobs, lets the service run them, and checks that nothing was lost.
func (b *bench) drainChecked(workers, n int) (effort, error) {
	s, e, err := b.drainOnce(workers, n, "true")
	if err != nil {
		return e, err
	}
	return e, b.checkAndRemove(s, n, "")
}

// drainOnce fills a new queue with n jobs and measures how long the service takes to run them. The service
// keeps running.
func (b *bench) drainOnce(workers, n int, command string) (*service, effort, error) {
	s, err := b.serve()
	if err != nil {
		return nil, effort{}, err
	}
	e, err := s.drainQueue(workers, n, command)
	if err != nil {
		return nil, effort{}, errors.Join(err, s.stop())
	}
	return s, e, nil
}

// drainQueue fills the queue with n jobs and measures how long the workers take to run them.
func (s *service) drainQueue(workers, n int, command string) (e effort, err error) {
	if err := s.fill(n, command); err != nil {
		return e, err
	}
	before, err := s.cost()
	if err != nil {
		return e, err
	}
	began := time.Now()
	if err := s.scale(workers); err != nil {
		return e, err
	}
	if err := s.waitForState(queue.Completed, n); err != nil {
		return e, err
	}
	e.wall = time.Since(began)
	after, err := s.cost()
	if err != nil {
		return e, err
	}
	e.ownCost = after.minus(before)
	e.cpu = e.ownCost.total()
	return e, nil
}
