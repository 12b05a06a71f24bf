//go:build linux || windows

package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

// A held job waits until it is released. Repeating `queuectl hold` or `queuectl release` is not an error.
func TestHeldJobWaitsUntilReleased(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	q.MustRunCLI("enqueue", "--id", "a", "echo a")
	for range 2 {
		if got := q.MustRunCLI("hold", "a"); got != "a" {
			t.Errorf("hold printed %q", got)
		}
	}
	q.MustRunCLI("worker", "scale", "1")
	q.MustRunCLI("wait", q.MustRunCLI("enqueue", "echo b"))
	w := q.DialService()
	if j := w.ShowJob("a"); j.State != "held" {
		t.Errorf("while another job ran, the held job changed to %s", j.State)
	}
	q.MustRunCLI("release", "a")
	q.MustRunCLI("wait", "a")
	if r := q.RunCLI("hold", "a"); r.ExitCode != 5 || !strings.Contains(r.Stderr,
		"job a is completed; only waiting jobs can be held") {
		t.Errorf("hold of an ended job: %+v", r)
	}
	if r := q.RunCLI("release", "a"); r.ExitCode != 5 || !strings.Contains(r.Stderr, "retry") {
		t.Errorf("release of an ended job: %+v", r)
	}
}

// Commands such as hold, rm and edit also work on a reserved job, which was already sent to a busy
// runner but has not started.
func TestVerbsApplyToReservedJobs(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	for range 8 { // after short jobs, the service sends jobs to the runner in advance
		w.WaitJobEnded(w.Enqueue(testrig.JSONFields{"command": "true"}))
	}
	for range 5 {
		first := w.Enqueue(testrig.JSONFields{"command": "sleep 0.3"})
		ids := w.EnqueueBatch([]testrig.JSONFields{{"command": "true"}, {"command": "true"}, {"command": "exit 3"}})
		w.MustCall("hold", testrig.JSONFields{"id": ids[0]}, nil)
		w.MustCall("rm", testrig.JSONFields{"id": ids[1]}, nil)
		w.MustCall("edit", testrig.JSONFields{"id": ids[2], "set": testrig.JSONFields{"command": "echo edited"}}, nil)
		if j := w.WaitJobEnded(ids[2]); j.State != "completed" || j.Output != "edited\n" {
			t.Errorf("edited job: %+v", j)
		}
		if j := w.ShowJob(ids[0]); j.State != "held" {
			t.Errorf("held job: %+v", j)
		}
		if a := w.Call("show", testrig.JSONFields{"id": ids[1]}); a.Error == nil {
			t.Error("show finds a removed job")
		}
		w.WaitJobEnded(first)
		w.MustCall("release", testrig.JSONFields{"id": ids[0]}, nil)
		w.WaitJobEnded(ids[0])
	}
}

// `queuectl requeue` ends the whole process tree of a running job and starts the job again. The ended attempt
// does not count.
func TestRequeueRestartsRunningJob(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	id := w.Enqueue(testrig.JSONFields{"command": "echo up; [ $QUEUECTL_ATTEMPT = 2 ] || sleep 600", "max_retries": 0,
		"kill_after": 1})
	pid := w.WaitJobRunning(id).PID
	q.MustRunCLI("requeue", id)
	j := w.WaitJobEnded(id)
	if j.State != "completed" || j.AttemptCount != 1 || len(j.AttemptHistory) != 2 ||
		j.AttemptHistory[0].Reason != "stopped" {
		t.Errorf("the requeued job: %+v", j)
	}
	if testrig.IsProcessAlive(pid) {
		t.Errorf("process %d of the first attempt is still alive", pid)
	}
	if r := q.RunCLI("requeue", id); r.ExitCode != 5 || !strings.Contains(r.Stderr, "retry") {
		t.Errorf("requeue of an ended job: %+v", r)
	}
}

