//go:build linux || windows

package cli

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// killPrivateRun kills all processes of a private run with SIGKILL, except clients that follow its events. It finds
// these processes by the path of the run's directory, which their arguments or environments contain.
func killPrivateRun(p *testrig.PrivateQueue, cmd *exec.Cmd) {
	cmd.Process.Kill()
	cmd.Wait()
	for remaining := 1; remaining > 0; {
		remaining = 0
		for pid, commands := range testrig.ProcessesUsingDir(p.StateDir) {
			if !strings.Contains(commands, " events ") {
				testrig.KillProcess(pid)
				remaining++
			}
		}
	}
}

// countJobRuns returns how often each job has run, by the job's number, and the total. Each run has appended
// the job's number to a file.
func countJobRuns(p *testrig.PrivateQueue) (counts map[string]int, total int) {
	counts = map[string]int{}
	files, _ := filepath.Glob(filepath.Join(p.WorkDir, "effects*"))
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			p.Fatal(err)
		}
		for line := range strings.FieldsSeq(string(raw)) {
			counts[line]++
			total++
		}
	}
	return counts, total
}

// A private run uses its own database, even if QUEUECTL_STORE names another store for services.
func TestPrivateRunUsesItsOwnStore(t *testing.T) {
	t.Parallel()
	p := testrig.NewPrivateQueue(t)
	cmd := p.NewPrivateRunCommand("echo hi\n", "--lines", "-")
	cmd.Env = append(cmd.Env, "QUEUECTL_STORE=postgres:///none?host="+p.WorkDir)
	if r := testrig.RunCommand(p, cmd); r.ExitCode != 0 || !strings.Contains(r.Stdout, "hi\n") {
		t.Errorf("a private run with QUEUECTL_STORE set: %+v", r)
	}
}

// A private run of many jobs is killed ten times, with all its processes, and continued with the same command.
// Each job runs, and no job runs again after an event has reported it as completed. If a line of the list was
// changed, the next call fails, names the line and starts no job.
func TestPrivateRunIsResumed(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	const count, kills = 2000 / testrig.JobCountDivisor, 10
	p := testrig.NewPrivateQueue(t)
	var file strings.Builder
	for i := range count {
		fmt.Fprintf(&file, `{"command":"echo %d >>effects","backoff_base":0.01}`+"\n", i+1)
	}
	if err := os.WriteFile(filepath.Join(p.WorkDir, "jobs.jsonl"), []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--workers", "4", "--file", "jobs.jsonl"}
	runsWhenReported := map[string]int{} // how often each job had run when its completion was reported
	for n := range kills {
		cmd := p.NewPrivateRunCommand("", args...)
		if err := testrig.StartCommand(cmd); err != nil {
			t.Fatal(err)
		}
		completed := followCompleted(p)
		p.WaitUntil(fmt.Sprintf("progress before kill %d", n+1), 60*time.Second, func() bool {
			_, lines := countJobRuns(p)
			return lines > (n+1)*count/(kills+2)
		})
		killPrivateRun(p, cmd)
		counts, _ := countJobRuns(p)
		for _, id := range completed() {
			number, _, _ := strings.Cut(id, "-")
			if _, known := runsWhenReported[number]; !known {
				runsWhenReported[number] = counts[number]
			}
		}
	}
	if len(runsWhenReported) < count/4 {
		t.Errorf("events reported only %d completed jobs", len(runsWhenReported))
	}
	changed := strings.Replace(file.String(), "echo 17 ", "echo 17x ", 1)
	if err := os.WriteFile(filepath.Join(p.WorkDir, "changed"), []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	_, before := countJobRuns(p)
	if r := p.RunPrivate("", "--workers", "4", "--file", "changed"); r.ExitCode != 125 ||
		!strings.Contains(r.Stderr, `the command of line 17 was "echo 17 >>effects", now it is "echo 17x >>effects"`) {
		t.Errorf("a run with a changed line in its list: %+v", r)
	}
	if _, after := countJobRuns(p); after != before {
		t.Errorf("a refused run ran %d jobs", after-before)
	}
	if r := p.RunPrivate("", args...); r.ExitCode != 0 ||
		!strings.Contains(r.Stderr, fmt.Sprintf("%d jobs: %[1]d completed", count)) {
		t.Errorf("the last run: %+v", r)
	}
	counts, lines := countJobRuns(p)
	for i := range count {
		if counts[strconv.Itoa(i+1)] == 0 {
			t.Errorf("job %d was lost", i+1)
		}
	}
	for number, runs := range runsWhenReported {
		if counts[number] != runs {
			t.Errorf("job %s ran again after events had reported its completion", number)
		}
	}
	t.Logf("%d jobs, %d kills: %d were run again; events had reported %d before the kills", count, kills, lines-count,
		len(runsWhenReported))
}

// followCompleted follows the events of a run that has just started. The returned function waits for the end of
// the run and returns the ids of the jobs that were reported as completed.
func followCompleted(p *testrig.PrivateQueue) (waitForCompletedIDs func() []string) {
	var mu sync.Mutex
	var completedIDs []string
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			cmd := exec.Command(p.ClientPath, "--dir", p.StateDir, "events", "-f", "--since", "0", "--event", "ended", "--jsonl")
			cmd.Env = testrig.UserEnvironment(p.WorkDir)
			out, err := cmd.StdoutPipe()
			if err != nil || cmd.Start() != nil {
				p.Errorf("follow events: %v", err)
				return
			}
			any := false
			for lines := bufio.NewScanner(out); lines.Scan(); any = true {
				var e testrig.Event
				if json.Unmarshal(lines.Bytes(), &e) == nil && e.State == "completed" {
					mu.Lock()
					completedIDs = append(completedIDs, e.ID)
					mu.Unlock()
				}
			}
			cmd.Wait()
			if any {
				return
			}
		}
	}()
	return func() []string {
		<-ended
		mu.Lock()
		defer mu.Unlock()
		return completedIDs
	}
}

