package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// These constants are the targets and settings for an idle system.
const (
	// target for the median time that queuectl adds to a fork and exec
	maxJobStartOverhead = 1500 * time.Microsecond
	// maximum ratio of the times of `queuectl enqueue` and an empty program
	maxEnqueueToEmptyProgramRatio = 2.2
	// maximum ratio of the times of `queuectl enqueue` and of `pueue add`
	maxEnqueueToPueueRatio = 1.0
	pauseBetweenStarts     = 10 * time.Millisecond // pause before each measurement, so that the system is idle
)

// measureStarts measures the time from an enqueue request, sent while the queue is idle, until the job's
// process runs. The process reports its start through a FIFO. The baseline is a bare fork and exec of the same
// command.
func (b *bench) measureStarts(s *service) error {
	if err := s.setWorkers(2); err != nil {
		return err
	}
	fifo := filepath.Join(b.dir, "fifo")
	// The jobs may run as another account, which must be able to open the FIFO.
	if err := errors.Join(syscall.Mkfifo(fifo, 0o600), os.Chmod(fifo, 0o666), os.Chmod(b.dir, 0o711)); err != nil {
		return fmt.Errorf("cannot create a FIFO: %w", err)
	}
	// Open the FIFO for writing too. Otherwise a read would return end-of-file after each process closes the
	// FIFO.
	fd, err := syscall.Open(fifo, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot open the FIFO: %w", err)
	}
	defer syscall.Close(fd)
	c, err := s.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	command := "echo >" + fifo
	as := ""
	if b.jobUser != "" {
		as = fmt.Sprintf(`,"user":%q`, b.jobUser)
	}
	request := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":"enqueue","params":{"command":%q%s}}`+"\n", command, as)
	argv, env, buf := []string{"/bin/sh", "-c", command}, measuredProgramEnv(s.dir), make([]byte, 4096)
	n := b.itemsToMeasure(300, 100)
	var queuectl, bareRuns []float64
	for range n {
		d, err := measureProcessStart(fd, func() error { return runBareCommand(argv, env, buf) })
		if err != nil {
			return err
		}
		bareRuns = append(bareRuns, d)
		if d, err = measureProcessStart(fd, func() error { return c.sendRequest(request) }); err != nil {
			return err
		}
		queuectl = append(queuectl, d)
	}
	if err := s.waitForState(queue.Completed, n); err != nil {
		return err
	}
	over := median(queuectl) - median(bareRuns)
	b.results.addRowWithVerdict(row{"idle queue: time from the enqueue request to the start of the process, p50",
		formatMillis(median(queuectl)),
		"start of the process without queuectl " + formatMillis(median(bareRuns)),
		"+" + formatMillis(over), "≤ +" + formatMillis(maxJobStartOverhead.Seconds()), ""},
		over <= maxJobStartOverhead.Seconds())
	b.results.addRow("idle queue: time from the enqueue request to the start of the process, p99",
		formatMillis(quantile(queuectl, 0.99)),
		"start of the process without queuectl "+formatMillis(quantile(bareRuns, 0.99)),
		"+"+formatMillis(quantile(queuectl, 0.99)-quantile(bareRuns, 0.99)))
	return nil
}

// measureProcessStart calls startProcess. It returns the time, in seconds, until the started process writes to the
// FIFO.
func measureProcessStart(fifoDescriptor int, startProcess func() error) (float64, error) {
	time.Sleep(pauseBetweenStarts)
	written := make(chan time.Time, 1)
	go func() { // ends when the process has written its line
		var line [1]byte
		for {
			if _, err := syscall.Read(fifoDescriptor, line[:]); err != syscall.EINTR {
				break
			}
		}
		written <- time.Now()
	}()
	began := time.Now()
	if err := startProcess(); err != nil {
		return 0, err
	}
	select {
	case at := <-written:
		return at.Sub(began).Seconds(), nil
	case <-time.After(benchmarkWaitTimeout):
		return 0, errors.New("the job did not start")
	}
}

