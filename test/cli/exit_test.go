//go:build linux || windows

package cli

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// follower is a queuectl process that follows a running job.
type follower struct {
	*exec.Cmd
	stderr, stdout testrig.LockedBuffer
}

// startFollower starts a job that does not end by itself, and a run or wait command that follows the job.
func startFollower(conn *testrig.ServiceConn, id, subcommand string, flags ...string) *follower {
	conn.Helper()
	const command = "echo up; exec sleep 600"
	args := append([]string{"run", "--id", id, "--max-retries", "0", command}, flags...)
	if subcommand == "wait" {
		// Wait for this quick job as well. When `queuectl wait` has reported its end, the command is
		// waiting for the other job.
		quick := conn.Enqueue(testrig.JSONFields{"command": "true"})
		conn.MustRunCLI(append([]string{"enqueue"}, args[1:]...)...)
		args = []string{"wait", "--jsonl", id, quick}
	}
	f := &follower{Cmd: conn.CLICommand(args...)}
	f.Stderr, f.Stdout = &f.stderr, &f.stdout
	if err := f.Start(); err != nil {
		conn.Fatal(err)
	}
	conn.Cleanup(func() { f.Process.Kill() })
	conn.WaitUntil("the job is there", 20*time.Second, func() bool {
		return conn.Call("show",
			testrig.JSONFields{"id": id}).Error == nil
	})
	conn.WaitJobRunning(id)
	conn.WaitUntil("the verb is at work", 20*time.Second, func() bool { return f.stdout.String() != "" })
	return f
}

// waitExit waits for the command to end, checks its exit code, and returns what it printed.
func (f *follower) waitExit(t *testing.T, exitCode int) string {
	t.Helper()
	timer := time.AfterFunc(20*time.Second, func() { f.Process.Kill() })
	defer timer.Stop()
	f.Wait()
	if got := f.ProcessState.ExitCode(); got != exitCode {
		t.Errorf("%v ended with %v, want code %d; %s", f.Args[3:], f.ProcessState, exitCode, f.stderr.String())
	}
	return f.stderr.String()
}

// The exit code of `queuectl run` and `queuectl wait` is correct if another user ends the job, if the runner
// dies, and if the service is killed.
func TestExitCodeReflectsOtherUsersActions(t *testing.T) {
	for _, c := range []struct {
		name     string
		flags    []string
		do       func(q *testrig.Harness, id string)
		code     int
		wantText string // text that `queuectl run` prints to stderr
	}{
		{"cancelled", nil, func(q *testrig.Harness, id string) { q.MustRunCLI("cancel", id) }, 130, "is cancelled"},
		{"killed", nil, func(q *testrig.Harness, id string) { q.MustRunCLI("kill", "-s", "KILL", id) },
			killedJobExitCode, killedJobMessageText},
		{"lost", []string{"--on-lost", "dead"}, func(q *testrig.Harness, _ string) { q.KillRunners() }, 125,
			"is dead (lost)"},
		{"lost without a retry", nil, func(q *testrig.Harness, _ string) { q.KillRunners() }, 125, "is dead (lost)"},
		{"service killed", nil, func(q *testrig.Harness, _ string) { q.KillService() }, 125,
			"follow it again with: queuectl attach job"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, verb := range []string{"run", "wait"} {
				t.Run(verb, func(t *testing.T) {
					q := testrig.StartQueue(t, "--workers", "1")
					f := startFollower(q.DialService(), "job", verb, c.flags...)
					c.do(q, "job")
					if stderr := f.waitExit(t, c.code); verb == "run" && !strings.Contains(stderr, c.wantText) {
						t.Errorf("stderr is %q, want %q", stderr, c.wantText)
					}
					if q.ServiceCmd != nil {
						q.StopService() // do not kill the service: it may be starting a runner
					}
				})
			}
		})
	}
}

