//go:build linux || windows

package cli

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// The program either does exactly what its arguments say or reports an error. It ignores no flag and changes no
// byte of an argument. It accepts every short flag that its help shows.
func TestCommandsObeyEveryFlagAndArgumentByte(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	for _, c := range []struct {
		args []string
		in   string
		code int
		out  string
	}{
		{[]string{"run", "-c", "echo short"}, "", 0, "short\n"},
		{[]string{"run", "--stdin", "-", `{"command":"cat"}`}, "fed", 0, "fed"},
		{[]string{"run", "--stdin", "-", "cat"}, "fed", 0, "fed"},
		{[]string{"run", "--max-attempts", "1", `{"command":"exit 3","max_retries":5}`}, "", 3, ""},
		{[]string{"run", "--delay", "0", `{"command":"true","run_at":"2099-01-01T00:00:00Z"}`}, "", 0, ""},
		{[]string{"enqueue", "--priority", "9", `[{"command":"true"}]`}, "", 2,
			"job flags cannot be combined with a JSON array"},
		{[]string{"enqueue", "--stdin", "-", "cat"}, "\xff", 2, "stdin: "},
		{[]string{"enqueue", "--env", "QUEUECTL_WORKER=x", "true"}, "", 2,
			"env: queuectl sets the variable QUEUECTL_WORKER itself; use another name"},
		{[]string{"list", "--limit", "0"}, "", 2, "--limit: 0 is too small"},
		{[]string{"list", "--limit", "x"}, "", 2, `--limit: "x" is not a whole number`},
		{[]string{"config", "get", "a", "b"}, "", 2, "takes at most one argument (the name of a setting)"},
		{[]string{"config", "validate", "a", "b"}, "", 2, "takes at most one argument (a settings file)"},
		{[]string{"config", "set", "timeout", "-1"}, "", 2, "timeout"},
		{[]string{"config", "set", "priority", "-5"}, "", 0, ""},
		{[]string{"config", "get", "priority"}, "", 0, "-5\n"},
		{[]string{"config", "set", "default_max_tries", "1"}, "", 0, ""},
		{[]string{"config", "get", "default_max_tries"}, "", 0, "1\n"},
		{[]string{"config", "get", "max_retries"}, "", 0, "0\n"},
		{[]string{"worker", "scale", "-1"}, "", 2, "not a number of workers"},
	} {
		r := q.RunCLIWithInput(c.in, c.args...)
		if r.ExitCode != c.code || c.code == 0 && r.Stdout != c.out || c.code != 0 && !strings.Contains(r.Stderr, c.out) ||
			strings.Contains(r.Stderr, "strconv") {
			t.Errorf("%q: %+v; want %d, %q", c.args, r, c.code, c.out)
		}
	}
}

// `queuectl list` prints each job once, even if several flags select it. The flag -q overrides --json. A time of day in
// --since means its most recent occurrence, today or yesterday.
func TestListsContainEachJobOnce(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	q.MustRunCLI("enqueue", "--id", "a", "true")
	q.MustRunCLI("enqueue", "--id", "b", "true")
	for _, args := range [][]string{
		{"-s", "waiting", "-s", "pending"}, {"-s", "pending", "-s", "pending"}, {"--json"}, {"--jsonl"},
		{"--since", time.Now().Add(-time.Minute).Format("15:04")},
	} {
		if got := q.MustRunCLI(append([]string{"list", "-q"}, args...)...); got != "b\na" {
			t.Errorf("list -q %q: got %q, want b and a", args, got)
		}
	}
	if got := q.MustRunCLI("list", "-q", "--since", time.Now().Add(time.Hour).Format("15:04")); time.Now().Hour() < 23 &&
		got != "b\na" {
		t.Errorf("list --since with a time of day that was yesterday: %q", got)
	}
	if got := q.MustRunCLI("dlq", "list", "-q", "--json"); got != "" {
		t.Errorf("dlq list -q --json of no jobs: %q", got)
	}
}

// An error about one job of a file contains the job's line number, in every format of the file.
func TestJobFileErrorsNameTheLine(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	q.MustRunCLI("enqueue", "--id", "taken", "true")
	for text, line := range map[string]string{
		"\n{\"id\":\"taken\",\"command\":\"true\"}\n":                                     "line 2: ",
		"{\"command\":\"true\"}\n\n{\"id\":\"taken\",\"command\":\"true\"}\n":             "line 3: ",
		"[\n  {\"command\":\"true\"},\n  {\"id\":\"taken\",\n   \"command\":\"true\"}\n]": "line 3: ",
		"[\n\n  {\"id\":\"taken\",\"command\":\"true\"}\n]":                               "line 3: ",
		"[{\"command\":\"true\"},\n{\"comand\":\"true\"}]":                                "line 2: ",
		"[\n{\"command\":\"true\",\"priority\":9999999}]":                                 "line 2: ",
	} {
		if r := q.RunCLIWithInput(text, "enqueue", "--file", "-"); r.ExitCode == 0 || !strings.Contains(r.Stderr, line) {
			t.Errorf("%q: %+v, want %s", text, r, line)
		}
	}
	if got := q.MustRunCLI("list", "-q"); got != "taken" {
		t.Errorf("jobs after the refused files: %q", got)
	}
}