// measureEnqueueCommand measures the run time of `queuectl enqueue`. The baseline is a Go program that only prints a
// line. If pueue 4 is installed, measureEnqueueCommand also compares with `pueue add`, which does not wait for the
// disk. measureEnqueueCommand also measures two costs that no client can avoid: one request on a new connection, and
// one fsync.
func (b *bench) measureEnqueueCommand(s *service) error {
	enqueue := []string{b.queuectlPath, "--dir", s.dir, "enqueue", "true"}
	hello := []string{b.helloProgramPath}
	env, buf := measuredProgramEnv(s.dir), make([]byte, 4096)
	n := b.itemsToMeasure(200, 60)
	pueue, end, err := b.startPueue()
	if err != nil {
		return err
	}
	defer end()
	write, done, err := b.newDatabasePageWriter()
	if err != nil {
		return err
	}
	var queuectl, bareRuns, pueueRuns, requestTimes, fsyncTimes []float64
	for range n {
		for _, w := range []struct {
			argv    []string
			samples *[]float64
		}{{hello, &bareRuns}, {enqueue, &queuectl}, {pueue, &pueueRuns}} {
			if w.argv == nil {
				continue
			}
			began := time.Now()
			if err := runBareCommand(w.argv, env, buf); err != nil {
				return err
			}
			*w.samples = append(*w.samples, time.Since(began).Seconds())
		}
		for _, w := range []struct {
			do      func() error
			samples *[]float64
		}{{s.enqueueOnNewConn, &requestTimes}, {write, &fsyncTimes}} {
			began := time.Now()
			if err := w.do(); err != nil {
				return err
			}
			*w.samples = append(*w.samples, time.Since(began).Seconds())
		}
	}
	if err := done(); err != nil {
		return err
	}
	ratio := median(queuectl) / median(bareRuns)
	b.results.addRowWithVerdict(row{"run time of the command `queuectl enqueue`, p50", formatMillis(median(queuectl)),
		"Go program that prints one line " + formatMillis(median(bareRuns)) + " (from connect to answer " +
			formatMillis(median(requestTimes)) + ", an fsync " + formatMillis(median(fsyncTimes)) + ")",
		formatRatio(ratio), "≤ " + formatRatio(maxEnqueueToEmptyProgramRatio), ""}, ratio <= maxEnqueueToEmptyProgramRatio)
	if pueue != nil {
		ratio := median(queuectl) / median(pueueRuns)
		b.results.addRowWithVerdict(row{"run time of the command `queuectl enqueue`, p50", formatMillis(median(queuectl)),
			"`pueue add` " + formatMillis(median(pueueRuns)), formatRatio(ratio), "≤ " + formatRatio(maxEnqueueToPueueRatio),
			""}, ratio <= maxEnqueueToPueueRatio)
	}
	return nil
}

// enqueueOnNewConn enqueues one job over a new connection.
func (s *service) enqueueOnNewConn() error {
	l, err := s.dial()
	if err != nil {
		return err
	}
	defer l.Close()
	return l.sendRequest(encodedEnqueueRequest)
}

// startPueue starts the daemon of pueue in a new directory, and pauses it. It returns the command that adds a
// job, or nil if pueue is not installed. The returned function ends the daemon.
func (b *bench) startPueue() (addCommand []string, stopDaemon func(), err error) {
	bin, notHere := exec.LookPath("pueue")
	daemon, err := exec.LookPath("pueued")
	if notHere != nil || err != nil {
		return nil, func() {}, nil
	}
	dir := filepath.Join(b.dir, "pueue")
	config := filepath.Join(dir, "pueue.yml")
	text := fmt.Sprintf("shared:\n  pueue_directory: %s\n  runtime_directory: %[1]s\n  use_unix_socket: true\n", dir)
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(config, []byte(text), 0o600)); err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(daemon, "-c", config)
	cmd.Env = measuredProgramEnv(dir)
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	stopDaemon = func() {
		cmd.Process.Kill()
		cmd.Wait()
	}
	for since := time.Now(); ; time.Sleep(pauseBetweenStarts) {
		pause := exec.Command(bin, "-c", config, "pause")
		pause.Env = cmd.Env
		out, err := pause.CombinedOutput()
		if err == nil {
			return []string{bin, "-c", config, "add", "true"}, stopDaemon, nil
		}
		if time.Since(since) > benchmarkWaitTimeout {
			stopDaemon()
			return nil, nil, fmt.Errorf("pueue does not answer: %w: %s", err, out)
		}
	}
}
