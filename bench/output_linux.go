package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// maxOutputToCatTimeRatio is the target for a client that prints a job's output on a terminal: the maximum ratio of the
// client's time to the time of cat for the same output.
const maxOutputToCatTimeRatio = 2

// measureOutput measures how fast `queuectl run` and `queuectl attach` print output with carriage returns on a
// terminal. It compares them with cat. The program script(1) provides the terminals.
func (b *bench) measureOutput(s *service) (err error) {
	if _, err := exec.LookPath("script"); err != nil {
		return fmt.Errorf("cannot measure the output on a terminal: %w", err)
	}
	size := b.itemsToMeasure(500_000_000, 50_000_000)
	file, gate := filepath.Join(s.dir, "printed"), filepath.Join(s.dir, "gate")
	lines := bytes.Repeat(append(bytes.Repeat([]byte("copied 0012345 of 0999999 files\r"), 40),
		"done with one of them\n"...), 1000)
	if err := errors.Join(s.setWorkers(1), os.WriteFile(file, bytes.Repeat(lines, size/len(lines)+1), 0o644),
		syscall.Mkfifo(gate, 0o600)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(file)) }()
	client := b.queuectlPath + " --dir " + s.dir
	var catTimes, runTimes, attachTimes []float64
	for i := range max(3, b.measurementRounds/3) {
		id := fmt.Sprintf("attached-%d", i)
		enqueue := exec.Command(b.queuectlPath, "--dir", s.dir, "enqueue", "-q", "--id", id, "--output-limit", "1G",
			"read go <"+gate+"; exec cat "+file)
		if out, err := enqueue.CombinedOutput(); err != nil {
			return fmt.Errorf("cannot enqueue a job: %w: %s", err, out)
		}
		for _, one := range []struct {
			commandLine  string
			waitsForGate bool // the job starts to print only after the benchmark writes to the FIFO
			samples      *[]float64
		}{{client + " attach " + id, true, &attachTimes}, {"cat " + file, false, &catTimes},
			{client + " run --output-limit 1G -- cat " + file, false, &runTimes}} {
			took, err := timeCommandOnTerminal(one.commandLine, measuredProgramEnv(s.dir), func() error {
				if !one.waitsForGate {
					return nil
				}
				return os.WriteFile(gate, []byte("go\n"), 0o600)
			})
			if err != nil {
				return err
			}
			*one.samples = append(*one.samples, took)
		}
	}
	for _, r := range []struct {
		subcommand string
		times      []float64
	}{{"run", runTimes}, {"attach", attachTimes}} {
		ratio := median(pairwiseRatios(r.times, catTimes))
		b.results.addRowWithVerdict(row{fmt.Sprintf("print %d MB with carriage returns on a terminal: `%s`", size/1_000_000,
			r.subcommand),
			fmt.Sprintf("%.2f s", median(r.times)), fmt.Sprintf("cat %.2f s", median(catTimes)), formatRatio(ratio),
			"≤ " + formatRatio(maxOutputToCatTimeRatio), ""}, ratio <= maxOutputToCatTimeRatio)
	}
	return nil
}

// timeCommandOnTerminal starts a command on a terminal and then calls onStarted. It returns the time from the call of
// onStarted to the end of the command, in seconds.
func timeCommandOnTerminal(commandLine string, env []string, onStarted func() error) (seconds float64, err error) {
	cmd := exec.Command("script", "-qec", commandLine, os.DevNull)
	cmd.Env = env
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	began := time.Now()
	begun := onStarted()
	if err := errors.Join(begun, cmd.Wait()); err != nil {
		return 0, fmt.Errorf("%s: %w: %s", commandLine, err, stderr.String())
	}
	return time.Since(began).Seconds(), nil
}