// If a private run is continued with other flags, the error names each changed flag as the user
// wrote it. If a job of the list has changed, the error names the line of the job.
func TestContinuedPrivateRunNamesChangedFlags(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	p := testrig.NewPrivateQueue(t)
	args := []string{"--arg-file", "-", "--timeout", "10", "--env", "A=1", "--label", "k=v", "--ok-code", "0,3", "--",
		"echo", "+{}+"}
	if r := p.RunPrivate("1\n2\n", args...); r.ExitCode != 0 {
		t.Fatalf("the first run: %+v", r)
	}
	if r := p.RunPrivate("1\n2\n", args...); r.ExitCode != 0 {
		t.Errorf("the repeated run: %+v", r)
	}
	for want, with := range map[string][]string{
		"--timeout was 10s, now it is 20s; use": {"--timeout", "20s", "--env", "A=1", "--label", "k=v",
			"--ok-code", "0,3", "--", "echo", "+{}+"},
		"--env A has changed; --label l is new": {"--timeout", "10", "--env", "A=2", "--label", "k=v",
			"--label", "l=v", "--ok-code", "0,3", "--", "echo", "+{}+"},
		"--ok-code was 0,3, now it is missing; use": {"--timeout", "10", "--env", "A=1", "--label", "k=v",
			"--", "echo", "+{}+"},
		`the program was "echo +{}+", now it is "echo {}"; use`: {"--timeout", "10", "--env", "A=1", "--label", "k=v",
			"--ok-code", "0,3", "--", "echo", "{}"},
		"--timeout was 10s, now it is missing; --env A is missing": {"--", "echo", "+{}+"},
	} {
		if r := p.RunPrivate("1\n2\n", append([]string{"--arg-file", "-"}, with...)...); r.ExitCode != 125 ||
			!strings.Contains(r.Stderr, "contains a run that was started with other flags: ") ||
			!strings.Contains(r.Stderr, want) {
			t.Errorf("%q: %+v, want %q", with, r, want)
		}
	}
	if r := p.RunPrivate("1\n3\n", args...); r.ExitCode != 125 ||
		!strings.Contains(r.Stderr, `the command of line 2 was "echo +2+", now it is "echo +3+"`) {
		t.Errorf("a run with a changed argument: %+v", r)
	}
}

