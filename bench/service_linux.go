package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/queue"
)

// benchmarkWaitTimeout bounds each wait of the benchmark for the service or for a process.
const benchmarkWaitTimeout = 5 * time.Minute

// service is one running service with its own directory.
type service struct {
	*control.Client
	dir           string
	rootRunnerDir string // directory of the runners that run as root; "" if the service starts its own runner
	jobUser       string // account that the jobs run as; "" if the service chooses the account
	launcher      *launcher
	cmd           *exec.Cmd
	processExit   chan error // receives the result of the process once it has ended
	ctx           context.Context
	cancel        context.CancelFunc
}

// startService starts the shipped program in a new directory, with default settings and without workers.
func (b *bench) startService() (*service, error) {
	b.startedServiceCount++
	dir := filepath.Join(b.dir, "q"+strconv.Itoa(b.startedServiceCount))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	return b.startServiceIn(dir)
}

// withFreshService returns a function that starts a service for measure, calls measure, and discards the
// service.
func withFreshService(measure func(*bench, *service) error) func(*bench) error {
	return func(b *bench) (err error) {
		s, err := b.startService()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.stopAndRemoveDir()) }()
		return measure(b, s)
	}
}

// startServiceIn starts a service in a directory, which may already contain a queue.
func (b *bench) startServiceIn(dir string) (*service, error) {
	log, err := os.Create(filepath.Join(dir, "stderr"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s := &service{dir: dir, jobUser: b.jobUser, processExit: make(chan error, 1)}
	args := []string{"serve", "--dir", dir}
	if b.jobUser != "" {
		more, err := s.startLauncher(b)
		if err != nil {
			return nil, err
		}
		args = append(args, more...)
	}
	s.cmd = exec.Command(b.queuectlPath, args...)
	s.cmd.Env = measuredProgramEnv(dir)
	s.cmd.Stderr = log
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { s.processExit <- s.cmd.Wait() }() // the method stop waits for this goroutine
	s.ctx, s.cancel = context.WithTimeout(context.Background(), benchmarkWaitTimeout)
	s.Client = control.NewClient(s.socketPath())
	for {
		text, _ := os.ReadFile(log.Name())
		if strings.Contains(string(text), "queuectl: ready on") {
			break
		}
		select {
		case err := <-s.processExit:
			s.processExit <- err
			return nil, fmt.Errorf("the service ended before it was ready: %w", errors.Join(err, errors.New(string(text))))
		case <-s.ctx.Done():
			return nil, errors.Join(errors.New("the service was not ready in time"), s.stop())
		case <-time.After(2 * time.Millisecond):
		}
	}
	if err := s.setWorkers(0); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// measuredProgramEnv returns the environment in which all measured programs run. homeDir is the value of HOME.
func measuredProgramEnv(homeDir string) []string {
	return []string{"HOME=" + homeDir, "PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "QUEUECTL_NO_START=1"}
}

func (s *service) socketPath() string { return filepath.Join(s.dir, "queuectl.sock") }
func (s *service) pid() int           { return s.cmd.Process.Pid }

// stop stops the service and its runner with SIGTERM, as systemd does.
func (s *service) stop() error {
	defer s.cancel()
	defer s.launcher.stop()
	s.Close()
	s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-s.processExit:
		s.processExit <- err
		return err
	case <-time.After(time.Minute):
		for _, pid := range append(s.runnerPIDs(), s.pid()) {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		return errors.New("the service did not stop within a minute")
	}
}

// stopAndRemoveDir stops the service and removes its directory.
func (s *service) stopAndRemoveDir() error { return errors.Join(s.stop(), os.RemoveAll(s.dir)) }

func (s *service) setWorkers(workerCount int) error {
	_, err := s.ScaleWorkers(s.ctx, control.WorkerScaleParams{TargetWorkers: workerCount})
	return err
}

// runnerPIDs returns the pids of the service's runners. The name of a runner's directory begins with its pid.
func (s *service) runnerPIDs() (pids []int) {
	entries, _ := os.ReadDir(cmp.Or(s.rootRunnerDir, filepath.Join(s.dir, "runner")))
	for _, e := range entries {
		word, _, _ := strings.Cut(e.Name(), ".")
		pid, err := strconv.Atoi(word)
		raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && bytes.Contains(raw, []byte("\x00runner\x00")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// fillQueue enqueues n jobs with the same command. It puts as many jobs as possible into each request.
func (s *service) fillQueue(n int, command string) error {
	for n > 0 {
		size := min(n, queue.MaxJobsPerRequest)
		jobs := make([]queue.Spec, size)
		for i := range jobs {
			jobs[i].Command = &command
			if s.jobUser != "" {
				jobs[i].User = &s.jobUser
			}
		}
		if _, err := s.EnqueueBatch(s.ctx, control.EnqueueBatchParams{Jobs: jobs, Commit: true}); err != nil {
			return err
		}
		n -= size
	}
	return nil
}

// waitForState polls the status of the service until at least jobCount jobs are in the given state. Each poll costs CPU
// time of the service and distorts the measurement. So waitForState estimates when the jobs will be ready, and polls
// rarely before that time.
func (s *service) waitForState(state queue.State, jobCount int) error {
	began := time.Now()
	first := int64(-1)
	for {
		st, err := s.Status(s.ctx, control.NoParams{})
		if err != nil {
			return err
		}
		have := st.Jobs[state.String()]
		if have >= int64(jobCount) {
			return nil
		}
		if first < 0 {
			first = have
		}
		pause := 100 * time.Millisecond
		if done := have - first; done > 0 {
			pause = time.Since(began) / time.Duration(done) * time.Duration(int64(jobCount)-have) / 2
		}
		select {
		case <-time.After(min(max(pause, 2*time.Millisecond), 100*time.Millisecond)):
		case <-s.ctx.Done():
			return fmt.Errorf("only %d of %d jobs are %s: %w", have, jobCount, state, s.ctx.Err())
		}
	}
}

// serviceCPUTimes contains CPU times: of the service process, of its runners, and of the child processes of the runners
// that have ended.
type serviceCPUTimes struct{ service, runner, endedRunnerChildren time.Duration }

func (c serviceCPUTimes) minus(o serviceCPUTimes) serviceCPUTimes {
	return serviceCPUTimes{c.service - o.service, c.runner - o.runner, c.endedRunnerChildren - o.endedRunnerChildren}
}

func (c serviceCPUTimes) total() time.Duration { return c.service + c.runner + c.endedRunnerChildren }

func (s *service) cpuTimes() (c serviceCPUTimes, err error) {
	if c.service, err = processCPU(s.pid()); err != nil {
		return c, err
	}
	for _, pid := range s.runnerPIDs() {
		own, err1 := processCPU(pid)
		children, err2 := endedChildrenCPUTime(pid)
		if err := errors.Join(err1, err2); err != nil {
			return c, err
		}
		c.runner, c.endedRunnerChildren = c.runner+own, c.endedRunnerChildren+children
	}
	return c, nil
}

// encodedRequestConn is a connection on which a client sends requests that were encoded in advance, so that the client
// uses almost no CPU time.
type encodedRequestConn struct {
	net.Conn
	reader *bufio.Reader
}

func (s *service) dial() (*encodedRequestConn, error) {
	c, err := net.Dial("unix", s.socketPath())
	if err != nil {
		return nil, err
	}
	return &encodedRequestConn{c, bufio.NewReaderSize(c, 64<<10)}, nil
}

// successReplyMember is part of every reply to a successful request.
var successReplyMember = []byte(`"result":`)

// sendRequest sends a request and waits for the reply. If the reply reports an error, sendRequest returns an error that
// contains the reply.
func (l *encodedRequestConn) sendRequest(payload []byte) error {
	if _, err := l.Write(payload); err != nil {
		return err
	}
	whole := false
	for {
		answer, err := l.reader.ReadSlice('\n')
		whole = whole || bytes.Contains(answer, successReplyMember)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil:
			return err
		case !whole:
			return fmt.Errorf("the service rejected the request: %s", answer)
		default:
			return nil
		}
	}
}
