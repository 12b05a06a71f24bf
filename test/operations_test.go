//go:build linux || windows

package test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

// event is one line of the event stream.
type event struct {
	Seq   int64
	Event string
	ID    string
	State string
	User  string
	Key   string
}

// events returns the output of "queuectl events".
func (q *queue) events(args ...string) (list []event) {
	q.Helper()
	for line := range strings.Lines(q.must(append([]string{"events", "--jsonl"}, args...)...)) {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			q.Fatalf("%q: %v", line, err)
		}
		list = append(list, e)
	}
	return list
}

// Event numbers have no gap, also across restarts and kills, and events can be read again from any
// number. A follower gets each event once, even across its reconnections.
func TestEventsAreDurableAndGapless(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	follow := func(since int64) (next func() event, stop func()) {
		cmd := q.command("events", "-f", "--json", "--since", fmt.Sprint(since))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		return func() (e event) {
				if !lines.Scan() {
					return event{}
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
	q.must("enqueue", "--id", "a", "true")
	q.must("wait", "a")
	next, stop := follow(0)
	if e := next(); e.Seq != 1 || e.Event != "enqueued" || e.ID != "a" || e.State != "pending" || e.User == "" {
		t.Errorf("the first event: %+v", e)
	}
	last := next().Seq
	stop()
	for round := range 3 {
		if round%2 == 0 || stopIsAnEvent {
			q.kill()
		} else {
			q.stop()
		}
		q.start("--workers", "2")
		next, stop := follow(last)
		id := q.must("enqueue", "true")
		q.must("wait", id)
		for kind := ""; kind != "ended"; {
			e := next()
			if e.Seq != last+1 {
				t.Fatalf("after event %d came %+v", last, e)
			}
			last = e.Seq
			if e.ID == id {
				kind = e.Event
			}
		}
		stop()
	}
	all := q.events()
	for i, e := range all {
		if e.Seq != int64(i)+1 {
			t.Fatalf("event %d is number %d", i+1, e.Seq)
		}
	}
	if got := q.events("--since", fmt.Sprint(last-2)); len(got) < 2 || got[0] != all[last-2] {
		t.Errorf("since %d: %+v", last-2, got)
	}
	for _, e := range q.events("a", "--event", "ended") {
		if e.ID != "a" || e.Event != "ended" || e.State != "completed" {
			t.Errorf("of one job and kind: %+v", e)
		}
	}
	var array []event
	if err := json.Unmarshal([]byte(q.must("events", "--json")), &array); err != nil || len(array) < int(last) {
		t.Errorf("as one array: %d events, %v", len(array), err)
	}
	if r := q.cli("events", "--event", "endd"); r.code != 2 || !strings.Contains(r.err, `"ended"`) {
		t.Errorf("a wrong kind: %+v", r)
	}
	if r := q.cli("events", "--since", "-1"); r.code != 2 || !strings.Contains(r.err, "since") {
		t.Errorf("a wrong number: %+v", r)
	}
}

// During a drain no job starts. This also holds for prefetched jobs and after a restart. Running jobs end,
// and status reports the drain. After the drain, jobs start again.
func TestDrain(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	w := q.dial()
	for range 8 {
		w.waitEnded(w.enqueue(fields{"command": "true"})) // run short jobs, so that the service prefetches jobs later
	}
	gate := q.path("gate")
	running := w.enqueue(fields{"command": "echo up; while [ ! -e " + gate + " ]; do sleep 0.02; done"})
	w.waitRunning(running)
	ids := w.batch([]fields{{"command": "true"}, {"command": "true"}})
	if r := q.cli("status", "--check"); r.code != 0 || r.out != "ok\n" {
		t.Errorf("status before: %+v", r)
	}
	q.must("drain")
	waiting := q.command("drain", "--wait", "--json")
	out, err := waiting.StdoutPipe()
	if err == nil {
		err = waiting.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	q.writeFile("gate", "")
	w.waitEnded(running)
	if text, err := io.ReadAll(out); err != nil || string(text) != `{"draining":true,"running":0}`+"\n" {
		t.Errorf("drain --wait: %q, %v", text, err)
	}
	waiting.Wait()
	q.stop()
	q.start("--workers", "1")
	w = q.dial()
	if r := q.cli("status", "--check"); r.code != 1 || !strings.HasPrefix(r.out, "degraded: ") ||
		!strings.Contains(r.out, "drain --off") {
		t.Errorf("status of a drain: %+v", r)
	}
	if n := w.counts()["pending"]; n != 2 {
		t.Errorf("%d wait after the restart, want 2", n)
	}
	if got := q.must("config", "list"); strings.Contains(got, "drain") {
		t.Error("the drain shows among the settings")
	}
	q.must("drain", "--off")
	for _, id := range ids {
		w.waitEnded(id)
	}
	if r := q.cli("drain", "--off", "--wait"); r.code != 2 {
		t.Errorf("drain --off --wait: %+v", r)
	}
}

// While one drain waits until no job runs, a second drain can be requested. If drain --off ends the drain,
// the waiting request fails.
func TestDrainFailsIfItIsEndedWhileItWaits(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	w := q.dial()
	gate := q.path("gate")
	running := w.enqueue(fields{"command": "echo up; while [ ! -e " + gate + " ]; do sleep 0.02; done"})
	w.waitRunning(running)
	replies := make(chan wireMessage, 1)
	go func() { replies <- q.dial().call("drain", fields{"wait": true}) }() // this goroutine ends when the drain ends
	q.waitUntil("it drains", 10*time.Second, func() bool { return strings.Contains(q.must("status"), "drain") })
	q.must("drain")
	select {
	case got := <-replies:
		t.Fatalf("got %+v while a job runs", got)
	default:
	}
	q.must("drain", "--off")
	if got := <-replies; got.Error == nil || got.Error.Data.Code != "wrong_state" {
		t.Errorf("got %+v, want wrong_state", got)
	}
	q.writeFile("gate", "")
	w.waitEnded(running)
}

// reload applies the settings of the file, and names those that another source overrides.
func TestReloadVerb(t *testing.T) {
	q := newQueue(t, "")
	file := q.writeFile("queuectl.toml", "max_retries = 1\npriority = 3\n")
	q.start("--config", file)
	q.must("config", "set", "priority", "4")
	q.writeFile("queuectl.toml", "max_retries = 2\npriority = 3\n")
	r := q.cli("reload")
	if r.code != 0 || !strings.Contains(r.err, "priority") || strings.Contains(r.err, "max_retries") {
		t.Errorf("reload: %+v", r)
	}
	if got := q.setting("max_retries"); got.Value != "2" {
		t.Errorf("after reload: %+v", got)
	}
	q.writeFile("queuectl.toml", "max_retrys = 9\n")
	if r := q.cli("reload"); r.code == 0 || !strings.Contains(r.err, "max_retrys") {
		t.Errorf("reload of a wrong file: %+v", r)
	}
	if got := q.setting("max_retries"); got.Value != "2" {
		t.Errorf("after a refused reload: %+v", got)
	}
}

// logs prints the output of several jobs one after another, or line by line as it arrives. Each
// line names its job. --since omits older output.
func TestLogsOfSeveralJobs(t *testing.T) {
	q := startQueue(t, "--workers", "3")
	w := q.dial()
	gate := q.path("gate")
	longJob := w.enqueue(fields{"id": "long-one", "command": "echo early; while [ ! -e " + gate +
		" ]; do sleep 0.02; done; printf late"})
	q.must("enqueue", "--id", "b", "echo one; echo two")
	w.waitEnded("b")
	w.waitUntil("it has printed", 20*time.Second, func() bool { return q.must("logs", longJob) == "early" })
	if got, want := q.must("logs", "b", longJob), "b        | one\nb        | two\nlong-one | early"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	since := time.Now().Format(time.RFC3339Nano)
	follower := q.command("logs", "-f", longJob, "b")
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
			t.Errorf("followed: %q (%v), want %q once", text, err, want)
		}
	}
	if got := q.must("logs", longJob, "--since", since); got != "late" {
		t.Errorf("since the gate: %q", got)
	}
	if got := q.must("logs", "b", "--since", "1h"); got != "one\ntwo" {
		t.Errorf("since an hour: %q", got)
	}
	if r := q.cli("logs", "b", "nope", "nor-this"); r.code != 4 || strings.Count(r.err, "queuectl: ") != 2 ||
		!strings.Contains(r.out, "one") {
		t.Errorf("with unknown ids: %+v", r)
	}
	var piece struct{ ID, Text string }
	if err := json.Unmarshal([]byte(strings.Split(q.must("logs", "b", "--jsonl"), "\n")[0]), &piece); err != nil ||
		piece.ID != "b" {
		t.Errorf("a piece as JSON: %+v, %v", piece, err)
	}
}

// Ended jobs are removed on request, oldest first, or by a retention setting. Jobs that have not ended are
// kept, and so are the jobs in the dead-letter queue.
func TestCleanupAndRetention(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	w := q.dial()
	var specs []fields
	for i := range 30 {
		specs = append(specs, fields{"id": fmt.Sprintf("c%02d", i), "command": "true"})
	}
	specs = append(specs, fields{"id": "dead", "command": "exit 1", "max_retries": 0},
		fields{"id": "later", "command": "true", "delay": "1h"})
	w.batch(specs)
	w.waitUntil("all have ended", 20*time.Second, func() bool {
		c := w.counts()
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
		if got := q.must(strings.Fields(c.args)...); got != c.out || w.counts()["completed"] != c.remaining {
			t.Errorf("%s: %q, %d are left, want %q, %d", c.args, got, w.counts()["completed"], c.out, c.remaining)
		}
	}
	for _, args := range []string{"cleanup --days -1", "cleanup -s pending", "cleanup -s complted", "cleanup --keep -1"} {
		if r := q.cli(strings.Fields(args)...); r.code != 2 {
			t.Errorf("%s: %+v", args, r)
		}
	}
	q.must("config", "set", "retention_max_jobs", "5")
	w.waitUntil("five are left", 40*time.Second, func() bool { return w.counts()["completed"] == 5 })
	ended := time.Now()
	w.waitUntil("they are a second old", 20*time.Second, func() bool { return time.Since(ended) > 1100*time.Millisecond })
	q.must("config", "set", "retention_completed", "1s")
	w.waitUntil("none is left", 40*time.Second, func() bool { return w.counts()["completed"] == 0 })
	if c := w.counts(); c["dead"] != 1 || c["pending"] != 1 {
		t.Errorf("left: %v", c)
	}
	if got := q.must("list", "-q"); got != "later\ndead" {
		t.Errorf("left: %q", got)
	}
	if n := q.queryInt("SELECT count(*) FROM attempts"); n != 1 {
		t.Errorf("%d attempts are left, want that of the dead job", n)
	}
	q.must("cleanup", "--days", "0", "-s", "dead")
	if got := q.must("list", "-q"); got != "later" {
		t.Errorf("left after the dead ones: %q", got)
	}
}