// retryLinePattern matches the line that `queuectl run` prints after a failed attempt that will be retried.
var retryLinePattern = regexp.MustCompile(`(?m)^queuectl: attempt \d+ failed: .*; retrying .* \(\d+ attempts? left\)\n`)

// If a job is removed while `queuectl run` or `queuectl wait` follows it, the command reports that the job does
// not exist.
func TestFollowedRemovedJobIsReportedMissing(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	for _, args := range [][]string{{"run", "--id", "job", "--delay", "1h", "true"}, {"wait", "job"}} {
		if args[0] == "wait" {
			q.MustRunCLI("enqueue", "--id", "job", "true")
		}
		f := &follower{Cmd: q.CLICommand(args...)}
		f.Stderr = &f.stderr
		if err := f.Start(); err != nil {
			t.Fatal(err)
		}
		q.WaitUntil("the job is there", 20*time.Second, func() bool { return q.RunCLI("rm", "job").ExitCode == 0 })
		if stderr := f.waitExit(t, 125); !strings.Contains(stderr, `there is no job "job"`) {
			t.Errorf("%v prints %q", args, stderr)
		}
	}
}

// If a followed job is removed and a new job gets its id, the client does not follow the new job.
func TestNewJobWithSameIDIsNotFollowed(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w, slow := q.DialService(), q.DialService()
	w.Enqueue(testrig.JSONFields{"id": "job", "command": "seq 200000; echo up; exec sleep 600"})
	w.WaitJobRunning("job")
	slow.SendRawLine(testrig.RequestJSON("logs", `{"id":"job","follow":true}`))
	// The slow client reads only the first message. So the service still has to send the rest of the output when the job
	// is removed.
	if a, err := slow.ReadMessage(); err != nil || a.Error != nil {
		t.Fatalf("the first message for the slow client: %+v, %v", a, err)
	}
	w.MustCall("rm", testrig.JSONFields{"id": "job", "force": true}, nil)
	w.Enqueue(testrig.JSONFields{"id": "job", "command": "true", "delay": "1h"})
	for {
		a, err := slow.ReadMessage()
		if err != nil {
			t.Fatal(err)
		}
		if a.Method == "" {
			if a.ErrorCode() != "not_found" {
				t.Errorf("the request to follow the removed job ended with %+v", a)
			}
			return
		}
	}
}

// If `queuectl wait` waits for several jobs, its exit code is that of one of the jobs that did not complete: the one
// that comes first in the arguments. With --any, the command returns when one job ends. If the timeout passes first,
// the command exits with the code for a timeout, even if some jobs have ended.
func TestWaitExitsWithFirstFailedJob(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	w.Enqueue(testrig.JSONFields{"id": "good", "command": "true"})
	w.Enqueue(testrig.JSONFields{"id": "fine", "command": "true"})
	w.Enqueue(testrig.JSONFields{"id": "five", "command": "exit 5", "max_retries": 0})
	w.Enqueue(testrig.JSONFields{"id": "six", "command": "exit 6", "max_retries": 0})
	w.Enqueue(testrig.JSONFields{"id": "gone", "command": "true", "delay": 600})
	w.Enqueue(testrig.JSONFields{"id": "far", "command": "true", "delay": 600})
	q.MustRunCLI("cancel", "gone")
	for _, c := range []struct {
		words string
		code  int
	}{
		{"good", 0}, {"good fine", 0}, {"five six", 5}, {"six five", 6}, {"good six five", 6}, {"good gone five", 130},
		{"five gone", 5}, {"five five", 5}, {"good good", 0},
		{"far --timeout 0.05", 124}, {"five far --timeout 0.05", 124}, {"far --timeout 0", 124}, {"good --timeout 0", 0},
		{"five --timeout 60", 5},
		{"--any far good", 0}, {"--any far five", 5}, {"--any far gone", 130}, {"--any six good", 6}, {"--any good six", 0},
		{"--any far --timeout 0.05", 124},
		{"good nope", 125}, {"nope five", 125}, {"--any good nope", 125},
	} {
		if r := q.RunCLI(append([]string{"wait"}, strings.Fields(c.words)...)...); r.ExitCode != c.code || r.Stdout != "" {
			t.Errorf("wait %s: %+v, want code %d", c.words, r, c.code)
		}
	}
	any := q.CLICommand("wait", "--any", "far", "further", "--json")
	w.Enqueue(testrig.JSONFields{"id": "further", "command": "exit 7", "delay": 600, "max_retries": 0})
	var out bytes.Buffer
	any.Stdout = &out
	if err := any.Start(); err != nil {
		t.Fatal(err)
	}
	q.MustRunCLI("edit", "further", `{"run_at":null}`)
	any.Wait()
	if any.ProcessState.ExitCode() != 7 || !strings.HasPrefix(out.String(), `[{"id":"further"`) {
		t.Errorf("wait --any: %v, %s", any.ProcessState, out.String())
	}
}

