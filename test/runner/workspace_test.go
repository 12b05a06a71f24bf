//go:build linux || windows

package runner

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// shownJob contains members of a job that `queuectl show --json` prints. The progress and the result come
// from files in the job's private directory.
type shownJob struct {
	State    string          `json:"state"`
	Error    string          `json:"error"`
	Output   string          `json:"output"`
	Result   json.RawMessage `json:"result"`
	Progress *struct {
		Percent    int    `json:"percent"`
		Text       string `json:"text"`
		ReportedAt string `json:"at"`
	} `json:"progress"`
	History []struct {
		ResultError string `json:"result_error"`
	} `json:"history"`
}

func showJob(q *testrig.Harness, id string) (j shownJob) {
	q.Helper()
	if err := json.Unmarshal([]byte(q.MustRunCLI("show", id, "--json")), &j); err != nil {
		q.Fatalf("show %s: %v", id, err)
	}
	return j
}

// runJobToEnd enqueues a job, waits for its end and returns it as `queuectl show` prints it.
func runJobToEnd(q *testrig.Harness, enqueueArgs ...string) shownJob {
	q.Helper()
	id := q.MustRunCLI(append([]string{"enqueue", "--max-retries", "0"}, enqueueArgs...)...)
	q.RunCLI("wait", id)
	return showJob(q, id)
}

// A job can read the outcomes and the results of its dependencies.
func TestJobGetsResultsOfDependencies(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "1")
	q.MustRunCLI("enqueue", "--id", "a", `printf '{"rows": 7}' >"$QUEUECTL_RESULT"`)
	q.MustRunCLI("enqueue", "--id", "b", "--max-retries", "0", "exit 3")
	q.MustRunCLI("enqueue", "--id", "c", "true")
	q.MustRunCLI("wait", "c")
	q.MustRunCLI("rm", "c")
	j := runJobToEnd(q, "--depends-on", "b:dead", "--after", "a", `cat "$QUEUECTL_DEPS"; ls "$QUEUECTL_TMPDIR"`)
	if want := `[{"id":"b","state":"dead","exit_code":3,"result":null},{"id":"a","state":"completed","exit_code":0,"result":{"rows":7}}]`; strings.TrimSpace(j.Output) != want {
		t.Errorf("the job got the dependencies %q, want %s", j.Output, want)
	}
	if j := runJobToEnd(q, `echo "${QUEUECTL_DEPS-none}"`); strings.TrimSpace(j.Output) != "none" {
		t.Errorf("a job without dependencies got %q", j.Output)
	}
}

// Each attempt has its own private directory. The directory is empty when the attempt starts, and
// is removed with its contents when the attempt ends.
func TestEachAttemptHasAnEmptyWorkspace(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "1")
	const line = `echo "$QUEUECTL_TMPDIR"; ls "$QUEUECTL_TMPDIR" | wc -l; `
	seen := map[string]bool{}
	for _, command := range []string{`true`, `mkdir -p "$QUEUECTL_TMPDIR/a/b"; echo x >"$QUEUECTL_TMPDIR/a/b/c"`,
		`touch "$QUEUECTL_TMPDIR/left"; exit 3`, `true`} {
		j := runJobToEnd(q, line+command)
		words := strings.Fields(j.Output)
		if len(words) != 2 || words[1] != "0" {
			t.Fatalf("%s: got %q, want an empty directory", command, j.Output)
		}
		if _, err := os.Stat(words[0]); !os.IsNotExist(err) {
			t.Errorf("%s: the directory %s still exists after its job: %v", command, words[0], err)
		}
		seen[words[0]] = true
	}
	if len(seen) == 0 {
		t.Error("no job had a directory")
	}
	remainingDirs := func() (remaining []string) {
		filepath.WalkDir(filepath.Join(q.RunnerDir(), "jobs"), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && !strings.Contains(d.Name(), ".") && d.Name() != "jobs" ||
				strings.Contains(path, ".gone.") {
				remaining = append(remaining, path)
			}
			return nil
		})
		return remaining
	}
	q.WaitUntil("all directories are removed", 10*time.Second, func() bool { return len(remainingDirs()) == 0 })
	var jobs []string
	for range 100 {
		jobs = append(jobs, `ls "$QUEUECTL_TMPDIR"; test -d "$QUEUECTL_TMPDIR"`)
	}
	if r := q.RunCLIWithInput(strings.Join(jobs, "\n")+"\n", "enqueue", "--lines", "-", "--batch", "rush",
		"-q"); r.ExitCode != 0 {
		t.Fatal(r)
	}
	q.MustRunCLI("wait", "--batch", "rush")
	q.WaitUntil("all directories are removed again", 10*time.Second, func() bool { return len(remainingDirs()) == 0 })
	if n := strings.Count(q.MustRunCLI("logs", "--batch", "rush"), "\n"); n > 0 {
		t.Errorf("concurrent jobs found %d names in their directories", n)
	}
}

