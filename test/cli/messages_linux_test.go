package cli

import (
	"bufio"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// When a batch is enqueued, the client reports which jobs were not enqueued because another job has
// the same unique key.
func TestBatchReportsJobsRefusedAsDuplicates(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "0")
	lines := `{"command":"true","unique":"k"}` + "\n" + `{"command":"true"}` + "\n" +
		`{"command":"true","unique":"k","id":"third"}` + "\n"
	if r := q.RunCLIWithInput(lines, "enqueue", "--file", "-"); r.ExitCode != 0 || r.Stdout != "1\n2\n1" &&
		r.Stdout != "1\n2\n1\n" ||
		!strings.Contains(r.Stderr, "1 of 3 jobs not enqueued (line 3), because another job has the same unique key") {
		t.Errorf("enqueue --file: %+v", r)
	}
	var got struct{ Found []int }
	q.DialService().MustCall("enqueue.batch", map[string]any{"commit": true,
		"jobs": []map[string]any{{"command": "true"}, {"command": "true", "unique": "k"}}}, &got)
	if len(got.Found) != 1 || got.Found[0] != 1 {
		t.Errorf("enqueue.batch over the socket: %+v", got)
	}
}

// A client that waits for a job prints why the job is waiting, with the same reasons as `queuectl why`. If the job is
// cancelled, the client also prints that the job is cancelled.
func TestRunSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "2")
	gate := q.Path("go")
	q.MustRunCLI("enqueue", "--id", "holds", "--lock", "k", testrig.CommandWaitingForFile(gate))
	q.DialService().WaitJobRunning("holds")
	run := q.CLICommand("run", "--id", "waits", "--lock", "k", "true")
	stderr, err := run.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := testrig.StartCommand(run); err != nil {
		t.Fatal(err)
	}
	stderrReader := bufio.NewReader(stderr)
	if line, err := stderrReader.ReadString('\n'); !strings.Contains(line, "lock k: 1 of 1 jobs running") {
		t.Errorf("run printed the reason for waiting %q, %v", line, err)
	}
	q.MustRunCLI("cancel", "waits")
	if line, err := stderrReader.ReadString('\n'); !strings.Contains(line, "job waits is cancelled") {
		t.Errorf("run printed the end of the job %q, %v", line, err)
	}
	run.Wait()
	q.WriteFile("go", "")
}

// If a service is not registered with the operating system, `queuectl service restart` keeps the number of its
// workers and its settings file.
func TestRestartKeepsWorkersAndSettingsFile(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	file := q.WriteFile("own.toml", "[resources.gpu]\ncount = 2\n")
	q.StartService("--workers", "3", "--config", file)
	q.MustRunCLI("service", "restart")
	t.Cleanup(func() { q.RunCLI("service", "stop"); q.ServiceCmd = nil })
	if n := q.MustRunCLI("config", "get", "workers"); n != "3" {
		t.Errorf("workers after the restart: %s", n)
	}
	if text := q.MustRunCLI("gate", "list"); !strings.Contains(text, "gpu") {
		t.Errorf("resources after the restart: %s", text)
	}
}

// In a private run (`queuectl run --private`, which uses a separate queue), a job may depend on jobs
// that precede it in the file.
func TestPrivateRunSupportsJobDependencies(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	list := func(lines ...string) testrig.CommandResult {
		return q.RunCLIWithInput(strings.Join(lines, "\n")+"\n", "run", "--private", "--dir", q.Path("p"), "--file", "-")
	}
	a, b := `{"id":"A","command":"echo of-a"}`, `{"id":"B","command":"echo of-b","depends_on":["A:ended"]}`
	if r := list(b, a); r.ExitCode != 125 || !strings.Contains(r.Stderr, "no line above this one has the job id") {
		t.Errorf("a private run in which a job depends on a later one: %+v", r)
	}
	if r := q.RunCLIWithInput(a+"\n"+b+"\n", "run", "--private", "--dir", q.Path("p2"), "--file", "-"); r.ExitCode != 0 ||
		r.Stdout != "of-a\nof-b" && r.Stdout != "of-a\nof-b\n" {
		t.Errorf("a private run in which a job depends on an earlier one: %+v", r)
	}
}

// A queue refuses invalid defaults for its jobs. If a field of a job is edited to null, the job gets the
// default of its queue.
func TestQueueDefaultsApplyToJobs(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "0")
	for _, invalid := range []string{"resources=none=1", "depends_on=1"} {
		if r := q.RunCLI("queue", "set", "a", "--default", invalid); r.ExitCode != 2 {
			t.Errorf("%s: %+v", invalid, r)
		}
	}
	if text := q.MustRunCLI("queue", "set", "a", "--default", "ok_codes=0,3", "--default", "priority=8", "--default",
		"labels=a=x y:z"); !strings.Contains(text, "labels=a=x y:z ok_codes=0,3 priority=8") {
		t.Errorf("queue set --default printed %s", text)
	}
	q.MustRunCLI("enqueue", "--id", "j", "-Q", "a", "--priority", "1", "true")
	q.MustRunCLI("edit", "j", `{"priority":null}`)
	if text := q.MustRunCLI("show", "j"); !strings.Contains(text, "Priority:   8") {
		t.Errorf("show of a job with a default of its queue: %s", text)
	}
	if text := q.MustRunCLI("simulate", "--json", "--next", "5"); !strings.HasPrefix(text, "[") {
		t.Errorf("simulate --json: %.80s", text)
	}
}

// If an attempt ended because its runner died, `queuectl logs` reports that the output is lost.
func TestLostOutputIsReported(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "1")
	q.MustRunCLI("enqueue", "--id", "job", "--on-lost", "hold", testrig.CommandWaitingForFile(q.Path("never")))
	q.DialService().WaitJobRunning("job")
	q.KillRunners()
	q.WaitUntil("the job is held", 20*time.Second, func() bool { return q.ShowJob("job").State == "held" })
	if r := q.RunCLI("logs", "job"); r.ExitCode != 0 ||
		!strings.Contains(r.Stderr, "the output of attempt 1 of job job is lost, because the runner died during the "+
			"attempt") {
		t.Errorf("logs of an attempt whose runner died: %+v", r)
	}
}
