package main

import (
	"errors"
	"fmt"
	"time"
)

// Targets of the first look, as a process.
const (
	maxScreen      = 15 * time.Millisecond
	maxScreenRatio = 1.3  // of a full queue's look to that at one which fills the screen as well
	fewJobs        = 2000 // of that one, ended and waiting: as many as one look reads at most
)

// screen measures the first look, `queuectl` alone, on a queue that remembers a million ended jobs
// and then has a million waiting too, beside one of a few of each.
func (b *bench) screen() (err error) {
	n := b.size(1_000_000, 100_000)
	full, err := b.serveEnded(n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, full.discard()) }()
	few, err := b.serveEnded(fewJobs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, few.discard()) }()
	if err := b.judgeScreens(few, full, fmt.Sprintf("%d ended", n)); err != nil {
		return err
	}
	if err := errors.Join(few.fill(fewJobs, "true"), full.fill(n, "true")); err != nil {
		return err
	}
	return b.judgeScreens(few, full, fmt.Sprintf("%d ended and %d waiting", n, n))
}

// judgeScreens judges the look at a full queue beside that at one of a few jobs, and `queuectl version`.
func (b *bench) judgeScreens(few, full *service, what string) error {
	env, buf := plainEnv(full.dir), make([]byte, 4096)
	var version, some, all []float64
	for range b.size(200, 40) {
		for _, w := range []struct {
			argv []string
			into *[]float64
		}{{[]string{b.bin, "version"}, &version}, {[]string{b.bin, "--dir", few.dir}, &some}, {[]string{b.bin, "--dir", full.dir}, &all}} {
			began := time.Now()
			if err := runBare(w.argv, env, buf); err != nil {
				return err
			}
			*w.into = append(*w.into, time.Since(began).Seconds())
		}
	}
	b.report.judge(row{"`queuectl` alone, as a process, with " + what + ", p50", ms(median(all)), "`queuectl version` " + ms(median(version)), "worst " + ms(quantile(all, 1)), "≤ " + ms(maxScreen.Seconds()), ""},
		median(all) <= maxScreen.Seconds())
	ratio := median(ratios(all, some))
	b.report.judge(row{"the same", ms(median(all)), fmt.Sprintf("with %d of each ", fewJobs) + ms(median(some)), times(ratio), "≤ " + times(maxScreenRatio), ""}, ratio <= maxScreenRatio)
	return nil
}
