package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mattn/go-runewidth"

	"github.com/queuectl/queuectl/internal/testrig"
)

// terminalControlText is output that would control a terminal. It starts with a colour, which is permitted. The other
// sequences clear the screen, set the window title, fill the clipboard, clear the screen with a one-byte control,
// reverse the writing direction, and move the cursor back. escapedControlText is the text that queuectl prints on a
// terminal for terminalControlText.
const (
	terminalControlText = "\x1b[31mred\x1b[0m A\x1b[2JB\x1b]0;owned\x07C\x1b]52;c;ZXZpbA==\x1b\\D\u009b2JE\u202eF\x08G\x7fH\rI"
	escapedControlText  = "\x1b[31mred\x1b[0m " +
		`A\x1b[2JB\x1b]0;owned\x07C\x1b]52;c;ZXZpbA==\x1b\D\x9b2JE\u202eF\x08G\x7fH\x0dI`
)

// enqueueControlJobs enqueues two jobs that fail. The first one has terminalControlText in its command and labels, and
// prints it to stdout and stderr. The second one has it in the name of its working directory, and so in its error.
func enqueueControlJobs(t *testing.T, q *testrig.Harness, conn *testrig.ServiceConn) (printingID, badDirID string) {
	t.Helper()
	// The bytes after terminalControlText cannot be part of JSON.
	file := q.WriteFile("steering", terminalControlText+"\x9b2J\x00\n")
	printingID = conn.Enqueue(testrig.JSONFields{"command": ": '" + terminalControlText + "'; cat " + file + "; cat " +
		file +
		" >&2; exit 3",
		"labels": testrig.JSONFields{"l" + terminalControlText: terminalControlText}, "max_retries": 0})
	badDirID = conn.Enqueue(testrig.JSONFields{"argv": []string{"true", terminalControlText}, "cwd": "/no/such/" +
		terminalControlText,
		"max_retries": 0})
	conn.WaitJobEnded(printingID)
	if j := conn.WaitJobEnded(badDirID); !strings.Contains(j.Error, terminalControlText) {
		t.Fatalf("the error does not name the directory: %+v", j)
	}
	return printingID, badDirID
}

// withEscapedCarriageReturn escapes the carriage return of terminalControlText in text, unless args is a command that
// prints carriage returns unchanged: `queuectl run`, or `queuectl logs` without --timestamps.
func withEscapedCarriageReturn(text string, commandArgs []string) string {
	if commandArgs[0] != "run" && (commandArgs[0] != "logs" || slices.Contains(commandArgs, "--timestamps")) {
		return text
	}
	return strings.ReplaceAll(text, "H\rI", `H\x0dI`)
}

