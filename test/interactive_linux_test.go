package test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// runTyping runs the program on a terminal, and types input after the program has printed prompt.
func (q *queue) runTyping(prompt, input string, args ...string) result {
	q.Helper()
	return q.runTypingCommand(q.command(args...), prompt, input)
}

func (q *queue) runTypingCommand(cmd *exec.Cmd, prompt, input string) result {
	q.Helper()
	s := newScreen(q, 200)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.tty, s.tty, s.tty
	if err := cmd.Start(); err != nil {
		q.Fatal(err)
	}
	if prompt != "" {
		q.waitUntil("it asks "+prompt, 10*time.Second, func() bool { return strings.Contains(s.output.String(), prompt) })
		s.master.WriteString(input)
	}
	cmd.Wait()
	return result{code: cmd.ProcessState.ExitCode(), out: s.text(q)}
}

// On a terminal, commands that end or remove several jobs print the number of jobs and ask for confirmation.
// Without a terminal, a command for all jobs needs --yes.
func TestBulkCommandsAskForConfirmation(t *testing.T) {
	q := startQueue(t, "--workers", "0")
	for _, id := range []string{"a", "b", "c"} {
		q.must("enqueue", "--id", id, "--batch", "three", "true")
	}
	states := func() string {
		return strings.ReplaceAll(q.must("list", "--sort", "id", "--columns", "state"), "\n", " ")
	}
	if r := q.runTyping("cancel 3 jobs? [y/N]", "\n", "cancel", "--batch", "three"); r.code != 1 ||
		!strings.Contains(r.out, "nothing was changed") || states() != "STATE pending pending pending" {
		t.Errorf("a no: %+v; %s", r, states())
	}
	if r := q.cli("cancel", "--all"); r.code != 2 || !strings.Contains(r.err, "--yes") ||
		states() != "STATE pending pending pending" {
		t.Errorf("all, and nobody to ask: %+v; %s", r, states())
	}
	if r := q.runTyping("", "", "hold", "--batch", "three"); r.code != 0 || states() != "STATE held held held" {
		t.Errorf("what ends nothing asks nothing: %+v; %s", r, states())
	}
	if r := q.runTyping("cancel 3 jobs? [y/N]", "y\n", "cancel", "--all"); r.code != 0 ||
		states() != "STATE cancelled cancelled cancelled" {
		t.Errorf("a yes: %+v; %s", r, states())
	}
	if r := q.runTyping("remove 3 jobs and their history?", "no\n", "cleanup", "--days", "0"); r.code != 1 {
		t.Errorf("cleanup: %+v", r)
	}
	if r := q.cli("clear"); r.code != 2 || !strings.Contains(r.err, "--yes") {
		t.Errorf("clear, and nobody to ask: %+v", r)
	}
	if got := q.must("clear", "--dry-run"); got != "3 jobs selected; nothing was changed" {
		t.Errorf("clear that only counts: %q", got)
	}
	if r := q.runTyping("permanently remove 3 jobs and their history?", "yes\n", "clear"); r.code != 0 ||
		q.must("list", "-q") != "" {
		t.Errorf("clear: %+v", r)
	}
}

// dlq retry asks for confirmation, as retry does. worker stop asks for confirmation if it would end running
// jobs.
func TestRetryAndWorkerStopAskForConfirmation(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	if r := q.cli("run", "--id", "bad", "false"); r.code != 1 {
		t.Fatalf("%+v", r)
	}
	state := func(id string) string { return q.show(id).State }
	if r := q.runTyping("retry 1 job? [y/N]", "n\n", "dlq", "retry", "--all"); r.code != 1 || state("bad") != "dead" {
		t.Errorf("a no: %+v", r)
	}
	q.must("enqueue", "--id", "runs", q.waitForFileCommand("goes"))
	q.waitUntil("it runs", 10*time.Second, func() bool { return state("runs") == "processing" })
	if r := q.runTyping("stop and requeue 1 running job? [y/N]", "n\n", "worker", "stop", "--all",
		"--force"); r.code != 1 || state("runs") != "processing" {
		t.Errorf("a no: %+v", r)
	}
	if r := q.runTyping("stop and requeue 1 running job? [y/N]", "y\n", "worker", "stop", "--all", "--timeout",
		"0"); r.code != 0 || state("runs") != "pending" {
		t.Errorf("a yes: %+v", r)
	}
	if r := q.runTyping("", "", "worker", "stop", "--all", "--force"); r.code != 0 {
		t.Errorf("where nothing runs: %+v", r)
	}
	if r := q.runTyping("retry 1 job? [y/N]", "y\n", "dlq", "retry", "--all"); r.code != 0 || state("bad") != "pending" {
		t.Errorf("a yes: %+v", r)
	}
}

