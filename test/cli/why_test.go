//go:build linux || windows

package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// `queuectl why` prints each reason that keeps a job from running, what the user can do about it, and, if
// known, when the reason ends.
func TestWhyNamesEachReason(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	type reason struct {
		Kind string     `json:"kind"`
		At   *time.Time `json:"at"`
		Text string     `json:"text"`
		Next string     `json:"next"`
	}
	type answer struct {
		Reasons  []reason   `json:"reasons"`
		Earliest *time.Time `json:"earliest"`
	}
	why := func(id string) (a answer) {
		t.Helper()
		if err := json.Unmarshal([]byte(q.MustRunCLI("why", id, "--json")), &a); err != nil {
			t.Fatal(err)
		}
		return a
	}
	checkReason := func(id, kind, text, next string, known bool) {
		t.Helper()
		a := why(id)
		if len(a.Reasons) != 1 || a.Reasons[0].Kind != kind || !strings.Contains(a.Reasons[0].Text, text) ||
			!strings.Contains(a.Reasons[0].Next, next) {
			t.Errorf("%s: got %+v, want %s, %q and %q", id, a.Reasons, kind, text, next)
		} else if (a.Reasons[0].At != nil) != known || (a.Earliest != nil) != known {
			t.Errorf("%s: the reason ends at %v, the earliest start is %v; want these times to be known: %v",
				id, a.Reasons[0].At, a.Earliest, known)
		}
	}
	q.MustRunCLI("enqueue", "--id", "later", "--in", "10m", "true")
	checkReason("later", "time", "not due", "edit later", true)
	q.MustRunCLI("enqueue", "--id", "fails", "--max-retries", "2", "--backoff-base", "60", "exit 4")
	q.WaitUntil("the job has failed", 20*time.Second, func() bool { return q.ShowJob("fails").State == "failed" })
	checkReason("fails", "retry", "attempt 1 failed, and the automatic retry is not due yet", "retry fails", true)
	q.MustRunCLI("hold", "fails")
	checkReason("fails", "held", "held", "release fails", false)
	q.MustRunCLI("release", "fails")
	q.WaitUntil("it runs again without delay", 20*time.Second, func() bool { return q.ShowJob("fails").AttemptCount == 2 })
	for i := range 2 {
		q.MustRunCLI("enqueue", "--id", fmt.Sprint("rated", i), "--rate-limit", "api=1/h", "true")
	}
	q.MustRunCLI("wait", "rated0")
	checkReason("rated1", "rate", "1 of 1 starts", "gate list", true)
	q.MustRunCLI("queue", "pause", "default", "--for", "10m", "--reason", "lunch")
	q.MustRunCLI("enqueue", "--id", "paused", "true")
	checkReason("paused", "queue", "lunch", "queue resume default", true)
	q.MustRunCLI("queue", "resume", "default")
	fixed := filepath.Join(t.TempDir(), "fixed")
	q.MustRunCLI("enqueue", "--id", "dead", "--max-retries", "0", "--command",
		"[ -e '"+filepath.ToSlash(fixed)+"' ] || exit 3")
	q.RunCLI("wait", "dead")
	if got := q.RunCLI("enqueue", "--id", "after", "--after", "dead", "true"); got.ExitCode != 0 ||
		!strings.Contains(got.Stderr, "cancelled immediately") {
		t.Errorf("enqueue of a job that depends on a dead one: %+v", got)
	}
	checkReason("after", "dependency", "job dead must be completed first, but is dead", "retry dead", false)
	if got := q.RunCLI("wait", "after"); got.ExitCode != 125 {
		t.Errorf("wait for a job that was cancelled because of a dependency: exit code %d", got.ExitCode)
	}
	q.MustRunCLI("enqueue", "--id", "keyed", "--after", "dead", "--unique", "one", "true")
	q.MustRunCLI("enqueue", "--id", "has", "--unique", "one", "--in", "1h", "true")
	if err := os.WriteFile(fixed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	q.MustRunCLI("retry", "dead")
	q.MustRunCLI("wait", "after") // the retry of a job also retries its dependants
	checkReason("keyed", "unique", "another job had the same unique key", "retry keyed", false)
	if got := q.RunCLI("retry", "keyed"); !strings.Contains(got.Stderr, "has") {
		t.Errorf("retry of a job whose key another job has: %+v", got)
	}
	q.MustRunCLI("cancel", "has")
	q.MustRunCLI("retry", "keyed")
	q.MustRunCLI("wait", "keyed")
	q.MustRunCLI("enqueue", "--id", "busy", "sleep 600")
	q.WaitUntil("the job runs", 20*time.Second, func() bool { return q.ShowJob("busy").State == "processing" })
	q.MustRunCLI("pause", "busy")
	checkReason("busy", "paused", "by ", "resume busy", false)
	q.MustRunCLI("resume", "busy")
	q.MustRunCLI("pause", "--all")
	q.MustRunCLI("enqueue", "--id", "kept", "true")
	checkReason("kept", "paused", "all jobs are paused", "resume --all", false)
	q.MustRunCLI("resume", "--all")
	q.MustRunCLI("cancel", "busy")
	if got := q.RunCLI("wait", "--batch", "nope"); got.ExitCode != 0 || !strings.Contains(got.Stderr, "no job matches") {
		t.Errorf("wait for a batch without jobs: %+v", got)
	}
	q.MustRunCLI("enqueue", "--id", "one", "--unique", "k", "--unique-for", "1h", "true")
	q.MustRunCLI("wait", "one")
	if got := q.RunCLI("run", "--unique", "k", "echo two"); !strings.Contains(got.Stderr,
		"job one already has the unique key k") || got.Stdout != "" {
		t.Errorf("run with a key that another job has: %+v", got)
	}
	if got := q.RunCLI("enqueue", "--unique", "k", "--on-conflict", "reject", "true"); got.ExitCode != 5 ||
		!strings.Contains(got.Stderr, "keeps the key until") {
		t.Errorf("enqueue with --on-conflict reject and a key that another job has: %+v", got)
	}
	if got := q.MustRunCLI("show", "rated1"); !strings.Contains(got, "api=1/h") {
		t.Errorf("show does not print the rate limit:\n%s", got)
	}
}

// If several reasons keep a job from running, `queuectl list` prints the first one that `queuectl why` prints.
// This holds for every kind of reason, in text and in JSON.
func TestListPrintsFirstReasonOfWhy(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.WriteFile("settings.toml", "workers = 12\n[resources.gpu]\ncount = 2\n")
	q.StartService("--config", q.Path("settings.toml"))
	q.MustRunCLI("queue", "set", "narrow", "--concurrency", "1")
	q.MustRunCLI("queue", "set", "closed", "--concurrency", "9")
	q.MustRunCLI("queue", "pause", "closed")
	for _, flags := range []string{"--lock db", "--rate-limit api=1/h", "--resource gpu=2", "-Q narrow"} {
		q.MustRunCLI(append(append([]string{"enqueue"}, strings.Fields(flags)...), "sleep 600")...)
	}
	q.WaitUntil("all of them run", 20*time.Second, func() bool {
		return len(strings.Fields(q.MustRunCLI("ps", "-q"))) == 4
	})
	cases := []struct{ id, flags, kind, key, when string }{
		{"locked", "--lock db", "lock", "db", "lock db"},
		{"rated", "--rate-limit api=1/h", "rate", "api", "rate api"},
		{"large", "--resource gpu=1", "resource", "gpu", "resource gpu"},
		{"narrowed", "-Q narrow", "queue", "narrow", "queue limit"},
		{"closed", "-Q closed", "queue", "closed", "queue paused"},
		{"child", "--after locked", "dependency", "locked", "after locked"},
		{"late", "--in 1h", "time", "", `in \S+`},
		{"kept", "--in 1h", "held", "", "held"},
	}
	for _, c := range cases {
		q.MustRunCLI(append(append([]string{"enqueue", "--id", c.id}, strings.Fields(c.flags)...), "true")...)
	}
	q.MustRunCLI("hold", "kept")
	type waits struct {
		ID       string `json:"id"`
		WaitsFor *struct {
			Kind string `json:"kind"`
			Key  string `json:"key"`
			Text string `json:"text"`
		} `json:"waits_for"`
		Reasons []struct{ Kind, Key, Text string } `json:"reasons"`
	}
	read := func(args ...string) (w waits) {
		t.Helper()
		if err := json.Unmarshal([]byte(q.MustRunCLI(append(args, "--json")...)), &w); err != nil {
			t.Fatal(err)
		}
		return w
	}
	var list []waits
	if err := json.Unmarshal([]byte(q.MustRunCLI("list", "-s", "waiting", "--json")), &list); err != nil {
		t.Fatal(err)
	}
	table := q.MustRunCLI("list", "-s", "waiting", "--columns", "id,when,reason")
	for _, c := range cases {
		why := read("why", c.id).Reasons[0]
		if why.Kind != c.kind || why.Key != c.key {
			t.Errorf("why %s: got %+v, want %s %s", c.id, why, c.kind, c.key)
		}
		i := slices.IndexFunc(list, func(w waits) bool { return w.ID == c.id })
		for from, got := range map[string]waits{"list": list[i], "show": read("show", c.id)} {
			if w := got.WaitsFor; w == nil || w.Kind != why.Kind || w.Key != why.Key || w.Text != why.Text &&
				c.kind != "dependency" && c.id != "closed" {
				t.Errorf("%s of %s: got %+v, want %+v as why says", from, c.id, w, why)
			}
		}
		if text := q.MustRunCLI("show", c.id); !strings.Contains(text, "\nReason:     "+read("show", c.id).WaitsFor.Text) {
			t.Errorf("show %s gives no reason:\n%s", c.id, text)
		}
		if want := regexp.MustCompile(`(?m)^` + c.id + ` +` + c.when + ` +` + strings.TrimSpace(c.kind+" "+c.key) +
			`$`); !want.MatchString(table) {
			t.Errorf("the output of list has no line that matches %s:\n%s", want, table)
		}
	}
	if running := read("show", strings.Fields(q.MustRunCLI("ps", "-q"))[0]); running.WaitsFor != nil {
		t.Errorf("a running job has the reason for waiting %+v", running.WaitsFor)
	}
	q.MustRunCLI("worker", "scale", "4")
	q.MustRunCLI("enqueue", "--id", "next", "true")
	q.WaitUntil("the workers are busy", 20*time.Second, func() bool {
		w := read("show", "next").WaitsFor
		return w != nil && w.Kind == "workers"
	})
	if got := read("show", "locked").WaitsFor; got == nil || got.Kind != "lock" {
		t.Errorf("while all workers are busy, a job that needs a lock waits for %+v", got)
	}
	if got := q.MustRunCLI("list", "--columns", "id,when"); !regexp.MustCompile(`(?m)^next +ready$`).MatchString(got) {
		t.Errorf("the next job is listed as\n%s", got)
	}
	q.MustRunCLI("drain")
	if got := read("show", "locked").WaitsFor; got == nil || got.Kind != "draining" ||
		read("why", "locked").Reasons[0].Kind != "draining" {
		t.Errorf("during a drain, the job waits for %+v", got)
	}
}

// If a dependency of a job has failed, the next step in the last line of `queuectl why` frees the job. This holds
// whether the service cancels or holds the job, and whether the parent is dead, was removed, or was retried without the
// job.
func TestWhyAfterFailedDependencyNamesStepThatFreesJob(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	fixed := filepath.ToSlash(filepath.Join(t.TempDir(), "fixed"))
	endParent := map[string]func(parent string){
		"dead":      func(string) {},
		"retried":   func(parent string) { q.MustRunCLI("retry", "--only", parent); q.MustRunCLI("wait", parent) },
		"cancelled": func(parent string) { q.MustRunCLI("cancel", parent) },
		"removed":   func(parent string) { q.MustRunCLI("rm", parent) },
	}
	for _, action := range []string{"cancel", "hold"} {
		for name := range endParent {
			parent, child := name+"-"+action+"-parent", name+"-"+action
			if name == "cancelled" || name == "removed" {
				q.MustRunCLI("enqueue", "--id", parent, "--in", "1h", "true")
			} else {
				q.MustRunCLI("enqueue", "--id", parent, "--max-retries", "0", "--command", "[ -e '"+fixed+"' ] || exit 3")
				q.RunCLI("wait", parent)
			}
			q.MustRunCLI("enqueue", "--id", child, "--after", parent, "--on-dependency-failure", action, "true")
		}
	}
	if err := os.WriteFile(fixed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, action := range []string{"cancel", "hold"} {
		for name, end := range endParent {
			parent, child := name+"-"+action+"-parent", name+"-"+action
			end(parent)
			explanation := q.MustRunCLI("why", child)
			if strings.Contains(explanation, "which was removed") != (name == "removed") {
				t.Errorf("why %s: %s", child, explanation)
			}
			lines := strings.Split(strings.TrimSpace(explanation), "\n")
			_, advice, _ := strings.Cut(lines[len(lines)-1], "; next step: queuectl ")
			if advice == "why "+parent { // the parent was cancelled, and so was the job
				continue
			}
			q.MustRunCLI(strings.Fields(advice)...)
			q.MustRunCLI("wait", child, "--timeout", "20s")
		}
	}
	removedParent := regexp.MustCompile(`Depends on: +#\d+ \(removed\)`)
	if shown := q.MustRunCLI("show", "removed-hold"); !removedParent.MatchString(shown) {
		t.Errorf("show does not say that the parent was removed:\n%s", shown)
	}
}