// On a terminal, the program prints the control sequences of jobs as text. Only colours take effect. With
// --raw, all control sequences take effect.
func TestJobsCannotControlTheTerminal(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	loud, lost := enqueueControlJobs(t, q, q.DialService())
	printing := "cat " + q.Path("steering") + "; cat " + q.Path("steering") + " >&2; exit 3"
	for _, c := range []struct {
		args  []string
		code  int
		times int // how many times terminalControlText is shown
		plain int // how many of these times it is shown without its colour
	}{
		{[]string{"logs", loud}, 0, 2, 0},
		{[]string{"logs", loud, "--stderr"}, 0, 1, 0},
		{[]string{"logs", loud, "--timestamps"}, 0, 2, 0},
		{[]string{"logs", "-f", loud}, 0, 2, 0},
		{[]string{"show", loud}, 0, 5, 0},
		{[]string{"show", lost}, 0, 3, 2},
		{[]string{"list"}, 0, 1, 1}, // `queuectl list` quotes the arguments, and so escapes the colour
		{[]string{"list", "-s", "dead"}, 0, 1, 1},
		{[]string{"dlq", "list"}, 0, 2, 2},
		{[]string{"status"}, 0, 2, 2},
		{[]string{"run", "--max-retries", "0", printing}, 3, 2, 0},
		{[]string{"run", "--max-retries", "0", "--cwd", "/no/such/" + terminalControlText, "true"}, 126, 1, 0},
	} {
		r := q.RunCLIOnTerminal(c.args...)
		r.Stdout = withEscapedCarriageReturn(r.Stdout, c.args)
		if found := testrig.FindFirstControlCharacter(r.Stdout); found != "" || r.ExitCode != c.code {
			t.Errorf("%q: code %d, want %d; control sequence %q in the output %q", c.args, r.ExitCode, c.code, found, r.Stdout)
		}
		coloured, plain := strings.Count(r.Stdout, escapedControlText),
			strings.Count(r.Stdout, testrig.ColourSequencePattern.ReplaceAllString(escapedControlText, ""))
		if plain != c.plain || coloured+plain != c.times {
			t.Errorf("%q: printed %d times in colour and %d times without, want %d in total and %d without, in %q",
				c.args, coloured,
				plain, c.times, c.plain, r.Stdout)
		}
		r = q.RunCLIOnTerminal(append([]string{"--raw"}, c.args...)...)
		if got := strings.Count(r.Stdout, "\x1b]0;owned\x07C"); got < c.times || r.ExitCode != c.code {
			t.Errorf("--raw %q: code %d, want %d; %d times in %q, want %d", c.args, r.ExitCode, c.code, got, r.Stdout, c.times)
		}
	}
}

// While a client follows a job, no control sequence of the job takes effect on the client's terminal, even if the job
// writes the sequence in several pieces.
func TestSplitSequencesCannotControlTheTerminal(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	pieces := []string{`ONE\033`, `[2JTWO\033]0;`, `ownedTHREE\007\302`, `\2332JFOUR\033[`, `31mFIVE\n`}
	words := []string{"ONE", "TWO", "THREE", "FOUR", "FIVE"}
	var script strings.Builder
	for i, piece := range pieces {
		fmt.Fprintf(&script, "printf '%s'; %s; ", piece, q.CommandAwaitingQueueFile(words[i]))
	}
	id := w.Enqueue(testrig.JSONFields{"command": script.String()})
	s := testrig.NewPseudoTerminal(t, 80)
	cmd := q.CLICommand("logs", "-f", id)
	cmd.Stdout, cmd.Stderr = s.Tty, s.Tty
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	for _, word := range words {
		q.WaitUntil(word+" is shown", 10*time.Second, func() bool { return strings.Contains(s.Output.String(), word) })
		q.WriteFile(word, "")
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("logs -f: %v", err)
	}
	if text := s.WaitOutput(t); testrig.FindFirstControlCharacter(text) != "" || !strings.Contains(text, "[2JTWO") ||
		!strings.Contains(text, "ownedTHREE") {
		t.Errorf("the output contains the control sequence %q: %q", testrig.FindFirstControlCharacter(text), text)
	}
}

