package test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/mattn/go-runewidth"
	"golang.org/x/sys/unix"
)

// terminalControls is output that would control a terminal. It clears the screen, sets the window title,
// fills the clipboard, clears the screen with a one-byte control, reverses the writing direction, and moves
// the cursor back. It starts with a colour, which may be shown. escapedControls is the text that the program
// prints on a terminal instead of terminalControls.
const (
	terminalControls = "\x1b[31mred\x1b[0m A\x1b[2JB\x1b]0;owned\x07C\x1b]52;c;ZXZpbA==\x1b\\D\u009b2JE\u202eF\x08G\x7fH\rI"
	escapedControls  = "\x1b[31mred\x1b[0m " + `A\x1b[2JB\x1b]0;owned\x07C\x1b]52;c;ZXZpbA==\x1b\D\x9b2JE\u202eF\x08G\x7fH\x0dI`
)

var (
	controls = regexp.MustCompile(
		`[\x00-\x08\x0b-\x1f\x7f\x{80}-\x{9f}\x{61c}\x{200e}\x{200f}\x{202a}-\x{202e}\x{2066}-\x{2069}]`)
)

// findControl returns the first part of text that would control a terminal, or "" if there is no such part.
func findControl(text string) string {
	if !utf8.ValidString(text) {
		return "bytes that are no text"
	}
	return controls.FindString(colours.ReplaceAllString(text, ""))
}

// screen is a pseudoterminal. The program under test gets the tty; the test reads the output and types.
type screen struct {
	tty    *os.File
	master *os.File
	output *lockedBuffer
	closed chan struct{} // closed when all processes have closed the tty
}

// newScreen creates a terminal with the given number of columns that shows each byte unchanged.
func newScreen(t testing.TB, columns int) *screen {
	t.Helper()
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatalf("open a terminal: %v", err)
	}
	s := &screen{master: os.NewFile(uintptr(master), "terminal"), output: &lockedBuffer{}, closed: make(chan struct{})}
	number, failed := unix.IoctlGetUint32(master, unix.TIOCGPTN)
	err = errors.Join(failed, unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0),
		unix.IoctlSetWinsize(master, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: uint16(columns)}))
	slave, failed := unix.Open(fmt.Sprintf("/dev/pts/%d", number), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err = errors.Join(err, failed); err != nil {
		t.Fatalf("open a terminal: %v", err)
	}
	s.tty = os.NewFile(uintptr(slave), "tty")
	modes, err := unix.IoctlGetTermios(slave, unix.TCGETS)
	if err == nil {
		modes.Oflag &^= unix.OPOST
		modes.Lflag &^= unix.ECHO
		err = unix.IoctlSetTermios(slave, unix.TCSETS, modes)
	}
	if err != nil {
		t.Fatalf("set a terminal's modes: %v", err)
	}
	go func() { // this goroutine ends when the last process closes the tty, or at the cleanup
		defer close(s.closed)
		io.Copy(s.output, s.master)
	}()
	t.Cleanup(func() {
		s.tty.Close()
		s.master.Close()
		<-s.closed
	})
	return s
}

// text waits until the program has ended and returns everything that was shown.
func (s *screen) text(t testing.TB) string {
	t.Helper()
	s.tty.Close()
	select {
	case <-s.closed:
	case <-time.After(10 * time.Second):
		t.Fatal("somebody still has the tty")
	}
	return s.output.String()
}

// runOnScreen runs the program with a terminal as its stdout and stderr.
func (q *queue) runOnScreen(args ...string) result {
	q.Helper()
	s := newScreen(q, 600) // the screen is wide enough to show all cells uncut
	cmd := q.command(args...)
	cmd.Stdout, cmd.Stderr = s.tty, s.tty
	return result{code: exitCodeOf(q, cmd), out: s.text(q)}
}

// exitCodeOf runs a command and returns its exit code.
func exitCodeOf(t testing.TB, cmd *exec.Cmd) int {
	t.Helper()
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode()
}

// enqueueControlJobs enqueues two jobs that fail. The first has terminalControls in its command and labels,
// and prints it on both streams. The second has it in its directory, and therefore in its error.
func enqueueControlJobs(t *testing.T, q *queue, w *wire) (loud, lost string) {
	t.Helper()
	// The bytes after terminalControls cannot be part of JSON.
	file := q.writeFile("steering", terminalControls+"\x9b2J\x00\n")
	loud = w.enqueue(fields{"command": ": '" + terminalControls + "'; cat " + file + "; cat " + file + " >&2; exit 3",
		"labels": fields{"l" + terminalControls: terminalControls}, "max_retries": 0})
	lost = w.enqueue(fields{"argv": []string{"true", terminalControls}, "cwd": "/no/such/" + terminalControls,
		"max_retries": 0})
	w.waitEnded(loud)
	if j := w.waitEnded(lost); !strings.Contains(j.Error, terminalControls) {
		t.Fatalf("the error does not tell of the folder: %+v", j)
	}
	return loud, lost
}