// If no service runs in the directory of a private run, commands that only read use the files of the run and change
// none of them, even after a kill of the whole run. Commands that would change the queue are refused. If a service runs
// in that directory, all commands send requests to the service.
func TestPrivateDirIsReadableOffline(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	p := testrig.NewPrivateQueue(t)
	const list = "echo said\nexit 3\n"
	args := []string{"--lines", "-", "--max-retries", "0", "--workers", "1"}
	if r := p.RunPrivate(list, args...); r.ExitCode != 1 {
		t.Fatalf("the run: %+v", r)
	}
	checkReadCommandsChangeNoFile(p, "after a run", "completed", "dead")
	for _, words := range [][]string{{"cancel", "--all", "--yes"}, {"retry", "--failed"}, {"list", "--watch"},
		{"events", "-f"}, {"config", "set", "workers", "3"}, {"edit", "--state", "dead", "--priority", "1"}} {
		if r := p.RunCLI(append([]string{"--dir", p.StateDir}, words...)...); r.ExitCode != 3 ||
			!strings.Contains(r.Stderr, "start it with: queuectl --dir ") {
			t.Errorf("%q: %+v, want exit code 3 and the start command", words, r)
		}
	}
	cmd := p.NewPrivateRunCommand(list+"sleep 60\ntrue\n", append(args, "--add-new")...)
	if err := testrig.StartCommand(cmd); err != nil {
		t.Fatal(err)
	}
	p.WaitUntil("a job runs", 20*time.Second, func() bool {
		r := p.RunCLI("--dir", p.StateDir, "ps", "-q")
		return strings.HasPrefix(r.Stdout, "3-") && r.Stderr == ""
	})
	killPrivateRun(p, cmd)
	checkReadCommandsChangeNoFile(p, "after a crash", "completed", "dead", "processing", "pending")
	if r := p.RunCLI("--dir", filepath.Join(p.WorkDir, "none"), "list"); r.ExitCode != 3 {
		t.Errorf("list of a missing directory: %+v", r)
	}
	q := testrig.NewHarness(t, "")
	q.StartService()
	q.StopService()
	for _, verb := range []string{"status", "list"} {
		if r := q.RunCLI(verb); r.ExitCode != 3 || r.Stdout != "" {
			t.Errorf("%s of a service that was stopped: %+v, want 3", verb, r)
		}
	}
}

