package main

import (
	"errors"
	"fmt"
	"os/exec"
	"time"
)

// These constants are the targets and settings for the default screen, which queuectl prints if it is called
// without arguments.
const (
	maxScreenPrintTime = 15 * time.Millisecond // maximum run time of one queuectl process that prints the default screen
	// maxFullToSmallScreenRatio is the maximum ratio of the time for a full queue to the time for a queue that fits on one
	// screen.
	maxFullToSmallScreenRatio = 1.2
	jobsPerScreen             = 100 // number of jobs that fit on one screen
)

// measureScreen measures how long queuectl takes to print the default screen of a queue with a million waiting
// and a million ended jobs. One baseline is a queue that fits on one screen. The other is `queuectl version`,
// which does not contact the service.
func (b *bench) measureScreen() (err error) {
	n := b.itemsToMeasure(1_000_000, 100_000)
	var smallQueue, fullQueue *service
	for jobs, s := range map[int]**service{jobsPerScreen: &smallQueue, n: &fullQueue} {
		if *s, err = b.startServiceWithEndedJobs(jobs); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, (*s).stopAndRemoveDir()) }()
		if err := (*s).fillQueue(jobs, "true"); err != nil {
			return err
		}
	}
	var bareRuns, smallTimes, fullTimes []float64
	for range 8 * b.measurementRounds {
		for _, one := range []struct {
			s       *service
			args    []string
			samples *[]float64
		}{{smallQueue, []string{"version"}, &bareRuns}, {smallQueue, nil, &smallTimes}, {fullQueue, nil, &fullTimes}} {
			cmd := exec.Command(b.queuectlPath, append([]string{"--dir", one.s.dir}, one.args...)...)
			cmd.Env = measuredProgramEnv(one.s.dir)
			began := time.Now()
			if err := cmd.Run(); err != nil {
				return fmt.Errorf("the command queuectl %v failed: %w", one.args, err)
			}
			*one.samples = append(*one.samples, time.Since(began).Seconds())
		}
	}
	what := fmt.Sprintf("default screen with %d waiting and %d ended jobs", n, n)
	b.results.addRowWithVerdict(row{what, formatMillis(median(fullTimes)) + " (worst " +
		formatMillis(quantile(fullTimes, 1)) + ")",
		"`version` " + formatMillis(median(bareRuns)), formatRatio(median(fullTimes) / median(bareRuns)),
		"≤ " + formatMillis(maxScreenPrintTime.Seconds()), ""}, median(fullTimes) <= maxScreenPrintTime.Seconds())
	ratio := median(pairwiseRatios(fullTimes, smallTimes))
	b.results.addRowWithVerdict(row{what + ", compared with a small queue", formatMillis(median(fullTimes)),
		fmt.Sprintf("with %d jobs of each kind %s", jobsPerScreen, formatMillis(median(smallTimes))), formatRatio(ratio),
		"≤ " + formatRatio(maxFullToSmallScreenRatio), ""}, ratio <= maxFullToSmallScreenRatio)
	return nil
}
