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
func TestInterruptedFileIsNotStored(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	cmd := q.Command("enqueue", "--file", "-")
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
	q.WaitUntil("a part was sent", 20*time.Second, func() bool { return q.QueryInt("SELECT count(*) FROM frames") > 0 })
	cmd.Process.Signal(os.Interrupt)
	err = cmd.Wait()
	in.Close()
	if err == nil || cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("enqueue ended with %v, want 130", err)
	}
	if n := q.Dial().Counts()["pending"]; n != 0 || q.QueryInt("SELECT count(*) FROM frames") != 0 {
		t.Errorf("after the interrupt %d jobs or parts of the batch are stored", n)
	}
	for text, want := range map[string]int{`{"command":"true","cwd":null,"env":null,"umask":null}`: 0,
		`{"command":"true","\u0063wd":"/"}`: 0} {
		if r := q.CLIWithInput(text, "enqueue", "--file", "-"); r.Code != want {
			t.Errorf("%s: %+v", text, r)
		}
	}
}

// The runner recognises the processes of a job by a marker in their environment. A process without this marker
// that a job leaves behind does not slow down other jobs.
func TestUnmarkedProcessSlowsNoOtherJob(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.Dial()
	longJob := w.Enqueue(testrig.Fields{"command": "(env -i /bin/sleep 600 &) ; echo up; sleep 600"})
	w.WaitRunning(longJob)
	started := time.Now()
	for range 10 {
		w.WaitEnded(w.Enqueue(testrig.Fields{"command": "true"}))
	}
	if elapsed := time.Since(started); elapsed > 4*time.Second { // more than 10 times output_grace
		t.Errorf("ten jobs took %v, want at most 4 s", elapsed)
	}
	w.MustCall("cancel", testrig.Fields{"id": longJob}, nil)
}

// On Linux, arguments that are not valid UTF-8 are errors. Other systems cannot pass such
// arguments.
func TestArgumentsMustBeUTF8(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	for field, args := range map[string][]string{"argv": {"--", "printf", "a\xffb"}, "command": {"echo \xff"},
		"env": {"--env", "A=\xff", "true"}} {
		if r := q.CLI(append([]string{"enqueue"}, args...)...); r.Code != 2 || !strings.Contains(r.Stderr, field+": ") {
			t.Errorf("%s: %+v", field, r)
		}
	}
	cmd := q.Command("enqueue", "true")
	cmd.Dir = q.Path("d\xff")
	if err := os.Mkdir(cmd.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if r := testrig.RunCommand(t, cmd); r.Code != 2 || !strings.Contains(r.Stderr, "cwd: ") {
		t.Errorf("enqueue in a directory whose name is not UTF-8: %+v", r)
	}
}

// Commands print the arguments of a job in quotes, so that they can be pasted into a shell.
func TestArgumentsAreShownAsAShellReadsThem(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	const want = `cp 'c  lip1.mov' 'it'\''s' "$(printf 'two\nlines')"`
	argv := []string{"cp", "c  lip1.mov", "it's", "two\nlines"}
	q.MustCLI(append([]string{"enqueue", "--id", "a", "--"}, argv...)...)
	q.MustCLI(append([]string{"schedule", "add", "nightly", "0 3 * * *", "--"}, argv...)...)
	for _, verb := range [][]string{{"list"}, {"show", "a"}, {"simulate"}, {"status"}, {"schedule", "list"},
		{"schedule", "show", "nightly"}} {
		if got := q.MustCLI(verb...); !strings.Contains(got, want) {
			t.Errorf("%q prints\n%s\nwant %s in it", verb, got, want)
		}
	}
	var jobs []struct {
		Command string
		Argv    []string
	}
	if err := json.Unmarshal([]byte(q.MustCLI("list", "--json")), &jobs); err != nil || len(jobs) != 1 ||
		jobs[0].Command != want || !slices.Equal(jobs[0].Argv, argv) {
		t.Errorf("list --json has %+v, %v, want the command %s", jobs, err, want)
	}
	var schedules []struct{ Command string }
	if err := json.Unmarshal([]byte(q.MustCLI("schedule", "list", "--json")), &schedules); err != nil ||
		len(schedules) != 1 || schedules[0].Command != want {
		t.Errorf("schedule list --json has %+v, %v, want the command %s", schedules, err, want)
	}

	// A request may contain both argv and the command text that queuectl prints for this argv.
	bothForms := testrig.Fields{"command": want, "argv": argv}
	id := q.Dial().Enqueue(bothForms)
	var detail struct{ Spec struct{ Argv []string } }
	if q.Dial().MustCall("show", testrig.Fields{"id": id}, &detail); !slices.Equal(detail.Spec.Argv, argv) {
		t.Errorf("the job runs %q, want %q", detail.Spec.Argv, argv)
	}
	bothForms["command"] = "cp c lip1.mov"
	if a := q.Dial().Call("enqueue", bothForms); a.Error == nil || a.Error.Data.Field != "command" {
		t.Errorf("enqueue with a command text that differs from argv: %+v", a)
	}
}
