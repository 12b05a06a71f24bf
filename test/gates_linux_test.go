package test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Jobs get units of a resource of their own, which they are told, and no unit is two jobs' at once, also
// over kills of the service and its runners; what can never be had is refused.
func TestUnitsAreOneJobs(t *testing.T) {
	t.Parallel()
	q := newQueue(t, "")
	file := q.write("q.toml", "workers = 8\nmax_retries = 20\n[resources.gpu]\nids = [\"a\", \"b\", \"c\", \"d\"]\nenv = \"CARDS\"\n[resources.disk]\ncount = 2\n")
	q.start("--config", file)
	for need, want := range map[string]string{"gpu=5": "5 units of gpu are asked for, and there are 4", "gp=1": `there is no resource "gp" here; did you mean "gpu"?`} {
		if r := q.cli("enqueue", "--resource", need, "true"); r.code != 2 || !strings.Contains(r.err, want) {
			t.Errorf("%s: exit code %d, %s", need, r.code, r.err)
		}
	}
	// Each unit is a folder that one job at a time can make.
	script := q.write("take", `for u in $(echo "$CARDS" | tr , ' '); do mkdir taken-$u || { echo "$CARDS $QUEUECTL_JOB_ID" >>twice; exit 1; }; done
[ "$CARDS" = "$QUEUECTL_RESOURCE_GPU" ] || echo "$CARDS, $QUEUECTL_RESOURCE_GPU" >>twice
for u in $(echo "$CARDS" | tr , ' '); do rmdir taken-$u; done; echo "$CARDS" >>done`)
	jobs := 100
	if os.Getenv("QUEUECTL_SOAK") != "" {
		jobs = 1000
	}
	var lines strings.Builder
	for i := range jobs {
		fmt.Fprintf(&lines, `{"command": "sh %s", "cwd": %q, "resources": {"gpu": %d}}`+"\n", script, q.dir, 1+i%3)
	}
	q.must("enqueue", "--file", q.write("jobs", lines.String()))
	for range 5 {
		time.Sleep(50 * time.Millisecond) // some run, whichever
		q.kill()
		q.start("--config", file)
	}
	q.until("all have run", 120*time.Second, func() bool {
		text, _ := os.ReadFile(q.path("done"))
		return strings.Count(string(text), "\n") >= jobs
	})
	if text, err := os.ReadFile(q.path("twice")); err == nil {
		t.Errorf("units were taken twice: %s", text)
	}
	q.must("enqueue", "--id", "shown", "--resource", "gpu=2", "--resource", "disk=1", "sleep 600")
	q.until("it runs", 10*time.Second, func() bool { return q.show("shown").State == "processing" })
	if out := q.must("show", "shown", "--json"); !strings.Contains(out, `"units":{"disk":["0"],"gpu":["a","b"]}`) {
		t.Errorf("what it holds is not shown: %s", out)
	}
	q.must("config", "set", "resources", "gpu=3")
	q.must("enqueue", "--id", "more", "--resource", "gpu=2", "true")
	if out := q.must("why", "more"); !strings.Contains(out, "2 of 3 units of the resource gpu are in use, and it needs 2") {
		t.Errorf("why: %s", out)
	}
	q.must("cancel", "shown")
	q.must("wait", "more")
}