// withEscapedReturn returns text with the carriage return of terminalControls escaped, if the command may
// print it unchanged. run and logs may do so, because they print output as the job printed it.
func withEscapedReturn(text string, args []string) string {
	if args[0] != "run" && (args[0] != "logs" || slices.Contains(args, "--timestamps")) {
		return text
	}
	return strings.ReplaceAll(text, "H\rI", `H\x0dI`)
}

// On a terminal, the program shows control sequences of jobs as text. Only their colours take effect, unless
// --raw is given.
func TestJobsCannotControlTheTerminal(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	loud, lost := enqueueControlJobs(t, q, q.dial())
	printing := "cat " + q.path("steering") + "; cat " + q.path("steering") + " >&2; exit 3"
	for _, c := range []struct {
		args  []string
		code  int
		times int // how many times terminalControls is shown
		plain int // how many of these are without the colour
	}{
		{[]string{"logs", loud}, 0, 2, 0},
		{[]string{"logs", loud, "--stderr"}, 0, 1, 0},
		{[]string{"logs", loud, "--timestamps"}, 0, 2, 0},
		{[]string{"logs", "-f", loud}, 0, 2, 0},
		{[]string{"show", loud}, 0, 5, 0},
		{[]string{"show", lost}, 0, 3, 2},
		{[]string{"list"}, 0, 1, 1}, // list prints quoted arguments as text, so their colour is not shown
		{[]string{"list", "-s", "dead"}, 0, 1, 1},
		{[]string{"dlq", "list"}, 0, 2, 2},
		{[]string{"status"}, 0, 2, 2},
		{[]string{"run", "--max-retries", "0", printing}, 3, 2, 0},
		{[]string{"run", "--max-retries", "0", "--cwd", "/no/such/" + terminalControls, "true"}, 126, 1, 0},
	} {
		r := q.runOnScreen(c.args...)
		r.out = withEscapedReturn(r.out, c.args)
		if found := findControl(r.out); found != "" || r.code != c.code {
			t.Errorf("%q: code %d, want %d; a terminal would obey %q in %q", c.args, r.code, c.code, found, r.out)
		}
		coloured, plain := strings.Count(r.out, escapedControls),
			strings.Count(r.out, colours.ReplaceAllString(escapedControls, ""))
		if plain != c.plain || coloured+plain != c.times {
			t.Errorf("%q: shown %d times in colour and %d without, want %d in all, and %d without, in %q", c.args, coloured,
				plain, c.times, c.plain, r.out)
		}
		r = q.runOnScreen(append([]string{"--raw"}, c.args...)...)
		if got := strings.Count(r.out, "\x1b]0;owned\x07C"); got < c.times || r.code != c.code {
			t.Errorf("--raw %q: code %d, want %d; %d times in %q, want %d", c.args, r.code, c.code, got, r.out, c.times)
		}
	}
}

// While a client follows a job, a control sequence has no effect on the terminal even if the job writes it in
// several pieces.
func TestSplitSequencesCannotControlTheTerminal(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	w := q.dial()
	pieces := []string{`ONE\033`, `[2JTWO\033]0;`, `ownedTHREE\007\302`, `\2332JFOUR\033[`, `31mFIVE\n`}
	words := []string{"ONE", "TWO", "THREE", "FOUR", "FIVE"}
	var script strings.Builder
	for i, piece := range pieces {
		fmt.Fprintf(&script, "printf '%s'; %s; ", piece, q.waitForFileCommand(words[i]))
	}
	id := w.enqueue(fields{"command": script.String()})
	s := newScreen(t, 80)
	cmd := q.command("logs", "-f", id)
	cmd.Stdout, cmd.Stderr = s.tty, s.tty
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	for _, word := range words {
		q.waitUntil(word+" is shown", 10*time.Second, func() bool { return strings.Contains(s.output.String(), word) })
		q.writeFile(word, "")
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("logs -f: %v", err)
	}
	if text := s.text(t); findControl(text) != "" || !strings.Contains(text, "[2JTWO") ||
		!strings.Contains(text, "ownedTHREE") {
		t.Errorf("a terminal would obey %q in %q", findControl(text), text)
	}
}