// If `queuectl wait` waits for all jobs that match a selection, it succeeds if no job matches. The result of a
// matching job that has already ended counts too.
func TestWaitForSelectionCountsEndedJobs(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	user := strings.TrimSpace(q.MustRunCLI("whoami", "--json"))
	user = regexp.MustCompile(`"user":"([^"]+)"`).FindStringSubmatch(user)[1]
	check := func(words string, code int) {
		t.Helper()
		r := q.RunCLI(append([]string{"wait"}, strings.Fields(words)...)...)
		if none := strings.Contains(r.Stderr, "no job matches"); r.ExitCode != code || code != 0 && none {
			t.Errorf("wait %s: %+v, want code %d", words, r, code)
		}
	}
	selectors := []string{"--all", "--user " + user, "-Q default", "--batch b", "--label a=b", "--id-glob *",
		"--state waiting", "--failed", "--state done", "--older-than 1ms"}
	for _, words := range selectors {
		check(words, 0)
		check(words+" --any", 0)
		check(words+" --progress --json", 0)
	}
	q.MustRunCLI("enqueue", "--id", "good", "--batch", "b", "--label", "a=b", "true")
	q.MustRunCLI("enqueue", "--id", "five", "--batch", "b", "--label", "a=b", "--max-retries", "0", "exit 5")
	check("good five", 5)
	for _, words := range selectors {
		code := 5
		if strings.HasPrefix(words, "--all") || strings.HasPrefix(words, "--user") || strings.HasSuffix(words, "waiting") ||
			strings.HasSuffix(words, "done") {
			// The flags --all and --user select jobs that have not ended, so the exit code is 0. The state "done" selects jobs
			// that completed or were cancelled.
			code = 0
		}
		check(words, code)
	}
}

// A job that names a missing file is enqueued with a warning. It fails without a retry. A job whose
// shell does not find a command is retried.
func TestMissingFilesAreNotRetried(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	missing := filepath.ToSlash(q.Path("missing"))
	retried := q.MustRunCLI("enqueue", "--max-retries", "1", "--backoff-base", "0.02", "no-such-command")
	type missingFile struct{ args, wantText, fault string }
	cases := []missingFile{
		{"--stdin-file " + missing + " true", "--stdin-file: " + missing + " does not exist", "stdin_file: "},
		{"--stdin-file " + filepath.ToSlash(q.StateDir) + " true", "--stdin-file: " + filepath.ToSlash(q.StateDir) +
			" is not a regular file", "stdin_file: "},
		{"--env-secret A=" + missing + " true", "--env-secret: " + missing + " does not exist", "env_secret A: "},
		{"-- " + missing + " x", "program: " + missing + " does not exist", "cannot start "},
		{"-- no-such-program x", "program: no-such-program is not in PATH", "cannot start no-such-program: "},
		{"--env PATH=" + filepath.ToSlash(q.StateDir) + " -- no-such-program", "", "cannot start no-such-program: "},
	}
	if runtime.GOOS != "windows" { // on Windows, there are no systemd credentials
		cases = append(cases, missingFile{"--env-secret A=credential:none true", "", "env_secret A: credential none: "})
	}
	for _, c := range cases {
		r := q.RunCLI(append([]string{"enqueue"}, strings.Fields(c.args)...)...)
		stderr := filepath.ToSlash(r.Stderr)
		if r.ExitCode != 0 || !strings.Contains(stderr, c.wantText) ||
			strings.Contains(stderr, "before the job starts") != (c.wantText != "") {
			t.Errorf("%s: %+v, want the warning %q", c.args, r, c.wantText)
		}
		id := strings.TrimSpace(r.Stdout)
		q.RunCLI("wait", id, "--timeout", "20s")
		if j := q.ShowJob(id); j.State != "dead" || j.AttemptCount != 1 || !strings.HasPrefix(j.Error, c.fault) {
			t.Errorf("%s: %+v, want it dead after one attempt, and %q", c.args, j, c.fault)
		}
	}
	q.RunCLI("wait", retried, "--timeout", "20s")
	if j := q.ShowJob(retried); j.State != "dead" || j.AttemptCount != 2 || j.Reason != "not_found" {
		t.Errorf("a job whose shell does not find the command: %+v, want two attempts", j)
	}
}

