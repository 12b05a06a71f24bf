//go:build linux || windows

package test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// logLines returns the lines of the service's log that have the given message.
func (q *queue) logLines(message string) (lines []fields) {
	files, _ := filepath.Glob(q.path("stderr-*"))
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			q.Fatal(err)
		}
		for line := range strings.Lines(string(raw)) {
			var m fields
			if json.Unmarshal([]byte(line), &m) == nil && m["msg"] == message {
				lines = append(lines, m)
			}
		}
	}
	return lines
}

// The log has a line for each important event, with the job, the attempt and the requesting user.
// A change of log_level takes effect immediately. No line contains a possible secret, at any
// level.
func TestServiceLog(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	secret := "geheim123"
	q.cli("run", "--id", "bad", "--max-retries", "1", "--backoff-base", "0.01", "--env", "TOKEN="+secret,
		"echo "+secret+" >&2; exit 3 #"+secret)
	q.must("enqueue", "--id", "late", "--delay", "1h", "true "+secret)
	q.must("cancel", "late")
	q.must("config", "set", "shell", "/bin/sh -c")
	q.cli("cancel", "none")
	var request struct{ UID float64 }
	q.dial().mustCall("whoami", nil, &request)
	failed, dead, requestLines := q.logLines("attempt failed"), q.logLines("job is dead"), q.logLines("request")
	if len(failed) != 1 || failed[0]["level"] != "INFO" || failed[0]["job"] != "bad" || failed[0]["attempt"] != 1.0 ||
		failed[0]["exit_code"] != 3.0 || failed[0]["again_in_ms"] != 10.0 {
		t.Errorf("a failure: %v", failed)
	}
	if len(dead) != 1 || dead[0]["level"] != "WARN" || dead[0]["job"] != "bad" || dead[0]["attempt"] != 2.0 ||
		dead[0]["worker"] != "w1" {
		t.Errorf("a dead job: %v", dead)
	}
	if len(requestLines) != 2 || requestLines[0]["method"] != "cancel" || requestLines[0]["uid"] != request.UID ||
		requestLines[0]["pid"] == nil || requestLines[1]["key"] != "shell" {
		t.Errorf("requests: %v", requestLines)
	}
	q.must("config", "set", "log_level", "debug")
	q.must("run", "--id", "good", "echo "+secret)
	q.must("show", "good")
	if ended := q.logLines("attempt ended"); len(ended) != 1 || ended[0]["job"] != "good" ||
		ended[0]["state"] != "completed" {
		t.Errorf("at level debug: %v", ended)
	}
	q.must("config", "set", "log_level", "warn")
	before := len(q.logLines("request"))
	q.must("config", "set", "shell", "/bin/sh -c")
	pid := q.runnerPid()
	q.must("enqueue", "--id", "cut", "--max-retries", "0", "sleep 300")
	q.waitUntil("it runs", 20*time.Second, func() bool { return q.show("cut").State == "processing" })
	q.killRunners()
	q.cli("wait", "cut")
	if after := len(q.logLines("request")); after != before {
		t.Errorf("at level warn requests are told of")
	}
	if died := q.logLines("a runner died"); len(died) != 1 || died[0]["level"] != "WARN" || pid == 0 {
		t.Errorf("a dead runner: %v", died)
	}
	if dead := q.logLines("job is dead"); len(dead) != 2 || dead[1]["reason"] != "lost" {
		t.Errorf("a lost job: %v", dead)
	}
	q.must("config", "set", "log_level", "info")
	q.must("enqueue", "--id", "last", "sleep 3") // the job is still running when the stop is requested
	q.waitUntil("it runs", 20*time.Second, func() bool { return q.show("last").State == "processing" })
	q.stop()
	if waitLines := q.logLines("waiting for running jobs; after the stop_timeout, they are stopped and " +
		"returned to the queue"); len(waitLines) != 1 || waitLines[0]["running"] != 1.0 ||
		waitLines[0]["stop_timeout"] != "30s" {
		t.Errorf("a stop: %v", waitLines)
	}
	files, _ := filepath.Glob(q.path("stderr-*"))
	for _, f := range files {
		if raw, _ := os.ReadFile(f); strings.Contains(string(raw), secret) {
			t.Errorf("the log has what a job was given: %s", raw)
		}
	}
}
