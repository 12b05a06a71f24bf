//go:build linux || windows

package testrig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
)

// JSONFields contains the members of a JSON object, by name.
type JSONFields = map[string]any

// StartQueue returns a queue with a running service. It calls t.Parallel, so the test runs in parallel with
// others.
func StartQueue(t *testing.T, args ...string) *Harness {
	t.Helper()
	t.Parallel()
	q := NewHarness(t, "")
	q.StartService(args...)
	return q
}

// CLICommand returns a queuectl command for the queue, which the caller can start.
func (q *Harness) CLICommand(args ...string) *exec.Cmd {
	cmd := exec.Command(q.ClientPath, append([]string{"--dir", q.StateDir}, args...)...)
	cmd.Env = UserEnvironment(q.StateDir)
	cmd.Dir = q.StateDir
	return cmd
}

// startAndWait starts a command and waits for its end.
func startAndWait(cmd *exec.Cmd) error {
	if err := StartCommand(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// RunCommand runs a command and returns its output and exit code.
func RunCommand(t testing.TB, cmd *exec.Cmd) CommandResult {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := startAndWait(cmd)
	var exitErr *exec.ExitError
	if err != nil && !errors.As(err, &exitErr) {
		t.Fatal(err)
	}
	return CommandResult{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// Path returns the path of a file in the queue's directory.
func (q *Harness) Path(name string) string { return q.StateDir + "/" + name }

// WriteFile creates a file in the queue's directory and returns its path.
func (q *Harness) WriteFile(name, text string) string {
	q.Helper()
	if err := os.WriteFile(q.Path(name), []byte(text), 0o600); err != nil {
		q.Fatal(err)
	}
	return q.Path(name)
}

// ReadFile returns the content of a file in the queue's directory, or "" if the file does not exist.
func (q *Harness) ReadFile(name string) string {
	raw, _ := os.ReadFile(q.Path(name))
	return string(raw)
}

// MustCall sends a request and decodes the result of the reply into *result. The test fails if the reply is an
// error.
func (w *ServiceConn) MustCall(method string, params, result any) {
	w.Helper()
	a := w.Call(method, params)
	if a.Error != nil {
		w.Fatalf("%s %v: %+v", method, params, *a.Error)
	}
	if result == nil {
		return
	}
	if err := json.Unmarshal(a.Result, result); err != nil {
		w.Fatalf("%s: %v", method, err)
	}
}

// Enqueue enqueues a job and returns its id.
func (w *ServiceConn) Enqueue(spec JSONFields) string {
	w.Helper()
	var reply struct{ ID string }
	w.MustCall("enqueue", spec, &reply)
	return reply.ID
}

// EnqueueBatch enqueues jobs and returns their ids. It sends at most 1,000 jobs in a request, the limit of the
// service.
func (w *ServiceConn) EnqueueBatch(specs []JSONFields) (ids []string) {
	w.Helper()
	for part := range slices.Chunk(specs, 1000) {
		var reply struct{ IDs []string }
		w.MustCall("enqueue.batch", JSONFields{"jobs": part, "commit": true}, &reply)
		ids = append(ids, reply.IDs...)
	}
	return ids
}

// ShowJob returns a job.
func (w *ServiceConn) ShowJob(id string) (j Job) {
	w.Helper()
	w.MustCall("show", JSONFields{"id": id}, &j)
	return j
}

// WaitJobEnded waits until a job has ended and returns it.
func (w *ServiceConn) WaitJobEnded(id string) (j Job) {
	w.Helper()
	w.WaitUntil("job "+id+" has ended", 30*time.Second, func() bool {
		j = w.ShowJob(id)
		return j.State == "completed" || j.State == "dead" || j.State == "cancelled"
	})
	return j
}

// WaitJobRunning waits until a job runs and has printed "up". It returns the job.
func (w *ServiceConn) WaitJobRunning(id string) (j Job) {
	w.Helper()
	w.WaitUntil("job "+id+" runs", 20*time.Second, func() bool {
		j = w.ShowJob(id)
		return j.State == "processing" && j.PID > 0 && strings.Contains(j.Output, "up\n")
	})
	return j
}

// JobCountsByState returns the number of jobs by state.
func (w *ServiceConn) JobCountsByState() map[string]int {
	w.Helper()
	var st struct{ Jobs map[string]int }
	w.MustCall("status", nil, &st)
	return st.Jobs
}

// ErrorCode returns the error code of a reply, or "" if the reply is not an error.
func (a ServiceMessage) ErrorCode() string {
	if a.Error == nil {
		return ""
	}
	return a.Error.Data.Code
}

// ValueOrMinusOne returns *n, or -1 if n is nil.
func ValueOrMinusOne(n *int) int {
	if n == nil {
		return -1
	}
	return *n
}

// IsDurationNear reports whether got is at least want (less 2 ms) and at most want + tolerance*TimeoutFactor.
func IsDurationNear(got, want, tolerance time.Duration) bool {
	return got >= want-2*time.Millisecond && got <= want+tolerance*TimeoutFactor
}

// KillListedProcess kills a process that ProcessesWithArg has listed. processLine is the line of the process.
func KillListedProcess(processLine string) {
	var pid int
	if n, _ := fmt.Sscan(processLine, &pid); n == 1 {
		KillProcess(pid)
	}
}

// OnlyRunnerPID returns the pid of the queue's only runner.
func (q *Harness) OnlyRunnerPID() int {
	q.Helper()
	var pids []int
	q.WaitUntil("exactly one runner is there", 10*time.Second, func() bool {
		pids = q.RunnerPIDs()
		return len(pids) == 1
	})
	return pids[0]
}

// TryEnqueueJobWithID enqueues a job with the given id. It reports whether the service acknowledged the job.
func TryEnqueueJobWithID(w *ServiceConn, id string) bool {
	line := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"enqueue","params":{"id":%q,"command":"true"}}`+"\n", id)
	if _, err := w.Write([]byte(line)); err != nil {
		return false
	}
	a, err := w.ReadMessage()
	return err == nil && a.Error == nil
}

// ReadAllLogs returns the present content of the logs of the queue's services and runners.
func (q *Harness) ReadAllLogs() (text string) {
	logs, _ := filepath.Glob(q.Path("stderr-*"))
	for _, name := range logs {
		raw, _ := os.ReadFile(name)
		text += string(raw)
	}
	return text
}

// ColourSequencePattern matches the control sequences that set colours on a terminal.
var ColourSequencePattern = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// SkipIfShort skips a test in short mode, because the test takes seconds.
func SkipIfShort(t testing.TB) {
	t.Helper()
	skip.IfShort(t, "takes seconds; make test-long runs it")
}