// A job whose working directory does not exist is enqueued with a warning, and fails without a retry.
func TestMissingWorkDirIsNotRetried(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	missing, file := q.Path("missing"), q.WriteFile("file", "")
	list := q.WriteFile(
		"list", fmt.Sprintf(
			"{\"id\":\"l1\",\"command\":\"true\",\"cwd\":%q}\n{\"id\":\"l2\",\"command\":\"true\",\"cwd\":%[1]q}\n", missing))
	for _, c := range []struct {
		args  []string
		warns int
		ids   []string
	}{
		{[]string{"enqueue", "--id", "one", "--cwd", missing, "true"}, 1, []string{"one"}},
		{[]string{"enqueue", "--id", "none", "--cwd", file, "true"}, 0, []string{"none"}},
		{[]string{"enqueue", "--file", list}, 1, []string{"l1", "l2"}},
		{[]string{"schedule", "add", "s", "0 3 * * *", "--cwd", missing, "--", "true"}, 1, nil},
	} {
		r := q.RunCLI(c.args...)
		if got := strings.Count(r.Stderr, "cwd: "+missing+" does not exist"); r.ExitCode != 0 || got != c.warns {
			t.Errorf("%v: %+v, want %d warnings", c.args, r, c.warns)
		}
		for _, id := range c.ids {
			q.RunCLI("wait", id, "--timeout", "20s")
			if j := q.ShowJob(id); j.State != "dead" || j.AttemptCount != 1 || j.Reason != "not_runnable" ||
				!strings.HasPrefix(j.Error, "cwd: ") {
				t.Errorf("job %s of %v: %+v, want it dead after one attempt", id, c.args, j)
			}
		}
	}
}

// jobEndCase is one way in which a job ends, with the expected results.
type jobEndCase struct {
	args     string
	exitCode int
	reason   string // reason stored with the job
	stderr   string // text that `queuectl run` prints to stderr, in addition to the job's stderr
}