// checkReadCommandsChangeNoFile runs commands that only read on the directory of a private run, and checks that they
// change no file. The first job of the run must have printed "said".
func checkReadCommandsChangeNoFile(p *testrig.PrivateQueue, description string, wantStates ...string) {
	p.Helper()
	before := fileChecksums(p)
	const readOnlyNotice = "; reading its files\n"
	run := func(args ...string) string {
		r := p.RunCLI(append([]string{"--dir", p.StateDir}, args...)...)
		if r.ExitCode != 0 || !strings.HasPrefix(r.Stderr, "queuectl: no service is running for the queue in ") ||
			!strings.HasSuffix(r.Stderr, readOnlyNotice) || strings.Count(r.Stderr, "\n") != 1 {
			p.Errorf("%s: %q: %+v", description, args, r)
		}
		return r.Stdout
	}
	var jobs []testrig.Job
	if err := json.Unmarshal([]byte(run("list", "--json")), &jobs); err != nil || len(jobs) != len(wantStates) {
		p.Fatalf("%s: %d jobs, %v", description, len(jobs), err)
	}
	for i, state := range wantStates {
		j := jobs[len(jobs)-1-i]
		if j.State != state || !strings.Contains(run("show", j.ID), "State:      "+state) {
			p.Errorf("%s: job %s is %s, want %s", description, j.ID, j.State, state)
		}
	}
	if out := run("logs", jobs[len(jobs)-1].ID); strings.TrimSpace(out) != "said" {
		p.Errorf("%s: logs printed %q, want said", description, out)
	}
	for args, want := range map[string]string{"status": "completed  1", "list": "echo said", "dlq list": "exit code 3",
		"events": "ended", "list --failed": "exit 3"} {
		if out := run(strings.Fields(args)...); !strings.Contains(out, want) {
			p.Errorf("%s: %s printed %q, want %q", description, args, out, want)
		}
	}
	code, health, next := 0, "ok", ""
	if slices.ContainsFunc(wantStates, func(state string) bool { return state != "completed" && state != "dead" }) {
		code, health = 1, "degraded: the service is not running"
	}
	if slices.Contains(wantStates, "pending") {
		next = "no service"
	}
	if r := p.RunCLI("--dir", p.StateDir, "status", "--check"); r.ExitCode != code ||
		!strings.HasPrefix(r.Stdout, health) {
		p.Errorf("%s: status --check: %+v, want %q", description, r, health)
	}
	if out := run("status"); !strings.Contains(out, next) || strings.Contains(out, "no workers") {
		p.Errorf("%s: status: %s", description, out)
	}
	if after := fileChecksums(p); !maps.Equal(after, before) {
		p.Errorf("%s: the directory was changed: %v, was %v", description, after, before)
	}
}

// fileChecksums returns the size and checksum of each file in the directory, by path.
func fileChecksums(p *testrig.PrivateQueue) map[string]string {
	p.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(p.StateDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		raw, err := os.ReadFile(path)
		found[path] = fmt.Sprintf("%d bytes, %x", len(raw), sha256.Sum256(raw))
		return err
	})
	if err != nil {
		p.Fatal(err)
	}
	return found
}

// `queuectl run --private` accepts all formats of job lists. It prints the whole output of the jobs, stdout and
// stderr separately.
func TestPrivateRunAcceptsAllListFormats(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	p := testrig.NewPrivateQueue(t)
	for _, c := range []struct {
		name, stdin, out string
		args             []string
	}{
		{"lines", "echo a; echo b >&2\n\n  echo 'c d'\n", "a\nc d\n", []string{"--lines", "-"}},
		{"arguments replace {}", "x y\nz'\"$HOME\n", "<x y>\n<z'\"$HOME>\n",
			[]string{"--arg-file", "-", "--", "echo", "<{}>"}},
		{"arguments at the end", "1\n2\n", "n 1\nn 2\n", []string{"--arg-file", "-", "--", "echo", "n"}},
		{"zero bytes", "a b\x00c\nd\x00", "<a b>\n<c\nd>\n", []string{"--arg-file", "-", "--null", "--", "echo", "<{}>"}},
		{"words", "", "a 1\na 2\nb 1\nb 2\n", []string{"--", "echo", ":::", "a", "b", ":::", "1", "2"}},
		{"an array", `[{"command":"echo 1"}, {"argv":["echo","2"]}]`, "1\n2\n", []string{"--file", "-"}},
		{"flags for all", `{"command":"echo $A$B","env":{"B":"2"}}`, "12\n", []string{"--file", "-", "--env", "A=1"}},
		{"no file end", "echo last", "last\n", []string{"--lines", "-"}},
	} {
		r := p.RunPrivate(c.stdin, append([]string{"--workers", "1", "--dir", filepath.Join(p.WorkDir, c.name)},
			c.args...)...)
		if r.ExitCode != 0 || r.Stdout != c.out {
			t.Errorf("%s: exit %d, %q, want %q\n%s", c.name, r.ExitCode, r.Stdout, c.out, r.Stderr)
		}
		if c.name == "lines" && !strings.Contains(r.Stderr, "b\n") {
			t.Errorf("stderr of a run of lines: %q", r.Stderr)
		}
	}
}

