package test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/skip"
)

// terminalSession runs one program on a pseudoterminal and plays the user in front of it.
type terminalSession struct {
	*screen
	q             *queue
	cmd           *exec.Cmd
	termiosBefore unix.Termios
}

// startOnTerminal starts the program on a new terminal of the given size.
func (q *queue) startOnTerminal(rows, cols int, args ...string) *terminalSession {
	q.Helper()
	s := newScreen(q, cols)
	s.resize(q, rows, cols)
	return s.start(q, q.command(args...))
}

// start starts a command on the terminal.
func (s *screen) start(q *queue, cmd *exec.Cmd) *terminalSession {
	q.Helper()
	before, err := unix.IoctlGetTermios(int(s.tty.Fd()), unix.TCGETS)
	if err != nil {
		q.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.tty, s.tty, s.tty
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
	cmd.Env = append(cmd.Env, "TERM=xterm")
	if err := cmd.Start(); err != nil {
		q.Fatal(err)
	}
	q.Cleanup(func() { cmd.Process.Kill() })
	return &terminalSession{s, q, cmd, *before}
}

func (s *screen) resize(t testing.TB, rows, cols int) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(s.master.Fd()), unix.TIOCSWINSZ,
		&unix.Winsize{Row: uint16(rows), Col: uint16(cols)}); err != nil {
		t.Fatal(err)
	}
}

// typeText types text on the terminal.
func (s *terminalSession) typeText(text string) {
	s.q.Helper()
	if _, err := io.WriteString(s.master, text); err != nil {
		s.q.Fatal(err)
	}
}

// waitText waits until the terminal has shown text.
func (s *terminalSession) waitText(text string) {
	s.q.Helper()
	s.waitTextAfter(0, text)
}

// waitTextAfter waits until the terminal has shown text after the first n bytes of its output.
func (s *terminalSession) waitTextAfter(n int, text string) {
	s.q.Helper()
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(s.output.String()[n:],
		text); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.q.Fatalf("%q is not shown, but %q", text, s.output.String()[n:])
		}
	}
}

// waitAttached waits until the program has attached to the terminal of the job. When it attaches, the program
// turns off ISIG on its own terminal, and waitAttached waits for that.
func (s *terminalSession) waitAttached() {
	s.q.Helper()
	s.q.waitUntil("the terminal is joined", 20*time.Second, func() bool {
		now, err := unix.IoctlGetTermios(int(s.tty.Fd()), unix.TCGETS)
		return err == nil && now.Lflag&unix.ISIG == 0
	})
}

// waitExit waits until the program ends. It checks the exit code and that the terminal settings are restored.
// It returns everything that the terminal has shown.
func (s *terminalSession) waitExit(code int) string {
	s.q.Helper()
	timer := time.AfterFunc(20*time.Second, func() { s.cmd.Process.Kill() })
	s.cmd.Wait()
	timer.Stop()
	now, err := unix.IoctlGetTermios(int(s.tty.Fd()), unix.TCGETS)
	text := s.text(s.q)
	if got := s.cmd.ProcessState; got.ExitCode() != code {
		s.q.Errorf("%q ended with %v, want %d, after %q", s.cmd.Args, got, code, text)
	}
	if err != nil || *now != s.termiosBefore {
		s.q.Errorf("%q leaves the terminal with %+v (%v), it was %+v", s.cmd.Args, now, err, s.termiosBefore)
	}
	return text
}

// attach calls the method attach, which types into a job's terminal.
func (w *wire) attach(params fields) (got struct{ Attempt, Taken int }, code string) {
	w.Helper()
	a := w.call("attach", params)
	if a.Error != nil {
		return got, a.Error.Data.Code + " " + a.Error.Data.Field
	}
	if err := json.Unmarshal(a.Result, &got); err != nil {
		w.Fatal(err)
	}
	return got, ""
}

