package cli

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/present"
)

func TestMain(m *testing.M) {
	os.Setenv("LC_ALL", "C.UTF-8") // the expected texts contain Unicode characters
	os.Exit(m.Run())
}

// "queuectl run" exits with the documented exit code for each outcome of a job.
func TestRunExitCodeMatchesJobOutcome(t *testing.T) {
	for _, c := range []struct {
		state, reason string
		code          int64
		signal, want  int
	}{
		{"completed", "", 0, 0, 0}, {"completed", "", 3, 0, 0}, {"dead", "", 7, 0, 7}, {"failed", "", 7, 0, 7},
		{"dead", "timed_out", -1, 15, 124},
		{"dead", "signal", -1, 11, 139}, {"dead", "not_found", 127, 0, 127}, {"dead", "not_runnable", 126, 0, 126},
		{"cancelled", "cancelled", -1, 15, 130}, {"cancelled", "", -1, 0, 130},
		{"cancelled", "expired", -1, 0, 125}, {"dead", "lost", -1, 0, 125}, {"held", "interrupted", -1, 0, 125},
		{"dead", "unkillable", -1, 9, 125}, {"dead", "", 0, 0, 125}, {"dead", "", -1, 0, 125},
	} {
		j := &control.Job{State: c.state}
		if c.reason != "" {
			j.Reason = &c.reason
		}
		if c.code >= 0 {
			j.ExitCode = &c.code
		}
		if c.signal != 0 {
			j.Signal = &c.signal
		}
		if got := jobExitCode(j); got != c.want {
			t.Errorf("%s %s code %d signal %d: got %d, want %d", c.state, c.reason, c.code, c.signal, got, c.want)
		}
	}
}

