//go:build linux || windows

package testrig

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// diagnosis contains the findings of "queuectl doctor".
type diagnosis struct {
	Level    string
	Findings []struct{ Check, Level, Message, Next string }
}

// Doctor runs "queuectl doctor" and returns its findings. It checks that the exit code matches them.
func (q *Queue) Doctor(args ...string) diagnosis {
	q.Helper()
	r := q.CLI(append([]string{"doctor", "--json"}, args...)...)
	var d diagnosis
	if err := json.Unmarshal([]byte(r.Stdout), &d); err != nil {
		q.Fatalf("doctor: %+v, %v", r, err)
	}
	if want := map[string]int{"failure": 1}[d.Level]; r.Code != want {
		q.Errorf("doctor found %s and ended with %d", d.Level, r.Code)
	}
	return d
}

// CheckFinding checks that "queuectl doctor" reports a failure of the given check. The message or the advice of
// the failure must contain wantText. The text fault describes what the test has broken.
func (q *Queue) CheckFinding(fault, check, wantText string, args ...string) {
	q.Helper()
	d := q.Doctor(args...)
	for _, f := range d.Findings {
		if f.Level == "failure" && f.Check == check && strings.Contains(f.Message+" "+f.Next, wantText) {
			return
		}
	}
	q.Errorf("%s: doctor reports no such failure: %+v", fault, d)
}

// CheckHealthy checks that "queuectl doctor" reports no failure. Otherwise the test fails with an error that
// begins with errorPrefix.
func (q *Queue) CheckHealthy(errorPrefix string) {
	q.Helper()
	if d := q.Doctor("--verify"); d.Level == "failure" {
		q.Errorf("%s: %+v", errorPrefix, d)
	}
}

// LogLines returns the lines of the service's log that have the given message.
func (q *Queue) LogLines(message string) (lines []Fields) {
	files, _ := filepath.Glob(q.Path("stderr-*"))
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			q.Fatal(err)
		}
		for line := range strings.Lines(string(raw)) {
			var m Fields
			if json.Unmarshal([]byte(line), &m) == nil && m["msg"] == message {
				lines = append(lines, m)
			}
		}
	}
	return lines
}

// Event is one event as "queuectl events" prints it.
type Event struct {
	Seq   int64
	Event string
	ID    string
	State string
	User  string
	Key   string
}

// Events returns the events that "queuectl events" prints with the given arguments.
func (q *Queue) Events(args ...string) (events []Event) {
	q.Helper()
	for line := range strings.Lines(q.MustCLI(append([]string{"events", "--jsonl"}, args...)...)) {
		var e Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			q.Fatalf("%q: %v", line, err)
		}
		events = append(events, e)
	}
	return events
}

// StartFollowing starts a command that keeps printing, and returns a scanner of its lines. The caller can kill the
// command with stop(). The command is also killed when the test ends.
func (q *Queue) StartFollowing(args ...string) (lines *bufio.Scanner, stop func()) {
	q.Helper()
	cmd := q.Command(args...)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		q.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		q.Fatal(err)
	}
	q.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return bufio.NewScanner(pipe), func() { cmd.Process.Kill() }
}

// pausedJob contains the fields in the output of "queuectl show --json" that describe a pause.
type pausedJob struct {
	State    string    `json:"state"`
	PausedAt time.Time `json:"paused_at"`
	PausedBy string    `json:"paused_by"`
}

// JobPause returns the state of a job, when it was paused and who paused it.
func (q *Queue) JobPause(id string) (j pausedJob) {
	q.Helper()
	if err := json.Unmarshal([]byte(q.MustCLI("show", id, "--json")), &j); err != nil {
		q.Fatal(err)
	}
	return j
}

// Setting is a setting as "queuectl config get" prints it: its value and the origin of the value.
type Setting struct{ Key, Value, Origin, Note string }

// Setting returns a setting of the service.
func (q *Queue) Setting(key string) (s Setting) {
	q.Helper()
	if err := json.Unmarshal([]byte(q.MustCLI("config", "get", key, "--json")), &s); err != nil {
		q.Fatal(err)
	}
	return s
}

// RunRefusedService starts a service that is expected to refuse to start, and kills it after 15 s. It returns the
// exit code and the output of the service, which the caller must check.
func (q *Queue) RunRefusedService(args ...string) Result {
	q.Helper()
	cmd := exec.Command(q.Bin, append([]string{"serve"}, args...)...)
	cmd.Env = append(Environment(q.Dir), q.Env...)
	ended := time.AfterFunc(15*time.Second, func() { cmd.Process.Kill() })
	defer ended.Stop()
	return RunCommand(q, cmd)
}

// GatedJob returns the command of a job that prints its pid and then runs until the given file exists.
func GatedJob(gate string) string {
	return "echo up; echo pid $$; while [ ! -e " + gate + " ]; do sleep 0.02; done; echo end of $$"
}