// The result that a job writes is stored if it is valid JSON. If it is not valid, `queuectl show` prints the reason.
// The job's exit code alone decides its outcome.
func TestJobsResultIsStored(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "1")
	write := func(what string) string { return `printf '%s' '` + what + `' >"$QUEUECTL_RESULT"` }
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, c := range []struct{ line, result, fault string }{
		{"true", "null", ""},
		{write(`{"ä": [1, 2.50],` + "\n" + ` "b": null}`), `{"ä":[1,2.50],"b":null}`, ""},
		{write(`"text"`), `"text"`, ""},
		{write(`{"a":`), "null", "not JSON"},
		{write(`1 2`), "null", "not JSON"},
		{write(``), "null", "empty"},
		{write(nested(24)), nested(24), ""},
		{write(nested(25)), "null", "nested more than 24 levels deep"},
		{`printf '\377' >"$QUEUECTL_RESULT"`, "null", "not UTF-8"},
		{`mkdir "$QUEUECTL_RESULT"`, "null", "not a regular file"},
		{`(printf '"'; head -c 65534 /dev/zero | tr '\0' x; printf '"') >"$QUEUECTL_RESULT"`,
			`"` + strings.Repeat("x", 65534) + `"`, ""},
		{`(printf '"'; head -c 65535 /dev/zero | tr '\0' x; printf '"') >"$QUEUECTL_RESULT"`, "null",
			"larger than 65536 bytes"},
	} {
		j := runJobToEnd(q, c.line)
		fault := j.History[0].ResultError
		if j.State != "completed" || string(j.Result) != c.result || (c.fault == "") != (fault == "") ||
			!strings.Contains(fault, c.fault) {
			t.Errorf("%.60s: %s, result %.80s, fault %q; want %.80s, %q", c.line, j.State, j.Result, fault, c.result, c.fault)
		}
	}
	failed := runJobToEnd(q, write(`[7]`)+"; exit 4")
	if failed.State != "dead" || string(failed.Result) != "[7]" {
		t.Errorf("the result of a job that fails: %+v", failed)
	}
	id := q.MustRunCLI("enqueue", write(`{"text": "a <b> & c"}`))
	q.MustRunCLI("wait", id)
	if text := q.MustRunCLI("show", id); !strings.Contains(text, `Result:`) || !strings.Contains(text, `a <b> & c`) &&
		!strings.Contains(text, `\u003cb\u003e`) {
		t.Errorf("show prints %s", text)
	}
}

// A job reports its progress with a file or with `queuectl progress`. All commands that show the job show its
// progress, also after a restart of the service and after the end of the job.
func TestJobsProgressIsShown(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "1")
	gates := []string{q.Path("a"), q.Path("b"), q.Path("c")}
	wait := func(n int) string { return `until test -e '` + gates[n] + `'; do sleep 0.02; done; ` }
	open := func(n int) {
		t.Helper()
		if err := os.WriteFile(gates[n], nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	line := `echo begun; echo nonsense >>"$QUEUECTL_PROGRESS"; echo 101 >>"$QUEUECTL_PROGRESS"; echo '40 epoch 4/10' >>"$QUEUECTL_PROGRESS"; ` + wait(0) +
		`'` + filepath.ToSlash(q.ClientPath) + `' progress 60% 'six
 tenths'; ` + wait(1) + `for n in 70 71 72; do echo $n >>"$QUEUECTL_PROGRESS"; done; ` + wait(2) +
		`echo '99 nearly' >>"$QUEUECTL_PROGRESS"; exit 3`
	id := q.MustRunCLI("enqueue", "--max-retries", "0", line)
	hasProgress := func(percent int, text string) func() bool {
		return func() bool {
			p := showJob(q, id).Progress
			return p != nil && p.Percent == percent && p.Text == text && p.ReportedAt != ""
		}
	}
	q.WaitUntil("the job reports 40 percent", 10*time.Second, hasProgress(40, "epoch 4/10"))
	for _, verb := range [][]string{{"list"}, {"status"}, {"show", id}, {"ps"}} {
		if text := q.MustRunCLI(verb...); !strings.Contains(text, "40 %") {
			t.Errorf("%v prints no progress:\n%s", verb, text)
		}
	}
	if text := q.MustRunCLI("list", "--columns", "id,progress"); !strings.Contains(text, "40 %, epoch 4/10") {
		t.Errorf("the column progress contains %s", text)
	}
	open(0)
	q.WaitUntil("the command reports 60 percent", 10*time.Second, hasProgress(60, "six tenths"))
	q.KillService()
	q.StartService("--workers", "1")
	if !hasProgress(60, "six tenths")() {
		t.Errorf("progress after the service was killed: %+v", showJob(q, id).Progress)
	}
	open(1)
	q.WaitUntil("the job reports 72 percent to another service", 10*time.Second, hasProgress(72, ""))
	open(2)
	q.RunCLI("wait", id)
	if j := showJob(q, id); j.State != "dead" || !hasProgress(99, "nearly")() {
		t.Errorf("the ended job: %+v, progress %+v", j, j.Progress)
	}
	events := q.MustRunCLI("events", "--event", "progress", "--jsonl")
	if n := strings.Count(events, "\n") + 1; !strings.Contains(events, `"percent":40`) || n < 3 || n > 5 {
		t.Errorf("%d events of progress:\n%s", n, events)
	}
	if j := runJobToEnd(q, "true"); j.Progress != nil {
		t.Errorf("a job without a progress report has %+v", j.Progress)
	}
}

// The progress of a very short job is stored too.
func TestShortJobsProgressIsStored(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "1")
	if j := runJobToEnd(q, `echo 7 >>"$QUEUECTL_PROGRESS"`); j.Progress == nil || j.Progress.Percent != 7 {
		t.Errorf("progress of a very short job: %+v", j.Progress)
	}
}

