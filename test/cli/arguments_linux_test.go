package cli

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queuectl/queuectl/internal/testrig"
)

// If the user presses Ctrl-C while the client reads a file of jobs, no job of the file is stored.
func TestInterruptedJobFileIsNotStored(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	cmd := q.CLICommand("enqueue", "--file", "-")
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write([]byte(strings.Repeat("{\"command\":\"true\"}\n", 2500))); err != nil {
		t.Fatal(err)
	}
	q.WaitUntil("a part was sent", 20*time.Second,
		func() bool { return q.QueryDatabaseInt("SELECT count(*) FROM frames") > 0 })
	cmd.Process.Signal(os.Interrupt)
	err = cmd.Wait()
	in.Close()
	if err == nil || cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("enqueue ended with %v, want 130", err)
	}
	if n := q.DialService().JobCountsByState()["pending"]; n != 0 ||
		q.QueryDatabaseInt("SELECT count(*) FROM frames") != 0 {
		t.Errorf("after the interrupt %d jobs or parts of the batch are stored", n)
	}
	for text, want := range map[string]int{`{"command":"true","cwd":null,"env":null,"umask":null}`: 0,
		`{"command":"true","\u0063wd":"/"}`: 0} {
		if r := q.RunCLIWithInput(text, "enqueue", "--file", "-"); r.ExitCode != want {
			t.Errorf("%s: %+v", text, r)
		}
	}
}

// The runner finds the processes of a job by a marker in their environment. If a job leaves behind a process without
// this marker, other jobs are not slowed down.
func TestUnmarkedLeftoverProcessSlowsNoOtherJob(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	longJob := w.Enqueue(testrig.JSONFields{"command": "(env -i /bin/sleep 600 &) ; echo up; sleep 600"})
	w.WaitJobRunning(longJob)
	started := time.Now()
	for range 10 {
		w.WaitJobEnded(w.Enqueue(testrig.JSONFields{"command": "true"}))
	}
	if elapsed := time.Since(started); elapsed > 4*time.Second { // more than 10 times output_grace
		t.Errorf("ten jobs took %v, want at most 4 s", elapsed)
	}
	w.MustCall("cancel", testrig.JSONFields{"id": longJob}, nil)
}

// On Linux, arguments that are not valid UTF-8 are errors. Other systems cannot pass such
// arguments.
func TestArgumentsMustBeUTF8(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	for field, args := range map[string][]string{"argv": {"--", "printf", "a\xffb"}, "command": {"echo \xff"},
		"env": {"--env", "A=\xff", "true"}} {
		if r := q.RunCLI(append([]string{"enqueue"}, args...)...); r.ExitCode != 2 ||
			!strings.Contains(r.Stderr, field+": ") {
			t.Errorf("%s: %+v", field, r)
		}
	}
	cmd := q.CLICommand("enqueue", "true")
	cmd.Dir = q.Path("d\xff")
	if err := os.Mkdir(cmd.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if r := testrig.RunCommand(t, cmd); r.ExitCode != 2 || !strings.Contains(r.Stderr, "cwd: ") {
		t.Errorf("enqueue in a directory whose name is not UTF-8: %+v", r)
	}
}

// Commands print the arguments of a job in quotes, so that they can be pasted into a shell.
func TestArgumentsAreShownAsAShellReadsThem(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	const want = `cp 'c  lip1.mov' 'it'\''s' "$(printf 'two\nlines')"`
	argv := []string{"cp", "c  lip1.mov", "it's", "two\nlines"}
	q.MustRunCLI(append([]string{"enqueue", "--id", "a", "--"}, argv...)...)
	q.MustRunCLI(append([]string{"schedule", "add", "nightly", "0 3 * * *", "--"}, argv...)...)
	for _, verb := range [][]string{{"list"}, {"show", "a"}, {"simulate"}, {"status"}, {"schedule", "list"},
		{"schedule", "show", "nightly"}} {
		if got := q.MustRunCLI(verb...); !strings.Contains(got, want) {
			t.Errorf("%q prints\n%s\nwant %s in it", verb, got, want)
		}
	}
	var jobs []struct {
		Command string
		Argv    []string
	}
	if err := json.Unmarshal([]byte(q.MustRunCLI("list", "--json")), &jobs); err != nil || len(jobs) != 1 ||
		jobs[0].Command != want || !slices.Equal(jobs[0].Argv, argv) {
		t.Errorf("list --json has %+v, %v, want the command %s", jobs, err, want)
	}
	var schedules []struct{ Command string }
	if err := json.Unmarshal([]byte(q.MustRunCLI("schedule", "list", "--json")), &schedules); err != nil ||
		len(schedules) != 1 || schedules[0].Command != want {
		t.Errorf("schedule list --json has %+v, %v, want the command %s", schedules, err, want)
	}

	// A request may contain argv together with the command text that queuectl prints for this argv.
	bothForms := testrig.JSONFields{"command": want, "argv": argv}
	id := q.DialService().Enqueue(bothForms)
	var detail struct{ Spec struct{ Argv []string } }
	if q.DialService().MustCall("show", testrig.JSONFields{"id": id}, &detail); !slices.Equal(detail.Spec.Argv, argv) {
		t.Errorf("the job runs %q, want %q", detail.Spec.Argv, argv)
	}
	bothForms["command"] = "cp c lip1.mov"
	if a := q.DialService().Call("enqueue", bothForms); a.Error == nil || a.Error.Data.Field != "command" {
		t.Errorf("enqueue with a command text that differs from argv: %+v", a)
	}
}