// A request with a missing or wrong parameter gets an error that names the parameter. The service never assumes
// a value for it.
func TestInvalidParametersAreNamed(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	w.Enqueue(testrig.JSONFields{"id": 7, "command": "true"})
	for _, c := range []struct {
		method string
		params testrig.JSONFields
		field  string
	}{
		{"show", testrig.JSONFields{}, "id"}, {"logs", testrig.JSONFields{}, "id"}, {"cancel", testrig.JSONFields{}, "ids"},
		{"retry", testrig.JSONFields{}, "ids"},
		{"worker.scale", testrig.JSONFields{}, "count"}, {"worker.stop", testrig.JSONFields{"count": 0}, "count"},
		{"worker.start", testrig.JSONFields{"count": 0}, "count"},
		{"list", testrig.JSONFields{"since": "x"}, "since"}, {"wait", testrig.JSONFields{"id": 7, "timeout": "x"}, "timeout"},
		{"worker.stop", testrig.JSONFields{"timeout": "x"}, "timeout"},
		{"dlq.list", testrig.JSONFields{"state": "pending"}, "state"},
		{"logs", testrig.JSONFields{"id": 7, "attempt": -1}, "attempt"},
		{"logs", testrig.JSONFields{"id": 7, "n": -1}, "n"},
	} {
		if a := w.Call(c.method, c.params); a.Error == nil || a.Error.Data.Code != "invalid" ||
			a.Error.Data.Field != c.field {
			t.Errorf("%s %v: %+v, want invalid %s", c.method, c.params, a, c.field)
		}
	}
	var st struct{ Workers struct{ Total int } }
	if w.MustCall("status", testrig.JSONFields{}, &st); st.Workers.Total != 2 {
		t.Errorf("%d workers are left, want 2", st.Workers.Total)
	}
	if j := w.WaitJobEnded("7"); j.ID != "7" {
		t.Errorf("job 7 was requested, got %+v", j)
	}
	for method, params := range map[string]testrig.JSONFields{"show": {"id": 7}, "retry": {"ids": []any{7}},
		"cancel": {"id": 7}} {
		if a := w.Call(method, params); a.Error != nil {
			t.Errorf("%s with an integer as id: %+v", method, a.Error)
		}
	}
}

// If the service dies while a client follows a job, the client reports that the job is still in the queue
// and how to follow it again.
func TestFollowerOfDeadServiceExplainsReattaching(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	gate := q.Path("gate")
	cmd := q.CLICommand("run", "echo up; while [ ! -e "+gate+" ]; do sleep 0.02; done; echo late")
	done := make(chan testrig.CommandResult, 1)
	go func() { done <- testrig.RunCommand(t, cmd) }()
	w.WaitUntil("job 1 is there", 20*time.Second, func() bool {
		return w.Call("show",
			testrig.JSONFields{"id": "1"}).Error == nil
	})
	w.WaitJobRunning("1")
	q.KillService()
	if r := <-done; r.ExitCode != 125 || !strings.Contains(r.Stderr, "job 1 is still in the queue") ||
		!strings.Contains(r.Stderr, "queuectl attach 1") {
		t.Errorf("run after the service died: %+v", r)
	}
	q.StartService("--workers", "1")
	os.WriteFile(gate, nil, 0o600)
	if r := q.RunCLI("logs", "-f", "1"); r.ExitCode != 0 || r.Stdout != "up\nlate\n" {
		t.Errorf("logs -f after the restart: %+v", r)
	}
}

// The queue time of a job is how long it has waited to start. After a retry by a user, the queue time begins with the
// retry. If the start time of a job was already past when the job was enqueued, the queue time begins with the enqueue.
func TestJobsQueueTimeStartsWithItsWait(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	w := q.DialService()
	id := w.Enqueue(testrig.JSONFields{"command": "true", "run_at": "2020-01-01T00:00:00Z"})
	var j struct {
		QueueTime int64 `json:"queue_time_ms"`
	}
	if w.MustCall("show", testrig.JSONFields{"id": id}, &j); j.QueueTime > 60_000 {
		t.Errorf("a job of 2020 has waited %d ms", j.QueueTime)
	}
	w.MustCall("worker.scale", testrig.JSONFields{"count": 1}, nil)
	w.WaitJobEnded(id)
	w.MustCall("worker.scale", testrig.JSONFields{"count": 0}, nil)
	before := time.Now()
	w.MustCall("retry", testrig.JSONFields{"id": id}, nil)
	time.Sleep(20 * time.Millisecond) // the job must have waited for at least 20 ms
	w.MustCall("show", testrig.JSONFields{"id": id}, &j)
	// Allow 2 ms, because both times are rounded to whole milliseconds.
	if waited := time.Since(before).Milliseconds() + 2; j.QueueTime < 18 || j.QueueTime > waited {
		t.Errorf("after a retry the job has waited %d ms, want 20 to %d", j.QueueTime, waited)
	}
}

