//go:build linux || windows

package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// The numbers of events have no gaps, even across restarts and kills. Clients can read events again, starting
// with any number. A client that follows events gets each event once, even if it reconnects.
func TestEventsAreDurableAndGapless(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	follow := func(since int64) (next func() testrig.Event, stop func()) {
		cmd := q.CLICommand("events", "-f", "--json", "--since", fmt.Sprint(since))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		return func() (e testrig.Event) {
				if !lines.Scan() {
					return testrig.Event{}
				}
				if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
					t.Errorf("%q: %v", lines.Text(), err)
				}
				return e
			}, func() {
				cmd.Process.Kill()
				io.Copy(io.Discard, out)
				cmd.Wait()
			}
	}
	q.MustRunCLI("enqueue", "--id", "a", "true")
	q.MustRunCLI("wait", "a")
	next, stop := follow(0)
	if e := next(); e.Seq != 1 || e.Event != "enqueued" || e.ID != "a" || e.State != "pending" || e.User == "" {
		t.Errorf("the first event: %+v", e)
	}
	last := next().Seq
	stop()
	for round := range 3 {
		if round%2 == 0 || testrig.ServiceStopIsAudited {
			q.KillService()
		} else {
			q.StopService()
		}
		q.StartService("--workers", "2")
		next, stop := follow(last)
		id := q.MustRunCLI("enqueue", "true")
		q.MustRunCLI("wait", id)
		for kind := ""; kind != "ended"; {
			e := next()
			if e.Seq != last+1 {
				t.Fatalf("the event after number %d is %+v", last, e)
			}
			last = e.Seq
			if e.ID == id {
				kind = e.Event
			}
		}
		stop()
	}
	all := q.ListEvents()
	for i, e := range all {
		if e.Seq != int64(i)+1 {
			t.Fatalf("event %d is number %d", i+1, e.Seq)
		}
	}
	if got := q.ListEvents("--since", fmt.Sprint(last-2)); len(got) < 2 || got[0] != all[last-2] {
		t.Errorf("events --since %d: %+v", last-2, got)
	}
	for _, e := range q.ListEvents("a", "--event", "ended") {
		if e.ID != "a" || e.Event != "ended" || e.State != "completed" {
			t.Errorf("events a --event ended returned %+v", e)
		}
	}
	var array []testrig.Event
	if err := json.Unmarshal([]byte(q.MustRunCLI("events", "--json")), &array); err != nil || len(array) < int(last) {
		t.Errorf("events --json: %d events, %v", len(array), err)
	}
	if r := q.RunCLI("events", "--event", "endd"); r.ExitCode != 2 || !strings.Contains(r.Stderr, `"ended"`) {
		t.Errorf("events with an unknown kind: %+v", r)
	}
	if r := q.RunCLI("events", "--since", "-1"); r.ExitCode != 2 || !strings.Contains(r.Stderr, "since") {
		t.Errorf("events with a negative number: %+v", r)
	}
}