// logPrinter prints the time and the prefix once for each line, even if the line arrives in several pieces.
// With a prefix, it also ends the last line.
func TestLogLinesGetOnePrefixEach(t *testing.T) {
	at := control.Time(1_700_000_000_000)
	for prefix, want := range map[string]string{"": "T ab\nT c\nT \nT d", "j | ": "j | T ab\nj | T c\nj | T \nj | d\n"} {
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		p := newLogPrinter(NewApp(Program{}, nil, out, nil), "", true)
		p.linePrefix = prefix
		for _, text := range []string{"a", "b\nc", "", "\n", "\n", "d"} {
			if err := p.printPiece(&control.OutputPiece{Text: text, PrintedAt: at}); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.flushPartialLine(); err != nil {
			t.Fatal(err)
		}
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(out.Name())
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.ReplaceAll(string(got), formatLocalMillis(at), "T"); got != want {
			t.Errorf("%q: got %q, want %q", prefix, got, want)
		}
	}
}

// Whatever line breaks a job's text contains, none of its printed lines looks like a line that queuectl itself printed.
func TestJobTextCannotFakeOutputLines(t *testing.T) {
	const fake = "FAKE"
	breaks := []string{"\n", "\r", "\r\n", "\v", "\f", "\u0085", "\u2028", "\u2029", "\n\n", "\n\t"}
	evil := "text"
	for _, b := range breaks {
		evil += b + fake
	}
	evil += "\n"
	reason, worker, code := evil, evil, int64(1)
	j := control.Job{ID: "1", State: "dead", Command: evil, Error: &evil, Reason: &reason, WorkerID: &worker, User: evil,
		Submitter: evil, Cwd: evil, ExitCode: &code, Labels: map[string]string{evil: evil}}
	detail := control.JobDetail{Job: j, StdoutTail: evil, StderrTail: fake + evil,
		History: []control.Attempt{{Attempt: 1, Worker: evil, Error: &evil}}}
	event := control.Event{Kind: "audit", AuditCommand: evil, CommandTarget: evil, User: evil, Reason: evil,
		SettingValue: evil, SettingName: evil, JobID: evil}
	for name, print := range map[string]func(*App) error{
		"show": func(a *App) error { return a.showJob(&detail) },
		"list": func(a *App) error {
			return a.PrintTable([]string{"ID", "COMMAND"}, [][]string{{j.ID, present.JobTitle(&j)}, {evil, evil}})
		},
		"events": func(a *App) error { return a.Println(present.EventLine(&event)) },
		"whoami": func(a *App) error {
			return a.PrintNameValuePairs(13, present.WhoamiRows(&control.WhoamiResult{User: evil, Advice: evil}))
		},
		"doctor": func(a *App) error {
			return a.PrintDoctorFinding(&control.Finding{CheckName: "disk", Level: "failure", Message: evil, Advice: evil})
		},
		"end": func(a *App) error { a.ExitCode, a.Stderr = 1, a.Stdout; a.printUnsuccessfulEnd(&j); return nil },
	} {
		got := capturePrintedText(t, print)
		for _, b := range breaks {
			if strings.Contains(got, b+fake) {
				t.Errorf("%s: got %q, which has a line that it did not begin", name, got)
				break
			}
		}
		if !strings.Contains(got, fake) {
			t.Errorf("%s: got %q, want the text in it", name, got)
		}
	}
}

// capturePrintedText calls print for an App whose output is not a terminal, and returns that output.
func capturePrintedText(t *testing.T, print func(*App) error) string {
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(print(NewApp(Program{}, nil, out, nil)), out.Close()); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}

// --all is removed only from arguments that request the complete help.
func TestAllFlagIsRemovedOnlyFromHelpArguments(t *testing.T) {
	for _, words := range [][]string{{"enqueue", "--", "ls", "--help", "--all"}, {"cancel", "--all"}, {"list", "--help"}} {
		if got := withoutAllFlag(words); !slices.Equal(got, words) {
			t.Errorf("%q: got %q, want no change", words, got)
		}
	}
}

// Some commands expect a negative number as their last argument. It is parsed as a value, not as a flag.
func TestNegativeNumberArgumentsAreNotFlags(t *testing.T) {
	for in, want := range map[string]string{
		"config set priority -5":       "config set priority -- -5",
		"--json config set jitter -.5": "--json config set jitter -- -.5",
		"worker scale -1":              "worker scale -- -1", "config set log_level -x": "config set log_level -x",
		"enqueue --priority -5": "enqueue --priority -5",
		"logs x -n -5":          "logs x -n -5", "-5": "-5",
	} {
		if got := strings.Join(protectNegativeNumberArg(strings.Fields(in)), " "); got != want {
			t.Errorf("%s: got %q, want %q", in, got, want)
		}
	}
}

// The text of a job is printed completely, even if the output is a pipe. In a pipe, all invisible characters
// and colours are escaped, except joiners in emoji.
func TestJobTextInPipeIsEscaped(t *testing.T) {
	const (
		evil = "a\u200bb\x1b[31mc\x1b[0m\u202ed\u009be\u2060g 👩\u200d💻 ❤\ufe0f h\u200di"
		want = `a\u200bb\x1b[31mc\x1b[0m\u202ed\x9be\u2060g ` + "👩\u200d💻 ❤\ufe0f" + ` h\u200di`
	)
	said := evil
	j := control.Job{ID: "1", State: "dead", Command: evil, Error: &said, Cwd: evil, Labels: map[string]string{"l": evil}}
	ended, reason := j, "failed"
	ended.Reason = &reason
	shown := control.JobDetail{Job: j, StdoutTail: evil, StderrTail: evil,
		History: []control.Attempt{{Attempt: 1, Error: &said}}}
	for name, c := range map[string]struct {
		times int
		print func(*App) error
	}{
		"show": {7, func(a *App) error { return a.showJob(&shown) }},
		"list": {2, func(a *App) error {
			return a.PrintTable([]string{"ID", "ERROR", "COMMAND"}, [][]string{{j.ID, evil, present.JobTitle(&j)}})
		}},
		"status": {2, func(a *App) error {
			p := screenPrinter{App: a,
				ScreenFormatter: present.ScreenFormatter{Screen: &control.OverviewScreen{Dead: []control.OverviewJob{{Job: j,
					LastLine: "last"}}}}}
			return p.printSection(&p.sections()[2])
		}},
		"events": {1, func(a *App) error {
			return a.Println(a.EscapeJobText(present.EventLine(&control.Event{Kind: "audit", AuditCommand: evil})))
		}},
		"messages": {1, func(a *App) error {
			a.ExitCode, a.Stderr = 1,
				a.Stdout
			a.printUnsuccessfulEnd(&ended)
			return nil
		}},
		"doctor": {1, func(a *App) error {
			return a.PrintDoctorFinding(&control.Finding{CheckName: "disk", Level: "failure", Message: evil})
		}},
	} {
		got := capturePrintedText(t, c.print)
		if n := strings.Count(got, want); n != c.times {
			t.Errorf("%s: got %q, which has %q %d times, want %d times", name, got, want, n, c.times)
		}
	}
	if got := capturePrintedText(t,
		func(a *App) error { a.KeepControlCharacters = true; return a.showJob(&shown) }); strings.Count(got,
		"a\u200bb\x1b[31mc") != 7 {
		t.Errorf("show --raw: got %q, want the text as it is", got)
	}
}
