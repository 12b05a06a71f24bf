package cli

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// runOnTerminalTyping runs queuectl on a terminal, waits until it has printed the prompt, and types the input.
func runOnTerminalTyping(q *testrig.Harness, prompt, input string, args ...string) testrig.CommandResult {
	q.Helper()
	return runCommandOnTerminalTyping(q, q.CLICommand(args...), prompt, input)
}

func runCommandOnTerminalTyping(q *testrig.Harness, cmd *exec.Cmd, prompt, input string) testrig.CommandResult {
	q.Helper()
	s := testrig.NewPseudoTerminal(q, 200)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.Tty, s.Tty, s.Tty
	if err := cmd.Start(); err != nil {
		q.Fatal(err)
	}
	if prompt != "" {
		q.WaitUntil("it asks "+prompt, 10*time.Second, func() bool { return strings.Contains(s.Output.String(), prompt) })
		s.Master.WriteString(input)
	}
	cmd.Wait()
	return testrig.CommandResult{ExitCode: cmd.ProcessState.ExitCode(), Stdout: s.WaitOutput(q)}
}

// On a terminal, commands that end or remove several jobs print the number of jobs and ask for confirmation.
// Without a terminal, a command that applies to all jobs requires --yes.
func TestBulkCommandsAskForConfirmation(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	for _, id := range []string{"a", "b", "c"} {
		q.MustRunCLI("enqueue", "--id", id, "--batch", "three", "true")
	}
	states := func() string {
		return strings.ReplaceAll(q.MustRunCLI("list", "--sort", "id", "--columns", "state"), "\n", " ")
	}
	if r := runOnTerminalTyping(q, "cancel 3 jobs? [y/N]", "\n", "cancel", "--batch", "three"); r.ExitCode != 1 ||
		!strings.Contains(r.Stdout, "nothing was changed") || states() != "STATE pending pending pending" {
		t.Errorf("cancel --batch, answered with no: %+v; %s", r, states())
	}
	if r := q.RunCLI("cancel", "--all"); r.ExitCode != 2 || !strings.Contains(r.Stderr, "--yes") ||
		states() != "STATE pending pending pending" {
		t.Errorf("cancel --all without a terminal: %+v; %s", r, states())
	}
	if r := runOnTerminalTyping(q, "", "", "hold", "--batch", "three"); r.ExitCode != 0 ||
		states() != "STATE held held held" {
		t.Errorf("hold, which ends no job and must not ask: %+v; %s", r, states())
	}
	if r := runOnTerminalTyping(q, "cancel 3 jobs? [y/N]", "y\n", "cancel", "--all"); r.ExitCode != 0 ||
		states() != "STATE cancelled cancelled cancelled" {
		t.Errorf("cancel --all, answered with yes: %+v; %s", r, states())
	}
	if r := runOnTerminalTyping(q, "remove 3 jobs and their history?", "no\n", "cleanup", "--days", "0"); r.ExitCode != 1 {
		t.Errorf("cleanup, answered with no: %+v", r)
	}
	if r := q.RunCLI("clear"); r.ExitCode != 2 || !strings.Contains(r.Stderr, "--yes") {
		t.Errorf("clear without a terminal: %+v", r)
	}
	if got := q.MustRunCLI("clear", "--dry-run"); got != "3 jobs selected; nothing was changed" {
		t.Errorf("clear --dry-run: %q", got)
	}
	if r := runOnTerminalTyping(q, "permanently remove 3 jobs and their history?", "yes\n", "clear"); r.ExitCode != 0 ||
		q.MustRunCLI("list", "-q") != "" {
		t.Errorf("clear, answered with yes: %+v", r)
	}
}