// waitOutput waits until the output of a job contains text.
func (w *wire) waitOutput(id, text string) {
	w.Helper()
	w.waitUntil(fmt.Sprintf("job %s shows %q", id, text), 20*time.Second, func() bool {
		return strings.Contains(w.show(id).Output, text)
	})
}

// A job with a terminal has it as stdin, stdout, stderr and /dev/tty. The terminal has the type and size of
// the user's terminal. What the job prints is stored as one stream.
func TestTTY(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	s := q.startOnTerminal(31, 97, "run", "--tty", "--id", "t",
		`test -t 0 && test -t 1 && test -t 2 && stty size </dev/tty; echo $TERM; echo err >&2; read x; stty size; echo "got $x"; exit 3`)
	s.waitText("xterm\r\nerr\r\n")
	s.waitAttached()
	s.typeText("some\x7f\x7fthing\r")
	s.waitText("31 97\r\ngot sothing")
	s.waitExit(3)
}

// A client without a terminal can also run a job with a terminal. If the request names no terminal type, the
// job gets a common one.
func TestTTYWithoutAClientTerminal(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	r := q.cliWithInput("not read", "run", "--tty", "--env", "TERM=vt100", "stty size; echo $TERM; echo err >&2; exit 4")
	if r.code != 4 || r.out != "24 80\r\nvt100\r\nerr\r\n" || r.err != "" {
		t.Errorf("got %+v", r)
	}
	w := q.dial()
	id := w.enqueue(fields{"command": "echo $TERM; tty", "tty": true})
	if j := w.waitEnded(id); !strings.HasPrefix(j.Output, "xterm-256color\r\n/dev/pts/") || j.Stderr != "" {
		t.Errorf("got %+v", j)
	}
	if got := q.runOnScreen("logs", id).out; findControl(strings.ReplaceAll(got, "\r\n", "")) != "" {
		t.Errorf("logs shows %q", got)
	}
}

// A job cannot have both a terminal and another input. The method attach accepts only running jobs with a
// terminal.
func TestTTYRefusals(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	w := q.dial()
	for _, input := range []string{"stdin", "stdin_file"} {
		a := w.call("enqueue", fields{"command": "cat", "tty": true, input: "/in"})
		if a.Error == nil || a.Error.Data.Code != "invalid" || a.Error.Data.Field != "tty" ||
			!strings.Contains(a.Error.Message, input) {
			t.Errorf("with %s: got %+v", input, a.Error)
		}
		if r := q.cli("run", "--tty", "--"+strings.ReplaceAll(input, "_", "-"), "/in", "cat"); r.code != 125 ||
			!strings.Contains(r.err, "--tty") || !strings.Contains(r.err, strings.ReplaceAll(input, "_", "-")) {
			t.Errorf("with %s: got %+v", input, r)
		}
	}
	fed := w.enqueue(fields{"command": "cat", "stdin": "x", "delay": "1h"})
	if r := q.cli("edit", fed, "--tty"); r.code != 2 && r.code != 5 ||
		!strings.Contains(r.err, "--tty: cannot be combined with --stdin") {
		t.Errorf("edit: got %+v", r)
	}
	plain := w.enqueue(fields{"command": "echo up; sleep 600"})
	w.waitRunning(plain)
	delayedJob := w.enqueue(fields{"command": "sh", "tty": true, "delay": "1h"})
	endedJob := w.enqueue(fields{"command": "true", "tty": true})
	w.waitEnded(endedJob)
	runs := w.enqueue(fields{"command": "echo up; sleep 600", "tty": true})
	w.waitOutput(runs, "up")
	for _, c := range []struct {
		params fields
		want   string
	}{
		{fields{"id": "none"}, "not_found "}, {fields{}, "invalid id"},
		{fields{"id": plain}, "wrong_state "}, {fields{"id": plain, "text": "x"}, "wrong_state "},
		{fields{"id": delayedJob}, "wrong_state "}, {fields{"id": endedJob}, "wrong_state "},
		{fields{"id": endedJob, "wait": true}, "wrong_state "},
		{fields{"id": runs, "attempt": 2}, "wrong_state "}, {fields{"id": runs, "attempt": -1}, "invalid attempt"},
		{fields{"id": runs, "rows": 5}, "invalid rows"}, {fields{"id": runs, "rows": 5, "cols": 1 << 16}, "invalid cols"},
		{fields{"id": runs, "rows": -1, "cols": 1}, "invalid rows"}, {fields{"id": runs, "rows": 1<<16 - 1, "cols": 1}, ""},
		{fields{"id": runs, "text": "x", "base64": "eA=="}, "invalid text"},
		{fields{"id": runs, "base64": "!"}, "invalid base64"},
		{fields{"id": runs, "text": strings.Repeat("x", 64<<10+1)}, "invalid text"},
		{fields{"id": runs, "text": strings.Repeat("x", 64<<10)}, ""},
		{fields{"id": runs, "keys": "x"}, "invalid keys"},
	} {
		if _, got := w.attach(c.params); got != c.want {
			t.Errorf("%.80v: got %q, want %q", c.params, got, c.want)
		}
	}
}

