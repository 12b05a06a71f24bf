package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/queuectl/queuectl/queue"
)

const (
	minEnqueuesPerSecond = 20_000 // minimum number of enqueues per second, by 64 clients together
	databasePageBytes    = 4096   // size of a database page
)

// encodedEnqueueRequest is the request that the enqueue measurements send.
var encodedEnqueueRequest = []byte(`{"jsonrpc":"2.0","id":1,"method":"enqueue","params":{"command":"true"}}` + "\n")

// measureEnqueue measures enqueues through the socket. The service stores each job durably before it replies.
// The baselines are a loop of write and fsync, and the same inserts in SQLite without a service.
func (b *bench) measureEnqueue(s *service) error {
	raw, err := b.newSQLiteOnlyQueue(s)
	if err != nil {
		return err
	}
	defer raw.close()
	span := time.Duration(b.itemsToMeasure(1000, 500)) * time.Millisecond
	var oneClient, manyClients, rawEnqueues, fsyncs, batches, rawBatches throughput
	for range b.measurementRounds {
		for _, w := range []struct {
			run    func() (throughput, error)
			result *throughput
		}{
			{func() (throughput, error) { return b.repeatWriteAndFsync(span) }, &fsyncs},
			{func() (throughput, error) { return raw.enqueueForDuration(span) }, &rawEnqueues},
			{func() (throughput, error) { return s.enqueueConcurrently(1, span) }, &oneClient},
			{func() (throughput, error) { return s.enqueueConcurrently(64, span) }, &manyClients},
			{func() (throughput, error) { return raw.enqueueBatch(queue.MaxJobsPerRequest) }, &rawBatches},
			{func() (throughput, error) { return s.enqueueBatch(queue.MaxJobsPerRequest) }, &batches},
		} {
			c, err := w.run()
			if err != nil {
				return err
			}
			w.result.ratesPerSecond = append(w.result.ratesPerSecond, c.ratesPerSecond...)
			w.result.latencySeconds = append(w.result.latencySeconds, c.latencySeconds...)
		}
	}
	compare := func(measurement string, measured, baseline *throughput, baselineName string) {
		b.results.addRow(measurement, measured.String(), baselineName+" "+baseline.String(),
			formatRatio(median(pairwiseRatios(measured.ratesPerSecond, baseline.ratesPerSecond))))
	}
	compare("durable enqueues, 1 client", &oneClient, &fsyncs, "write + fsync")
	compare("durable enqueues, 1 client", &oneClient, &rawEnqueues, "SQLite without queuectl")
	compare("durable enqueues, 64 clients", &manyClients, &fsyncs, "write + fsync")
	b.results.addRowWithVerdict(row{"durable enqueues, 64 clients", manyClients.String(),
		"SQLite without queuectl " + rawEnqueues.String(),
		formatRatio(median(pairwiseRatios(manyClients.ratesPerSecond, rawEnqueues.ratesPerSecond))), "≥ " +
			formatRate(minEnqueuesPerSecond), ""}, median(manyClients.ratesPerSecond) >= minEnqueuesPerSecond)
	compare(fmt.Sprintf("one batch of %d jobs, in rows", queue.MaxJobsPerRequest), &batches, &rawBatches,
		"SQLite without queuectl, one commit")
	return nil
}

// throughput is the result of clients that enqueue jobs: the jobs per second of each run, and the duration of each
// request in seconds.
type throughput struct {
	ratesPerSecond, latencySeconds []float64
}

func (t *throughput) String() string {
	if len(t.latencySeconds) <= len(t.ratesPerSecond) {
		return formatRate(median(t.ratesPerSecond))
	}
	return fmt.Sprintf("%s (p50 %s, p99 %s)", formatRate(median(t.ratesPerSecond)), formatMillis(median(t.latencySeconds)),
		formatMillis(quantile(t.latencySeconds, 0.99)))
}

// enqueueConcurrently lets several clients enqueue for the given time. Each client has its own connection and waits for
// the reply before it sends the next request. The result covers all clients together.
func (s *service) enqueueConcurrently(clientCount int, duration time.Duration) (throughput, error) {
	lines := make([]*encodedRequestConn, clientCount)
	for i := range lines {
		var err error
		if lines[i], err = s.dial(); err != nil {
			return throughput{}, err
		}
		defer lines[i].Close()
	}
	waits := make([][]float64, clientCount)
	failed := make([]error, clientCount)
	var loops sync.WaitGroup
	began := time.Now()
	for i, l := range lines {
		loops.Go(func() {
			waits[i], failed[i] = repeatUntil(began.Add(duration), func() error { return l.sendRequest(encodedEnqueueRequest) })
		})
	}
	loops.Wait()
	took := time.Since(began).Seconds()
	var c throughput
	for _, w := range waits {
		c.latencySeconds = append(c.latencySeconds, w...)
	}
	c.ratesPerSecond = []float64{float64(len(c.latencySeconds)) / took}
	return c, errors.Join(failed...)
}

// repeatUntil calls a function repeatedly until the given time. It returns the duration of each call, in seconds.
func repeatUntil(deadline time.Time, operation func() error) (durationSeconds []float64, err error) {
	for now := time.Now(); now.Before(deadline); {
		if err := operation(); err != nil {
			return durationSeconds, err
		}
		next := time.Now()
		durationSeconds = append(durationSeconds, next.Sub(now).Seconds())
		now = next
	}
	return durationSeconds, nil
}

// enqueueBatch enqueues n jobs with one request.
func (s *service) enqueueBatch(jobCount int) (throughput, error) {
	l, err := s.dial()
	if err != nil {
		return throughput{}, err
	}
	defer l.Close()
	jobs := strings.TrimSuffix(strings.Repeat(`{"command":"true"},`, jobCount), ",")
	request := []byte(`{"jsonrpc":"2.0","id":1,"method":"enqueue.batch","params":{"jobs":[` + jobs + `],"commit":true}}` +
		"\n")
	began := time.Now()
	err = l.sendRequest(request)
	return throughput{ratesPerSecond: []float64{float64(jobCount) / time.Since(began).Seconds()}}, err
}

// repeatWriteAndFsync repeatedly writes a page to a file and syncs the file, for the given time.
func (b *bench) repeatWriteAndFsync(duration time.Duration) (throughput, error) {
	write, done, err := b.newDatabasePageWriter()
	if err != nil {
		return throughput{}, err
	}
	began := time.Now()
	waits, err := repeatUntil(began.Add(duration), write)
	return throughput{ratesPerSecond: []float64{float64(len(waits)) / time.Since(began).Seconds()}, latencySeconds: waits},
		errors.Join(err, done())
}

// newDatabasePageWriter creates a file and returns two functions. writePage writes the next page of the file and syncs
// the file; after the last page, it starts over with the first. So the file soon stops growing and needs no new disk
// blocks, like the write-ahead log of SQLite, which SQLite overwrites in the same way. closeFile closes the file.
func (b *bench) newDatabasePageWriter() (writePage, closeFile func() error, err error) {
	const pages = 1024
	f, err := os.Create(filepath.Join(b.dir, "synced"))
	if err != nil {
		return nil, nil, err
	}
	page := make([]byte, databasePageBytes)
	for range pages {
		if _, err = f.Write(page); err != nil {
			return nil, nil, errors.Join(err, f.Close())
		}
	}
	if err := f.Sync(); err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	n := int64(0)
	writePage = func() error {
		n++
		page[0] = byte(n)
		if _, err := f.WriteAt(page, n%pages*databasePageBytes); err != nil {
			return err
		}
		return syscall.Fsync(int(f.Fd()))
	}
	return writePage, f.Close, nil
}
