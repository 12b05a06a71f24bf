package worker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/worker"
)

// runPool runs a pool until the test ends, with its runners in rootDir. It returns when the pool is ready.
func runPool(t *testing.T, s store.Session, rootDir string, workerCount int) *worker.Pool {
	t.Helper()
	var poolErr <-chan error
	t.Cleanup(func() { // this cleanup runs after the one that ends the pool
		if poolErr == nil {
			return // the pool never ran
		}
		if err := <-poolErr; err != nil {
			t.Errorf("the pool ended: got error %v, want none", err)
		}
	})
	var p *worker.Pool
	p, poolErr = runPoolThatMayFail(t, s, rootDir, workerCount)
	return p
}

// runPoolThatMayFail is like runPool, for a pool that may end with an error. The returned channel receives the error.
func runPoolThatMayFail(t *testing.T, s store.Session, rootDir string, workerCount int) (*worker.Pool, <-chan error) {
	t.Helper()
	logs, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { logs.Close() })
	// If the pool starts a runner, it is the one named "second".
	command := runnerStarterCommand(t, uniqueRunnerName(rootDir, "second"), "", "")
	return runPoolAtLocation(t, s, runner.RunnersLocation{RunnersDir: rootDir, RunnerCommand: command, RunnerLog: logs},
		workerCount)
}

// runnerStarterArg is the first argument with which the test binary acts as the command that starts runners (see
// runnerStarterCommand).
const runnerStarterArg = "start-a-runner"

// runnerStarterCommand returns a command that starts runners. Each call adds a line to one file (callLogPath), and
// waits until another file (waitFilePath) exists. It then prints runnerName, with # replaced by the number of the call.
// If callLogPath or waitFilePath is empty, the command skips the step with this file. If runnerName is empty, the
// command fails.
func runnerStarterCommand(t *testing.T, runnerName, callLogPath, waitFilePath string) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{self, runnerStarterArg, runnerName, callLogPath, waitFilePath}
}

// TestMain runs runRunnerStarter instead of the tests if runnerStarterArg is the first argument.
func TestMain(m *testing.M) {
	if len(os.Args) > 4 && os.Args[1] == runnerStarterArg {
		runRunnerStarter(os.Args[2], os.Args[3], os.Args[4])
		os.Exit(1) // reached only if runRunnerStarter got no name to print
	}
	os.Exit(m.Run())
}

// runRunnerStarter does the work of the command that runnerStarterCommand returns.
func runRunnerStarter(runnerName, callLogPath, waitFilePath string) {
	calls := 0
	if callLogPath != "" {
		f, err := os.OpenFile(callLogPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			panic(err)
		}
		fmt.Fprintln(f)
		f.Close()
		calls = countLines(callLogPath)
	}
	for waitFilePath != "" {
		if _, err := os.Stat(waitFilePath); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if runnerName != "" {
		runner.ReportReady(strings.Replace(runnerName, "#", strconv.Itoa(calls), 1))
	}
}

// countLines returns the number of lines in a file; 0 if it does not exist.
func countLines(path string) int {
	text, _ := os.ReadFile(path) // the file is missing before the command's first call
	return bytes.Count(text, []byte("\n"))
}

// poolConfig returns the configuration of a pool that uses the runners at a location.
func poolConfig(location runner.RunnersLocation) worker.Config {
	return worker.Config{
		ServiceVersion: testVersion, NodeName: "here",
		RunnerLocation:       location,
		Account:              worker.Account{UserName: "u", HomeDir: "/", ShellPath: "/bin/sh"},
		Log:                  slog.New(slog.DiscardHandler),
		CheckJobMayStart:     checkJobMayStart,
		HungRunnerAdvice:     func(int64) string { return "end it" },
		UserQuotaBytes:       func() int64 { return 0 },
		StoreTime:            func() queue.UnixMillis { return queue.UnixMillisOf(time.Now()) },
		AttemptTraceparent:   func(*queue.Job) string { return "" },
		OnAttemptEnded:       func(*queue.Job, *store.Settlement) {},
		AreRunningJobsPaused: func(string) bool { return false },
		RetryPolicy:          func() queue.RetryPolicy { return queue.RetryPolicy{BaseSeconds: 2, MaxDelay: time.Hour} },
		StopTimeout:          func() time.Duration { return 0 },
		OutputGrace:          func() time.Duration { return time.Second },
		SettleDelay:          func() time.Duration { return 0 },
		HeartbeatInterval:    func() time.Duration { return time.Hour },
		WorkerStaleAfter:     func() time.Duration { return time.Hour },
	}
}

// unexpectedEventHandler is a log handler that fails the test if the pool logs an event that does not fit the phase of
// its lease.
type unexpectedEventHandler struct {
	slog.Handler
	t *testing.T
}

// Enabled implements slog.Handler.
func (h unexpectedEventHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level == slog.LevelError
}

// Handle implements slog.Handler.
func (h unexpectedEventHandler) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "does not fit the phase") {
		r.Attrs(func(a slog.Attr) bool { h.t.Error(r.Message, a); return true })
	}
	return nil
}

// runPoolAtLocation is like runPoolThatMayFail, but takes the location of the runners.
func runPoolAtLocation(t *testing.T, s store.Session, location runner.RunnersLocation, workerCount int) (*worker.Pool,
	<-chan error) {
	t.Helper()
	cfg := poolConfig(location)
	cfg.Log = slog.New(unexpectedEventHandler{slog.DiscardHandler, t})
	p := worker.New(s, cfg, workerCount)
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	var loop sync.WaitGroup
	loop.Go(func() { ended <- p.Run(ctx, func() { close(ready) }) })
	t.Cleanup(func() {
		cancel()
		loop.Wait()
	})
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("the pool ended before it was ready: %v", err)
	case <-time.After(eventTimeout):
		t.Fatal("the pool is not ready")
	}
	return p, ended
}

// Jobs with firstForbiddenUID or a higher uid may not start. Jobs with otherNodeOnlyUID may start only on other
// nodes.
const (
	firstForbiddenUID = 60_000
	otherNodeOnlyUID  = 59_999
)

// checkJobMayStart implements Config.CheckJobMayStart.
func checkJobMayStart(j *queue.Job) error {
	if j.UID == otherNodeOnlyUID {
		return fmt.Errorf("%w: no account", worker.ErrJobNeedsOtherNode)
	}
	if j.UID >= firstForbiddenUID {
		return errors.New("another account's")
	}
	return nil
}

// checkEqual fails the test if two values look different when they are printed.
func checkEqual(t *testing.T, subject string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: got %v, want %v", subject, got, want)
	}
}
