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

// doctorDiagnosis contains the findings of "queuectl doctor".
type doctorDiagnosis struct {
	Level    string
	Findings []struct{ Check, Level, Message, Next string }
}

// RunDoctor runs "queuectl doctor" and returns its findings. It checks that the exit code matches the findings.
func (q *Harness) RunDoctor(args ...string) doctorDiagnosis {
	q.Helper()
	r := q.RunCLI(append([]string{"doctor", "--json"}, args...)...)
	var d doctorDiagnosis
	if err := json.Unmarshal([]byte(r.Stdout), &d); err != nil {
		q.Fatalf("doctor: %+v, %v", r, err)
	}
	if want := map[string]int{"failure": 1}[d.Level]; r.ExitCode != want {
		q.Errorf("doctor found %s and ended with %d", d.Level, r.ExitCode)
	}
	return d
}

// CheckDoctorFinding checks that "queuectl doctor" reports a failure of the check checkName. The message or the advice
// of the failure must contain wantText. faultDescription describes what the test has broken.
func (q *Harness) CheckDoctorFinding(faultDescription, checkName, wantText string, args ...string) {
	q.Helper()
	d := q.RunDoctor(args...)
	for _, f := range d.Findings {
		if f.Level == "failure" && f.Check == checkName && strings.Contains(f.Message+" "+f.Next, wantText) {
			return
		}
	}
	q.Errorf("%s: doctor reports no such failure: %+v", faultDescription, d)
}

// CheckDoctorHealthy checks that "queuectl doctor" reports no failure. Otherwise the test fails with an error that
// begins with errorPrefix.
func (q *Harness) CheckDoctorHealthy(errorPrefix string) {
	q.Helper()
	if d := q.RunDoctor("--verify"); d.Level == "failure" {
		q.Errorf("%s: %+v", errorPrefix, d)
	}
}

// LogLinesWithMessage returns the lines of the service's log that have the given message.
func (q *Harness) LogLinesWithMessage(message string) (lines []JSONFields) {
	files, _ := filepath.Glob(q.Path("stderr-*"))
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			q.Fatal(err)
		}
		for line := range strings.Lines(string(raw)) {
			var m JSONFields
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

// ListEvents returns the events that "queuectl events" prints with the given arguments.
func (q *Harness) ListEvents(args ...string) (events []Event) {
	q.Helper()
	for line := range strings.Lines(q.MustRunCLI(append([]string{"events", "--jsonl"}, args...)...)) {
		var e Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			q.Fatalf("%q: %v", line, err)
		}
		events = append(events, e)
	}
	return events
}

// StartPrintingCommand starts a command that keeps printing, and returns a scanner of its lines. The caller can kill
// the command with stop(). The command is also killed when the test ends.
func (q *Harness) StartPrintingCommand(args ...string) (lines *bufio.Scanner, stop func()) {
	q.Helper()
	cmd := q.CLICommand(args...)
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

// ShowJobPause returns the state of a job, when it was paused and who paused it.
func (q *Harness) ShowJobPause(id string) (j pausedJob) {
	q.Helper()
	if err := json.Unmarshal([]byte(q.MustRunCLI("show", id, "--json")), &j); err != nil {
		q.Fatal(err)
	}
	return j
}

// Setting is a setting as "queuectl config get" prints it: its value and the origin of the value.
type Setting struct{ Key, Value, Origin, Note string }

// GetSetting returns a setting of the service.
func (q *Harness) GetSetting(key string) (s Setting) {
	q.Helper()
	if err := json.Unmarshal([]byte(q.MustRunCLI("config", "get", key, "--json")), &s); err != nil {
		q.Fatal(err)
	}
	return s
}

// RunServiceExpectingRefusal starts a service that should refuse to start. If the service runs after 15 s,
// RunServiceExpectingRefusal kills it. It returns the exit code and the output of the service, which the caller must
// check.
func (q *Harness) RunServiceExpectingRefusal(args ...string) CommandResult {
	q.Helper()
	cmd := exec.Command(q.ClientPath, append([]string{"serve"}, args...)...)
	cmd.Env = append(UserEnvironment(q.StateDir), q.ServiceEnv...)
	ended := time.AfterFunc(15*time.Second, func() { cmd.Process.Kill() })
	defer ended.Stop()
	return RunCommand(q, cmd)
}

// CommandWaitingForFile returns the command of a job that prints its pid and then runs until the given file exists.
func CommandWaitingForFile(filePath string) string {
	return "echo up; echo pid $$; while [ ! -e " + filePath + " ]; do sleep 0.02; done; echo end of $$"
}
