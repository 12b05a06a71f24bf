package cli

import (
	"bufio"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// A batch reports which jobs were not enqueued, because another job has the same unique key.
func TestBatchReportsUnenqueuedJobs(t *testing.T) {
	t.Parallel()
	q := testrig.NewQueue(t, "")
	q.Start("--workers", "0")
	lines := `{"command":"true","unique":"k"}` + "\n" + `{"command":"true"}` + "\n" +
		`{"command":"true","unique":"k","id":"third"}` + "\n"
	if r := q.CLIWithInput(lines, "enqueue", "--file", "-"); r.Code != 0 || r.Out != "1\n2\n1" && r.Out != "1\n2\n1\n" ||
		!strings.Contains(r.Err, "1 of 3 jobs not enqueued (line 3), because another job has the same unique key") {
		t.Errorf("%+v", r)
	}
	var got struct{ Found []int }
	q.Dial().MustCall("enqueue.batch", map[string]any{"commit": true,
		"jobs": []map[string]any{{"command": "true"}, {"command": "true", "unique": "k"}}}, &got)
	if len(got.Found) != 1 || got.Found[0] != 1 {
		t.Errorf("on the wire: %+v", got)
	}
}

// A client that waits for a job learns why the job is waiting, with the same reasons as "why" prints. It also
// learns that the job was cancelled.
func TestRunSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	q := testrig.NewQueue(t, "")
	q.Start("--workers", "2")
	gate := q.Path("go")
	q.Must("enqueue", "--id", "holds", "--lock", "k", testrig.GatedJob(gate))
	q.Dial().WaitRunning("holds")
	run := q.Command("run", "--id", "waits", "--lock", "k", "true")
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
	q.Must("cancel", "waits")
	if line, err := stderrReader.ReadString('\n'); !strings.Contains(line, "job waits is cancelled") {
		t.Errorf("run printed the end of the job %q, %v", line, err)
	}
	run.Wait()
	q.WriteFile("go", "")
}

// A service that is not registered with the operating system keeps its number of workers and its settings
// file when it restarts.
func TestRestartKeepsWorkersAndSettingsFile(t *testing.T) {
	t.Parallel()
	q := testrig.NewQueue(t, "")
	file := q.WriteFile("own.toml", "[resources.gpu]\ncount = 2\n")
	q.Start("--workers", "3", "--config", file)
	q.Must("service", "restart")
	t.Cleanup(func() { q.CLI("service", "stop"); q.Cmd = nil })
	if n := q.Must("config", "get", "workers"); n != "3" {
		t.Errorf("workers: %s", n)
	}
	if text := q.Must("gate", "list"); !strings.Contains(text, "gpu") {
		t.Errorf("resources: %s", text)
	}
}

// A job of a private run may depend on jobs that precede it in the file.
func TestPrivateDependencies(t *testing.T) {
	t.Parallel()
	q := testrig.NewQueue(t, "")
	list := func(lines ...string) testrig.Result {
		return q.CLIWithInput(strings.Join(lines, "\n")+"\n", "run", "--private", "--dir", q.Path("p"), "--file", "-")
	}
	a, b := `{"id":"A","command":"echo of-a"}`, `{"id":"B","command":"echo of-b","depends_on":["A:ended"]}`
	if r := list(b, a); r.Code != 125 || !strings.Contains(r.Err, "no line above this one has the job id") {
		t.Errorf("in the wrong order: %+v", r)
	}
	if r := q.CLIWithInput(a+"\n"+b+"\n", "run", "--private", "--dir", q.Path("p2"), "--file", "-"); r.Code != 0 ||
		r.Out != "of-a\nof-b" && r.Out != "of-a\nof-b\n" {
		t.Errorf("%+v", r)
	}
}

// If the defaults of a queue contain an invalid value, they are refused. If a field of a job is edited to
// null, it gets the default of the queue of the job.
func TestDefaultsOfAQueue(t *testing.T) {
	t.Parallel()
	q := testrig.NewQueue(t, "")
	q.Start("--workers", "0")
	for _, invalid := range []string{"resources=none=1", "depends_on=1"} {
		if r := q.CLI("queue", "set", "a", "--default", invalid); r.Code != 2 {
			t.Errorf("%s: %+v", invalid, r)
		}
	}
	if text := q.Must("queue", "set", "a", "--default", "ok_codes=0,3", "--default", "priority=8", "--default",
		"labels=a=x y:z"); !strings.Contains(text, "labels=a=x y:z ok_codes=0,3 priority=8") {
		t.Errorf("%s", text)
	}
	q.Must("enqueue", "--id", "j", "-Q", "a", "--priority", "1", "true")
	q.Must("edit", "j", `{"priority":null}`)
	if text := q.Must("show", "j"); !strings.Contains(text, "Priority:   8") {
		t.Errorf("%s", text)
	}
	if text := q.Must("simulate", "--json", "--next", "5"); !strings.HasPrefix(text, "[") {
		t.Errorf("simulate --json: %.80s", text)
	}
}

// If an attempt ended with its runner, logs says that its output is lost.
func TestLostOutputIsReported(t *testing.T) {
	t.Parallel()
	q := testrig.NewQueue(t, "")
	q.Start("--workers", "1")
	q.Must("enqueue", "--id", "job", "--on-lost", "hold", testrig.GatedJob(q.Path("never")))
	q.Dial().WaitRunning("job")
	q.KillRunners()
	q.WaitUntil("the job is held", 20*time.Second, func() bool { return q.Show("job").State == "held" })
	if r := q.CLI("logs", "job"); r.Code != 0 ||
		!strings.Contains(r.Err, "the output of attempt 1 of job job is lost, because the runner died during the attempt") {
		t.Errorf("%+v", r)
	}
}