// The job gets Ctrl-C, Ctrl-Z, Ctrl-D and changes of the size of the terminal. The keys Enter ~. detach and
// leave the job running, even if they are the first keys that are typed. ~~ types a tilde.
func TestKeysOfAJobsTerminal(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	w := q.dial()
	s := q.startOnTerminal(24, 80, "run", "--tty", "--id", "t",
		`trap 'echo INT' INT; trap 'stty size' WINCH; stty -echo; echo up; while :; do read x; [ "$x" = end ] && exit 5; echo "got $x"; done`)
	s.waitAttached()
	s.waitText("up")
	s.typeText("\x03\r")
	s.waitText("INT")
	s.resize(t, 40, 132)
	s.typeText("\r")
	s.waitText("40 132")
	s.typeText("a~.b\r~~c\r~d\r")
	s.waitText("got a~.b\r\ngot ~c\r\ngot ~d\r\n")
	s.typeText("~?")
	s.waitText("~. to detach (the job continues)")
	s.typeText("\r~") // the client may read "~" and "." together or separately
	s.typeText(".")
	if text := s.waitExit(130); !strings.Contains(text, "queuectl attach t") {
		t.Errorf("it said %q", text)
	}
	if j := w.show("t"); j.State != "processing" {
		t.Errorf("the job is %s", j.State)
	}
	s = q.startOnTerminal(24, 80, "attach", "t")
	s.waitAttached()
	s.typeText("~.")
	s.waitExit(130)
	s = q.startOnTerminal(24, 80, "attach", "t")
	s.waitAttached()
	s.typeText("end\r")
	s.waitExit(5)
}

// If a job reads its terminal, it waits until a client types something, on any connection.
func TestTTYReadWaitsForInput(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	w := q.dial()
	id := w.enqueue(fields{"command": "echo up; read x; echo got $x", "tty": true})
	w.waitOutput(id, "up")
	if j := w.show(id); j.State != "processing" {
		t.Fatalf("got %+v", j)
	}
	typed := "an\xffswer\r" // not UTF-8
	if got, code := w.attach(fields{"id": id, "base64": base64.StdEncoding.EncodeToString([]byte(typed))}); code != "" ||
		got.Attempt != 1 || got.Taken != len(typed) {
		t.Errorf("got %+v, %q", got, code)
	}
	if j := w.waitEnded(id); j.State != "completed" || !strings.Contains(j.Output, "got an") {
		t.Errorf("got %+v", j)
	}
}

