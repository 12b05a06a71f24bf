//go:build linux || windows

package jobs

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// The command line refuses a start time that has passed by more than one minute, as at(1) does. The socket
// accepts such a time, because a client may repeat its request.
func TestPastStartTimesAreRefused(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	q.MustRunCLI("enqueue", "--id", "later", "--at", "2040-01-02 03:04", "true")
	past := time.Now().Add(-2 * time.Minute).UTC().Format(time.RFC3339)
	for _, words := range [][]string{
		{"enqueue", "--at", past, "true"}, {"enqueue", "--run-at", "yesterday", "true"},
		{"enqueue", "--at", "1 month ago", "--", "true", "{}", ":::", "a"}, {"run", "--at", past, "true"},
		{"edit", "later", "--at", past}, {"run", "--private", "--at", past, "--", "true", ":::", "a"},
	} {
		code := 2
		if words[0] == "run" {
			code = 125
		}
		if got := q.RunCLI(words...); got.ExitCode != code || !strings.Contains(got.Stderr, "--at: the time is ") ||
			!strings.Contains(got.Stderr, "which has passed; give a later time, or add --allow-past") {
			t.Errorf("%v: %+v", words, got)
		}
	}
	if got := q.MustRunCLI("list", "--columns", "id"); strings.Count(got, "\n") != 1 {
		t.Errorf("refused commands enqueued jobs:\n%s", got)
	}
	for _, words := range [][]string{{"enqueue", "--expires-at", past, "true"},
		{"enqueue", "--expires-at", "yesterday", "--", "true", ":::", "a"}, {"edit", "later", "--expires-at", past}} {
		if got := q.RunCLI(words...); got.ExitCode != 2 || !strings.Contains(got.Stderr, "--expires-at: the time is ") ||
			!strings.Contains(got.Stderr, "which has passed; give a later time, or add --allow-past") {
			t.Errorf("%v: %+v", words, got)
		}
	}
	if got := q.MustRunCLI("list", "--columns", "id"); strings.Count(got, "\n") != 1 {
		t.Errorf("refused commands enqueued jobs that never run:\n%s", got)
	}
	q.MustRunCLI("enqueue", "--at", "now", "true")
	q.MustRunCLI("enqueue", "--at", time.Now().Add(-30*time.Second).UTC().Format(time.RFC3339), "true")
	q.MustRunCLI("enqueue", "--at", past, "--allow-past", "true")
	q.MustRunCLI("edit", "later", "--at", past, "--allow-past")
	private := func(extraArgs ...string) testrig.CommandResult {
		cmd := exec.Command(q.ClientPath, append([]string{"run", "--private", "--at", past},
			append(extraArgs, "--", "true", ":::", "a")...)...)
		cmd.Env, cmd.Dir = testrig.UserEnvironment(q.StateDir), q.Path("private")
		return testrig.RunCommand(t, cmd)
	}
	if err := os.Mkdir(q.Path("private"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, run := range []struct {
		extraArgs []string
		code      int
		// The third command continues the private run of the second command. That run has no jobs left, so the command
		// succeeds.
	}{{nil, 125}, {[]string{"--allow-past"}, 0}, {nil, 0}} {
		if got := private(run.extraArgs...); got.ExitCode != run.code {
			t.Errorf("run --private %v: %+v, want exit code %d", run.extraArgs, got, run.code)
		}
	}
	w := q.DialService()
	for range 2 {
		for _, field := range []string{"run_at", "expires_at"} {
			if got := w.Call("enqueue", testrig.JSONFields{"command": "true", field: past, "key": field}); got.Error != nil {
				t.Errorf("%s on the wire: %v", field, got.Error)
			}
		}
	}
}

// If a job is enqueued or edited with an expiry time that has passed, every command warns that the job will not
// run.
func TestPastExpiryTimeCausesWarning(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	q.MustRunCLI("enqueue", "--id", "later", "true")
	for _, words := range [][]string{
		{"enqueue", "--allow-past", "--expires-at", "yesterday", "true"},
		{"enqueue", "-q", "--allow-past", "--expires-at", "yesterday", "--", "true", ":::", "a", "b"},
		{"enqueue", `{"command":"true","expires_at":"2020-01-01T00:00:00Z"}`},
		{"edit", "later", "--allow-past", "--expires-at", "1 hour ago"},
	} {
		if got := q.RunCLI(words...); got.ExitCode != 0 || strings.Count(got.Stderr,
			"which has passed, so it will not run") != 1 {
			t.Errorf("%v: %+v", words, got)
		}
	}
	const past, later = `{"command":"true","expires_at":"2020-01-01T00:00:00Z"}`,
		`{"command":"true","expires_at":"2999-01-01T00:00:00Z"}`
	private := testrig.NewPrivateQueue(t)
	for _, c := range []struct {
		words []string
		in    string
		want  []string // all warnings that the command prints
	}{
		{[]string{"enqueue", "[" + later + "," + past + "]"}, "",
			[]string{"entry 2: this job will not run, because its expiry time is "}},
		{[]string{"enqueue", "--json", "[" + past + "," + past + "]"}, "",
			[]string{"entry 1: this job will not run, because its expiry time is ",
				"entry 2: this job will not run, because its expiry time is "}},
		{[]string{"enqueue", "--file", "-"}, later + "\n\n" + past + "\n",
			[]string{"line 3: this job will not run, because its expiry time is "}},
		{[]string{"enqueue", "--json", "--file", "-"}, "[" + later + ",\n" + past + "]",
			[]string{"line 2: this job will not run, because its expiry time is "}},
		{[]string{"enqueue", "-q", "--file", "-", "--allow-past", "--expires-at", "yesterday"},
			`{"command":"true"}` + "\n" + past + "\n",
			[]string{"queuectl: warning: the job expires ", "line 2: this job will not run, because its expiry time is "}},
		{[]string{"enqueue", "--file", "-"}, strings.Repeat(past+"\n", 12),
			[]string{"line 1: this job will not run, because its expiry time is ",
				"line 10: this job will not run, because its expiry time is ", "2 more jobs "}},
		{[]string{"run", "--private", "--dir", private.StateDir, "--file", "-"}, later + "\n" + past + "\n",
			[]string{"line 2: this job will not run, because its expiry time is "}},
	} {
		got := q.RunCLIWithInput(c.in, c.words...)
		for _, want := range c.want {
			if !strings.Contains(got.Stderr, want) {
				t.Errorf("%.40q: %+v, want %s", c.words, got, want)
			}
		}
		if n := strings.Count(got.Stderr, "which has passed"); len(c.want) < 3 && n != len(c.want) {
			t.Errorf("%.40q: %d warnings about past times, want %d", c.words, n, len(c.want))
		}
	}
	if got := q.RunCLI("enqueue", "--expires-at", "tomorrow", "true"); got.ExitCode != 0 || got.Stderr != "" {
		t.Errorf("an expiry time in the future: %+v", got)
	}
}