// Output that does not go to a terminal is unchanged, even if the other of the two streams, stdout or stderr,
// goes to a terminal. JSON is the same on a terminal.
func TestPipedOutputIsUnchanged(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	loud, _ := enqueueControlJobs(t, q, q.dial())
	text := terminalControls + "\x9b2J\x00\n"
	printing := "cat " + q.path("steering") + "; cat " + q.path("steering") + " >&2"
	for _, c := range []struct {
		args     []string
		out, err string // expected text of the stream while the other stream is a terminal
	}{
		{[]string{"logs", loud, "--stdout"}, text, ""},
		{[]string{"logs", loud, "--stderr"}, text, ""},
		{[]string{"logs", "-f", loud, "--stdout"}, text, ""},
		{[]string{"run", printing}, text, text},
	} {
		var out, errs bytes.Buffer
		s := newScreen(t, 80)
		cmd := q.command(c.args...)
		cmd.Stdout, cmd.Stderr = &out, s.tty
		if code := exitCodeOf(t, cmd); code != 0 || out.String() != c.out {
			t.Errorf("%q: code %d, stdout in a pipe %q, want %q", c.args, code, out.String(), c.out)
		}
		if text := withEscapedReturn(s.text(t), c.args); findControl(text) != "" ||
			strings.Contains(text, escapedControls) != (c.err != "") {
			t.Errorf("%q: stderr on a terminal %q", c.args, text)
		}
		s = newScreen(t, 80)
		cmd = q.command(c.args...)
		cmd.Stdout, cmd.Stderr = s.tty, &errs
		if code := exitCodeOf(t, cmd); code != 0 || errs.String() != c.err {
			t.Errorf("%q: code %d, stderr in a pipe %q, want %q", c.args, code, errs.String(), c.err)
		}
		if text := withEscapedReturn(s.text(t), c.args); findControl(text) != "" || !strings.Contains(text, escapedControls) {
			t.Errorf("%q: stdout on a terminal %q", c.args, text)
		}
	}
	for _, args := range [][]string{{"show", loud, "--json"}, {"logs", loud, "--jsonl"}} {
		if got, want := q.runOnScreen(args...).out, q.cli(args...).out; got != want ||
			!json.Valid([]byte(want[:strings.IndexByte(want, '\n')])) {
			t.Errorf("%q: on a terminal %q, elsewhere %q", args, got, want)
		}
	}
}

// On a terminal, commands answer in sentences. Elsewhere, and with -q also on a terminal, they print only the
// answer, for other programs to read.
func TestSentencesAppearOnlyOnATerminal(t *testing.T) {
	q := startQueue(t, "--workers", "0")
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
			s := newScreen(t, 80)
			cmd := q.command(args...)
			cmd.Stdout, cmd.Stderr = &out, s.tty
			if id == "piped" {
				cmd.Stderr = &errs
			}
			want := ""
			if id == "shown" {
				want = words.Replace(c.sentence)
			}
			code := exitCodeOf(t, cmd)
			if shown := s.text(t) + errs.String(); code != 0 || out.String() != words.Replace(c.answer) || shown != want {
				t.Errorf("%s %q: code %d, stdout %q, stderr %q; want %q", id, args, code, out.String(), shown, want)
			}
		}
	}
	// If stdout and stderr are the same terminal, the program prints only the sentence, which contains the
	// id.
	for _, c := range [][2]string{{"cancel shown", "job shown is cancelled\n"},
		{"retry shown", "job shown is pending again\n"}, {"cancel shown -q", "shown\n"}} {
		if r := q.runOnScreen(strings.Fields(c[0])...); r.code != 0 || r.out != c[1] {
			t.Errorf("%s: %+v, want %q", c[0], r, c[1])
		}
	}
}

// logs prints carriage returns unchanged, as run does, so that progress bars look right. If logs prints
// several jobs, it escapes carriage returns, because they would overwrite the prefix of the line.
func TestLogsPassCarriageReturns(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	w := q.dial()
	one, two := w.enqueue(fields{"command": `printf '10%%\r20%%\n'`}), w.enqueue(fields{"command": "true"})
	w.waitEnded(one)
	w.waitEnded(two)
	if r := q.runOnScreen("logs", one); r.out != "10%\r20%\n" {
		t.Errorf("logs: %q", r.out)
	}
	if r := q.runOnScreen("logs", one, two); !strings.HasSuffix(r.out, `| 10%\x0d20%`+"\n") {
		t.Errorf("logs of two: %q", r.out)
	}
}

