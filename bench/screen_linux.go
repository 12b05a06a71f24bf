package main

import (
	"errors"
	"fmt"
	"os/exec"
	"time"
)

// These constants are the targets and settings for the screen that queuectl prints without a command.
const (
	maxScreenTime = 15 * time.Millisecond // maximum time of one process that prints the screen
	// maxScreenRatio is the maximum ratio of the time for a full queue to that for a queue that fits on one screen.
	maxScreenRatio = 1.2
	screenful      = 100 // number of jobs that fit on one screen
)

// measureScreen measures how long queuectl takes to print the screen of a queue with many waiting and as many ended
// jobs. It compares the time with that of a queue that fits on one screen, and with that of `queuectl version`,
// which contacts no service.
func (b *bench) measureScreen() (err error) {
	n := b.size(1_000_000, 100_000)
	var few, full *service
	for jobs, s := range map[int]**service{screenful: &few, n: &full} {
		if *s, err = b.serveEnded(jobs); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, (*s).discard()) }()
		if err := (*s).fill(jobs, "true"); err != nil {
			return err
		}
	}
	var bareRuns, little, many []float64
	for range 8 * b.pairs {
		for _, one := range []struct {
			s       *service
			words   []string
			samples *[]float64
		}{{few, []string{"version"}, &bareRuns}, {few, nil, &little}, {full, nil, &many}} {
			cmd := exec.Command(b.bin, append([]string{"--dir", one.s.dir}, one.words...)...)
			cmd.Env = plainEnv(one.s.dir)
			began := time.Now()
			if err := cmd.Run(); err != nil {
				return fmt.Errorf("the command queuectl %v failed: %w", one.words, err)
			}
			*one.samples = append(*one.samples, time.Since(began).Seconds())
		}
	}
	what := fmt.Sprintf("default screen with %d waiting and %d ended jobs", n, n)
	b.report.judge(row{what, ms(median(many)) + " (worst " + ms(quantile(many, 1)) + ")",
		"`version` " + ms(median(bareRuns)), asRatio(median(many) / median(bareRuns)),
		"≤ " + ms(maxScreenTime.Seconds()), ""}, median(many) <= maxScreenTime.Seconds())
	ratio := median(ratios(many, little))
	b.report.judge(row{what + ", compared with a small queue", ms(median(many)),
		fmt.Sprintf("with %d jobs of each kind %s", screenful, ms(median(little))), asRatio(ratio),
		"≤ " + asRatio(maxScreenRatio), ""}, ratio <= maxScreenRatio)
	return nil
}