// `queuectl rm` removes a running job only with --force. `queuectl clear` never removes running jobs.
func TestRemoveAndClearKeepRunningJobs(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	first, second := w.Enqueue(testrig.JSONFields{"command": "echo up; sleep 600"}), ""
	w.WaitJobRunning(first)
	second = w.Enqueue(testrig.JSONFields{"command": "true"})
	if r := q.RunCLI("rm", first, second); r.ExitCode != 5 || r.Stdout != second+"\n" ||
		!strings.Contains(r.Stderr, "job "+first+" is running") {
		t.Errorf("rm of a running and a waiting job: %+v", r)
	}
	w.Enqueue(testrig.JSONFields{"command": "true"})
	if r := q.RunCLI("clear"); r.ExitCode != 2 || !strings.Contains(r.Stderr, "--yes") {
		t.Errorf("clear without --yes: %+v", r)
	}
	q.MustRunCLI("clear", "--yes")
	if got := q.MustRunCLI("list", "-q"); got != first {
		t.Errorf("jobs after clear: %q, want only the running job", got)
	}
	q.MustRunCLI("rm", "--force", first)
	if got := q.MustRunCLI("list", "-q"); got != "" {
		t.Errorf("jobs after rm --force: %q", got)
	}
	if r := q.RunCLI("dequeue", first); r.ExitCode != 4 {
		t.Errorf("dequeue of a removed job: %+v", r)
	}
}

// `queuectl edit` changes jobs by flags and by JSON. An invalid edit changes nothing, and its error names the
// field.
func TestEditChangesJobFields(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	q.MustRunCLI("enqueue", "--id", "a", "--label", "x=1", "echo a")
	q.MustRunCLI("enqueue", "--id", "b", "echo b")
	q.MustRunCLI("edit", "a", "b", "--priority", "9", "--timeout", "90s")
	q.MustRunCLI("edit", "a", `{"labels":{"y":"2"},"max_retries":0}`)
	w := q.DialService()
	type shown struct {
		Priority   int
		MaxRetries int `json:"max_retries"`
		Labels     map[string]string
		Spec       map[string]any
	}
	var a shown
	w.MustCall("show", testrig.JSONFields{"id": "a"}, &a)
	if a.Priority != 9 || a.MaxRetries != 0 || a.Labels["x"] != "1" || a.Labels["y"] != "2" ||
		a.Spec["timeout"] != "1m30s" {
		t.Errorf("the job after two edits: %+v", a)
	}
	for _, c := range []struct {
		args []string
		code int
		err  string
	}{
		{[]string{"a", "--priority", "x"}, 2, "priority"},
		{[]string{"a", `{"priorty":1}`}, 2, `"priority"`},
		{[]string{"a", `{"id":"z"}`}, 2, "id of a job cannot be changed"},
		{[]string{"a", `{}`}, 2, "no changes given"},
		{[]string{"a", `{"command":null}`}, 2, "command"},
		{[]string{"a", `{bad`}, 2, "byte"},
		{[]string{"a", "b"}, 2, "no changes given"}, {[]string{"a"}, 2, "editing in $EDITOR needs a terminal"},
		{[]string{"a", "--priority", "1", `{"priority":2}`}, 2, "not both"},
		{[]string{"nope", "--priority", "1"}, 4, "nope"},
		{[]string{"--priority", "1"}, 2, "--state"},
	} {
		if r := q.RunCLI(append([]string{"edit"}, c.args...)...); r.ExitCode != c.code ||
			!strings.Contains(r.Stderr, c.err) ||
			r.Stdout != "" {
			t.Errorf("edit %q: %+v, want %d, %q", c.args, r, c.code, c.err)
		}
	}
	q.MustRunCLI("worker", "scale", "1")
	q.MustRunCLI("wait", "a", "b")
	if got := q.MustRunCLI("logs", "a"); got != "a" {
		t.Errorf("the edited job printed %q", got)
	}
}

// If an edit removes the delay of a job, the job is due immediately, even if the edit changes nothing else.
func TestEditRemovesTheDelay(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	for _, flag := range []string{"--delay=1h", "--run-at=+1h"} {
		id := q.MustRunCLI("enqueue", flag, "true")
		q.MustRunCLI("edit", id, `{"delay":null}`)
		q.MustRunCLI("wait", id, "--timeout", "10s")
	}
}