// Each way in which a job can end has an exit code. `queuectl run` and `queuectl wait` exit with that code,
// even if they begin to wait after the job has ended. Invalid arguments give 125; see script/run.txtar.
func TestEachJobEndHasItsExitCode(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "8")
	script := q.WriteFile("not-executable"+testrig.ExecutableSuffix, "not a program\n")
	for _, c := range append([]jobEndCase{
		{"true", 0, "", ""},
		{"--ok-code=3 -- sh -c 'exit 3'", 0, "", ""},
		// The first attempt exits with 1, the second with 0.
		{"--max-retries=2 --backoff-base=0.02 -- sh -c 'exit $((2-QUEUECTL_ATTEMPT))'", 0, "", ""},
		// `queuectl run` exits with the exit code of the job, even if queuectl also uses that code for its own errors.
		{"exit 1", 1, "", ""}, {"exit 2", 2, "", ""}, {"exit 3", 3, "", ""}, {"exit 4", 4, "", ""}, {"exit 5", 5, "", ""},
		{"exit 123", 123, "", ""}, {"exit 124", 124, "", ""}, {"exit 125", 125, "", ""}, {"exit 128", 128, "", ""},
		{"exit 130", 130, "", ""}, {"exit 255", 255, "", ""},
		{"--max-retries=3 --no-retry-code=9 -- sh -c 'exit 9'", 9, "", ""},
		// `queuectl run` exits with the exit code of the last attempt.
		{"--max-retries=1 --backoff-base=0.02 -- sh -c 'exit $((2+QUEUECTL_ATTEMPT))'", 4, "", ""},
		{"--timeout=0.1 --kill-after=1 -- sleep 60", 124, "timed_out", "timed out after 100ms"},
		{"--idle-timeout=0.1 --kill-after=1 -- sleep 60", 124, "timed_out", "printed nothing"},
		{"--delay=1h --expires-at=+0.1s -- true", 125, "expired", "expired"},
		{"-- " + script, 126, "not_runnable", ""}, {"--cwd=/no/such/dir -- true", 126, "not_runnable", "/no/such/dir"},
		{"exit 126", 126, "not_runnable", ""},
		{"-- no-such-program", 127, "not_found", "no-such-program"}, {"no-such-program", 127, "not_found", ""},
	}, platformJobEndCases...) {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			asRun, asWait := submitCommand(q, "run", c.args), submitCommand(q, "run -d", c.args)
			detached := testrig.RunCommand(t, asWait)
			id := strings.TrimSpace(detached.Stdout)
			line := regexp.MustCompile("^queuectl: job " + id + " is [^\n]*; details: queuectl show " + id + "\n$")
			if r := q.RunCLI("wait", id); r.ExitCode != c.exitCode || r.Stdout != "" || (c.exitCode == 0) != (r.Stderr == "") ||
				c.exitCode != 0 && !line.MatchString(r.Stderr) {
				t.Errorf("wait: %+v, want code %d, and one line about a job that did not complete", r, c.exitCode)
			}
			if r := q.RunCLI("wait", "-q", id); r.ExitCode != c.exitCode || r.Stdout+r.Stderr != "" {
				t.Errorf("wait -q: %+v, want code %d and no output", r, c.exitCode)
			}
			if r := q.RunCLI("wait", id, "--timeout", "0.01"); r.ExitCode != c.exitCode {
				t.Errorf("wait after the end: %+v, want code %d", r, c.exitCode)
			}
			if j := q.ShowJob(id); j.Reason != c.reason {
				t.Errorf("the job's reason is %q, want %q", j.Reason, c.reason)
			}
			r := testrig.RunCommand(t, asRun)
			r.Stderr = retryLinePattern.ReplaceAllString(r.Stderr, "")
			if r.ExitCode != c.exitCode || !strings.Contains(r.Stderr, c.stderr) ||
				c.stderr == "" && c.reason == "" && r.Stderr != "" {
				t.Errorf("run: %+v, want code %d, %q", r, c.exitCode, c.stderr)
			}
		})
	}
}

// submitCommand returns a command that enqueues a job without retries. If line begins with a flag, its words
// are the arguments. Otherwise, line is the job's command.
func submitCommand(q *testrig.Harness, verb, line string) *exec.Cmd {
	if !strings.HasPrefix(line, "-") {
		line = "'" + line + "'"
	}
	if !strings.Contains(line, "--max-retries") {
		verb += " --max-retries 0"
	}
	cmd := q.CLICommand()
	shell := testrig.ShellCommand(strings.Join([]string{filepath.ToSlash(q.ClientPath), "--dir", q.StateDir, verb, line},
		" "))
	shell.Env, shell.Dir = append(cmd.Env, publicPathEnvAssignment), cmd.Dir
	return shell
}