// Output to a pipe is unchanged, even if the second of the streams stdout and stderr goes to a terminal. JSON is the
// same on a terminal.
func TestPipedOutputIsUnchanged(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	loud, _ := enqueueControlJobs(t, q, q.DialService())
	text := terminalControlText + "\x9b2J\x00\n"
	printing := "cat " + q.Path("steering") + "; cat " + q.Path("steering") + " >&2"
	for _, c := range []struct {
		args     []string
		out, err string // expected text on stdout (or stderr) if only the other stream is a terminal
	}{
		{[]string{"logs", loud, "--stdout"}, text, ""},
		{[]string{"logs", loud, "--stderr"}, text, ""},
		{[]string{"logs", "-f", loud, "--stdout"}, text, ""},
		{[]string{"run", printing}, text, text},
	} {
		var out, errs bytes.Buffer
		s := testrig.NewPseudoTerminal(t, 80)
		cmd := q.CLICommand(c.args...)
		cmd.Stdout, cmd.Stderr = &out, s.Tty
		if code := testrig.RunForExitCode(t, cmd); code != 0 || out.String() != c.out {
			t.Errorf("%q: code %d, stdout in a pipe %q, want %q", c.args, code, out.String(), c.out)
		}
		if text := withEscapedCarriageReturn(s.WaitOutput(t), c.args); testrig.FindFirstControlCharacter(text) != "" ||
			strings.Contains(text, escapedControlText) != (c.err != "") {
			t.Errorf("%q: stderr on a terminal %q", c.args, text)
		}
		s = testrig.NewPseudoTerminal(t, 80)
		cmd = q.CLICommand(c.args...)
		cmd.Stdout, cmd.Stderr = s.Tty, &errs
		if code := testrig.RunForExitCode(t, cmd); code != 0 || errs.String() != c.err {
			t.Errorf("%q: code %d, stderr in a pipe %q, want %q", c.args, code, errs.String(), c.err)
		}
		if text := withEscapedCarriageReturn(s.WaitOutput(t), c.args); testrig.FindFirstControlCharacter(text) != "" ||
			!strings.Contains(text, escapedControlText) {
			t.Errorf("%q: stdout on a terminal %q", c.args, text)
		}
	}
	for _, args := range [][]string{{"show", loud, "--json"}, {"logs", loud, "--jsonl"}} {
		if got, want := q.RunCLIOnTerminal(args...).Stdout, q.RunCLI(args...).Stdout; got != want ||
			!json.Valid([]byte(want[:strings.IndexByte(want, '\n')])) {
			t.Errorf("%q: on a terminal %q, in a pipe %q", args, got, want)
		}
	}
}

// On a terminal, commands reply with sentences. In a pipe or with -q, they print only the values
// that another program needs.
func TestSentencesAppearOnlyOnATerminal(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	for _, c := range []struct {
		args             []string
		answer, sentence string
	}{
		{[]string{"dlq", "list"}, "", "no jobs\n"},
		{[]string{"enqueue", "--id", "ID", "true"}, "ID\n", "job ID enqueued; up to 4 attempts\n"},
		{[]string{"cancel", "ID"}, "ID\n", "job ID is cancelled\n"},
		{[]string{"retry", "ID"}, "ID\n", "job ID is pending again\n"},
		{[]string{"enqueue", `[{"command":"true","id":"ID-1"},{"command":"true","id":"ID-2"}]`}, "ID-1\nID-2\n",
			"2 jobs enqueued; up to 4 attempts\n"},
	} {
		for _, id := range []string{"piped", "shown", "quiet"} {
			words := strings.NewReplacer("ID", id)
			var args []string
			for _, word := range c.args {
				args = append(args, words.Replace(word))
			}
			if id == "quiet" {
				args = append(args, "-q")
			}
			var out, errs bytes.Buffer
			s := testrig.NewPseudoTerminal(t, 80)
			cmd := q.CLICommand(args...)
			cmd.Stdout, cmd.Stderr = &out, s.Tty
			if id == "piped" {
				cmd.Stderr = &errs
			}
			want := ""
			if id == "shown" {
				want = words.Replace(c.sentence)
			}
			code := testrig.RunForExitCode(t, cmd)
			if shown := s.WaitOutput(t) + errs.String(); code != 0 || out.String() != words.Replace(c.answer) || shown != want {
				t.Errorf("%s %q: code %d, stdout %q, stderr %q; want %q", id, args, code, out.String(), shown, want)
			}
		}
	}
	// If stdout and stderr are the same terminal, queuectl prints only the sentence and not the id, because the sentence
	// contains the id.
	for _, c := range [][2]string{{"cancel shown", "job shown is cancelled\n"},
		{"retry shown", "job shown is pending again\n"}, {"cancel shown -q", "shown\n"}} {
		if r := q.RunCLIOnTerminal(strings.Fields(c[0])...); r.ExitCode != 0 || r.Stdout != c[1] {
			t.Errorf("%s: %+v, want %q", c[0], r, c[1])
		}
	}
}

