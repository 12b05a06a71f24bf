//go:build linux || windows

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// The log has a line for each important event, with the job, the attempt and the user who caused it. A change
// of log_level takes effect immediately. At no level does a line contain a text that may be secret.
func TestServiceLogRecordsEventsWithoutSecrets(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "1")
	secret := "geheim123"
	q.RunCLI("run", "--id", "bad", "--max-retries", "1", "--backoff-base", "0.01", "--env", "TOKEN="+secret,
		"echo "+secret+" >&2; exit 3 #"+secret)
	q.MustRunCLI("enqueue", "--id", "late", "--delay", "1h", "true "+secret)
	q.MustRunCLI("cancel", "late")
	q.MustRunCLI("config", "set", "shell", "/bin/sh -c")
	q.RunCLI("cancel", "none")
	var request struct{ UID float64 }
	q.DialService().MustCall("whoami", nil, &request)
	failed, dead, requestLines := q.LogLinesWithMessage("attempt failed"), q.LogLinesWithMessage("job is dead"),
		q.LogLinesWithMessage("request")
	if len(failed) != 1 || failed[0]["level"] != "INFO" || failed[0]["job"] != "bad" || failed[0]["attempt"] != 1.0 ||
		failed[0]["exit_code"] != 3.0 || failed[0]["again_in_ms"] != 10.0 {
		t.Errorf("log lines about a failed attempt: %v", failed)
	}
	if len(dead) != 1 || dead[0]["level"] != "WARN" || dead[0]["job"] != "bad" || dead[0]["attempt"] != 2.0 ||
		dead[0]["worker"] != "w1" {
		t.Errorf("log lines about a dead job: %v", dead)
	}
	if len(requestLines) != 2 || requestLines[0]["method"] != "cancel" || requestLines[0]["uid"] != request.UID ||
		requestLines[0]["pid"] == nil || requestLines[1]["key"] != "shell" {
		t.Errorf("log lines about requests: %v", requestLines)
	}
	q.MustRunCLI("config", "set", "log_level", "debug")
	q.MustRunCLI("run", "--id", "good", "echo "+secret)
	q.MustRunCLI("show", "good")
	if ended := q.LogLinesWithMessage("attempt ended"); len(ended) != 1 || ended[0]["job"] != "good" ||
		ended[0]["state"] != "completed" {
		t.Errorf("log lines about ended attempts at level debug: %v", ended)
	}
	q.MustRunCLI("config", "set", "log_level", "warn")
	before := len(q.LogLinesWithMessage("request"))
	q.MustRunCLI("config", "set", "shell", "/bin/sh -c")
	pid := q.OnlyRunnerPID()
	q.MustRunCLI("enqueue", "--id", "cut", "--max-retries", "0", "sleep 300")
	q.WaitUntil("the job runs", 20*time.Second, func() bool { return q.ShowJob("cut").State == "processing" })
	q.KillRunners()
	q.RunCLI("wait", "cut")
	if after := len(q.LogLinesWithMessage("request")); after != before {
		t.Errorf("at level warn, requests are logged")
	}
	if died := q.LogLinesWithMessage("a runner died"); len(died) != 1 || died[0]["level"] != "WARN" || pid == 0 {
		t.Errorf("log lines about a dead runner: %v", died)
	}
	if dead := q.LogLinesWithMessage("job is dead"); len(dead) != 2 || dead[1]["reason"] != "lost" {
		t.Errorf("log lines about dead and lost jobs: %v", dead)
	}
	q.MustRunCLI("config", "set", "log_level", "info")
	q.MustRunCLI("enqueue", "--id", "last", "sleep 3") // the job still runs when the service stops
	q.WaitUntil("the job runs", 20*time.Second, func() bool { return q.ShowJob("last").State == "processing" })
	q.StopService()
	if waitLines := q.LogLinesWithMessage("waiting for running jobs; after the stop_timeout, they are stopped and " +
		"returned to the queue"); len(waitLines) != 1 || waitLines[0]["running"] != 1.0 ||
		waitLines[0]["stop_timeout"] != "30s" {
		t.Errorf("log lines about waiting for running jobs: %v", waitLines)
	}
	files, _ := filepath.Glob(q.Path("stderr-*"))
	for _, f := range files {
		if raw, _ := os.ReadFile(f); strings.Contains(string(raw), secret) {
			t.Errorf("the log contains a secret of a job: %s", raw)
		}
	}
}