// The service publishes the progress of a job at most twice a second, however often the job writes it, and keeps
// the last value. Outside a job, `queuectl progress` explains how to use the command.
func TestProgressPublishingRateIsBounded(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "1")
	started := time.Now()
	j := runJobToEnd(
		q,
		`n=0; while test $n -lt 3000; do echo $((n / 30)) step $n; n=$((n + 1)); done >>"$QUEUECTL_PROGRESS"; printf '100 ' >>"$QUEUECTL_PROGRESS"; head -c 3000 /dev/zero | tr '\0' y >>"$QUEUECTL_PROGRESS"; echo >>"$QUEUECTL_PROGRESS"; printf '98 no end of the line' >>"$QUEUECTL_PROGRESS"`)
	if j.Progress == nil || j.Progress.Percent != 98 || j.Progress.Text != "no end of the line" {
		t.Errorf("the last progress: %+v", j.Progress)
	}
	events := strings.Count(q.MustRunCLI("events", "--jsonl"), `"event":"progress"`)
	if maxEvents := int(time.Since(started)/(400*time.Millisecond)) + 1; events > maxEvents {
		t.Errorf("%d events, want %d at most", events, maxEvents)
	}
	for _, c := range []struct {
		args     []string
		code     int
		wantText string
	}{
		{[]string{"progress", "40"}, 5, "works only inside a job"}, {[]string{"progress", "101"}, 2, "from 0 to 100"},
		{[]string{"progress", "x"}, 2, "from 0 to 100"},
		{[]string{"progress"}, 2, "queuectl progress 40"}, {[]string{"progress", "1", "a", "b"}, 2, "queuectl progress 40"},
	} {
		if r := q.RunCLI(c.args...); r.ExitCode != c.code || !strings.Contains(r.Stderr, c.wantText) {
			t.Errorf("%v: %+v", c.args, r)
		}
	}
}

