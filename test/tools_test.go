//go:build linux || windows

package test

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
)

// fields holds the members of a JSON object.
type fields = map[string]any

// startQueue returns a queue with a running service. It marks the test as parallel.
func startQueue(t *testing.T, args ...string) *queue {
	t.Helper()
	t.Parallel()
	q := newQueue(t, "")
	q.start(args...)
	return q
}

// command returns a queuectl command for the queue without starting it.
func (q *queue) command(args ...string) *exec.Cmd {
	cmd := exec.Command(q.bin, append([]string{"--dir", q.dir}, args...)...)
	cmd.Env = environment(q.dir)
	cmd.Dir = q.dir
	return cmd
}

// startAndWait starts a command and waits for its end.
func startAndWait(cmd *exec.Cmd) error {
	if err := startCommand(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// runCommand runs a command and returns its output and exit code.
func runCommand(t testing.TB, cmd *exec.Cmd) result {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := startAndWait(cmd)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// path returns the path of a file in the queue's directory.
func (q *queue) path(name string) string { return q.dir + "/" + name }

// writeFile creates a file in the queue's directory and returns its path.
func (q *queue) writeFile(name, text string) string {
	q.Helper()
	if err := os.WriteFile(q.path(name), []byte(text), 0o600); err != nil {
		q.Fatal(err)
	}
	return q.path(name)
}

// readFile returns the content of a file in the queue's directory, "" if it does not exist.
func (q *queue) readFile(name string) string {
	raw, _ := os.ReadFile(q.path(name))
	return string(raw)
}

// mustCall sends a request and requires a result.
func (w *wire) mustCall(method string, params, into any) {
	w.Helper()
	a := w.call(method, params)
	if a.Error != nil {
		w.Fatalf("%s %v: %+v", method, params, *a.Error)
	}
	if into == nil {
		return
	}
	if err := json.Unmarshal(a.Result, into); err != nil {
		w.Fatalf("%s: %v", method, err)
	}
}

// enqueue enqueues a job and returns its id.
func (w *wire) enqueue(spec fields) string {
	w.Helper()
	var got struct{ ID string }
	w.mustCall("enqueue", spec, &got)
	return got.ID
}

// batch enqueues jobs and returns their ids. It sends as many per request as the service permits.
func (w *wire) batch(specs []fields) (ids []string) {
	w.Helper()
	for part := range slices.Chunk(specs, 1000) {
		var got struct{ IDs []string }
		w.mustCall("enqueue.batch", fields{"jobs": part, "commit": true}, &got)
		ids = append(ids, got.IDs...)
	}
	return ids
}

func (w *wire) show(id string) (j job) {
	w.Helper()
	w.mustCall("show", fields{"id": id}, &j)
	return j
}

// waitEnded waits until a job has ended and returns it.
func (w *wire) waitEnded(id string) (j job) {
	w.Helper()
	w.waitUntil("job "+id+" has ended", 30*time.Second, func() bool {
		j = w.show(id)
		return j.State == "completed" || j.State == "dead" || j.State == "cancelled"
	})
	return j
}

// waitRunning waits until a job runs and has printed "up".
func (w *wire) waitRunning(id string) (j job) {
	w.Helper()
	w.waitUntil("job "+id+" runs", 20*time.Second, func() bool {
		j = w.show(id)
		return j.State == "processing" && j.PID > 0 && strings.Contains(j.Output, "up\n")
	})
	return j
}

// counts returns the number of jobs by state.
func (w *wire) counts() map[string]int {
	w.Helper()
	var st struct{ Jobs map[string]int }
	w.mustCall("status", nil, &st)
	return st.Jobs
}

// errorCode returns the error code of a reply, "" if it has no error.
func (a wireMessage) errorCode() string {
	if a.Error == nil {
		return ""
	}
	return a.Error.Data.Code
}

func deref(n *int) int {
	if n == nil {
		return -1
	}
	return *n
}

// near reports whether a duration is what the test expects, or longer by at most tolerance (multiplied
// by timeoutFactor).
func near(got, want, tolerance time.Duration) bool {
	return got >= want-2*time.Millisecond && got <= want+tolerance*timeoutFactor
}

// killListed kills the process of a line from processesWithArg.
func killListed(line string) {
	var pid int
	if n, _ := fmt.Sscan(line, &pid); n == 1 {
		kill(pid)
	}
}

// runnerPid returns the pid of the queue's only runner.
func (q *queue) runnerPid() int {
	q.Helper()
	var pids []int
	q.waitUntil("exactly one runner is there", 10*time.Second, func() bool {
		pids = q.runnerPids()
		return len(pids) == 1
	})
	return pids[0]
}

// enqueueRaw enqueues a job with the given id and reports whether it was acknowledged.
func enqueueRaw(w *wire, id string) bool {
	line := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"enqueue","params":{"id":%q,"command":"true"}}`+"\n", id)
	if _, err := w.Write([]byte(line)); err != nil {
		return false
	}
	a, err := w.read()
	return err == nil && a.Error == nil
}

// logText returns the logs of the queue's services and runners so far.
func (q *queue) logText() (text string) {
	logs, _ := filepath.Glob(q.path("stderr-*"))
	for _, name := range logs {
		raw, _ := os.ReadFile(name)
		text += string(raw)
	}
	return text
}

// colours matches the control sequences that set colours on a terminal.
var colours = regexp.MustCompile(`\x1b\[[0-9;]*m`)