// The editor shows all fields that were set, as the user wrote them. If the edited text is invalid, it is
// kept. Without a terminal, edit starts no editor.
func TestEditInAnEditor(t *testing.T) {
	q := startQueue(t, "--workers", "0")
	q.must("enqueue", "--id", "a", "--label", "x=1", "--label", "y=2", "--priority", "9", "--at", "2040-01-02T03:04:05Z",
		"echo a && echo '<b>'")
	if err := os.Mkdir(q.path("tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	through := func(editor, prompt, words string) result {
		cmd := q.command("edit", "a")
		cmd.Env = append(cmd.Env, "EDITOR="+editor, "TMPDIR="+q.path("tmp"))
		return q.runTypingCommand(cmd, prompt, words)
	}
	edit := func(script string) result { return through("sed -i "+script, "", "") }
	if r := edit(`"s/echo a/echo edited/; /.x.: .1./d; w seen"`); r.code != 0 ||
		!strings.Contains(r.out, "job a is changed") {
		t.Fatalf("an edit: %+v", r)
	}
	edited, err := os.ReadFile(q.dir + "/seen")
	if err != nil || !strings.Contains(string(edited), `"command": "echo edited && echo '<b>'"`) ||
		!strings.Contains(string(edited), `"run_at": "2040-01-02T03:04:05.000Z"`) {
		t.Errorf("the editor had %s, %v", edited, err)
	}
	var a struct {
		Command  string
		Priority int
		RunAt    string `json:"run_at"`
		Labels   map[string]string
	}
	q.dial().mustCall("show", fields{"id": "a"}, &a)
	if a.Command != "echo edited && echo '<b>'" || len(a.Labels) != 1 || a.Labels["y"] != "2" || a.Priority != 9 ||
		a.RunAt != "2040-01-02T03:04:05.000Z" {
		t.Errorf("after an edit: %+v", a)
	}
	if r := edit(`s/no-such//`); r.code != 0 || !strings.Contains(r.out, "job a was not changed") {
		t.Errorf("an editor that changes nothing: %+v", r)
	}
	for script, wantText := range map[string]string{`1d`: "JSON", `s/.priority.: 9/"priority":"much"/`: "priority",
		`s/.priority.: 9/"prioritty":9/`: "prioritty"} {
		r := through("sed -i '"+script+"'", "edit the text again? [y/N]", "n\n")
		_, file, isKept := strings.Cut(r.out, "your edited text is in ")
		file, _, _ = strings.Cut(strings.TrimSpace(file), "\n")
		if r.code != 2 || !isKept || !strings.Contains(r.out, wantText) {
			t.Fatalf("a mistake in the editor: %+v", r)
		}
		if text, err := os.ReadFile(strings.TrimSpace(file)); err != nil || !strings.Contains(string(text), "echo edited") {
			t.Errorf("the text that is kept: %q, %v", text, err)
		}
		os.Remove(strings.TrimSpace(file))
	}
	q.writeFile("twice", "#!/bin/sh\nif grep -q much \"$1\"; then sed -i 's/.much./7/' \"$1\"; else sed -i 's/: 9/: "+
		"\"much\"/' \"$1\"; fi\n")
	os.Chmod(q.path("twice"), 0o700)
	if r := through(q.path("twice"), "edit the text again? [y/N]", "y\n"); r.code != 0 ||
		!strings.Contains(r.out, "job a is changed") {
		t.Errorf("a mistake that is mended: %+v", r)
	}
	if entries, err := os.ReadDir(q.path("tmp")); err != nil || len(entries) > 0 {
		t.Errorf("left behind: %q, %v", entries, err)
	}
	q.must("cancel", "a")
	if r := through("touch "+q.path("opened"), "", ""); r.code != 5 ||
		!strings.Contains(r.out, "job a is cancelled; only waiting jobs can be changed") {
		t.Errorf("a job that has ended: %+v", r)
	}
	if _, err := os.Stat(q.path("opened")); err == nil {
		t.Error("the editor was opened for a job that has ended")
	}
	q.must("retry", "a")
	if r := through("false", "", ""); r.code != 1 || !strings.Contains(r.out, "nothing was changed") {
		t.Errorf("an editor that fails: %+v", r)
	}
	if r := q.cli("edit", "a"); r.code != 2 || !strings.Contains(r.err, "editing in $EDITOR needs a terminal") {
		t.Errorf("an editor without a terminal: %+v", r)
	}
}

// A relative --cwd is resolved in the caller's current directory. If that directory was deleted, the error
// says what to do.
func TestRelativeDirIsTheCallers(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	if err := os.MkdirAll(q.dir+"/here/below", 0o700); err != nil {
		t.Fatal(err)
	}
	in := func(dir string, args ...string) result {
		cmd := q.command(args...)
		cmd.Dir = dir
		return runCommand(t, cmd)
	}
	if r := in(q.dir+"/here", "run", "--cwd", "below", "pwd"); r.out != q.dir+"/here/below\n" {
		t.Errorf("a folder below the current one: %+v", r)
	}
	cmd := q.command("run", "true")
	cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", "cd here/below && rmdir ../below && exec \"$@\"", "sh", q.bin,
		"--dir", q.dir, "run", "true"}
	if r := runCommand(t, cmd); r.code != 125 || !strings.Contains(r.err, "the current directory no longer exists") ||
		!strings.Contains(r.err, "--no-cwd") {
		t.Errorf("in a folder that is gone: %+v", r)
	}
}

// backup replaces an earlier backup. It replaces another file only with --force.
func TestBackupReplacesOnlyBackups(t *testing.T) {
	q := startQueue(t, "--workers", "0")
	q.must("enqueue", "true")
	other := q.writeFile("letter", "dear all")
	if r := q.cli("backup", other); r.code != 5 || !strings.Contains(r.err, "--force") {
		t.Errorf("over a letter: %+v", r)
	}
	if text, err := os.ReadFile(other); err != nil || string(text) != "dear all" {
		t.Errorf("the letter is %q, %v", text, err)
	}
	for _, args := range [][]string{{"backup", q.dir + "/copy"}, {"backup", q.dir + "/copy"}, {"backup", other, "--force"},
		{"backup", other}, {"backup", q.writeFile("empty", "")}} {
		q.must(args...)
	}
}
