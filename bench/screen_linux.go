package main

import (
	"errors"
	"fmt"
	"time"
)

// Targets of the first look, as a process.
const (
	maxScreen      = 15 * time.Millisecond
	maxScreenRatio = 1.3 // of a full queue's look to an empty one's
)

// screen measures the first look, `queuectl` alone, on an empty queue and on one that
// remembers a million ended jobs, and then has a million waiting too.
func (b *bench) screen(empty *service) (err error) {
	n := b.size(1_000_000, 100_000)
	full, err := b.serveEnded(n)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, full.discard()) }()
	if err := b.judgeScreens(empty, full, fmt.Sprintf("%d ended", n)); err != nil {
		return err
	}
	if err := full.fill(n, "true"); err != nil {
		return err
	}
	return b.judgeScreens(empty, full, fmt.Sprintf("%d ended and %d waiting", n, n))
}

// judgeScreens judges the look at a full queue beside that at an empty one, and `queuectl version`.
func (b *bench) judgeScreens(empty, full *service, what string) error {
	env, buf := plainEnv(full.dir), make([]byte, 4096)
	var version, none, all []float64
	for range b.size(200, 40) {
		for _, w := range []struct {
			argv []string
			into *[]float64
		}{{[]string{b.bin, "version"}, &version}, {[]string{b.bin, "--dir", empty.dir}, &none}, {[]string{b.bin, "--dir", full.dir}, &all}} {
			began := time.Now()
			if err := runBare(w.argv, env, buf); err != nil {
				return err
			}
			*w.into = append(*w.into, time.Since(began).Seconds())
		}
	}
	b.report.judge(row{"`queuectl` alone, as a process, with " + what + ", p50", ms(median(all)), "`queuectl version` " + ms(median(version)), "worst " + ms(quantile(all, 1)), "≤ " + ms(maxScreen.Seconds()), ""},
		median(all) <= maxScreen.Seconds())
	ratio := median(all) / median(none)
	b.report.judge(row{"the same", ms(median(all)), "with none " + ms(median(none)), times(ratio), "≤ " + times(maxScreenRatio), ""}, ratio <= maxScreenRatio)
	return nil
}
