//go:build linux || windows

package jobs

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/internal/testrig"
)

// A TOML file describes a graph of jobs. Each table is a job, and the settings before the tables
// apply to all jobs. A job may depend on a job that comes later in the file.
func TestTOMLTablesDefineDependentJobs(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	file := q.WriteFile("graph.toml", `max_retries = 0
labels = {of = "graph"}

[jobs.ship]
command = "echo shipped"
depends_on = ["build", "check:ended"]

[jobs."build"]
argv = ["echo", "built"]

[jobs.check]
command = "exit 3"
depends_on = "build"
timeout = 1.5
`)
	if got := q.MustRunCLI("enqueue", "--file", file); got != "ship\nbuild\ncheck" {
		t.Errorf("got ids %q", got)
	}
	q.MustRunCLI("wait", "ship")
	if got := q.MustRunCLI("show", "ship", "--json"); !strings.Contains(got, `"of":"graph"`) ||
		!strings.Contains(got, `"max_retries":0`) {
		t.Errorf("the job is %s", got)
	}
	for text, want := range map[string]string{
		"[jobs.a]\ncommand = \"x\"\n\n[jobs.b]\ncommnd = \"y\"\n": "line 4: commnd: unknown job field",
		"[jobs.a]\ncommand = \"x\"\nid = \"b\"\n": "line 1: id: the job's id is the name of its " +
			"table; remove this field",
		"[job.a]\ncommand = \"x\"\n":              "contains no jobs",
		"[jobs.a]\ncommand = \n":                  "graph.toml:2: ",
		"id = \"x\"\n[jobs.a]\ncommand = \"x\"\n": "id: this field cannot be set for all jobs",
		"[jobs.a]\ncommand = \"x\"\ndepends_on = [\"b\"]\n[jobs.b]\ncommand = \"x\"\ndepends_on = [\"a\"]\n": "wait for",
	} {
		q.WriteFile("graph.toml", text)
		if got := q.RunCLI("enqueue", "--file", file); got.ExitCode != 2 || !strings.Contains(got.Stderr, want) {
			t.Errorf("%q: got %+v, want %q", text, got, want)
		}
	}
}

// In a file, a job may depend on a job that comes much later, even if the client needs several requests to send
// the file.
func TestJobMayDependOnLaterJobInFile(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	const n = 2500
	var lines strings.Builder
	for i := range n {
		job := map[string]any{"id": fmt.Sprint("j", i), "command": "true"}
		if i%2 == 0 && i < n-2 {
			job["depends_on"] = []string{fmt.Sprint("j", n-1-i)}
		}
		raw, err := json.Marshal(job)
		if err != nil {
			t.Fatal(err)
		}
		lines.Write(append(raw, '\n'))
	}
	got := strings.Fields(q.MustRunCLI("enqueue", "--file", q.WriteFile("many.jsonl", lines.String())))
	if len(got) != n || got[0] != "j0" || got[n-1] != fmt.Sprint("j", n-1) || got[1200] != "j1200" {
		t.Fatalf("enqueue printed %d ids, beginning with %.40q", len(got), got)
	}
	if got := q.MustRunCLI("tree", "j0", "--json"); !strings.Contains(got, fmt.Sprintf(`"j%d"`, n-1)) {
		t.Errorf("the tree of the first is %s", got)
	}
	q.MustRunCLI("enqueue", "--id", "base", "--delay", "1h", "true")
	lines.Reset()
	// The first 10,000 jobs depend on a job in the queue, the rest on jobs at the beginning of this file.
	for i := range 11_500 {
		parent := "base"
		if i >= 10_000 {
			parent = fmt.Sprint("k", i-10_000)
		}
		fmt.Fprintf(&lines, `{"id":"k%d","command":"true","depends_on":["%s"]}`+"\n", i, parent)
	}
	if got := strings.Fields(q.MustRunCLI("enqueue", "--file", q.WriteFile("many.jsonl",
		lines.String()))); len(got) != 11_500 ||
		got[11_000] != "k11000" {
		t.Errorf("enqueue printed %d ids, want 11,500 in the order of the file", len(got))
	}
	var cycle strings.Builder
	for i := range n {
		fmt.Fprintf(&cycle, `{"id":"c%d","command":"true","depends_on":["c%d"]}`+"\n", i, (i+1)%n)
	}
	if got := q.RunCLI("enqueue", "--file", q.WriteFile("cycle.jsonl", cycle.String())); got.ExitCode != 2 ||
		!strings.Contains(got.Stderr, "the dependencies form a cycle (") {
		t.Errorf("a cycle: got %.300q", got.Stderr)
	}
	if got := q.MustRunCLI("list", "--id-glob", "c*", "-q"); got != "" {
		t.Errorf("jobs of the cycle were enqueued: %.80q", got)
	}
}