// During a drain no job starts, not even a job that the service has already sent to a runner. This also holds
// after a restart. Running jobs finish, and `queuectl status` reports the drain. When the drain is turned off,
// jobs start again.
func TestDrainingServiceStartsNoJobs(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	for range 8 {
		w.WaitJobEnded(w.Enqueue(testrig.JSONFields{"command": "true"})) // after short jobs, the service claims jobs early
	}
	gate := q.Path("gate")
	running := w.Enqueue(testrig.JSONFields{"command": "echo up; while [ ! -e " + gate + " ]; do sleep 0.02; done"})
	w.WaitJobRunning(running)
	ids := w.EnqueueBatch([]testrig.JSONFields{{"command": "true"}, {"command": "true"}})
	if r := q.RunCLI("status", "--check"); r.ExitCode != 0 || r.Stdout != "ok\n" {
		t.Errorf("status --check before the drain: %+v", r)
	}
	q.MustRunCLI("drain")
	waiting := q.CLICommand("drain", "--wait", "--json")
	out, err := waiting.StdoutPipe()
	if err == nil {
		err = waiting.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	q.WriteFile("gate", "")
	w.WaitJobEnded(running)
	if text, err := io.ReadAll(out); err != nil || string(text) != `{"draining":true,"running":0}`+"\n" {
		t.Errorf("drain --wait: %q, %v", text, err)
	}
	waiting.Wait()
	q.StopService()
	q.StartService("--workers", "1")
	w = q.DialService()
	if r := q.RunCLI("status", "--check"); r.ExitCode != 1 || !strings.HasPrefix(r.Stdout, "degraded: ") ||
		!strings.Contains(r.Stdout, "drain --off") {
		t.Errorf("status --check during the drain: %+v", r)
	}
	if n := w.JobCountsByState()["pending"]; n != 2 {
		t.Errorf("%d jobs are pending after the restart, want 2", n)
	}
	if got := q.MustRunCLI("config", "list"); strings.Contains(got, "drain") {
		t.Error("config list contains the drain")
	}
	q.MustRunCLI("drain", "--off")
	for _, id := range ids {
		w.WaitJobEnded(id)
	}
	if r := q.RunCLI("drain", "--off", "--wait"); r.ExitCode != 2 {
		t.Errorf("drain --off --wait: %+v", r)
	}
}

// Several clients can request a drain and wait until no job runs. If `queuectl drain --off` ends the drain,
// requests that still wait fail.
func TestWaitingDrainRequestFailsWhenDrainEnds(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	gate := q.Path("gate")
	running := w.Enqueue(testrig.JSONFields{"command": "echo up; while [ ! -e " + gate + " ]; do sleep 0.02; done"})
	w.WaitJobRunning(running)
	replies := make(chan testrig.ServiceMessage, 1)
	// This goroutine ends when the drain ends.
	go func() { replies <- q.DialService().Call("drain", testrig.JSONFields{"wait": true}) }()
	q.WaitUntil("it drains", 10*time.Second, func() bool { return strings.Contains(q.MustRunCLI("status"), "drain") })
	q.MustRunCLI("drain")
	select {
	case got := <-replies:
		t.Fatalf("drain with wait returned %+v while a job was running", got)
	default:
	}
	q.MustRunCLI("drain", "--off")
	if got := <-replies; got.Error == nil || got.Error.Data.Code != "wrong_state" {
		t.Errorf("drain with wait returned %+v, want wrong_state", got)
	}
	q.WriteFile("gate", "")
	w.WaitJobEnded(running)
}

// `queuectl reload` applies the settings of the file. It names the settings of the file that another source
// overrides.
func TestReloadAppliesSettingsFile(t *testing.T) {
	q := testrig.NewHarness(t, "")
	file := q.WriteFile("queuectl.toml", "max_retries = 1\npriority = 3\n")
	q.StartService("--config", file)
	q.MustRunCLI("config", "set", "priority", "4")
	q.WriteFile("queuectl.toml", "max_retries = 2\npriority = 3\n")
	r := q.RunCLI("reload")
	if r.ExitCode != 0 || !strings.Contains(r.Stderr, "priority") || strings.Contains(r.Stderr, "max_retries") {
		t.Errorf("reload: %+v", r)
	}
	if got := q.GetSetting("max_retries"); got.Value != "2" {
		t.Errorf("max_retries after the reload: %+v", got)
	}
	q.WriteFile("queuectl.toml", "max_retrys = 9\n")
	if r := q.RunCLI("reload"); r.ExitCode == 0 || !strings.Contains(r.Stderr, "max_retrys") {
		t.Errorf("reload of an invalid file: %+v", r)
	}
	if got := q.GetSetting("max_retries"); got.Value != "2" {
		t.Errorf("max_retries after the refused reload: %+v", got)
	}
}

// `queuectl logs` prints the output of several jobs one after another. With -f it prints each line as it
// arrives. Each line starts with the job's id. The flag --since omits older output.
func TestLogsLabelOutputOfSeveralJobs(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "3")
	w := q.DialService()
	gate := q.Path("gate")
	longJob := w.Enqueue(testrig.JSONFields{"id": "long-one", "command": "echo early; while [ ! -e " + gate +
		" ]; do sleep 0.02; done; printf late"})
	q.MustRunCLI("enqueue", "--id", "b", "echo one; echo two")
	w.WaitJobEnded("b")
	w.WaitUntil("the job has printed", 20*time.Second, func() bool { return q.MustRunCLI("logs", longJob) == "early" })
	if got, want := q.MustRunCLI("logs", "b", longJob), "b        | one\nb        | two\nlong-one | early"; got != want {
		t.Errorf("logs of two jobs printed %q, want %q", got, want)
	}
	since := time.Now().Format(time.RFC3339Nano)
	follower := q.CLICommand("logs", "-f", longJob, "b")
	out, err := follower.StdoutPipe()
	if err == nil {
		err = follower.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(200*time.Millisecond, func() { os.WriteFile(gate, nil, 0o600) })
	text, err := io.ReadAll(out)
	if err := follower.Wait(); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"long-one | early\n", "long-one | late\n", "b        | one\n", "b        | two\n"} {
		if strings.Count(string(text), want) != 1 {
			t.Errorf("logs -f printed %q (%v), want %q once", text, err, want)
		}
	}
	if got := q.MustRunCLI("logs", longJob, "--since", since); got != "late" {
		t.Errorf("logs --since the opening of the gate: %q", got)
	}
	if got := q.MustRunCLI("logs", "b", "--since", "1h"); got != "one\ntwo" {
		t.Errorf("logs --since 1h: %q", got)
	}
	if r := q.RunCLI("logs", "b", "nope", "nor-this"); r.ExitCode != 4 || strings.Count(r.Stderr, "queuectl: ") != 2 ||
		!strings.Contains(r.Stdout, "one") {
		t.Errorf("logs with unknown ids: %+v", r)
	}
	var piece struct{ ID, Text string }
	if err := json.Unmarshal([]byte(strings.Split(q.MustRunCLI("logs", "b", "--jsonl"), "\n")[0]), &piece); err != nil ||
		piece.ID != "b" {
		t.Errorf("logs --jsonl: %+v, %v", piece, err)
	}
}