// Several clients can attach to a job. Each sees the output and may type. The newest client sets the size.
func TestManyAttach(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	first := q.startOnTerminal(24, 80, "run", "--tty", "--id", "t",
		`echo up; while read x; do stty size; echo "got $x"; done`)
	first.waitAttached()
	first.waitText("up")
	second := q.startOnTerminal(50, 160, "attach", "t")
	second.waitAttached()
	// The new size takes effect only after the newest client has drawn the screen.
	q.waitUntil("the newest has set the size", 20*time.Second, func() bool {
		first.typeText("one\r")
		return strings.Contains(first.output.String(), "50 160\r\ngot one")
	})
	second.waitText("50 160\r\ngot one")
	first.resize(t, 10, 33)
	q.waitUntil("the job hears of another size", 20*time.Second, func() bool {
		second.typeText("two\r")
		return strings.Contains(first.output.String(), "10 33\r\ngot two")
	})
	second.waitText("got two")
	first.typeText("\x04")
	first.waitExit(0)
	second.waitExit(0)
}

// A job that never reads its terminal accepts a bounded number of bytes. Other jobs still run, and a client
// that has typed can detach.
func TestUnreadTerminalInputIsBounded(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	w := q.dial()
	s := q.startOnTerminal(24, 80, "run", "--tty", "--id", "t", `stty raw -echo; echo up; exec sleep 600`)
	s.waitAttached()
	s.waitText("up")
	accepted := 0
	for quiet := time.Now(); time.Since(quiet) < 300*time.Millisecond; {
		got, code := w.attach(fields{"id": "t", "text": strings.Repeat("x", 16<<10)})
		if code != "" {
			t.Fatal(code)
		}
		if accepted += got.Taken; got.Taken > 0 {
			quiet = time.Now()
		}
	}
	if accepted < 64<<10 || accepted > 256<<10 {
		t.Errorf("%d bytes were taken", accepted)
	}
	s.typeText(strings.Repeat("y", 3000) + "\r")
	if out := q.must("run", "echo other"); out != "other" {
		t.Errorf("another job printed %q", out)
	}
	s.typeText("~.")
	s.waitExit(130)
	q.must("cancel", "t")
}

// A job gets all bytes of a paste, even if it reads slowly.
func TestPaste(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	s := q.startOnTerminal(24, 80, "run", "--tty", "--id", "t",
		`stty raw -echo; echo up; sleep 1; head -c 300000 | md5sum; stty sane`)
	s.waitAttached()
	s.waitText("up")
	line := strings.Repeat("0123456789", 9) + "abcdefghi\r" // 100 bytes
	// The goroutine ends before the test does, because the test reads everything.
	go io.WriteString(s.master, strings.Repeat(line, 3000))
	want := runCommand(t, exec.Command("sh", "-c",
		fmt.Sprintf(`yes '%s' | head -n 3000 | tr '\n' '\r' | md5sum`, strings.TrimSuffix(line, "\r"))))
	s.waitText(strings.TrimSpace(want.out))
	s.waitExit(0)
}

// If the service dies, a job with a terminal keeps running, and the client prints how to attach again.
// Clients can attach to the terminal of the job through the next service.
func TestTerminalOutlivesTheService(t *testing.T) {
	q := startQueue(t, "--workers", "1", "--keep-jobs")
	s := q.startOnTerminal(24, 80, "run", "--tty", "--id", "t",
		`stty -echo; echo up; printf '\033[?1049h\033[?25l'; while read x; do echo "got $x"; done; exit 6`)
	s.waitAttached()
	s.waitText("\x1b[?25l")
	pid := q.show("t").PID
	q.kill()
	if text := s.waitExit(125); !strings.Contains(text, "queuectl attach t") ||
		!strings.HasSuffix(strings.SplitAfter(text, "\x1b[?1049l")[0], "\x1b[?25h\x1b[?1049l") &&
			!strings.Contains(text, "\x1b[?1049l\x1b[?25h") {
		t.Errorf("it said %q", text)
	}
	q.start("--workers", "1", "--keep-jobs")
	s = q.startOnTerminal(24, 80, "attach", "t")
	s.waitAttached()
	s.typeText("again\r")
	s.waitText("got again")
	if text := s.output.String(); !strings.Contains(text, "\x1b[?1049h") || strings.Contains(text, "up") {
		t.Errorf("it shows %q", text)
	}
	if now := q.show("t").PID; now != pid {
		t.Errorf("pid %d became %d", pid, now)
	}
	s.typeText("\x04")
	s.waitExit(6)
}

