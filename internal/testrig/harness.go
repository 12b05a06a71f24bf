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

// Programs are the file names of the client and of the service, in this order.
var Programs = []string{"queuectl" + Extension, "queuectld" + Extension}

// Install copies both programs into targetDir, as a package does, and returns the path of the copied queuectl.
// queuectlPath is the path of the original queuectl; queuectld is next to it. Install may replace earlier
// copies. Processes that run an earlier copy continue.
func Install(t testing.TB, queuectlPath, targetDir string) string {
	t.Helper()
	for _, name := range Programs {
		CopyProgram(t, filepath.Join(filepath.Dir(queuectlPath), name), filepath.Join(targetDir, name))
	}
	return filepath.Join(targetDir, Programs[0])
}

// Queue is a state directory (the files of one queue) and its service. Tests can kill and restart the service.
type Queue struct {
	testing.TB
	osSpecific
	Bin        string    // path of the client, queuectl
	Dir        string    // state directory, with slashes, so that a shell reads it unchanged
	Env        []string  // environment variables of the service, in addition to those that Environment returns
	Store      string    // URL of the PostgreSQL database with the queue; "" means a SQLite database in Dir
	Cmd        *exec.Cmd // the running service; nil if none runs
	ServiceLog *LockedBuffer
	Exit       chan error // receives the result of Cmd.Wait when the service ends
}

// LockedBuffer is a buffer whose methods may be called concurrently.
type LockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *LockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *LockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// NewQueue creates a state directory without a service. Start starts a service on it, with the program built
// with tag (see BuiltProgram). At the end of the test, all processes of the queue are ended.
func NewQueue(t testing.TB, tag string) *Queue {
	t.Helper()
	dir, err := tempDir()
	if err != nil {
		t.Fatal(err)
	}
	q := &Queue{TB: t, Bin: BuiltProgram(t, tag), Dir: filepath.ToSlash(dir), ServiceLog: &LockedBuffer{}}
	t.Cleanup(func() {
		q.EndProcesses()
		if t.Failed() {
			t.Logf("service log:\n%s", q.ServiceLog)
		}
		os.RemoveAll(dir)
	})
	return q
}

// Start starts the service and waits until it is ready.
func (q *Queue) Start(args ...string) {
	q.Helper()
	if err := q.TryStart(args...); err != nil {
		q.Fatalf("start: %v\n%s", err, q.ServiceLog)
	}
}