// If a job is dead, a private run exits with 1 and prints the job and its error. The next call runs the dead job again
// only with --retry-dead, and runs lines that were added to the list only with --add-new. Completed jobs do not run
// again.
func TestPrivateRunNamesDeadJobs(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	p := testrig.NewPrivateQueue(t)
	jobs := "echo ran >>effects\ntest -e ready || exit 3\n"
	args := []string{"--lines", "-", "--max-retries", "0"}
	r := p.RunPrivate(jobs, args...)
	if r.ExitCode != 1 || !strings.Contains(r.Stderr, "2 jobs: 1 completed, 1 dead") ||
		!strings.Contains(r.Stderr, "is dead: exit code 3 (test -e ready") {
		t.Errorf("a run with a dead job: %+v", r)
	}
	if r = p.RunPrivate(jobs, args...); r.ExitCode != 1 {
		t.Errorf("the repeated run: %+v", r)
	}
	if err := os.WriteFile(filepath.Join(p.WorkDir, "ready"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r = p.RunPrivate(jobs+"\n\necho more\n\necho most\n", append(args, "--retry-dead")...); r.ExitCode != 125 ||
		!strings.Contains(r.Stderr, "the list has 2 jobs more than before, from line 5 on; run these too with --add-new") {
		t.Errorf("a run whose list has grown: %+v", r)
	}
	r = p.RunPrivate(jobs+"echo more\n", append(args, "--retry-dead", "--add-new", "--json")...)
	var sum struct {
		Jobs map[string]int
	}
	if err := json.Unmarshal([]byte(r.Stdout), &sum); err != nil || r.ExitCode != 0 || sum.Jobs["completed"] != 3 {
		t.Errorf("a run with --retry-dead and an added line: %+v, %v", r, err)
	}
	if _, lines := countJobRuns(p); lines != 1 {
		t.Errorf("the job that was completed ran %d times", lines)
	}
	for name, c := range map[string]struct {
		stdin, want string
		args        []string
	}{
		"shortened": {"echo ran >>effects\n", `line 3 with the command "echo more" is missing`, args},
		"shortened, more": {"echo ran >>effects\n", `line 3 with the command "echo more" is missing`,
			append(args, "--add-new")},
		"changed": {strings.Replace(jobs, "exit 3", "exit 4", 1) + "echo more\necho most\n",
			`the command of line 2 was "test -e ready || exit 3", now it is "test -e ready || exit 4"`,
			append(args, "--add-new")},
		"other flags": {jobs + "echo more\n", "with other flags: --max-retries was 0, now it is 1; use",
			[]string{"--lines", "-", "--max-retries", "1"}},
		"a flag more": {jobs + "echo more\n", "with other flags: --timeout was not given, now it is 20s; --env A is new",
			append(args, "--timeout", "20", "--env", "A=secret")},
		"a flag less": {jobs + "echo more\n", "with other flags: --max-retries was 0, now it is missing",
			[]string{"--lines", "-"}},
		"other jobs": {`{"command":"true"}`, "the first run took its jobs from --lines, this run takes them from --file",
			[]string{"--file", "-", "--max-retries", "0"}},
		"wrong line": {"{\n", "line 1: ", []string{"--file", "-", "--dir", "fresh"}},
		"wrong field": {`{"command":"x"}` + "\n" + `{"comand":"x"}`, "line 2: comand",
			[]string{"--file", "-", "--dir", "fresh"}},
		"no file":         {"", "--private: no jobs given; use ", nil},
		"words":           {"", "--private: no jobs given; use ", []string{"echo", "x"}},
		"a program wants": {"", "no program given; write it after --", []string{"--arg-file", "-"}},
		"workers":         {"", "--workers", []string{"--lines", "-", "--workers", "none"}},
		"socket":          {"", "--socket: cannot be combined with --private", []string{"--lines", "-", "--socket", "s"}},
		"detach":          {"", "--detach: cannot be combined with --private", []string{"--lines", "-", "-d"}},
	} {
		if r := p.RunPrivate(c.stdin, c.args...); r.ExitCode != 125 || !strings.Contains(r.Stderr, c.want) {
			t.Errorf("%s: %+v, want %q", name, r, c.want)
		}
	}
}

// A private run of an empty list succeeds and creates no directory, in every format of lists.
func TestEmptyPrivateRunCreatesNoDir(t *testing.T) {
	t.Parallel()
	p := testrig.NewPrivateQueue(t)
	for name, content := range map[string]string{"empty": "", "blank": "\n \r\n\t\n", "marked": "\xef\xbb\xbf\n",
		"array": " [\n]\n"} {
		if err := os.WriteFile(filepath.Join(p.WorkDir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"--lines", name}, {"--lines", "-"}, {"--file", name},
			{"--arg-file", "-", "--", "echo", "{}"}} {
			if name == "array" && args[0] != "--file" {
				continue
			}
			r := p.RunPrivate(content, append([]string{"--dir", "new"}, args...)...)
			_, err := os.Stat(filepath.Join(p.WorkDir, "new"))
			if r.ExitCode != 0 || !strings.Contains(r.Stderr, "contains no jobs") || err == nil {
				t.Errorf("%q from %s: %+v, want exit code 0, a message and no directory", args, name, r)
			}
		}
	}
	if r := p.RunPrivate("\n\necho said\n", "--dir", "new", "--lines", "-"); r.ExitCode != 0 ||
		strings.TrimSpace(r.Stdout) != "said" {
		t.Errorf("a list with a command after blank lines: %+v", r)
	}
	if r := p.RunPrivate("", "--dir", "new", "--lines", "-"); r.ExitCode != 125 ||
		!strings.Contains(r.Stderr, `line 3 with the command "echo said" is missing`) {
		t.Errorf("an empty list after a list with commands: %+v", r)
	}
}

// If queuectl itself fails in a private run, its exit code is 125, which differs from the exit codes for failed jobs.
func TestPrivateRunExits125OnOwnFailure(t *testing.T) {
	t.Parallel()
	p := testrig.NewPrivateQueue(t)
	if r := p.RunPrivate("true\n", "--lines", "-"); r.ExitCode != 0 {
		t.Fatalf("the run: %+v", r)
	}
	if err := os.WriteFile(filepath.Join(p.StateDir, "queuectl.db"), bytes.Repeat([]byte("damaged "), 1000),
		0o600); err != nil {
		t.Fatal(err)
	}
	if r := p.RunPrivate("true\n", "--lines", "-"); r.ExitCode != 125 || !strings.Contains(r.Stderr, "queuectl.db") {
		t.Errorf("a run with a damaged database: %+v, want 125 and the database's name", r)
	}
}

// If no job has run for a second, a private run reports once why its jobs are waiting.
func TestPrivateRunSaysWhyNothingRuns(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	p := testrig.NewPrivateQueue(t)
	r := p.RunPrivate("true\n", "--lines", "-", "--delay", "4s")
	if r.ExitCode != 0 || !strings.HasPrefix(r.Stderr, "queuectl: job 1-") ||
		strings.Count(r.Stderr, "is waiting: not due yet (until ") != 1 {
		t.Errorf("a private run of a delayed job: %+v", r)
	}
}

// Every line of a file for --lines is a command, even a line that looks like JSON.
func TestEveryLineOfLinesFileIsACommand(t *testing.T) {
	p := testrig.NewPrivateQueue(t)
	r := p.RunPrivate("[ 1 = 1 ] && echo first\n{ echo second; }\n[\n{\"command\":\"echo json\"}\n", "--lines", "-",
		"--max-retries", "0", "--workers", "1")
	if r.ExitCode != 1 || !strings.HasPrefix(r.Stdout, "first\nsecond\n") || strings.Contains(r.Stdout, "\njson\n") ||
		!strings.Contains(r.Stderr, "4 jobs: 2 completed, 2 dead") {
		t.Errorf("a run of lines, one of which looks like JSON: %+v", r)
	}
}