// `queuectl logs` prints the carriage returns of a job unchanged, as `queuectl run` does, so that progress bars look
// right. If the command prints the output of several jobs, it escapes carriage returns, because the text after a
// carriage return would overwrite the prefix of the line.
func TestLogsPassCarriageReturns(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	one, two := w.Enqueue(testrig.JSONFields{"command": `printf '10%%\r20%%\n'`}),
		w.Enqueue(testrig.JSONFields{"command": "true"})
	w.WaitJobEnded(one)
	w.WaitJobEnded(two)
	if r := q.RunCLIOnTerminal("logs", one); r.Stdout != "10%\r20%\n" {
		t.Errorf("logs: %q", r.Stdout)
	}
	if r := q.RunCLIOnTerminal("logs", one, two); !strings.HasSuffix(r.Stdout, `| 10%\x0d20%`+"\n") {
		t.Errorf("logs of two jobs: %q", r.Stdout)
	}
}

// The colours of a job appear only in its output. In overviews, tables and reasons, colours show the states of
// jobs. A pipe gets no colours.
func TestColoursOfJobsAppearOnlyInOutput(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	dead := w.Enqueue(testrig.JSONFields{"command": `: '` + "\x1b[35m" + `'; exit 3`, "max_retries": 0})
	w.WaitJobEnded(dead)
	runs := w.Enqueue(testrig.JSONFields{"command": `printf '\033[35mpurple\033[K\n'; ` +
		q.CommandAwaitingQueueFile("goes")})
	defer q.WriteFile("goes", "")
	q.WaitUntil("its last line is shown", 10*time.Second, func() bool {
		return strings.Contains(q.RunCLI().Stdout, "purple")
	})
	for _, args := range [][]string{{}, {"list"}, {"dlq", "list"}, {"events"}} {
		if r := q.RunCLI(args...); strings.Contains(r.Stdout, "\x1b") || r.ExitCode != 0 {
			t.Errorf("%q in a pipe: %+v", args, r)
		}
		if r := q.RunCLIOnTerminal(args...); strings.Contains(r.Stdout, "\x1b[35m") || r.ExitCode != 0 {
			t.Errorf("%q on a terminal: %+v", args, r)
		}
	}
	if r := q.RunCLIOnTerminal("list"); !strings.Contains(r.Stdout, "\x1b[34m▶ processing\x1b[0m") ||
		!strings.Contains(r.Stdout, "\x1b[31m✗ dead\x1b[0m") {
		t.Errorf("list on a terminal: %q", r.Stdout)
	}
	for _, args := range [][]string{{}, {"list"}, {"show", dead}, {"show", runs}} {
		s := testrig.NewPseudoTerminal(t, 80)
		cmd := q.CLICommand(args...)
		cmd.Env = append(cmd.Env, "NO_COLOR=1")
		cmd.Stdout, cmd.Stderr = s.Tty, s.Tty
		testrig.RunForExitCode(t, cmd)
		if text := s.WaitOutput(t); text == "" || strings.Contains(text, "\x1b") {
			t.Errorf("%q with NO_COLOR: %q", args, text)
		}
	}
}

// The program prints no colours to a pipe, and none to a terminal if NO_COLOR is set.
func TestPipesAndNoColorGetNoColours(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	id := w.Enqueue(testrig.JSONFields{"command": "echo plain; exit 3", "max_retries": 0})
	w.WaitJobEnded(id)
	for _, args := range [][]string{{}, {"status"}, {"list"}, {"show", id}, {"logs", id}, {"dlq", "list"},
		{"worker", "list"}, {"config", "list"}, {"run", "--max-retries", "0", "exit 4"}, {"show", "none"}, {"--help"}} {
		s := testrig.NewPseudoTerminal(t, 80)
		cmd := q.CLICommand(args...)
		cmd.Env = append(cmd.Env, "NO_COLOR=1", "TERM=xterm-256color")
		cmd.Stdout, cmd.Stderr = s.Tty, s.Tty
		testrig.RunForExitCode(t, cmd)
		if text := s.WaitOutput(t); text == "" || strings.Contains(text, "\x1b") {
			t.Errorf("%q with NO_COLOR: %q", args, text)
		}
		if r := q.RunCLI(args...); strings.Contains(r.Stdout+r.Stderr, "\x1b") {
			t.Errorf("%q in a pipe: %+v", args, r)
		}
	}
}