// TryStart is like Start, but returns an error if the service ends before it is ready, or is not ready in
// time.
func (q *Queue) TryStart(args ...string) error {
	cmd := q.ServiceCommand(append([]string{"serve", "--dir", q.Dir}, args...))
	cmd.Env = append(Environment(q.Dir), q.Env...)
	if q.Store != "" {
		cmd.Env = append(cmd.Env, "QUEUECTL_STORE="+q.Store)
	}
	stderr, err := os.CreateTemp(q.Dir, "stderr-*")
	if err != nil {
		return err
	}
	defer stderr.Close()
	cmd.Stderr = stderr // use a file and not a pipe, because runners keep stderr open after the service is killed
	if err := StartCommand(cmd); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	q.Cmd, q.Exit = cmd, ended
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

// Kill kills the service and waits for its end. Runners and their jobs continue.
func (q *Queue) Kill() {
	if q.Cmd == nil {
		return
	}
	q.Cmd.Process.Kill()
	<-q.Exit
	q.Cmd = nil
}

// Stop stops the service gracefully and returns its exit code.
func (q *Queue) Stop() int {
	q.Helper()
	q.RequestStop()
	select {
	case <-q.Exit:
	case <-time.After(60 * time.Second):
		q.Fatal("the service does not stop")
	}
	code := q.Cmd.ProcessState.ExitCode()
	q.Cmd = nil
	return code
}

// RunnerPids returns the pids of the queue's live runners. The name of a runner's directory begins
// with the pid.
func (q *Queue) RunnerPids() (pids []int) {
	dir := q.RunnerDir()
	entries, _ := filepath.Glob(dir + "/*.*")
	accountEntries, _ := filepath.Glob(dir + "/as-*/*.*")
	for _, e := range append(entries, accountEntries...) {
		prefix, _, _ := strings.Cut(filepath.Base(e), ".")
		if pid, err := strconv.Atoi(prefix); err == nil && IsRunner(pid, dir) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// KillRunners kills the runners and waits for their end. On some systems the jobs of a killed runner continue
// to run; see TreesOutliveRunners.
func (q *Queue) KillRunners() {
	q.endRunners(Kill, 5*time.Second)
}

// endRunners calls endRunner(pid) for each runner, and reports whether all runners ended in time.
func (q *Queue) endRunners(endRunner func(pid int), timeout time.Duration) bool {
	for _, pid := range q.RunnerPids() {
		endRunner(pid)
	}
	for deadline := time.Now().Add(timeout); len(q.RunnerPids()) > 0; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// EndProcesses kills the service and ends its runners. It first asks each runner to end itself, because a
// runner that is killed may leave its jobs running.
func (q *Queue) EndProcesses() {
	q.Kill()
	if !q.endRunners(terminateRunner, 5*time.Second) {
		q.KillRunners()
	}
}

// Result holds the output and the exit code of a command.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// CLI runs a queuectl command on the queue and returns its result.
func (q *Queue) CLI(args ...string) Result {
	q.Helper()
	return q.CLIWithInput("", args...)
}

// CLIWithInput is like CLI, and passes stdin to the command.
func (q *Queue) CLIWithInput(stdin string, args ...string) Result {
	q.Helper()
	for tries := 1; ; tries++ {
		cmd := q.Command(args...)
		cmd.Stdin = strings.NewReader(stdin)
		if r := RunCommand(q, cmd); tries == 3 || !startFailed(r) {
			return r
		}
	}
}

// MustCLI runs a queuectl command, requires exit code 0 and returns the output without white space at its
// ends.
func (q *Queue) MustCLI(args ...string) string {
	q.Helper()
	r := q.CLI(args...)
	if r.Code != 0 {
		q.Fatalf("queuectl %v: exit code %d\nstdout: %s\nstderr: %s", args, r.Code, r.Stdout, r.Stderr)
	}
	return strings.TrimSpace(r.Stdout)
}

// Job contains the fields that tests read of a job in the output of "queuectl show --json".
type Job struct {
	ID         string `json:"id"`
	State      string `json:"state"`
	Reason     string `json:"reason"`
	Attempts   int    `json:"attempts"`
	ExitCode   *int   `json:"exit_code"`
	Signal     *int   `json:"signal"`
	Error      string `json:"error"`
	PID        int    `json:"pid"`
	StartedAt  string `json:"started_at"`
	FinishedAt string `json:"finished_at"`
	Output     string `json:"output"`
	Stderr     string `json:"stderr"`
	History    []struct {
		Attempt      int       `json:"attempt"`
		StartedAt    time.Time `json:"started_at"`
		FinishedAt   time.Time `json:"finished_at"`
		ExitCode     *int      `json:"exit_code"`
		Reason       string    `json:"reason"`
		PID          int       `json:"pid"`
		Leftovers    int       `json:"leftovers"`
		DroppedBytes int64     `json:"output_dropped"`
	} `json:"history"`
}

// Show returns a job as "queuectl show --json" prints it.
func (q *Queue) Show(id string) (j Job) {
	q.Helper()
	if err := json.Unmarshal([]byte(q.MustCLI("show", id, "--json")), &j); err != nil {
		q.Fatalf("show %s: %v", id, err)
	}
	return j
}

// WaitUntil calls isMet repeatedly until it returns true. After limit, it fails the test with the text in condition.
func (q *Queue) WaitUntil(condition string, limit time.Duration, isMet func() bool) {
	q.Helper()
	limit *= TimeoutFactor
	for deadline := time.Now().Add(limit); !isMet(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			q.Fatalf("not within %v: %s", limit, condition)
		}
	}
}

// Wire is a connection to the service on which tests send and read JSON messages themselves.
type Wire struct {
	*Queue
	net.Conn
	Reader *bufio.Reader
	LastID int // id of the last request
}

// Dial connects to the service. The connection is closed at the end of the test.
func (q *Queue) Dial() *Wire {
	q.Helper()
	c, err := Dial(q.Dir)
	if err != nil {
		q.Fatal(err)
	}
	q.Cleanup(func() { c.Close() })
	return &Wire{q, c, bufio.NewReaderSize(c, 1<<20), 0}
}

// WireMessage is one line from the service: a reply or a notification.
type WireMessage struct {
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
func (w *Wire) ReadMessage() (a WireMessage, err error) {
	w.SetReadDeadline(time.Now().Add(20 * time.Second))
	line, err := w.Reader.ReadBytes('\n')
	if err != nil {
		return a, err
	}
	return a, json.Unmarshal(line, &a)
}

// Call sends a request and returns its reply. The test fails if the connection breaks.
func (w *Wire) Call(method string, params any) WireMessage {
	w.Helper()
	w.LastID++
	line, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": w.LastID, "method": method, "params": params})
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