// `queuectl dlq retry` asks for confirmation, as `queuectl retry` does. `queuectl worker stop` asks for
// confirmation if it would end running jobs.
func TestRetryAndWorkerStopAskForConfirmation(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	if r := q.RunCLI("run", "--id", "bad", "false"); r.ExitCode != 1 {
		t.Fatalf("run of a job that fails: %+v", r)
	}
	state := func(id string) string { return q.ShowJob(id).State }
	if r := runOnTerminalTyping(q, "retry 1 job? [y/N]", "n\n", "dlq", "retry", "--all"); r.ExitCode != 1 ||
		state("bad") != "dead" {
		t.Errorf("dlq retry, answered with no: %+v", r)
	}
	q.MustRunCLI("enqueue", "--id", "runs", q.CommandAwaitingQueueFile("goes"))
	q.WaitUntil("the job runs", 10*time.Second, func() bool { return state("runs") == "processing" })
	if r := runOnTerminalTyping(q, "stop and requeue 1 running job? [y/N]", "n\n", "worker", "stop", "--all",
		"--force"); r.ExitCode != 1 || state("runs") != "processing" {
		t.Errorf("worker stop, answered with no: %+v", r)
	}
	if r := runOnTerminalTyping(q, "stop and requeue 1 running job? [y/N]", "y\n", "worker", "stop", "--all", "--timeout",
		"0"); r.ExitCode != 0 || state("runs") != "pending" {
		t.Errorf("worker stop, answered with yes: %+v", r)
	}
	if r := runOnTerminalTyping(q, "", "", "worker", "stop", "--all", "--force"); r.ExitCode != 0 {
		t.Errorf("worker stop while no job runs: %+v", r)
	}
	if r := runOnTerminalTyping(q, "retry 1 job? [y/N]", "y\n", "dlq", "retry", "--all"); r.ExitCode != 0 ||
		state("bad") != "pending" {
		t.Errorf("dlq retry, answered with yes: %+v", r)
	}
}