// A command removes ended jobs, oldest first, and a retention setting does so automatically.
// Unfinished and dead jobs are kept.
func TestCleanupRemovesOldestEndedJobs(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	var specs []testrig.JSONFields
	for i := range 30 {
		specs = append(specs, testrig.JSONFields{"id": fmt.Sprintf("c%02d", i), "command": "true"})
	}
	specs = append(specs, testrig.JSONFields{"id": "dead", "command": "exit 1", "max_retries": 0},
		testrig.JSONFields{"id": "later", "command": "true", "delay": "1h"})
	w.EnqueueBatch(specs)
	w.WaitUntil("all have ended", 20*time.Second, func() bool {
		c := w.JobCountsByState()
		return c["completed"] == 30 && c["dead"] == 1
	})
	for _, c := range []struct {
		args, out string
		remaining int
	}{
		{"cleanup", "0 jobs removed", 30}, {"cleanup --days 0 --dry-run", "30 jobs selected; nothing was changed", 30},
		{"cleanup --days 0 --keep 28", "2 jobs removed", 28}, {"cleanup --days 0 --keep 28", "0 jobs removed", 28},
		{"cleanup --days 0 -s cancelled", "0 jobs removed", 28}, {"cleanup --days 0 --keep 20 --json", `{"removed":8}`, 20},
	} {
		if got := q.MustRunCLI(strings.Fields(c.args)...); got != c.out || w.JobCountsByState()["completed"] != c.remaining {
			t.Errorf("%s: %q, %d jobs remain, want %q, %d", c.args, got, w.JobCountsByState()["completed"], c.out, c.remaining)
		}
	}
	for _, args := range []string{"cleanup --days -1", "cleanup -s pending", "cleanup -s complted", "cleanup --keep -1"} {
		if r := q.RunCLI(strings.Fields(args)...); r.ExitCode != 2 {
			t.Errorf("%s: %+v", args, r)
		}
	}
	q.MustRunCLI("config", "set", "retention_max_jobs", "5")
	w.WaitUntil("five jobs remain", 40*time.Second, func() bool { return w.JobCountsByState()["completed"] == 5 })
	ended := time.Now()
	w.WaitUntil("the retention is over", 20*time.Second, func() bool { return time.Since(ended) > 1100*time.Millisecond })
	q.MustRunCLI("config", "set", "retention_completed", "1s")
	w.WaitUntil("no completed job remains", 40*time.Second, func() bool { return w.JobCountsByState()["completed"] == 0 })
	if c := w.JobCountsByState(); c["dead"] != 1 || c["pending"] != 1 {
		t.Errorf("remaining jobs: %v", c)
	}
	if got := q.MustRunCLI("list", "-q"); got != "later\ndead" {
		t.Errorf("remaining jobs: %q", got)
	}
	if n := q.QueryDatabaseInt("SELECT count(*) FROM attempts"); n != 1 {
		t.Errorf("%d attempts remain, want only that of the dead job", n)
	}
	q.MustRunCLI("cleanup", "--days", "0", "-s", "dead")
	if got := q.MustRunCLI("list", "-q"); got != "later" {
		t.Errorf("remaining after the removal of dead jobs: %q", got)
	}
}
