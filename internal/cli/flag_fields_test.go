package cli

import (
	"errors"
	"testing"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/input"
	"github.com/queuectl/queuectl/queue"
)

// An error about a field names the flag with which the user set the field. If the user set the field without
// a flag, the error names the field.
func TestFieldErrorsNameTypedFlag(t *testing.T) {
	for _, c := range []struct {
		args  []string
		field string
		want  string
	}{
		{[]string{"--after", "nope"}, "depends_on", "--after: is wrong"},
		{[]string{"--after-any", "nope"}, "depends_on", "--after-any: is wrong"},
		{[]string{"--after-batch", "nope"}, "depends_on", "--after-batch: is wrong"},
		{[]string{"--depends-on", "nope"}, "depends_on", "--depends-on: is wrong"},
		{[]string{"--label", "a=b"}, "labels", "--label: is wrong"},
		{[]string{"--in", "5s"}, "delay", "--in: is wrong"},
		{[]string{"--at", "15:04"}, "run_at", "--at: is wrong"},
		{[]string{"--ok-code", "3"}, "ok_codes", "--ok-code: is wrong"},
		{[]string{"-Q", "q"}, "queue", "--queue: is wrong"},
		{[]string{"--env", "A=b"}, "env", "--env: is wrong"},
		{[]string{"--in", "5s"}, "depends_on", "depends_on: is wrong"},
		{nil, "depends_on", "depends_on: is wrong"},
	} {
		cmd := enqueueVerb(NewApp(Program{}, nil, nil, nil))
		if err := cmd.ParseFlags(c.args); err != nil {
			t.Fatal(err)
		}
		err := queue.InvalidFieldError(c.field, "is wrong")
		for _, given := range []error{err, &fault.LineError{InputUnitName: "line", LineNumber: 3, Cause: err},
			errors.Join(err, err)} {
			want := map[error]string{err: c.want}[given]
			switch given.(type) {
			case *fault.LineError:
				want = "line 3: " + c.want
			case interface{ Unwrap() []error }:
				want = c.want + "\n" + c.want
			}
			if got := input.NameFlagsInError(cmd, given); got.Error() != want || !errors.Is(got, queue.ErrInvalid) {
				t.Errorf("%v: got %q, want %q", c.args, got, want)
			}
		}
	}
	enqueue := enqueueVerb(NewApp(Program{}, nil, nil, nil))
	if err := enqueue.ParseFlags([]string{"--in", "5s", "--at", "15:04"}); err != nil {
		t.Fatal(err)
	}
	if got := input.NameFlagsInError(enqueue, queue.InvalidFieldError("delay",
		"and run_at are both given")).Error(); got != "--in: and --at are both given" {
		t.Errorf("got %q", got)
	}
	for _, c := range []struct {
		args              []string
		field, text, want string
	}{
		{[]string{"--tty", "--stdin", "x"}, "tty", `cannot be combined with field "stdin"; leave it out`,
			"--tty: cannot be combined with --stdin; leave it out"},
		{[]string{"--unique-for", "1h"}, "unique_for", `works only with field "unique"; give both`,
			"--unique-for: works only with --unique; give both"},
		{[]string{"--priority", "1", "--cpus", "1"}, "priority", "is wrong; cpus: is wrong",
			"--priority: is wrong; --cpus: is wrong"},
		{[]string{"--run-at", "15:04"}, "run_at", "is wrong in nightly_run_at_5, run_at5, ärun_at, my-run_at and run_at",
			"--run-at: is wrong in nightly_run_at_5, run_at5, ärun_at, my-run_at and --run-at"},
		{[]string{"--batch", "b", "--user", "u"}, "batch", `needs parameter id_glob, but the parameter "user" selects others`,
			"--batch: needs parameter id_glob, but --user selects others"},
		{[]string{"--priority", "1"}, "priority", `cannot be combined with field "cheese"; eat it`,
			`--priority: cannot be combined with field "cheese"; eat it`},
		{[]string{"--priority", "1"}, "priority", "differs from the field command alone",
			"--priority: differs from the field command alone"},
		{[]string{"--delay", "1s"}, "delay", "cannot be combined with field run_at; use one of them",
			"--delay: cannot be combined with --at; use one of them"},
		{[]string{"--env", "A=b"}, "env", `fields "env", "stdin" and "cwd" are too long, and "x"`,
			`--env: --env, --stdin and --cwd are too long, and "x"`},
		{[]string{"--env", "A=b"}, "env", `fields "env" and "cheese" are too long`,
			`--env: fields "env" and "cheese" are too long`},
	} {
		cmd := enqueueVerb(NewApp(Program{}, nil, nil, nil))
		if err := cmd.ParseFlags(c.args); err != nil {
			t.Fatal(err)
		}
		if got := input.NameFlagsInError(cmd, queue.InvalidFieldError(c.field, "%s", c.text)).Error(); got != c.want {
			t.Errorf("%v: got %q, want %q", c.args, got, c.want)
		}
	}
	cancel := &cobra.Command{}
	(&SelectionFlags{LabelFlagName: "where-label"}).AddFlags(cancel, "")
	if err := cancel.ParseFlags([]string{"--where-queue", "q"}); err != nil {
		t.Fatal(err)
	}
	if got := input.NameFlagsInError(cancel, queue.InvalidFieldError("queue",
		"is wrong")).Error(); got != "--where-queue: is wrong" {
		t.Errorf("got %q", got)
	}
}
