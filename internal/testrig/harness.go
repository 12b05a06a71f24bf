//go:build linux || windows

package testrig

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// ProgramFileNames are the file names of the client and of the service, in this order.
var ProgramFileNames = []string{"queuectl" + ExecutableSuffix, "queuectld" + ExecutableSuffix}

// InstallPrograms copies both programs into targetDir, as a package does, and returns the path of the copied queuectl.
// queuectlPath is the path of the original queuectl. queuectld is in the same directory. InstallPrograms may replace
// earlier copies. Processes that run an earlier copy continue.
func InstallPrograms(t testing.TB, queuectlPath, targetDir string) string {
	t.Helper()
	for _, name := range ProgramFileNames {
		CopyProgram(t, filepath.Join(filepath.Dir(queuectlPath), name), filepath.Join(targetDir, name))
	}
	return filepath.Join(targetDir, ProgramFileNames[0])
}

// Harness is a state directory (the files of one queue) and its service. Tests can kill and restart the service.
type Harness struct {
	testing.TB
	osSpecificFields
	ClientPath  string    // path of the client, queuectl
	StateDir    string    // state directory; with slashes on Windows too, so that a shell reads the path unchanged
	ServiceEnv  []string  // environment variables of the service, in addition to those that UserEnvironment returns
	StoreURL    string    // URL of the PostgreSQL database with the queue; "" means a SQLite database in StateDir
	ServiceCmd  *exec.Cmd // the running service; nil if none runs
	ServiceLog  *LockedBuffer
	ServiceExit chan error // receives the result of ServiceCmd.Wait when the service ends
}

// LockedBuffer is a buffer whose methods may be called concurrently.
type LockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (l *LockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.Write(p)
}

func (l *LockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buffer.String()
}

// NewHarness creates a state directory without a service. Queue.Start starts a service for it, with the program built
// with buildTag (see BuiltProgram). At the end of the test, all processes of the queue are ended.
func NewHarness(t testing.TB, buildTag string) *Harness {
	t.Helper()
	dir, err := newPrivateTempDir()
	if err != nil {
		t.Fatal(err)
	}
	q := &Harness{TB: t, ClientPath: BuiltProgram(t, buildTag), StateDir: filepath.ToSlash(dir),
		ServiceLog: &LockedBuffer{}}
	t.Cleanup(func() {
		q.EndServiceAndRunners()
		if t.Failed() {
			t.Logf("service log:\n%s", q.ServiceLog)
		}
		os.RemoveAll(dir)
	})
	return q
}

// StartService starts the service and waits until it is ready.
func (q *Harness) StartService(args ...string) {
	q.Helper()
	if err := q.TryStartService(args...); err != nil {
		q.Fatalf("start: %v\n%s", err, q.ServiceLog)
	}
}

// TryStartService is like StartService, but returns an error if the service ends before it is ready, or is not ready in
// time.
func (q *Harness) TryStartService(args ...string) error {
	cmd := q.ServiceCommand(append([]string{"serve", "--dir", q.StateDir}, args...))
	cmd.Env = append(UserEnvironment(q.StateDir), q.ServiceEnv...)
	if q.StoreURL != "" {
		cmd.Env = append(cmd.Env, "QUEUECTL_STORE="+q.StoreURL)
	}
	stderr, err := os.CreateTemp(q.StateDir, "stderr-*")
	if err != nil {
		return err
	}
	defer stderr.Close()
	cmd.Stderr = stderr // a file instead of a pipe, because runners keep stderr open after the service is killed
	if err := StartCommand(cmd); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	q.ServiceCmd, q.ServiceExit = cmd, ended
	for deadline := time.Now().Add(
		TimeoutFactor * 20 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		text, _ := os.ReadFile(stderr.Name())
		if strings.Contains(string(text), "queuectl: ready on") {
			return nil
		}
		select {
		case err := <-ended:
			q.ServiceLog.Write(text)
			ended <- err
			return fmt.Errorf("the service ended: %w", errors.Join(err, errors.New(string(text))))
		default:
		}
	}
	return errors.New("it did not get ready")
}

// KillService kills the service and waits for its end. Runners and their jobs continue.
func (q *Harness) KillService() {
	if q.ServiceCmd == nil {
		return
	}
	q.ServiceCmd.Process.Kill()
	<-q.ServiceExit
	q.ServiceCmd = nil
}

// StopService stops the service gracefully and returns its exit code.
func (q *Harness) StopService() int {
	q.Helper()
	q.RequestServiceStop()
	select {
	case <-q.ServiceExit:
	case <-time.After(60 * time.Second):
		q.Fatal("the service does not stop")
	}
	code := q.ServiceCmd.ProcessState.ExitCode()
	q.ServiceCmd = nil
	return code
}

