//go:build linux || windows

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
)

// `queuectl enqueue` accepts a shell line, words after --, JSON, a JSON array, flags and files. All forms store
// the same job.
func TestEnqueueFormsStoreSameJob(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	array := q.WriteFile("array", `[ {"id":"f1","command":"x"}, {"id":"f2","argv":["x"]} ]`)
	lines := q.WriteFile("lines", "{\"id\":\"g1\",\"command\":\"x\"}\n\n  {\"id\":\"g2\",\"command\":\"x\"}")
	for _, c := range []struct {
		stdin string
		args  []string
		out   string
	}{
		{"", []string{"echo hi"}, "1"},
		{"", []string{"--", "ls", "-l", "--json"}, "2"},
		{"", []string{`{"command":"x","priority":9}`}, "3"},
		{"", []string{`{"id":17,"command":"x"}`}, "17"},
		{"", []string{`[{"id":"a1","command":"x"},{"id":"a2","command":"y"}]`}, "a1\na2"},
		{"", []string{"--id", "b", "--command", "{x", "--label", "k=v", "--label", "l=w", "--env", "A=1", "--no-retry-code",
			"3,4", "--next-run-at", "+1h"}, "b"},
		{"", []string{"--id", "c", `{"id":"other","command":"x","priority":3}`}, "c"},
		{"", []string{"--file", array}, "f1\nf2"},
		{"", []string{"--file", lines}, "g1\ng2"},
		{`{"id":"h","command":"x"}`, []string{"--file", "-"}, "h"},
		{"fed", []string{"--id", "i", "--stdin", "-", "cat"}, "i"},
	} {
		if r := q.RunCLIWithInput(c.stdin, append([]string{"enqueue"}, c.args...)...); r.ExitCode != 0 ||
			strings.TrimSpace(r.Stdout) != c.out {
			t.Errorf("enqueue %q: %+v, want %q", c.args, r, c.out)
		}
	}
	for id, want := range map[string]string{
		"1": `"command":"echo hi"`, "2": `"argv":["ls","-l","--json"]`, "3": `"priority":9`,
		"b": `"labels":{"k":"v","l":"w"}`, "c": `"priority":3`, "f2": `"argv":["x"]`,
	} {
		if got := q.MustRunCLI("show", id, "--json"); !strings.Contains(got, want) {
			t.Errorf("job %s lacks %s: %s", id, want, got)
		}
	}
	if got := q.MustRunCLI("enqueue", "--id", "j", "--json", "x"); !strings.Contains(got, `"state":"pending"`) {
		t.Errorf("enqueue --json: %s", got)
	}
	q.MustRunCLI("worker", "scale", "1")
	if j := q.DialService().WaitJobEnded("i"); j.Output != "fed" {
		t.Errorf("the job printed %q, want its stdin", j.Output)
	}
}