// If a signal ends a client, the client restores the terminal settings and leaves the job running.
func TestSignalledClientRestoresTheTerminal(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	s := q.startOnTerminal(24, 80, "run", "--tty", "--id", "t", `printf 'up\033[1;31m\033[?2004h'; exec sleep 600`)
	s.waitAttached()
	s.waitText("\x1b[?2004h")
	s.cmd.Process.Signal(syscall.SIGTERM)
	if text := s.waitExit(128 + 15); !strings.Contains(text, "\x1b[?2004l\x1b[m") ||
		!strings.Contains(text, "queuectl attach t") {
		t.Errorf("it said %q", text)
	}
	if j := q.show("t"); j.State != "processing" {
		t.Errorf("the job is %s", j.State)
	}
	q.must("cancel", "t")
}

// Each attempt gets a new terminal, and the client attaches to it when the attempt starts. Between attempts
// the client's terminal is back in normal mode, where Ctrl-C detaches from the job.
func TestTerminalsOfAttempts(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	s := q.startOnTerminal(24, 80, "run", "--tty", "--id", "t", "--max-retries", "2", "--backoff-base", "0.3",
		"--backoff-strategy", "linear", `echo "up $QUEUECTL_ATTEMPT"; read x; echo "got $x"; exit 1`)
	for n := 1; n <= 2; n++ {
		s.waitText(fmt.Sprintf("up %d", n))
		s.waitAttached()
		s.typeText(fmt.Sprintf("x%d\r", n))
		s.waitText(fmt.Sprintf("got x%d\r\nqueuectl: attempt %d failed", n, n))
	}
	s.waitText("up 3")
	s.waitAttached()
	s.typeText("\x03")
	s.waitExit(130)
	if j := q.show("t"); j.State != "dead" || deref(j.Signal) != 2 {
		t.Errorf("got %+v", j)
	}
	s = q.startOnTerminal(24, 80, "run", "--tty", "--id", "w", "--delay", "1h", "true")
	s.waitText("job w is waiting: not due yet")
	s.typeText("\x03")
	s.waitText("queuectl attach w")
	s.waitExit(130)
}

// A job with a terminal is ended like any other job, with its foreground and background processes, also when
// its runner dies. A background process that is allowed to outlive its job does so, unless it uses the
// terminal.
func TestTreesOfTerminals(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	w := q.dial()
	pidsOf := func(id string) (pids []int) {
		for _, marker := range strings.Fields(w.show(id).Output) {
			if n, isPid := strings.CutPrefix(marker, "pid="); isPid {
				var pid int
				fmt.Sscan(n, &pid)
				pids = append(pids, pid)
			}
		}
		return pids
	}
	tree := `sleep 600 & echo pid=$!; setsid sleep 600 & echo pid=$!; echo up; exec bash --norc -i`
	checkGone := func(what string, pids []int) {
		t.Helper()
		if len(pids) != 2 {
			t.Fatalf("%s: %v", what, pids)
		}
		q.waitUntil(what+": its tree is gone", 10*time.Second, func() bool { return !slices.ContainsFunc(pids, isAlive) })
	}
	id := w.enqueue(fields{"command": tree, "tty": true, "kill_after": "20s"})
	w.waitOutput(id, "up")
	pids := pidsOf(id)
	started := time.Now()
	q.must("cancel", id)
	if elapsed := time.Since(started); elapsed > 10*time.Second {
		t.Errorf("a shell took %v to end", elapsed)
	}
	checkGone("cancelled", pids)

	id = w.enqueue(fields{"command": tree, "tty": true, "max_retries": 0, "on_lost": "dead"})
	w.waitOutput(id, "up")
	pids = pidsOf(id)
	q.killRunners()
	if j := w.waitEnded(id); j.Reason != "lost" {
		t.Errorf("got %+v", j)
	}
	checkGone("lost", pids)

	// When the terminal closes, the processes of its session get SIGHUP. The command leaveBehind starts a
	// process in another session, so SIGHUP does not end that process.
	leaveBehind := `setsid sleep 600 & until [ $(ps -o sid= -p $!) = $! ]; do sleep 0.01; done; echo pid=$!`
	id = w.enqueue(fields{"command": leaveBehind, "tty": true})
	if j := w.waitEnded(id); j.History[0].Leftovers != 1 {
		t.Errorf("got %+v", j)
	}
	id = w.enqueue(fields{"command": leaveBehind, "tty": true, "allow_background": true})
	if j := w.waitEnded(id); j.History[0].Leftovers != 0 || !isAlive(pidsOf(id)[0]) {
		t.Errorf("got %+v", j)
	}
	kill(pidsOf(id)[0])
}