// The client adds its variable PATH to each job of a file, so a long PATH can make several requests necessary. The
// client still stores all jobs, in the order of the file.
func TestLongPATHSplitsJobFileIntoRequests(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "0")
	file := q.WriteFile("jobs", strings.Repeat("{\"command\":\"true\"}\n", 10_000))
	cmd := q.CLICommand("enqueue", "--file", file)
	cmd.Env = append(cmd.Env, "PATH="+os.Getenv("PATH")+strings.Repeat(":/opt/a/long/path/that/does/not/exist", 60))
	r := testrig.RunCommand(t, cmd)
	ids := strings.Fields(r.Stdout)
	if r.ExitCode != 0 || len(ids) != 10_000 || ids[0] != "1" || ids[9999] != "10000" {
		t.Errorf("enqueue --file: exit code %d, %d ids, %s", r.ExitCode, len(ids), r.Stderr)
	}
}

// `queuectl list` prints the requested columns in the requested order, for any number of jobs. With --watch it
// prints the list again when something changes.
func TestListPrintsRequestedColumnsAndWatches(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "0")
	w := q.DialService()
	var specs []testrig.JSONFields
	for i := range 2500 {
		specs = append(specs, testrig.JSONFields{"id": fmt.Sprintf("j%04d", i), "command": "true", "priority": i * 37 % 2500})
	}
	w.EnqueueBatch(specs)
	if got := q.MustRunCLI("list", "--columns", "id,state,command", "--limit",
		"1"); got != "ID     STATE    COMMAND\nj2027  pending  true\n… and 2499 more jobs (use --limit N)" {
		t.Errorf("list --columns: %q", got)
	}
	highest := q.MustRunCLI("list", "--sort", "-priority", "--limit", "3", "-q")
	least := q.MustRunCLI("list", "--sort", "priority", "--limit", "2", "-q")
	if len(strings.Fields(highest)) != 3 || len(strings.Fields(least)) != 2 {
		t.Errorf("list --sort: jobs with the highest value %q, with the lowest %q", highest, least)
	}
	for _, c := range []struct {
		ids  string
		want []int
	}{{highest, []int{2499, 2498, 2497}}, {least, []int{0, 1}}} {
		for i, id := range strings.Fields(c.ids) {
			var j struct{ Priority int }
			if w.MustCall("show", testrig.JSONFields{"id": id}, &j); j.Priority != c.want[i] {
				t.Errorf("%s has priority %d, want %d", id, j.Priority, c.want[i])
			}
		}
	}
	if got := q.MustRunCLI("list", "--sort", "id", "--limit", "2", "--columns", "id"); !strings.HasPrefix(got,
		"ID\nj0000\nj0001\n… and 2498 more") {
		t.Errorf("list --sort id: %q", got)
	}
	for _, c := range []struct{ args, err string }{
		{"list --columns id,stat", `"state"`}, {"list --sort prioriti", `"priority"`}, {"list --json --sort id", "--limit"},
		{"list --json --columns id", "cannot be combined with --json"},
	} {
		if r := q.RunCLI(strings.Fields(c.args)...); r.ExitCode != 2 || !strings.Contains(r.Stderr, c.err) {
			t.Errorf("%s: %+v, want %s", c.args, r, c.err)
		}
	}
	cmd := q.CLICommand("list", "--watch", "--limit", "1", "--columns", "id")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	lines := bufio.NewScanner(out)
	until := func(want string) {
		t.Helper()
		stop := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
		defer stop.Stop()
		for lines.Scan() {
			if lines.Text() == want {
				return
			}
		}
		t.Errorf("list --watch did not show %s: %v", want, lines.Err())
	}
	until("j2027")
	w.Enqueue(testrig.JSONFields{"id": "new", "command": "true", "priority": 3000})
	until("new")
	w.MustCall("rm", testrig.JSONFields{"id": "new"}, nil)
	until("j2027")
}

// If `queuectl list` does not show all jobs, it shows running jobs first, even if many newer jobs are waiting.
func TestListShowsRunningJobsFirst(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	w.Enqueue(testrig.JSONFields{"id": "runs", "command": "echo up; exec sleep 60",
		"labels": testrig.JSONFields{"x": "1"}})
	w.WaitJobRunning("runs")
	var specs []testrig.JSONFields
	for i := range 60 {
		specs = append(specs, testrig.JSONFields{"id": fmt.Sprintf("w%02d", i), "command": "true",
			"labels": testrig.JSONFields{"x": "1"}})
	}
	w.EnqueueBatch(specs)
	for _, filter := range [][]string{{"--label", "x=1"}, {"--state", "processing,waiting"}, nil} {
		got := q.MustRunCLI(append([]string{"list", "--limit", "4", "--columns", "id"}, filter...)...)
		if lines := strings.Split(got, "\n"); len(lines) != 6 || lines[1] != "runs" {
			t.Errorf("list %v: %q, want the running job first", filter, got)
		}
	}
	q.MustRunCLI("kill", "-s", "KILL", "runs")
}