// Either all jobs of a file are stored or none, however many requests they need, and even if the client or the
// service dies. If a line is invalid, the error names the line, and other jobs can use the ids of the file.
func TestJobFileIsStoredAtomically(t *testing.T) {
	skip.IfShort(t, "takes long; make test-long runs it")
	q := testrig.StartQueue(t, "--workers", "0")
	lines := strings.Split(strings.TrimSpace(strings.Repeat(`{"command":"true"}`+"\n", 10000)), "\n")
	count := func() int { return q.DialService().JobCountsByState()["pending"] }
	bad := slices.Clone(lines)
	bad[7344] = `{"command":"true","priority":"high"}`
	broken := slices.Clone(lines)
	broken[9999] = `{"command":`
	for _, c := range []struct{ name, text, err string }{
		{"bad field", strings.Join(bad, "\n"), "line 7345: priority"},
		{"bad JSON", strings.Join(broken, "\n"), "line 10000: "},
		{"bad line of many", strings.Repeat(lines[0]+"\n", 25_000) + bad[7344], "line 25001: priority"},
		{"taken id of many", `{"id":"x","command":"true"}` + "\n" + strings.Repeat(lines[0]+"\n", 2500) +
			`{"id":"x","command":"true"}`, "line 2502: id"},
		{"too long", lines[0] + "\n" + `{"command":"` + strings.Repeat("x", 8<<20) + `"}`, "line 2: longer than 8388608"},
		{"no end of the array", "[" + lines[0] + ",\n" + lines[0], "line 2: invalid JSON"},
		{"more after the array", "[" + lines[0] + "]\n{}", "line 2: unexpected text after"},
	} {
		if r := q.RunCLIWithInput(c.text, "enqueue", "--file", "-"); r.ExitCode != 2 && r.ExitCode != 5 ||
			!strings.Contains(r.Stderr, c.err) || r.Stdout != "" || count() != 0 {
			t.Errorf("%s: code %d, stderr %q; %d jobs", c.name, r.ExitCode, r.Stderr, count())
		}
	}
	file := q.WriteFile("good", strings.Join(lines, "\n"))
	if got := strings.Count(q.MustRunCLI("enqueue", "--file", file), "\n"); got != 9999 || count() != 10000 {
		t.Errorf("enqueue of 10,000 jobs printed %d ids, and %d jobs are stored", got+1, count())
	}
	want := count()
	for i := range max(20/testrig.JobCountDivisor, 8) {
		cmd := q.CLICommand("enqueue", "--file", file, "-q")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(10+12*i) * time.Millisecond) // vary the time of the kill
		if i%2 == 0 {
			cmd.Process.Kill()
			cmd.Wait()
			q.StopService() // stop the service normally, because this iteration has killed the client
		} else {
			q.KillService()
		}
		q.StartService("--workers", "0")
		all := false
		if i%2 == 1 {
			cmd.Wait()
			code := cmd.ProcessState.ExitCode()
			all = code == 0
			// Exit code 3 means that the outcome is unknown, because no reply arrived. With exit code 5, the service
			// has discarded the batch.
			if code != 0 && code != 3 && code != 5 {
				t.Errorf("kill %d: the client ended with %d: %s", i, code, stderr.String())
			}
		}
		got := count()
		if got != want+10000 && (all || got != want) {
			t.Errorf("kill %d: %d jobs are stored, want %d, or the whole batch in addition", i, got, want)
		}
		want = got
	}
}

// JSON output has the documented members. --json prints a list as one array, --jsonl as one line per item, and
// -q prints only the ids. An empty list is an empty array.
func TestJSONOutputHasDocumentedMembers(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "1")
	for _, args := range []string{"list", "dlq list", "list -s dead"} {
		if got := q.MustRunCLI(append(strings.Fields(args), "--json")...); got != "[]" {
			t.Errorf("%s --json: %q", args, got)
		}
		if got := q.MustRunCLI(append(strings.Fields(args), "--jsonl")...) + q.MustRunCLI(strings.Fields(args)...) +
			q.MustRunCLI(append(strings.Fields(args), "-q")...); got != "" {
			t.Errorf("%s of no jobs: %q", args, got)
		}
	}
	w := q.DialService()
	id := w.Enqueue(testrig.JSONFields{"command": "echo up; exec sleep 60", "labels": testrig.JSONFields{"a": "b"}})
	w.WaitJobRunning(id)
	var detail map[string]json.RawMessage
	if err := json.Unmarshal([]byte(q.MustRunCLI("show", id, "--json")), &detail); err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Fields("id seq command state reason queue priority waiting_time effective_priority " +
		"attempts max_retries timeout_ms created_at updated_at run_at next_retry_at started_at finished_at queue_time_ms " +
		"run_time_ms exit_code signal error worker_id pid user labels output stderr history") {
		if _, ok := detail[name]; !ok {
			t.Errorf("show --json lacks the member %s", name)
		}
	}
	if s := string(detail["started_at"]); !strings.HasSuffix(s, `Z"`) || len(s) != 26 {
		t.Errorf("started_at is %s, want a time in UTC with milliseconds", s)
	}
	q.MustRunCLI("cancel", id)
	for _, name := range []string{"pid", "worker_id", "next_retry_at"} {
		if got := q.MustRunCLI("show", id, "--json"); !strings.Contains(got, `"`+name+`":null`) {
			t.Errorf("member %s is not null: %s", name, got)
		}
	}
	var specs []testrig.JSONFields
	for range 5000 {
		specs = append(specs, testrig.JSONFields{"command": "true", "delay": "1h"})
	}
	w.EnqueueBatch(specs)
	var list []testrig.JSONFields
	if err := json.Unmarshal([]byte(q.MustRunCLI("list", "--json")), &list); err != nil || len(list) != 5001 {
		t.Errorf("list --json: %d jobs, %v", len(list), err)
	}
	if got := strings.Count(q.MustRunCLI("list", "--jsonl", "--limit", "1500"), "\n"); got != 1499 {
		t.Errorf("list --jsonl --limit 1500: %d lines", got+1)
	}
	if got := q.MustRunCLI("list"); strings.Count(got, "\n") != 51 || !strings.Contains(got, "4951 more") {
		t.Errorf("list of 5001 jobs: %s", got)
	}
	var st struct{ Jobs map[string]int }
	json.Unmarshal([]byte(q.MustRunCLI("status", "--json")), &st)
	for _, state := range strings.Fields("blocked held pending processing failed completed dead cancelled") {
		if _, ok := st.Jobs[state]; !ok {
			t.Errorf("status --json lacks the state %s", state)
		}
	}
}