// Full-screen programs work in a job's terminal, and redraw the screen for each client that attaches later.
func TestScreenPrograms(t *testing.T) {
	for name, c := range map[string]struct {
		command string
		shows   string
		keys    []string
		after   string // text that a client sees when it attaches later
		quit    string
	}{
		"vi":   {"vi -u NONE -i NONE text", "first line", []string{"Gosecond line\x1b"}, "second line", ":wq\r"},
		"less": {"less text", "first line", nil, "first line", "q"},
		"top":  {"top -d 0.5", "load average", nil, "PID", "q"},
	} {
		t.Run(name, func(t *testing.T) {
			skip.UnlessProgram(t, name, "needs a full-screen program; .ci/run installs it")
			q := startQueue(t, "--workers", "1")
			q.writeFile("text", "first line\n")
			s := q.startOnTerminal(24, 80, "run", "--tty", "--id", name, c.command)
			s.waitAttached()
			s.waitText(c.shows)
			for _, k := range c.keys {
				s.typeText(k)
			}
			q.waitUntil("it is drawn", 20*time.Second, func() bool { return strings.Contains(s.output.String(), c.after) })
			s.typeText("\r~.")
			s.waitExit(130)
			s = q.startOnTerminal(30, 100, "attach", name)
			s.waitAttached()
			s.waitText(c.shows)
			s.waitText(c.after)
			s.typeText(c.quit)
			// The program less drops a key that arrives together with a change of the window size. So type
			// the key again until the program ends.
			if w := q.dial(); c.quit == "q" {
				q.waitUntil("it has ended", 20*time.Second, func() bool {
					running := w.show(name).State == "processing"
					if running {
						s.typeText(c.quit)
					}
					return !running
				})
			}
			text := s.waitExit(0)
			if on, off := strings.Count(text, "\x1b[?1049h"), strings.Count(text, "\x1b[?1049l"); on != off ||
				strings.LastIndex(text, "\x1b[?25l") > strings.LastIndex(text, "\x1b[?25h") {
				t.Errorf("it leaves another screen (%d on, %d off) or no cursor: %q", on, off, text[max(0, len(text)-200):])
			}
			if got := q.readFile("text"); name == "vi" && got != "first line\nsecond line\n" {
				t.Errorf("the file is %q", got)
			}
		})
	}
}