// If a client follows a job on a terminal, Ctrl-C leaves the job running, and the client prints how
// to attach again. A job that reads its stdin gets the text that is typed until Ctrl-D.
func TestTerminalKeysDetachOrReachJob(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	startOnTerminal := func(args ...string) (*testrig.PseudoTerminal, *exec.Cmd) {
		s := testrig.NewPseudoTerminal(t, 80)
		cmd := q.CLICommand(args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = s.Tty, s.Tty, s.Tty
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill() })
		return s, cmd
	}
	s, cmd := startOnTerminal("run", "--id", "followed", "echo up; exec sleep 60")
	q.WaitUntil("the job is followed", 10*time.Second, func() bool { return strings.Contains(s.Output.String(), "up\n") })
	io.WriteString(s.Master, "\x03")
	cmd.Wait()
	if text := s.WaitOutput(t); cmd.ProcessState.ExitCode() != 130 || !strings.Contains(text, "queuectl attach followed") {
		t.Errorf("after Ctrl-C: %v, %q", cmd.ProcessState, text)
	}
	if j := w.ShowJob("followed"); j.State != "processing" {
		t.Errorf("after Ctrl-C the job is %s", j.State)
	}
	q.MustRunCLI("cancel", "followed")
	s, cmd = startOnTerminal("enqueue", "--id", "typed", "--stdin", "-", "cat")
	io.WriteString(s.Master, "one\ntwo\n\x04")
	cmd.Wait()
	if text := s.WaitOutput(t); cmd.ProcessState.ExitCode() != 0 ||
		text != "typed\njob typed enqueued; up to 4 attempts\n" {
		t.Errorf("enqueue: %v, %q", cmd.ProcessState, text)
	}
	if j := w.WaitJobEnded("typed"); j.Output != "one\ntwo\n" {
		t.Errorf("typed input: %+v", j)
	}
}

// Tables fit in a terminal of any width, even a very narrow or very wide one.
func TestTablesFitTheTerminal(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "1")
	w := q.DialService()
	w.WaitJobEnded(w.Enqueue(testrig.JSONFields{"command": "echo " + strings.Repeat("ä", 400)}))
	w.WaitJobEnded(w.Enqueue(testrig.JSONFields{"command": "echo " + strings.Repeat("漢", 400)}))
	id := w.Enqueue(testrig.JSONFields{"command": "echo e" + strings.Repeat("\u0301😀", 400), "cwd": "/" +
		strings.Repeat("subdir", 40),
		"max_retries": 0, "labels": testrig.JSONFields{"a": strings.Repeat("漢", 80)}})
	w.WaitJobEnded(id)
	for _, line := range []string{"list", "list --columns command,labels,error", "dlq list", "config list", "worker list",
		"show " + id} {
		for _, columns := range []int{0, 1, 2, 20, 33, 40, 79, 80, 120, 1000, 65535} {
			s := testrig.NewPseudoTerminal(t, columns)
			cmd := q.CLICommand(strings.Fields(line)...)
			cmd.Stdout, cmd.Stderr = s.Tty, s.Tty
			code := testrig.RunForExitCode(t, cmd)
			text := testrig.ColourSequencePattern.ReplaceAllString(s.WaitOutput(t), "")
			if _, history, found := strings.Cut(text, "\n\n"); found {
				text = history // check only the history, because the lines above are not a table
			}
			if code != 0 || strings.Count(text, "\n") < 2 {
				t.Errorf("%s in %d columns: code %d, %q", line, columns, code, text)
			}
			for row := range strings.Lines(text) {
				if got := runewidth.StringWidth(strings.TrimSuffix(row, "\n")); columns >= 20 && got > columns {
					t.Errorf("%s in %d columns: a line of %d: %q", line, columns, got, row)
				}
			}
		}
	}
}

