//go:build linux || windows

package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

// A held job waits until it is released. Repeating `queuectl hold` or `queuectl release` is not an error.
func TestHoldAndRelease(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	q.MustCLI("enqueue", "--id", "a", "echo a")
	for range 2 {
		if got := q.MustCLI("hold", "a"); got != "a" {
			t.Errorf("hold printed %q", got)
		}
	}
	q.MustCLI("worker", "scale", "1")
	q.MustCLI("wait", q.MustCLI("enqueue", "echo b"))
	w := q.Dial()
	if j := w.Show("a"); j.State != "held" {
		t.Errorf("while another job ran, the held job changed to %s", j.State)
	}
	q.MustCLI("release", "a")
	q.MustCLI("wait", "a")
	if r := q.CLI("hold", "a"); r.Code != 5 || !strings.Contains(r.Stderr,
		"job a is completed; only waiting jobs can be held") {
		t.Errorf("hold of an ended job: %+v", r)
	}
	if r := q.CLI("release", "a"); r.Code != 5 || !strings.Contains(r.Stderr, "retry") {
		t.Errorf("release of an ended job: %+v", r)
	}
}

// Commands such as hold, rm and edit also work on a reserved job, which was already sent to a busy
// runner but has not started.
func TestVerbsReachReservedJobs(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.Dial()
	for range 8 { // after short jobs, the service sends jobs to the runner in advance
		w.WaitEnded(w.Enqueue(testrig.Fields{"command": "true"}))
	}
	for range 5 {
		first := w.Enqueue(testrig.Fields{"command": "sleep 0.3"})
		ids := w.Batch([]testrig.Fields{{"command": "true"}, {"command": "true"}, {"command": "exit 3"}})
		w.MustCall("hold", testrig.Fields{"id": ids[0]}, nil)
		w.MustCall("rm", testrig.Fields{"id": ids[1]}, nil)
		w.MustCall("edit", testrig.Fields{"id": ids[2], "set": testrig.Fields{"command": "echo edited"}}, nil)
		if j := w.WaitEnded(ids[2]); j.State != "completed" || j.Output != "edited\n" {
			t.Errorf("edited job: %+v", j)
		}
		if j := w.Show(ids[0]); j.State != "held" {
			t.Errorf("held job: %+v", j)
		}
		if a := w.Call("show", testrig.Fields{"id": ids[1]}); a.Error == nil {
			t.Error("show finds a removed job")
		}
		w.WaitEnded(first)
		w.MustCall("release", testrig.Fields{"id": ids[0]}, nil)
		w.WaitEnded(ids[0])
	}
}

// `queuectl requeue` ends the whole process tree of a running job and starts the job again. The ended attempt
// does not count.
func TestRequeue(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.Dial()
	id := w.Enqueue(testrig.Fields{"command": "echo up; [ $QUEUECTL_ATTEMPT = 2 ] || sleep 600", "max_retries": 0,
		"kill_after": 1})
	pid := w.WaitRunning(id).PID
	q.MustCLI("requeue", id)
	j := w.WaitEnded(id)
	if j.State != "completed" || j.Attempts != 1 || len(j.History) != 2 || j.History[0].Reason != "stopped" {
		t.Errorf("the requeued job: %+v", j)
	}
	if testrig.IsAlive(pid) {
		t.Errorf("process %d of the first attempt is still alive", pid)
	}
	if r := q.CLI("requeue", id); r.Code != 5 || !strings.Contains(r.Stderr, "retry") {
		t.Errorf("requeue of an ended job: %+v", r)
	}
}

// `queuectl rm` removes a running job only with --force. `queuectl clear` never removes running jobs.
func TestRemoveAndClear(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.Dial()
	first, second := w.Enqueue(testrig.Fields{"command": "echo up; sleep 600"}), ""
	w.WaitRunning(first)
	second = w.Enqueue(testrig.Fields{"command": "true"})
	if r := q.CLI("rm", first, second); r.Code != 5 || r.Stdout != second+"\n" ||
		!strings.Contains(r.Stderr, "job "+first+" is running") {
		t.Errorf("rm of a running and a waiting job: %+v", r)
	}
	w.Enqueue(testrig.Fields{"command": "true"})
	if r := q.CLI("clear"); r.Code != 2 || !strings.Contains(r.Stderr, "--yes") {
		t.Errorf("clear without --yes: %+v", r)
	}
	q.MustCLI("clear", "--yes")
	if got := q.MustCLI("list", "-q"); got != first {
		t.Errorf("jobs after clear: %q, want only the running job", got)
	}
	q.MustCLI("rm", "--force", first)
	if got := q.MustCLI("list", "-q"); got != "" {
		t.Errorf("jobs after rm --force: %q", got)
	}
	if r := q.CLI("dequeue", first); r.Code != 4 {
		t.Errorf("dequeue of a removed job: %+v", r)
	}
}