// The output of a terminal is stored unchanged. logs, show and the line of last output in overviews print it
// as plain text. --raw and JSON contain all of it.
func TestOutputOfATerminalIsReadable(t *testing.T) {
	q := startQueue(t, "--workers", "2")
	w := q.dial()
	const printed = `\033]0;title\007\033[?25l\033[32m10%%\r\033[K\033[32m100%%\033[0m\033[?25h\n\033[?1049hscreen\n\033[2;3Hmore\033[?1049ltypp\bo\n`
	id := w.enqueue(fields{"command": "printf '" + printed + "'; exit 3", "tty": true, "max_retries": 0})
	w.waitEnded(id)
	const text = "100%\ntypo\n"
	for _, args := range [][]string{{"logs", id}, {"logs", "-f", id}, {"logs", "--stdout", id}} {
		if r := q.cli(args...); r.code != 0 || r.out != text {
			t.Errorf("%q in a pipe: %+v, want %q", args, r, text)
		}
		if r := q.runOnScreen(args...); r.code != 0 || r.out != "\x1b[32m100%\x1b[0m\ntypo\n" {
			t.Errorf("%q on a terminal: %+v", args, r)
		}
	}
	other := w.enqueue(fields{"command": "true"})
	w.waitEnded(other)
	if r := q.cli("logs", id, other); r.out != id+" | 100%\n"+id+" | typo\n" {
		t.Errorf("logs of two: %+v", r)
	}
	if r := q.cli("show", id); !strings.HasSuffix(r.out, "\nOutput:\n  100%\n  typo\n") {
		t.Errorf("show: %q", r.out)
	}
	if r := q.runOnScreen("show", id); !strings.HasSuffix(r.out, "\nOutput:\n  \x1b[32m100%\x1b[0m\n  typo\n") {
		t.Errorf("show on a terminal: %q", r.out)
	}
	for _, args := range [][]string{{"--raw", "logs", id}, {"--raw", "show", id}, {"logs", "--jsonl", id}} {
		if r := q.cli(args...); !strings.Contains(r.out, "title") || !strings.Contains(r.out, "screen") {
			t.Errorf("%q: %q", args, r.out)
		}
	}
	if r := q.cli("status"); !strings.Contains(r.out, ": typo") {
		t.Errorf("the last line of a dead job: %q", r.out)
	}
	w.enqueue(fields{"command": `printf 'a\033[2K\rb\033[?25l\bc'; ` + q.waitForFileCommand("goes"), "tty": true})
	defer q.writeFile("goes", "")
	q.waitUntil("the last line of a job that runs is shown", 10*time.Second, func() bool {
		return strings.Contains(q.cli("status").out, "  c\n")
	})
}

// logs -f on a terminal also shows the unfinished last line, such as a question, and replaces it when it
// changes.
func TestFollowedTerminalShowsQuestions(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	id := q.dial().enqueue(fields{"command": `printf '\033[?2004h10%%'; ` + q.waitForFileCommand("one") +
		`; printf '\r20%%\r\nReally? '; ` + q.waitForFileCommand("two") + `; echo yes`, "tty": true})
	s := newScreen(t, 80)
	cmd := q.command("logs", "-f", id)
	cmd.Stdout, cmd.Stderr = s.tty, s.tty
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	for _, step := range [][2]string{{"10%", "one"}, {"Really? ", "two"}} {
		q.waitUntil(step[0]+" is shown", 20*time.Second, func() bool { return strings.Contains(s.output.String(), step[0]) })
		q.writeFile(step[1], "")
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("logs -f: %v", err)
	}
	if text := s.text(t); text != "10%\r\x1b[K20%\nReally? yes\n" {
		t.Errorf("got %q", text)
	}
}

// Only the owner of a job and admins may type into the terminal of the job. For each process that types, one
// audit event is stored. No event contains the typed text.
func TestRightsOnTerminals(t *testing.T) {
	q := sharedQueue(t, accessOfAll, "--workers", "4")
	id := q.mustAs(alice, "enqueue", "--tty", "--cwd", "/",
		`printf 'up\033]0;title\007'; while read x; do echo "got $x"; done`)
	q.waitUntil("it runs", 20*time.Second, func() bool { return strings.Contains(q.must("logs", id), "up") })
	for _, p := range everyone {
		w := q.dialAs(p)
		_, code := w.attach(fields{"id": id, "text": "secret" + p.name + "\r"})
		if may := p.name == alice.name || p.hasRight("admin"); may != (code == "") || !may && code != "denied " {
			t.Errorf("%s: got %q", p.name, code)
		}
		if p.hasRight("submit") {
			w.attach(fields{"id": id, "text": "secret\r"})
		}
	}
	var audited []string
	for line := range strings.Lines(q.must("events", "--audit", "--jsonl")) {
		var e struct {
			Event, Verb, Target string
			UID                 int
		}
		if json.Unmarshal([]byte(line), &e); e.Verb == "attach" {
			audited = append(audited, fmt.Sprintf("%d %s", e.UID, e.Target))
		}
		if strings.Contains(line, "secret") {
			t.Errorf("an event tells what was typed: %s", line)
		}
	}
	if want := []string{fmt.Sprintf("%d %s the terminal of attempt 1", alice.uid, id),
		fmt.Sprintf("%d %s the terminal of attempt 1", admin.uid, id)}; !slices.Equal(audited, want) {
		t.Errorf("audited %q, want %q", audited, want)
	}
	s := newScreen(t, 80)
	viewer := s.start(q, asPerson(q.command("attach", id), operator))
	viewer.waitText("view only")
	viewer.waitText("got secretalice")
	if found := findControl(strings.ReplaceAll(s.output.String(), "\r", "")); found != "" {
		t.Errorf("the terminal of who only looks on would obey %q", found)
	}
	viewer.typeText("\x03")
	viewer.waitExit(130)
	q.must("cancel", id)
}