// A queue's concurrency and pause hold over a kill of the service, and a pause ends by itself.
func TestQueuesOverRestarts(t *testing.T) {
	q := serving(t, "--workers", "4")
	q.must("queue", "set", "one", "--concurrency", "1", "--default", "max_retries=0")
	q.must("enqueue", "-Q", "one", "--cwd", q.dir, "--", "sh", "-c", "mkdir alone && sleep 0.1 && rmdir alone")
	for range 5 {
		q.must("enqueue", "-q", "-Q", "one", "--cwd", q.dir, "--", "sh", "-c", "mkdir alone && sleep 0.02 && rmdir alone")
	}
	q.kill()
	q.start("--workers", "4")
	q.until("all of one have run", 30*time.Second, func() bool { return q.counted("completed") == 6 })
	if n := q.counted("dead"); n != 0 {
		t.Errorf("%d jobs met another one of their queue", n)
	}
	q.must("queue", "pause", "default", "--reason", "a test")
	q.must("enqueue", "--id", "waits", "true")
	q.kill()
	q.start("--workers", "4")
	if out := q.must("why", "waits"); !strings.Contains(out, "queue default is paused") {
		t.Errorf("after a restart: %s", out)
	}
	q.must("queue", "resume", "default")
	q.must("wait", "waits", "--timeout", "20")
	q.must("enqueue", "-Q", "one", "--id", "stands", "--timeout", "60s", "sleep 600")
	q.until("it runs", 10*time.Second, func() bool { return q.show("stands").State == "processing" })
	q.must("queue", "pause", "one", "--freeze")
	if out := q.must("show", "stands", "--json"); !strings.Contains(out, `"paused_by":"`) {
		t.Errorf("what runs does not stand still: %s", out)
	}
	q.must("queue", "resume", "one")
	if out := q.must("show", "stands", "--json"); !strings.Contains(out, `"paused_by":null`) {
		t.Errorf("it does not go on: %s", out)
	}
	q.must("cancel", "stands")
	q.must("queue", "pause", "default")
	q.must("enqueue", "--id", "later", "true")
	q.must("queue", "pause", "default", "--for", "1s")
	q.must("wait", "later", "--timeout", "20")
}

// Two queues with endless work and weights of 3 and 1 share the starts so.
func TestWeightsShareTheStarts(t *testing.T) {
	q := serving(t, "--workers", "0")
	q.must("queue", "set", "three", "--weight", "3")
	var lines strings.Builder
	for i := range 800 {
		fmt.Fprintf(&lines, `{"argv": ["true"], "queue": %q}`+"\n", []string{"three", "one"}[i%2])
	}
	q.must("enqueue", "--file", q.write("jobs", lines.String()))
	q.must("worker", "scale", "1")
	q.until("half have run", 60*time.Second, func() bool { return q.counted("completed") >= 400 })
	q.must("worker", "scale", "0")
	share := map[string]int{}
	for line := range strings.Lines(q.must("list", "-s", "completed", "--limit", "400", "--sort", "finished", "--columns", "queue")) {
		share[strings.TrimSpace(line)]++
	}
	if n := share["three"]; n < 285 || n > 315 {
		t.Errorf("of 400 starts the queue of weight 3 had %d: %v", n, share)
	}
}

// counted is how many jobs are in a state.
func (q *queue) counted(state string) (n int) {
	for line := range strings.Lines(q.must("status")) {
		if words := strings.Fields(line); len(words) == 2 && words[0] == state {
			n, _ = strconv.Atoi(words[1])
		}
	}
	return n
}

// A rate holds in every window, over a kill of the service.
func TestRateOverRestarts(t *testing.T) {
	q := serving(t, "--workers", "4")
	var lines strings.Builder
	for range 40 {
		fmt.Fprintf(&lines, `{"command": "date +%%s%%N >>times", "cwd": %q, "rate_limit": "api=10/s"}`+"\n", q.dir)
	}
	q.must("enqueue", "--file", q.write("jobs", lines.String()))
	q.kill()
	q.start("--workers", "4")
	var at []int64
	q.until("all have started", 30*time.Second, func() bool {
		text, _ := os.ReadFile(q.path("times"))
		at = at[:0]
		for word := range strings.FieldsSeq(string(text)) {
			n, _ := strconv.ParseInt(word, 10, 64)
			at = append(at, n)
		}
		return len(at) == 40
	})
	if took := time.Duration(at[39] - at[0]); took < 2900*time.Millisecond {
		t.Errorf("40 starts at 10 a second took %v", took)
	}
}
