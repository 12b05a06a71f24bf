package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

const (
	jobsInBatchFile       = 100_000 // number of jobs in the file
	minBatchJobsPerSecond = 40_000  // minimum rate of a batch, in jobs per second
	// maxOtherClientP99Latency is the maximum 99th percentile of the enqueue latency of another client, while the batch is
	// enqueued.
	maxOtherClientP99Latency = 50 * time.Millisecond
)

// measureBatch measures how fast a client enqueues a file of jobs that contains an id for each job. It also measures
// how long the enqueues of another client take while the file is enqueued.
func (b *bench) measureBatch(s *service) error {
	n := b.itemsToMeasure(jobsInBatchFile, jobsInBatchFile/10)
	var fileBatches, duringBatch, withoutBatch throughput
	for i := range b.measurementRounds {
		idle, err := s.enqueueConcurrently(1, time.Second)
		if err != nil {
			return err
		}
		withoutBatch.latencySeconds = append(withoutBatch.latencySeconds, idle.latencySeconds...)
		file := filepath.Join(b.dir, "jobs.jsonl")
		if err := writeJobsFile(file, i, n); err != nil {
			return err
		}
		var elapsed time.Duration
		other, err := s.measureEnqueuesDuring(func() error {
			began := time.Now()
			err := b.enqueueJobsFile(s, file, n)
			elapsed = time.Since(began)
			return err
		})
		if err != nil {
			return err
		}
		fileBatches.ratesPerSecond = append(fileBatches.ratesPerSecond, float64(n)/elapsed.Seconds())
		duringBatch.latencySeconds = append(duringBatch.latencySeconds, other.latencySeconds...)
	}
	b.results.addRowWithVerdict(row{fmt.Sprintf("`enqueue --file` with %d named jobs", n), fileBatches.String(), "", "",
		"≥ " + formatRate(minBatchJobsPerSecond), ""}, median(fileBatches.ratesPerSecond) >= minBatchJobsPerSecond)
	p99 := quantile(duringBatch.latencySeconds, 0.99)
	b.results.addRowWithVerdict(row{"`enqueue` by another client during this `enqueue --file`, p99",
		formatMillis(p99) + fmt.Sprintf(" (worst %s)", formatMillis(quantile(duringBatch.latencySeconds, 1))),
		"without `enqueue --file` " + formatMillis(quantile(withoutBatch.latencySeconds, 0.99)), "",
		"≤ " + formatMillis(maxOtherClientP99Latency.Seconds()), ""}, p99 <= maxOtherClientP99Latency.Seconds())
	return nil
}

// writeJobsFile writes a file of n jobs, one per line. The job ids contain fileNumber, so no two files contain the
// same id.
func writeJobsFile(path string, fileNumber, jobCount int) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(f)
	for i := range jobCount {
		fmt.Fprintf(out, `{"id":"file%d-job%06d","command":"true"}`+"\n", fileNumber, i)
	}
	return errors.Join(out.Flush(), f.Close())
}

// enqueueJobsFile enqueues a file of jobs with the shipped program, and checks that the program prints jobCount ids.
func (b *bench) enqueueJobsFile(s *service, file string, jobCount int) error {
	cmd := exec.Command(b.queuectlPath, "--dir", s.dir, "enqueue", "--file", file)
	cmd.Env = measuredProgramEnv(s.dir)
	out, err := cmd.Output()
	if ids := bytes.Count(out, []byte("\n")); err == nil && ids != jobCount {
		err = fmt.Errorf("the command printed %d ids, want %d", ids, jobCount)
	}
	if err != nil {
		return fmt.Errorf("cannot enqueue a file: %w", err)
	}
	return nil
}

// measureEnqueuesDuring calls operation. Until operation returns, a client enqueues jobs, one request at a time.
// measureEnqueuesDuring returns how long each of these requests took.
func (s *service) measureEnqueuesDuring(operation func() error) (throughput, error) {
	l, err := s.dial()
	if err != nil {
		return throughput{}, err
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() { done <- operation() }() // the loop below ends when this goroutine has ended
	var c throughput
	for {
		select {
		case err := <-done:
			return c, err
		default:
		}
		began := time.Now()
		if err := l.sendRequest(encodedEnqueueRequest); err != nil {
			return c, errors.Join(err, <-done)
		}
		c.latencySeconds = append(c.latencySeconds, time.Since(began).Seconds())
	}
}