// A closed stdout is not an error for any command. It ends commands that follow jobs or events.
func TestClosedPipeIsNotAnError(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "2")
	w := q.DialService()
	longJob := w.Enqueue(testrig.JSONFields{"id": "long", "command": "echo up; exec sleep 600"})
	w.WaitJobRunning(longJob)
	id := w.Enqueue(testrig.JSONFields{"id": "ended", "command": "seq 100000"})
	w.WaitJobEnded(id)
	for _, line := range []string{
		"", "status", "status --json", "list", "list --json", "list --jsonl", "list -q", "list --watch", "show ended",
		"show ended --json", "logs ended", "logs ended long", "logs -f long", "logs -f ended long",
		"events", "events --json", "events -f", "events -f --since 0 --jsonl", "dlq list --json", "worker list",
		"config list", "config get priority", "version", "--help", "list --help", "completion bash",
		"enqueue true", "enqueue --json true", "run -- seq 100000", "list --label no=such --json",
		"cancel --state held --dry-run", "wait ended --json", "cleanup --days 9",
	} {
		pipe, end, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		pipe.Close()
		var errs bytes.Buffer
		cmd := q.CLICommand(strings.Fields(line)...)
		cmd.Stdout, cmd.Stderr = end, &errs
		timer := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
		code := testrig.RunForExitCode(t, cmd)
		timer.Stop()
		end.Close()
		if code != 0 || errs.Len() > 0 {
			t.Errorf("%q: code %d, %q", line, code, errs.String())
		}
	}
	w.MustCall("cancel", testrig.JSONFields{"id": longJob}, nil)
}

// Table cells do not contain the colours in a job's command, because a cut cell could end
// inside a control sequence.
func TestTableCellsContainNoColours(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	w := q.DialService()
	w.Enqueue(testrig.JSONFields{"id": "2J", "command": "true"})
	w.Enqueue(testrig.JSONFields{"command": strings.Repeat("\x1b[31mx", 100)})
	for columns := 80; columns < 90; columns++ {
		s := testrig.NewPseudoTerminal(t, columns)
		cmd := q.CLICommand("list")
		cmd.Stdout, cmd.Stderr = s.Tty, s.Tty
		testrig.RunForExitCode(t, cmd)
		if text := s.WaitOutput(t); testrig.FindFirstControlCharacter(text) != "" || !strings.Contains(text, "xxx…\n") ||
			strings.Contains(text, "\x1b[31m") {
			t.Errorf("%d columns: the output contains the control sequence %q: %q", columns,
				testrig.FindFirstControlCharacter(text), text)
		}
	}
}

// On a terminal, `queuectl enqueue` prints how many attempts a job has, but not for a job that will not run.
func TestEnqueueShowsNoAttemptsForUnrunnableJobs(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	q.MustRunCLI("enqueue", "--id", "parent", "true")
	q.MustRunCLI("cancel", "parent")
	if err := os.WriteFile(q.Path("lines"), []byte("true\nfalse\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, words := range [][]string{
		{"--allow-past", "--expires-at", "yesterday", "true"},
		{"--allow-past", "--expires-at", "yesterday", "--lines", q.Path("lines")},
		{`[{"command":"true","expires_at":"2020-01-01T00:00:00Z"}]`}, {"--after", "parent", "true"},
	} {
		r := q.RunCLIOnTerminal(append([]string{"enqueue", "--max-retries", "3"}, words...)...)
		if words[0][0] == '[' {
			r = q.RunCLIOnTerminal("enqueue", words[0])
		}
		if r.ExitCode != 0 || !strings.Contains(r.Stdout, "enqueued") || strings.Contains(r.Stdout, "attempts") {
			t.Errorf("%q of a job that will not run: %+v", words, r)
		}
	}
	if r := q.RunCLIOnTerminal("enqueue", "--max-retries", "3", "true"); !strings.Contains(r.Stdout, "up to 4 attempts") {
		t.Errorf("enqueue of a job that will run: %+v", r)
	}
}