// A command with a selector changes exactly the selected jobs, even if it needs several requests. A dry run
// counts the same jobs and changes nothing.
func TestSelectorsChangeExactlySelectedJobs(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	w := q.DialService()
	var specs []testrig.JSONFields
	for i := range 2500 {
		specs = append(specs, testrig.JSONFields{"id": fmt.Sprintf("in-%d", i), "command": "true",
			"labels": testrig.JSONFields{"part": fmt.Sprint(i % 2)}})
	}
	w.EnqueueBatch(specs)
	w.EnqueueBatch([]testrig.JSONFields{{"id": "out", "command": "true"}, {"id": "out-2", "command": "true",
		"labels": testrig.JSONFields{"part": "0"}}})
	count := func(state string) int {
		return len(strings.Fields(q.MustRunCLI("list", "-q", "--limit", "3000", "-s", state)))
	}

	if got := q.MustRunCLI("hold", "--id-glob", "in-*", "--dry-run"); got != "2500 jobs selected; nothing was changed" {
		t.Errorf("dry run: %q", got)
	}
	if got := q.MustRunCLI("hold", "--id-glob", "in-*", "--dry-run", "--json"); got != `{"matched":2500}` {
		t.Errorf("dry run as JSON: %q", got)
	}
	if got := count("held"); got != 0 {
		t.Fatalf("a dry run held %d jobs", got)
	}
	if got := strings.Fields(q.MustRunCLI("hold", "--id-glob", "in-*")); len(got) != 2500 || count("held") != 2500 ||
		count("pending") != 2 {
		t.Errorf("hold printed %d jobs, %d are held, %d are pending; want 2500, 2500, 2", len(got), count("held"),
			count("pending"))
	}
	q.MustRunCLI("release", "--label", "part=0")
	if got := count("held"); got != 1250 {
		t.Errorf("%d jobs are held after half of them were released", got)
	}
	if got := q.MustRunCLI("cancel", "--state", "waiting", "--older-than", "1h",
		"--dry-run"); got != "0 jobs selected; nothing was changed" {
		t.Errorf("cancel --older-than 1h --dry-run: %q", got)
	}
	q.MustRunCLI("cancel", "--label", "part=0", "--state", "pending")
	if got := count("cancelled"); got != 1251 {
		t.Errorf("%d jobs are cancelled, want 1251", got)
	}
	q.MustRunCLI("rm", "--state", "cancelled")
	q.MustRunCLI("rm", "--state", "held", "--id-glob", "in-?")
	if got := count("cancelled") + count("held"); got != 1245 {
		t.Errorf("%d jobs remain, want 1245", got)
	}
	for _, c := range []struct {
		args []string
		err  string
	}{
		{[]string{"hold"}, "--state"}, {[]string{"hold", "out", "--state", "pending"}, "one of them"},
		{[]string{"hold", "--state", "pendng"}, "pending"}, {[]string{"hold", "--id-glob", "a["}, "["},
		{[]string{"hold", "--user", "no-such-user"}, "no-such-user"}, {[]string{"hold", "--older-than", "x"}, "older-than"},
	} {
		if r := q.RunCLI(c.args...); r.ExitCode != 2 || !strings.Contains(r.Stderr, c.err) {
			t.Errorf("%q: %+v, want 2, %q", c.args, r, c.err)
		}
	}
	if a := w.Call("hold", testrig.JSONFields{}); a.Error == nil || a.Error.Data.Code != "invalid" {
		t.Errorf("hold without ids or a selector: %+v", a)
	}
	if a := w.Call("rm", testrig.JSONFields{"state": "held", "dry_run": true, "cursor": "x"}); a.Error == nil ||
		a.Error.Data.Field != "cursor" {
		t.Errorf("rm with an invalid cursor: %+v", a)
	}
}