// RunnerPIDs returns the pids of the queue's live runners. It reads them from the names of the runners' directories,
// which begin with the pid.
func (q *Harness) RunnerPIDs() (pids []int) {
	dir := q.RunnerDir()
	entries, _ := filepath.Glob(dir + "/*.*")
	accountEntries, _ := filepath.Glob(dir + "/as-*/*.*")
	for _, e := range append(entries, accountEntries...) {
		prefix, _, _ := strings.Cut(filepath.Base(e), ".")
		if pid, err := strconv.Atoi(prefix); err == nil && IsRunnerProcess(pid, dir) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// KillRunners kills the runners and waits for their end. On some systems the jobs of a killed runner continue
// to run; see JobsOutliveKilledRunners.
func (q *Harness) KillRunners() {
	q.endRunners(KillProcess, 5*time.Second)
}

// endRunners calls endRunner(pid) for each runner, and reports whether all runners ended in time.
func (q *Harness) endRunners(endRunner func(pid int), timeout time.Duration) bool {
	for _, pid := range q.RunnerPIDs() {
		endRunner(pid)
	}
	for deadline := time.Now().Add(timeout); len(q.RunnerPIDs()) > 0; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// EndServiceAndRunners kills the service and ends its runners. It first asks each runner to end itself, because a
// runner that is killed may leave its jobs running.
func (q *Harness) EndServiceAndRunners() {
	q.KillService()
	if !q.endRunners(terminateRunner, 5*time.Second) {
		q.KillRunners()
	}
}

// CommandResult holds the output and the exit code of a command.
type CommandResult struct {
	Stdout, Stderr string
	ExitCode       int
}

// RunCLI runs a queuectl command on the queue and returns its result.
func (q *Harness) RunCLI(args ...string) CommandResult {
	q.Helper()
	return q.RunCLIWithInput("", args...)
}

// RunCLIWithInput is like RunCLI, and passes stdin to the command.
func (q *Harness) RunCLIWithInput(stdin string, args ...string) CommandResult {
	q.Helper()
	for tries := 1; ; tries++ {
		cmd := q.CLICommand(args...)
		cmd.Stdin = strings.NewReader(stdin)
		if r := RunCommand(q, cmd); tries == 3 || !startFailedTemporarily(r) {
			return r
		}
	}
}

// MustRunCLI runs a queuectl command on the queue and requires exit code 0. It returns the output without leading and
// trailing white space.
func (q *Harness) MustRunCLI(args ...string) string {
	q.Helper()
	r := q.RunCLI(args...)
	if r.ExitCode != 0 {
		q.Fatalf("queuectl %v: exit code %d\nstdout: %s\nstderr: %s", args, r.ExitCode, r.Stdout, r.Stderr)
	}
	return strings.TrimSpace(r.Stdout)
}

// Job contains fields of a job in the output of "queuectl show --json": those that tests read.
type Job struct {
	ID             string `json:"id"`
	State          string `json:"state"`
	Reason         string `json:"reason"`
	AttemptCount   int    `json:"attempts"`
	ExitCode       *int   `json:"exit_code"`
	Signal         *int   `json:"signal"`
	Error          string `json:"error"`
	PID            int    `json:"pid"`
	StartedAt      string `json:"started_at"`
	FinishedAt     string `json:"finished_at"`
	Output         string `json:"output"`
	Stderr         string `json:"stderr"`
	AttemptHistory []struct {
		Attempt              int       `json:"attempt"`
		StartedAt            time.Time `json:"started_at"`
		FinishedAt           time.Time `json:"finished_at"`
		ExitCode             *int      `json:"exit_code"`
		Reason               string    `json:"reason"`
		PID                  int       `json:"pid"`
		LeftoverProcessCount int       `json:"leftovers"`
		DroppedBytes         int64     `json:"output_dropped"`
	} `json:"history"`
}

// ShowJob returns a job as "queuectl show --json" prints it.
func (q *Harness) ShowJob(id string) (j Job) {
	q.Helper()
	if err := json.Unmarshal([]byte(q.MustRunCLI("show", id, "--json")), &j); err != nil {
		q.Fatalf("show %s: %v", id, err)
	}
	return j
}

// WaitUntil calls isMet repeatedly until it returns true. After timeout, it fails the test with conditionText.
func (q *Harness) WaitUntil(conditionText string, timeout time.Duration, isMet func() bool) {
	q.Helper()
	timeout *= TimeoutFactor
	for deadline := time.Now().Add(timeout); !isMet(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			q.Fatalf("not within %v: %s", timeout, conditionText)
		}
	}
}

// ServiceConn is a connection to the service. With it, tests can send and read single JSON messages.
type ServiceConn struct {
	*Harness
	net.Conn
	Reader        *bufio.Reader
	LastRequestID int // id of the last request
}

// DialService connects to the service. The connection is closed at the end of the test.
func (q *Harness) DialService() *ServiceConn {
	q.Helper()
	c, err := DialService(q.StateDir)
	if err != nil {
		q.Fatal(err)
	}
	q.Cleanup(func() { c.Close() })
	return &ServiceConn{q, c, bufio.NewReaderSize(c, 1<<20), 0}
}

// ServiceMessage is one line from the service: a reply or a notification.
type ServiceMessage struct {
	ID     json.RawMessage `json:"id"`
	Result json.RawMessage `json:"result"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Data    struct {
			Code  string `json:"code"`
			Field string `json:"field"`
		} `json:"data"`
	} `json:"error"`
}

// ReadMessage reads one message of the service. An error means that the connection has ended or that no message
// arrived within 20 s.
func (w *ServiceConn) ReadMessage() (message ServiceMessage, err error) {
	w.SetReadDeadline(time.Now().Add(20 * time.Second))
	line, err := w.Reader.ReadBytes('\n')
	if err != nil {
		return message, err
	}
	return message, json.Unmarshal(line, &message)
}

// Call sends a request and returns its reply. The test fails if the connection breaks.
func (w *ServiceConn) Call(method string, params any) ServiceMessage {
	w.Helper()
	w.LastRequestID++
	line, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": w.LastRequestID, "method": method, "params": params})
	if err != nil {
		w.Fatal(err)
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		w.Fatalf("%s: %v", method, err)
	}
	a, err := w.ReadMessage()
	if err != nil {
		w.Fatalf("%s: %v", method, err)
	}
	return a
}