// A job runs in the working directory of the client that enqueued it, with the environment variables that the
// client passes on.
func TestJobRunsInCallersDirectory(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	sub := q.Path("sub")
	os.Mkdir(sub, 0o755)
	sub, _ = filepath.EvalSymlinks(sub)
	sub = filepath.ToSlash(sub)
	say := func(args ...string) string {
		cmd := q.CLICommand(append([]string{"enqueue"}, args...)...)
		cmd.Dir, cmd.Env = sub, append(cmd.Env, "PWD="+sub, "TZ=Asia/Tokyo", "LC_ALL=C", "OTHER=o", "MORE=m")
		r := testrig.RunCommand(t, cmd)
		if r.ExitCode != 0 {
			t.Errorf("enqueue %q: %+v", args, r)
			return ""
		}
		j := w.WaitJobEnded(strings.TrimSpace(r.Stdout))
		return filepath.ToSlash(j.Output + j.Error)
	}
	for _, c := range []struct{ got, want string }{
		{say("pwd"), sub + "\n"},
		{say("--cwd", filepath.VolumeName(q.StateDir)+"/", "pwd"), filepath.VolumeName(q.StateDir) + "/\n"},
		{say("echo $TZ $LC_ALL [$OTHER]"), "Asia/Tokyo C []\n"},
		{say("--env-pass", "OTHER", "--env", "X=a=b", "echo $OTHER [$MORE] $X"), "o [] a=b\n"},
		{say("--env-pass", "*", "echo $OTHER $MORE"), "o m\n"},
		{say("--id", "me", "echo $QUEUECTL_JOB_ID $QUEUECTL_ATTEMPT $QUEUECTL_QUEUE $QUEUECTL_WORKER"), "me 1 default w1\n"},
		{say("echo $QUEUECTL_SOCKET"), filepath.ToSlash(q.SocketAddress()) + "\n"},
		{say("--stdin", "a\nb", "wc -l"), "1\n"},
		{say("--max-retries", "0", "--shell", "sh -ec", "false; echo no"), "exit code 1"},
		{say("--no-cwd", "--command", `[ "$PWD" = "$HOME" ] && echo home`), "home\n"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

// The setting scheduling determines whether waiting jobs start by priority, in order of arrival, or
// by a priority that rises while they wait.
func TestWaitingJobsStartInSchedulingOrder(t *testing.T) {
	for _, c := range []struct{ scheduling, aging, want string }{
		// With aging = enqueue, a job gains one point for each job that is enqueued after it. The job of priority 7 is the
		// last one, so it has gained no points.
		{"aging", "time", "8 7 5 3 2 -1"}, {"aging", "enqueue", "8 5 3 7 2 -1"},
		{"priority", "enqueue", "8 7 5 3 2 -1"}, {"fifo", "time", "3 5 8 2 -1 7"},
	} {
		t.Run(c.scheduling+" "+c.aging, func(t *testing.T) {
			t.Parallel()
			q := testrig.NewHarness(t, "")
			q.WriteFile("queuectl.toml", fmt.Sprintf("scheduling = %q\naging = %q\nworkers = 0\n", c.scheduling, c.aging))
			q.StartService()
			w := q.DialService()
			for _, p := range []int{3, 5, 8, 2, -1, 7} {
				w.Enqueue(testrig.JSONFields{"command": fmt.Sprintf("echo '%d' >>%s", p, q.Path("order")), "priority": p})
			}
			q.MustRunCLI("worker", "scale", "1")
			q.WaitUntil("all have run", 10*time.Second, func() bool { return w.JobCountsByState()["completed"] == 6 })
			if got := strings.Join(strings.Fields(q.ReadFile("order")), " "); got != c.want {
				t.Errorf("the jobs ran in the order %q, want %q", got, c.want)
			}
		})
	}
}

// A change of the scheduling order also applies to waiting jobs, whether the service is running or stopped when
// the setting changes. `queuectl status` reports the change until all jobs have new ranks.
func TestChangedSchedulingAppliesToWaitingJobs(t *testing.T) {
	testrig.SkipIfShort(t)
	q := testrig.StartQueue(t, "--workers", "0")
	lines := strings.Repeat(`{"command":"true"}`+"\n", 20_000)
	q.MustRunCLI("enqueue", "--file", q.WriteFile("jobs.jsonl", lines))
	w := q.DialService()
	for _, p := range []int{1, 9, 5} {
		w.Enqueue(testrig.JSONFields{"command": fmt.Sprintf("echo '%d' >>%s", p, q.Path("order")), "priority": p,
			"id": fmt.Sprint("p", p)})
	}
	q.MustRunCLI("config", "set", "scheduling", "fifo")
	if !strings.Contains(q.MustRunCLI("status"), "sorting the waiting jobs again") {
		t.Error("status does not say that jobs are ranked again")
	}
	q.KillService() // kill the service while it computes the new ranks
	q.StartService("--workers", "0")
	q.MustRunCLI("config", "set", "scheduling", "priority")
	q.WaitUntil("all are ranked", 60*time.Second,
		func() bool { return !strings.Contains(q.MustRunCLI("status", "--json"), `"reranking":true`) })
	q.MustRunCLI("rm", "--id-glob", "[0-9]*")
	q.MustRunCLI("worker", "scale", "1")
	q.MustRunCLI("wait", "p1", "p5", "p9")
	if got := strings.Join(strings.Fields(q.ReadFile("order")), " "); got != "9 5 1" {
		t.Errorf("the jobs ran in the order %q, want the order of priority", got)
	}
}

// If a user forgets the -- before a program with flags, the error shows the complete corrected command line. It
// does not suggest a similar flag.
func TestForgottenDoubleDashIsExplained(t *testing.T) {
	q := testrig.NewHarness(t, "")
	for line, want := range map[string]string{
		"enqueue ls -la": "queuectl enqueue -- ls -la", "run ls -l": "queuectl run -- ls -l",
		"enqueue grep -r x .":               "queuectl enqueue -- grep -r x .",
		"enqueue --priority 3 tar --nosuch": "queuectl enqueue -- tar --nosuch",
	} {
		if got := q.RunCLI(strings.Fields(line)...); got.ExitCode != 2 && got.ExitCode != 125 ||
			!strings.Contains(got.Stderr, "queuectl: unknown flag -") || !strings.Contains(got.Stderr, want) {
			t.Errorf("%s: %+v", line, got)
		}
	}
}