// Colours that a job prints appear only in its output. On overviews, in tables and in reasons, colours mean
// states. A pipe gets no colours.
func TestColoursOfJobsAppearOnlyInOutput(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	w := q.dial()
	dead := w.enqueue(fields{"command": `: '` + "\x1b[35m" + `'; exit 3`, "max_retries": 0})
	w.waitEnded(dead)
	runs := w.enqueue(fields{"command": `printf '\033[35mpurple\033[K\n'; ` + q.waitForFileCommand("goes")})
	defer q.writeFile("goes", "")
	q.waitUntil("its last line is known", 10*time.Second, func() bool { return strings.Contains(q.cli().out, "purple") })
	for _, args := range [][]string{{}, {"list"}, {"dlq", "list"}, {"events"}} {
		if r := q.cli(args...); strings.Contains(r.out, "\x1b") || r.code != 0 {
			t.Errorf("%q in a pipe: %+v", args, r)
		}
		if r := q.runOnScreen(args...); strings.Contains(r.out, "\x1b[35m") || r.code != 0 {
			t.Errorf("%q on a terminal: %+v", args, r)
		}
	}
	if r := q.runOnScreen("list"); !strings.Contains(r.out, "\x1b[34m▶ processing\x1b[0m") ||
		!strings.Contains(r.out, "\x1b[31m✗ dead\x1b[0m") {
		t.Errorf("states on a terminal: %q", r.out)
	}
	for _, args := range [][]string{{}, {"list"}, {"show", dead}, {"show", runs}} {
		s := newScreen(t, 80)
		cmd := q.command(args...)
		cmd.Env = append(cmd.Env, "NO_COLOR=1")
		cmd.Stdout, cmd.Stderr = s.tty, s.tty
		exitCodeOf(t, cmd)
		if text := s.text(t); text == "" || strings.Contains(text, "\x1b") {
			t.Errorf("%q with NO_COLOR: %q", args, text)
		}
	}
}

// The program prints no colours to a pipe, nor to a terminal if NO_COLOR is set.
func TestNoColours(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	w := q.dial()
	id := w.enqueue(fields{"command": "echo plain; exit 3", "max_retries": 0})
	w.waitEnded(id)
	for _, args := range [][]string{{}, {"status"}, {"list"}, {"show", id}, {"logs", id}, {"dlq", "list"},
		{"worker", "list"}, {"config", "list"}, {"run", "--max-retries", "0", "exit 4"}, {"show", "none"}, {"--help"}} {
		s := newScreen(t, 80)
		cmd := q.command(args...)
		cmd.Env = append(cmd.Env, "NO_COLOR=1", "TERM=xterm-256color")
		cmd.Stdout, cmd.Stderr = s.tty, s.tty
		exitCodeOf(t, cmd)
		if text := s.text(t); text == "" || strings.Contains(text, "\x1b") {
			t.Errorf("%q with NO_COLOR: %q", args, text)
		}
		if r := q.cli(args...); strings.Contains(r.out+r.err, "\x1b") {
			t.Errorf("%q in a pipe: %+v", args, r)
		}
	}
}

// If a client follows a job on a terminal, Ctrl-C leaves the job running, and the client prints how to attach
// again. If the job reads its stdin, it gets the text that is typed until Ctrl-D.
func TestKeysOfATerminal(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	w := q.dial()
	startOnTerminal := func(args ...string) (*screen, *exec.Cmd) {
		s := newScreen(t, 80)
		cmd := q.command(args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = s.tty, s.tty, s.tty
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill() })
		return s, cmd
	}
	s, cmd := startOnTerminal("run", "--id", "followed", "echo up; exec sleep 60")
	q.waitUntil("the job is followed", 10*time.Second, func() bool { return strings.Contains(s.output.String(), "up\n") })
	io.WriteString(s.master, "\x03")
	cmd.Wait()
	if text := s.text(t); cmd.ProcessState.ExitCode() != 130 || !strings.Contains(text, "queuectl attach followed") {
		t.Errorf("after Ctrl-C: %v, %q", cmd.ProcessState, text)
	}
	if j := w.show("followed"); j.State != "processing" {
		t.Errorf("after Ctrl-C the job is %s", j.State)
	}
	q.must("cancel", "followed")
	s, cmd = startOnTerminal("enqueue", "--id", "typed", "--stdin", "-", "cat")
	io.WriteString(s.master, "one\ntwo\n\x04")
	cmd.Wait()
	if text := s.text(t); cmd.ProcessState.ExitCode() != 0 || text != "typed\njob typed enqueued; up to 4 attempts\n" {
		t.Errorf("enqueue: %v, %q", cmd.ProcessState, text)
	}
	if j := w.waitEnded("typed"); j.Output != "one\ntwo\n" {
		t.Errorf("typed input: %+v", j)
	}
}