// A secret is read when its job starts, and exists only in the job's environment. The service does not store,
// show, send or log the secret. If the job prints it, the service can mask it in the output.
func TestSecretsExistOnlyInJobEnvironment(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.StartService("--workers", "1")
	const token, multi = "s3cr3t-7f1c90", "line-one-41d\nline-two-77a"
	keep := t.TempDir()
	file := func(name, content string) string {
		path := filepath.ToSlash(filepath.Join(keep, name))
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	one, two, short := file("one", token+"\n"), file("two", multi+"\r\n"), file("short", "abc")
	flags := []string{"--env-secret", "ONE=" + one, "--env-secret", "TWO=" + two, "--env-secret", "SHORT=" + short}
	j := runJobToEnd(q, append(flags, "--", "sh", "-c",
		`test ${#ONE} -eq 13 && test ${#TWO} -eq 25 && test "$SHORT" = abc`)...)
	if j.State != "completed" {
		t.Fatalf("the job did not get its secrets as variables: %+v", j)
	}
	j = runJobToEnd(q, append(flags, "--mask-secrets",
		`echo "a $ONE b"; echo "$ONE$ONE"; echo "$TWO" >&2; printf %s "${ONE%90}"; sleep 0.1; echo 90; echo $SHORT s3cr3t-7f1c9x`)...)
	if want := "a *** b\n******\n***\nabc s3cr3t-7f1c9x\n"; strings.ReplaceAll(j.Output, "\r", "") != want {
		t.Errorf("masked output %q, want %q", j.Output, want)
	}
	j = runJobToEnd(q, append(flags, "--mask-secrets",
		`printf '{"token": "%s"}' "$ONE" >"$QUEUECTL_RESULT"; echo "7 with $ONE" >"$QUEUECTL_PROGRESS"; sleep 0.1`)...)
	if string(j.Result) != `{"token":"***"}` || j.Progress == nil || j.Progress.Text != "with ***" {
		t.Errorf("masked result %s, progress %+v", j.Result, j.Progress)
	}
	large, nul := file("large", strings.Repeat("x", 64<<10+1)), file("zeros", "a\x00b")
	for path, wantText := range map[string]string{keep: "not a regular file", keep + "/none": keep,
		large: "larger than 65536 bytes", nul: "NUL"} {
		j := runJobToEnd(q, "--env-secret", "BAD="+filepath.ToSlash(path), "true")
		if j.State != "dead" || !strings.Contains(j.Error, "env_secret BAD") ||
			!strings.Contains(filepath.ToSlash(j.Error), filepath.ToSlash(wantText)) {
			t.Errorf("%s: %s, %q", path, j.State, j.Error)
		}
	}
	for _, args := range [][]string{{"A=relative"}, {"A=" + token}, {"QUEUECTL_TMPDIR=/x"}, {"A=credential:"},
		{"A=credential:../x"}, {"=/x"}, {"A=/x", "--env", "A=1"}} {
		r := q.RunCLI(append([]string{"enqueue", "--env-secret"}, append(args, "true")...)...)
		if r.ExitCode != 2 || !strings.Contains(r.Stderr, "env_secret") && !strings.Contains(r.Stderr, "env-secret") ||
			strings.Contains(r.Stderr, token) {
			t.Errorf("%v: %+v", args, r)
		}
	}
	if r := q.RunCLI("enqueue", "--mask-secrets", "true"); r.ExitCode != 2 {
		t.Errorf("a job without secrets to mask: %+v", r)
	}
	if text := q.MustRunCLI("show", "1", "--json", "--full"); !strings.Contains(text, `"ONE":"`) ||
		strings.Contains(text, token) {
		t.Errorf("show printed a secret: %s", text)
	}
	records := q.MustRunCLI("events", "--json") + q.MustRunCLI("list", "--json") + q.MustRunCLI("show", "1", "2", "--json",
		"--full") +
		q.MustRunCLI("logs", "2")
	q.StopService()
	filepath.WalkDir(q.StateDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		raw, err := os.ReadFile(path)
		records += string(raw)
		return err
	})
	for _, secret := range []string{token, "line-one-41d", "line-two-77a"} {
		if index := bytes.Index([]byte(records), []byte(secret)); index >= 0 {
			t.Errorf("the secret %q appears in: %q", secret, records[max(0, index-80):min(len(records), index+80)])
		}
	}
	if len(records) < 10_000 {
		t.Error(fmt.Sprint("only ", len(records), " bytes were searched"))
	}
}

// After a job has deferred itself, `queuectl list` and the field run_at show the time of its next attempt.
func TestDeferredJobShowsNextAttempt(t *testing.T) {
	t.Parallel()
	q := testrig.NewHarness(t, "")
	q.ServiceEnv = []string{"QUEUECTL_JOB_RETRY_DELAY=90s"}
	q.StartService("--workers", "1")
	id := q.MustRunCLI("enqueue", "--defer-code", "75", "exit 75")
	q.WaitUntil("the job is deferred", 20*time.Second,
		func() bool { return strings.Contains(q.MustRunCLI("show", id, "--json"), `"reason":"deferred"`) })
	var j struct {
		RunAt time.Time `json:"run_at"`
	}
	if err := json.Unmarshal([]byte(q.MustRunCLI("show", id, "--json")), &j); err != nil ||
		time.Until(j.RunAt) < 30*time.Second {
		t.Errorf("run_at is %v, %v", j.RunAt, err)
	}
	if list := q.MustRunCLI("list"); !strings.Contains(list, "in 1m") {
		t.Errorf("the job is listed as\n%s", list)
	}
}
