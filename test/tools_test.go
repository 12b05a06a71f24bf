//go:build linux

package test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
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

// needs skips a test for want of a tool that CI installs.
func needs(t testing.TB, tool string) {
	t.Helper()
	if _, err := exec.LookPath(tool); err != nil {
		t.Skip("needs " + tool)
	}
}

// command is the program against the queue, not started yet.
func (q *queue) command(args ...string) *exec.Cmd {
	cmd := exec.Command(q.bin, append([]string{"--dir", q.dir}, args...)...)
	cmd.Env = []string{"HOME=" + q.dir, "PATH=" + os.Getenv("PATH")}
	cmd.Dir = q.dir
	return cmd
}

// ran runs a command and tells how it ended.
func ran(t testing.TB, cmd *exec.Cmd) result {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// path is a file of the queue's folder.
func (q *queue) path(name string) string { return filepath.Join(q.dir, name) }

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

// batch puts jobs in the queue and returns their ids.
func (w *wire) batch(specs []fields) []string {
	w.Helper()
	var got struct{ IDs []string }
	w.good("enqueue.batch", fields{"jobs": specs, "commit": true}, &got)
	return got.IDs
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

// lives reports whether a process runs; a zombie does not.
func lives(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(raw), ") ")
	return err == nil && !strings.HasPrefix(rest, "Z")
}

// processes lists those whose command line holds a word.
func processes(word string) (lines []string) {
	list, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range list {
		raw, _ := os.ReadFile(name)
		if bytes.Contains(raw, []byte(word)) {
			lines = append(lines, strings.Split(name, "/")[2]+" "+strings.ReplaceAll(string(raw), "\x00", " "))
		}
	}
	return lines
}

// free reports whether nobody holds the lock on a file.
func free(t testing.TB, path string) bool {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// peak is the most memory that a process has held, in bytes.
func peak(t testing.TB, pid int) int64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	var kib int64
	for line := range strings.Lines(string(raw)) {
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

// near reports whether a duration is what it should be, or later by at most late.
func near(got, want, late time.Duration) bool {
	return got >= want-2*time.Millisecond && got <= want+late
}

// endPID kills a process that processes listed.
func endPID(line string) {
	var pid int
	if n, _ := fmt.Sscan(line, &pid); n == 1 {
		syscall.Kill(pid, syscall.SIGKILL)
	}
}