// `queuectl edit` changes jobs by flags and by JSON. An invalid edit changes nothing, and its error names the
// field.
func TestEdit(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	q.MustCLI("enqueue", "--id", "a", "--label", "x=1", "echo a")
	q.MustCLI("enqueue", "--id", "b", "echo b")
	q.MustCLI("edit", "a", "b", "--priority", "9", "--timeout", "90s")
	q.MustCLI("edit", "a", `{"labels":{"y":"2"},"max_retries":0}`)
	w := q.Dial()
	type shown struct {
		Priority   int
		MaxRetries int `json:"max_retries"`
		Labels     map[string]string
		Spec       map[string]any
	}
	var a shown
	w.MustCall("show", testrig.Fields{"id": "a"}, &a)
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
		if r := q.CLI(append([]string{"edit"}, c.args...)...); r.Code != c.code || !strings.Contains(r.Stderr, c.err) ||
			r.Stdout != "" {
			t.Errorf("edit %q: %+v, want %d, %q", c.args, r, c.code, c.err)
		}
	}
	q.MustCLI("worker", "scale", "1")
	q.MustCLI("wait", "a", "b")
	if got := q.MustCLI("logs", "a"); got != "a" {
		t.Errorf("the edited job printed %q", got)
	}
}

// If an edit removes the delay of a job, the job is due immediately, even if the edit changes nothing else.
func TestEditRemovesTheDelay(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	for _, flag := range []string{"--delay=1h", "--run-at=+1h"} {
		id := q.MustCLI("enqueue", flag, "true")
		q.MustCLI("edit", id, `{"delay":null}`)
		q.MustCLI("wait", id, "--timeout", "10s")
	}
}

// A command with a selector changes exactly the selected jobs, even if it needs several requests. A dry run
// counts the same jobs and changes nothing.
func TestSelectors(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	w := q.Dial()
	var specs []testrig.Fields
	for i := range 2500 {
		specs = append(specs, testrig.Fields{"id": fmt.Sprintf("in-%d", i), "command": "true",
			"labels": testrig.Fields{"part": fmt.Sprint(i % 2)}})
	}
	w.Batch(specs)
	w.Batch([]testrig.Fields{{"id": "out", "command": "true"}, {"id": "out-2", "command": "true",
		"labels": testrig.Fields{"part": "0"}}})
	count := func(state string) int {
		return len(strings.Fields(q.MustCLI("list", "-q", "--limit", "3000", "-s", state)))
	}

	if got := q.MustCLI("hold", "--id-glob", "in-*", "--dry-run"); got != "2500 jobs selected; nothing was changed" {
		t.Errorf("dry run: %q", got)
	}
	if got := q.MustCLI("hold", "--id-glob", "in-*", "--dry-run", "--json"); got != `{"matched":2500}` {
		t.Errorf("dry run as JSON: %q", got)
	}
	if got := count("held"); got != 0 {
		t.Fatalf("a dry run held %d jobs", got)
	}
	if got := strings.Fields(q.MustCLI("hold", "--id-glob", "in-*")); len(got) != 2500 || count("held") != 2500 ||
		count("pending") != 2 {
		t.Errorf("hold printed %d jobs, %d are held, %d are pending; want 2500, 2500, 2", len(got), count("held"),
			count("pending"))
	}
	q.MustCLI("release", "--label", "part=0")
	if got := count("held"); got != 1250 {
		t.Errorf("%d jobs are held after half of them were released", got)
	}
	if got := q.MustCLI("cancel", "--state", "waiting", "--older-than", "1h",
		"--dry-run"); got != "0 jobs selected; nothing was changed" {
		t.Errorf("cancel --older-than 1h --dry-run: %q", got)
	}
	q.MustCLI("cancel", "--label", "part=0", "--state", "pending")
	if got := count("cancelled"); got != 1251 {
		t.Errorf("%d jobs are cancelled, want 1251", got)
	}
	q.MustCLI("rm", "--state", "cancelled")
	q.MustCLI("rm", "--state", "held", "--id-glob", "in-?")
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
		if r := q.CLI(c.args...); r.Code != 2 || !strings.Contains(r.Stderr, c.err) {
			t.Errorf("%q: %+v, want 2, %q", c.args, r, c.err)
		}
	}
	if a := w.Call("hold", testrig.Fields{}); a.Error == nil || a.Error.Data.Code != "invalid" {
		t.Errorf("hold without ids or a selector: %+v", a)
	}
	if a := w.Call("rm", testrig.Fields{"state": "held", "dry_run": true, "cursor": "x"}); a.Error == nil ||
		a.Error.Data.Field != "cursor" {
		t.Errorf("rm with an invalid cursor: %+v", a)
	}
}