// `queuectl edit` opens an editor with all fields that the user has set, as the user wrote them. If the edited
// text is invalid, the command keeps it in a file. Without a terminal, the command starts no editor.
func TestEditOpensJobInEditor(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	q.MustRunCLI("enqueue", "--id", "a", "--label", "x=1", "--label", "y=2", "--priority", "9", "--at",
		"2040-01-02T03:04:05Z",
		"echo a && echo '<b>'")
	if err := os.Mkdir(q.Path("tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	through := func(editor, prompt, words string) testrig.CommandResult {
		cmd := q.CLICommand("edit", "a")
		cmd.Env = append(cmd.Env, "EDITOR="+editor, "TMPDIR="+q.Path("tmp"))
		return runCommandOnTerminalTyping(q, cmd, prompt, words)
	}
	edit := func(script string) testrig.CommandResult { return through("sed -i "+script, "", "") }
	if r := edit(`"s/echo a/echo edited/; /.x.: .1./d; w seen"`); r.ExitCode != 0 ||
		!strings.Contains(r.Stdout, "job a is changed") {
		t.Fatalf("edit of a job in an editor: %+v", r)
	}
	edited, err := os.ReadFile(q.StateDir + "/seen")
	if err != nil || !strings.Contains(string(edited), `"command": "echo edited && echo '<b>'"`) ||
		!strings.Contains(string(edited), `"run_at": "2040-01-02T03:04:05.000Z"`) {
		t.Errorf("the editor contained %s, %v", edited, err)
	}
	var a struct {
		Command  string
		Priority int
		RunAt    string `json:"run_at"`
		Labels   map[string]string
	}
	q.DialService().MustCall("show", testrig.JSONFields{"id": "a"}, &a)
	if a.Command != "echo edited && echo '<b>'" || len(a.Labels) != 1 || a.Labels["y"] != "2" || a.Priority != 9 ||
		a.RunAt != "2040-01-02T03:04:05.000Z" {
		t.Errorf("the job after the edit: %+v", a)
	}
	if r := edit(`s/no-such//`); r.ExitCode != 0 || !strings.Contains(r.Stdout, "job a was not changed") {
		t.Errorf("an editor that changes nothing: %+v", r)
	}
	for script, wantText := range map[string]string{`1d`: "JSON", `s/.priority.: 9/"priority":"much"/`: "priority",
		`s/.priority.: 9/"prioritty":9/`: "prioritty"} {
		r := through("sed -i '"+script+"'", "edit the text again? [y/N]", "n\n")
		_, file, isKept := strings.Cut(r.Stdout, "your edited text is in ")
		file, _, _ = strings.Cut(strings.TrimSpace(file), "\n")
		if r.ExitCode != 2 || !isKept || !strings.Contains(r.Stdout, wantText) {
			t.Fatalf("edit with an invalid text: %+v", r)
		}
		if text, err := os.ReadFile(strings.TrimSpace(file)); err != nil || !strings.Contains(string(text), "echo edited") {
			t.Errorf("the kept file with the invalid text: %q, %v", text, err)
		}
		os.Remove(strings.TrimSpace(file))
	}
	q.WriteFile("twice", "#!/bin/sh\nif grep -q much \"$1\"; then sed -i 's/.much./7/' \"$1\"; else sed -i 's/: 9/: "+
		"\"much\"/' \"$1\"; fi\n")
	os.Chmod(q.Path("twice"), 0o700)
	if r := through(q.Path("twice"), "edit the text again? [y/N]", "y\n"); r.ExitCode != 0 ||
		!strings.Contains(r.Stdout, "job a is changed") {
		t.Errorf("an edit that is corrected at the second attempt: %+v", r)
	}
	if entries, err := os.ReadDir(q.Path("tmp")); err != nil || len(entries) > 0 {
		t.Errorf("remaining temporary files: %q, %v", entries, err)
	}
	q.MustRunCLI("cancel", "a")
	if r := through("touch "+q.Path("opened"), "", ""); r.ExitCode != 5 ||
		!strings.Contains(r.Stdout, "job a is cancelled; only waiting jobs can be changed") {
		t.Errorf("edit of a job that has ended: %+v", r)
	}
	if _, err := os.Stat(q.Path("opened")); err == nil {
		t.Error("the editor was opened for a job that has ended")
	}
	q.MustRunCLI("retry", "a")
	if r := through("false", "", ""); r.ExitCode != 1 || !strings.Contains(r.Stdout, "nothing was changed") {
		t.Errorf("an editor that fails: %+v", r)
	}
	if r := q.RunCLI("edit", "a"); r.ExitCode != 2 || !strings.Contains(r.Stderr, "editing in $EDITOR needs a terminal") {
		t.Errorf("an editor without a terminal: %+v", r)
	}
}

// A relative --cwd is relative to the current directory of the client. If that directory was deleted, the
// error says how to proceed.
func TestRelativeCwdUsesCallersDirectory(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	if err := os.MkdirAll(q.StateDir+"/here/below", 0o700); err != nil {
		t.Fatal(err)
	}
	in := func(dir string, args ...string) testrig.CommandResult {
		cmd := q.CLICommand(args...)
		cmd.Dir = dir
		return testrig.RunCommand(t, cmd)
	}
	if r := in(q.StateDir+"/here", "run", "--cwd", "below", "pwd"); r.Stdout != q.StateDir+"/here/below\n" {
		t.Errorf("--cwd below the current directory: %+v", r)
	}
	cmd := q.CLICommand("run", "true")
	cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", "cd here/below && rmdir ../below && exec \"$@\"", "sh",
		q.ClientPath, "--dir", q.StateDir, "run", "true"}
	if r := testrig.RunCommand(t, cmd); r.ExitCode != 125 || !strings.Contains(r.Stderr,
		"the current directory no longer exists") ||
		!strings.Contains(r.Stderr, "--no-cwd") {
		t.Errorf("run in a removed directory: %+v", r)
	}
}

// `queuectl backup` replaces an earlier backup. It replaces any other file only with --force.
func TestBackupReplacesOnlyBackups(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	q.MustRunCLI("enqueue", "true")
	other := q.WriteFile("letter", "dear all")
	if r := q.RunCLI("backup", other); r.ExitCode != 5 || !strings.Contains(r.Stderr, "--force") {
		t.Errorf("backup to a file that is not a backup: %+v", r)
	}
	if text, err := os.ReadFile(other); err != nil || string(text) != "dear all" {
		t.Errorf("the file that is not a backup now contains %q, %v", text, err)
	}
	for _, args := range [][]string{{"backup", q.StateDir + "/copy"}, {"backup", q.StateDir + "/copy"},
		{"backup", other, "--force"},
		{"backup", other}, {"backup", q.WriteFile("empty", "")}} {
		q.MustRunCLI(args...)
	}
}