// A terminal made by a runner of root belongs to the account that the job runs as. If an admin has changed
// the account of a job, the owner of the job cannot type into its terminal.
func TestTerminalsOfRootsRunner(t *testing.T) {
	q := startRooted(t, "run_as = \"submitter\"\n", "accounts = *\n")
	id := q.mustAs(daemonUser, "enqueue", "--tty", "--cwd", "/",
		`stat -Lc '%u %a' /dev/stdin; echo up >/dev/tty; read x; echo "got $x"`)
	w := q.dialAs(daemonUser)
	q.waitUntil("it waits", 20*time.Second, func() bool { return strings.Contains(q.must("logs", id), "up") })
	if _, code := w.attach(fields{"id": id, "text": "mine\r"}); code != "" {
		t.Errorf("the owner: got %q", code)
	}
	q.mustAs(daemonUser, "wait", id)
	if got, want := q.must("logs", "--raw", id),
		fmt.Sprintf("%d 600\r\nup\r\nmine\r\ngot mine", daemonUser.uid); got != want {
		t.Errorf("it said %q, want %q", got, want)
	}

	id = q.mustAs(daemonUser, "enqueue", "--tty", "--cwd", "/", "--delay", "1h", "echo up; id -u; read x")
	q.must("edit", id, `{"user":"news"}`)
	q.must("edit", id, "--delay", "0s")
	q.waitUntil("it waits", 20*time.Second, func() bool { return strings.HasSuffix(q.must("logs", "--raw", id), "up\r\n9") })
	if _, code := w.attach(fields{"id": id, "text": "echo owned\r"}); code != "denied " {
		t.Errorf("the owner of a job that runs as another: got %q", code)
	}
	if _, code := q.dial().attach(fields{"id": id, "text": "root\r"}); code != "" {
		t.Errorf("an admin: got %q", code)
	}
	q.mustAs(daemonUser, "wait", id)
}

// A client that waits for a job's terminal uses a stream, and the number of streams per user is limited.
func TestWaitsForTerminalsAreBounded(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	id := q.dial().enqueue(fields{"command": "true", "tty": true, "delay": "1h"})
	const each = 13 // 13 requests on each of five connections are 65, one more than the limit of 64
	answers := make(chan wireMessage, 5)
	for range cap(answers) {
		w := q.dial()
		defer w.Close()
		for i := range each {
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%d,"method":"attach","params":{"id":%q,"wait":true}}`+"\n", i+1, id)
		}
		go func() { // this goroutine ends when the connection is closed
			if a, err := w.read(); err == nil {
				answers <- a
			}
		}()
	}
	select {
	case a := <-answers:
		if a.Error == nil || a.Error.Data.Code != "unavailable" || !strings.Contains(a.Error.Message, "64 open streams") {
			t.Errorf("one of them: %+v", a)
		}
	case <-time.After(20 * time.Second):
		t.Error("all of them wait")
	}
}