// Tables fit in a terminal of any width, even a very small or very large one.
func TestTablesFitTheTerminal(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	w := q.dial()
	w.waitEnded(w.enqueue(fields{"command": "echo " + strings.Repeat("ä", 400)}))
	w.waitEnded(w.enqueue(fields{"command": "echo " + strings.Repeat("漢", 400)}))
	id := w.enqueue(fields{"command": "echo e" + strings.Repeat("\u0301😀", 400), "cwd": "/" + strings.Repeat("folder", 40),
		"max_retries": 0, "labels": fields{"a": strings.Repeat("漢", 80)}})
	w.waitEnded(id)
	for _, line := range []string{"list", "list --columns command,labels,error", "dlq list", "config list", "worker list",
		"show " + id} {
		for _, columns := range []int{0, 1, 2, 20, 33, 40, 79, 80, 120, 1000, 65535} {
			s := newScreen(t, columns)
			cmd := q.command(strings.Fields(line)...)
			cmd.Stdout, cmd.Stderr = s.tty, s.tty
			code := exitCodeOf(t, cmd)
			text := colours.ReplaceAllString(s.text(t), "")
			if _, history, found := strings.Cut(text, "\n\n"); found {
				text = history // check only the history, because the lines above it are not a table
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

// No command treats a closed stdout as an error. A closed stdout ends commands that follow jobs or events.
func TestAClosedPipeIsNoError(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	w := q.dial()
	longJob := w.enqueue(fields{"id": "long", "command": "echo up; exec sleep 600"})
	w.waitRunning(longJob)
	id := w.enqueue(fields{"id": "ended", "command": "seq 100000"})
	w.waitEnded(id)
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
		cmd := q.command(strings.Fields(line)...)
		cmd.Stdout, cmd.Stderr = end, &errs
		timer := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
		code := exitCodeOf(t, cmd)
		timer.Stop()
		end.Close()
		if code != 0 || errs.Len() > 0 {
			t.Errorf("%q: code %d, %q", line, code, errs.String())
		}
	}
	w.mustCall("cancel", fields{"id": longJob}, nil)
}

// Table cells contain no colours of commands, because a cell that is too long is cut at its visible width.
func TestTableCellsContainNoColours(t *testing.T) {
	q := startQueue(t, "--workers", "0")
	w := q.dial()
	w.enqueue(fields{"id": "2J", "command": "true"})
	w.enqueue(fields{"command": strings.Repeat("\x1b[31mx", 100)})
	for columns := 80; columns < 90; columns++ {
		s := newScreen(t, columns)
		cmd := q.command("list")
		cmd.Stdout, cmd.Stderr = s.tty, s.tty
		exitCodeOf(t, cmd)
		if text := s.text(t); findControl(text) != "" || !strings.Contains(text, "xxx…\n") ||
			strings.Contains(text, "\x1b[31m") {
			t.Errorf("%d columns: a terminal would obey %q in %q", columns, findControl(text), text)
		}
	}
}

// On a terminal, enqueue usually prints the number of attempts of a job. It does not do so for jobs that will
// not run.
func TestEnqueueSaysNoAttemptsOfJobsThatWillNotRun(t *testing.T) {
	q := startQueue(t, "--workers", "0")
	q.must("enqueue", "--id", "parent", "true")
	q.must("cancel", "parent")
	if err := os.WriteFile(q.path("lines"), []byte("true\nfalse\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, words := range [][]string{
		{"--allow-past", "--expires-at", "yesterday", "true"},
		{"--allow-past", "--expires-at", "yesterday", "--lines", q.path("lines")},
		{`[{"command":"true","expires_at":"2020-01-01T00:00:00Z"}]`}, {"--after", "parent", "true"},
	} {
		r := q.runOnScreen(append([]string{"enqueue", "--max-retries", "3"}, words...)...)
		if words[0][0] == '[' {
			r = q.runOnScreen("enqueue", words[0])
		}
		if r.code != 0 || !strings.Contains(r.out, "enqueued") || strings.Contains(r.out, "attempts") {
			t.Errorf("%q: %+v", words, r)
		}
	}
	if r := q.runOnScreen("enqueue", "--max-retries", "3", "true"); !strings.Contains(r.out, "up to 4 attempts") {
		t.Errorf("a job that will run: %+v", r)
	}
}
