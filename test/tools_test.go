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

// fields are the members of a JSON object.
type fields = map[string]any

// serving is a queue with a service on it, in a test that runs beside others.
func serving(t *testing.T, args ...string) *queue {
	t.Helper()
	t.Parallel()
	q := newQueue(t, "")
	q.start(args...)
	return q
}

// command is the program against the queue, not started yet.
func (q *queue) command(args ...string) *exec.Cmd {
	cmd := exec.Command(q.bin, append([]string{"--dir", q.dir}, args...)...)
	cmd.Env = environment(q.dir)
	cmd.Dir = q.dir
	return cmd
}

// runHere starts a command and waits for its end.
func runHere(cmd *exec.Cmd) error {
	if err := begin(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// ran runs a command and tells how it ended.
func ran(t testing.TB, cmd *exec.Cmd) result {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := runHere(cmd)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// path is a file of the queue's folder.
func (q *queue) path(name string) string { return q.dir + "/" + name }

// write makes a file in the queue's folder and returns its path.
func (q *queue) write(name, text string) string {
	q.Helper()
	if err := os.WriteFile(q.path(name), []byte(text), 0o600); err != nil {
		q.Fatal(err)
	}
	return q.path(name)
}

// text is what a file of the queue's folder holds, "" if there is none.
func (q *queue) text(name string) string {
	raw, _ := os.ReadFile(q.path(name))
	return string(raw)
}

// good calls and wants a result.
func (w *wire) good(method string, params, into any) {
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

// enqueue puts a job in the queue over the wire and returns its id.
func (w *wire) enqueue(spec fields) string {
	w.Helper()
	var got struct{ ID string }
	w.good("enqueue", spec, &got)
	return got.ID
}

// batch puts jobs in the queue, as many at once as a request may have, and returns their
// ids.
func (w *wire) batch(specs []fields) (ids []string) {
	w.Helper()
	for part := range slices.Chunk(specs, 1000) {
		var got struct{ IDs []string }
		w.good("enqueue.batch", fields{"jobs": part, "commit": true}, &got)
		ids = append(ids, got.IDs...)
	}
	return ids
}

func (w *wire) show(id string) (j job) {
	w.Helper()
	w.good("show", fields{"id": id}, &j)
	return j
}

// end waits until a job has ended and shows it.
func (w *wire) end(id string) (j job) {
	w.Helper()
	w.until("job "+id+" has ended", 30*time.Second, func() bool {
		j = w.show(id)
		return j.State == "completed" || j.State == "dead" || j.State == "cancelled"
	})
	return j
}

// runs waits until a job runs and has said "up".
func (w *wire) runs(id string) (j job) {
	w.Helper()
	w.until("job "+id+" runs", 20*time.Second, func() bool {
		j = w.show(id)
		return j.State == "processing" && j.PID > 0 && strings.Contains(j.Output, "up\n")
	})
	return j
}

// counts are the jobs by state.
func (w *wire) counts() map[string]int {
	w.Helper()
	var st struct{ Jobs map[string]int }
	w.good("status", nil, &st)
	return st.Jobs
}

// code is the code of an answer's error, "" if it has none.
func (a answer) code() string {
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

// near reports whether a duration is what it should be, or later by at most late, with
// patience.
func near(got, want, late time.Duration) bool {
	return got >= want-2*time.Millisecond && got <= want+late*patience
}

// endPID kills a process that processes listed.
func endPID(line string) {
	var pid int
	if n, _ := fmt.Sscan(line, &pid); n == 1 {
		kill(pid)
	}
}

// runnerPid is the pid of the queue's only runner.
func (q *queue) runnerPid() int {
	q.Helper()
	var pids []int
	q.until("exactly one runner is there", 10*time.Second, func() bool {
		pids = q.runnerPids()
		return len(pids) == 1
	})
	return pids[0]
}

// enqueueRaw asks for a job by its own id and reports whether it was
// acknowledged.
func enqueueRaw(w *wire, id string) bool {
	line := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"enqueue","params":{"id":%q,"command":"true"}}`+"\n", id)
	if _, err := w.Write([]byte(line)); err != nil {
		return false
	}
	a, err := w.read()
	return err == nil && a.Error == nil
}

// said is what the service has said so far.
func (q *queue) said() (text string) {
	logs, _ := filepath.Glob(q.path("stderr-*"))
	for _, name := range logs {
		raw, _ := os.ReadFile(name)
		text += string(raw)
	}
	return text
}

// colours are the words of a terminal that colour what follows.
var colours = regexp.MustCompile(`\x1b\[[0-9;]*m`)
