package process

import (
	"crypto/md5"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminalSession is a running command with a terminal, on which the test can type.
type terminalSession struct {
	*testing.T
	*Command
	worker  *Worker
	pidChan chan int    // receives pid
	results chan Result // receives the result of the command
	pid     int         // pid of the running command
}

// runOnTerminal starts a shell command line on a terminal. Each configure function can change the Command before it
// starts.
func runOnTerminal(t *testing.T, commandLine string, configure ...func(*Command)) *terminalSession {
	t.Helper()
	o := &terminalSession{T: t, Command: newTestCommand(t, "/bin/sh", "-c", commandLine), worker: NewWorker(nil),
		pidChan: make(chan int, 1),
		results: make(chan Result, 1)}
	o.TTY = true
	o.OnForked = func(pid int, _ time.Time) { o.pidChan <- pid }
	for _, s := range configure {
		s(o.Command)
	}
	go func() { // this goroutine ends when the command ends, at its timeout at the latest
		r := o.worker.Run(o.Command)
		o.worker.Close()
		o.results <- r
	}()
	o.pid = <-o.pidChan
	return o
}

// awaitText waits until the command has printed a text on the terminal.
func (o *terminalSession) awaitText(text string) {
	o.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for ; !strings.Contains(o.output(o.T), text); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			o.Fatalf("the terminal does not show %q; the output is %q", text, o.output(o.T))
		}
	}
}

// typeText types a whole text, and waits while the terminal accepts no input.
func (o *terminalSession) typeText(text string) {
	o.Helper()
	rest := []byte(text)
	for deadline := time.Now().Add(20 * time.Second); len(rest) > 0; {
		typed, ok := o.worker.TypeInput(o.pid, rest)
		n := typed.WrittenBytes
		if rest = rest[n:]; !ok || time.Now().After(deadline) {
			o.Fatalf("%d bytes of %d could not be typed (%v)", len(rest), len(text), ok)
		}
		if n == 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

// awaitResult waits until the command has ended.
func (o *terminalSession) awaitResult() Result {
	o.Helper()
	select {
	case r := <-o.results:
		return r
	case <-time.After(20 * time.Second):
		o.Fatal("the command does not end")
	}
	return Result{}
}

// A command with a terminal has this terminal as standard input, output and error, and as its controlling
// terminal. The command has its own session. Other accounts may not open the terminal.
func TestTerminalIsControllingAndPrivate(t *testing.T) {
	o := runOnTerminal(
		t,
		`test -t 0 && test -t 1 && test -t 2 && stty size </dev/tty; stat -Lc %a /dev/fd/0; ps -o sid= -p $$ | tr -d " "; echo pid $$; echo err >&2`)
	r := o.awaitResult()
	want := fmt.Sprintf("24 80\r\n600\r\n%d\r\npid %[1]d\r\nerr\r\n", o.pid)
	if got := o.output(t); r.ExitCode != 0 || got != want {
		t.Errorf("the result is %+v, output %q; want %q", r, got, want)
	}
}

// The terminal works like any other: Ctrl-C signals the foreground program, Ctrl-D ends its input, and the
// program is notified of a new size.
func TestTerminalPassesControlKeys(t *testing.T) {
	o := runOnTerminal(t, `trap 'stty size' WINCH; trap 'echo INT' INT; echo up; cat; read line; exit 7`)
	o.awaitText("up")
	o.typeText("one\r")
	o.awaitText("one\r\none\r\n")
	o.typeText("\x03")
	o.awaitText("INT")
	o.worker.Resize(o.pid, 31, 97)
	o.typeText("\r") // a shell that is reading a line handles a signal after the line
	o.awaitText("31 97")
	if r := o.awaitResult(); r.ExitCode != 7 {
		t.Errorf("the result is %+v, want exit code 7", r)
	}
}

// A command that reads from the terminal waits for input without using CPU time.
func TestTerminalReadWaitsWithoutCPU(t *testing.T) {
	o := runOnTerminal(t, `read line`, func(c *Command) { c.Timeout = 300 * time.Millisecond })
	var before, after unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &before)
	r := o.awaitResult()
	unix.Getrusage(unix.RUSAGE_SELF, &after)
	if used := time.Duration(after.Utime.Nano() +
		after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()); !r.TimedOut || used > 100*time.Millisecond {
		t.Errorf("got %+v and %v of processor time", r, used)
	}
}

// A client that connects to a terminal later gets the modes that the command has set, no matter how much the
// command has printed since.
func TestLaterClientGetsTerminalModes(t *testing.T) {
	for _, c := range []struct {
		script string
		want   TypeInputResult
	}{
		{`printf '\033[?1049h\033[?25l'; seq 100000; printf '\033[1;1Hup'; sleep 600`,
			TypeInputResult{TerminalModeControls: "\x1b[?1049h\x1b[?25l\x1b[H"}},
		{`printf '\033[5 q'; echo up; sleep 600`, TypeInputResult{TerminalModeControls: "\x1b[5 q"}},
	} {
		o := runOnTerminal(t, c.script)
		o.awaitText("up")
		if got, ok := o.worker.TypeInput(o.pid, nil); got != c.want || !ok {
			t.Errorf("%s: the terminal has %+v (%v), want %+v", c.script, got, ok, c.want)
		}
		o.worker.Kill(1, 0)
		o.awaitResult()
	}
}

// If a command does not read its terminal, the terminal accepts a limited number of bytes. If the command
// reads, it gets all of a long text, even if the text is typed in several pieces.
func TestTerminalInputIsBounded(t *testing.T) {
	o := runOnTerminal(t, `stty raw -echo; echo up; sleep 600`)
	o.awaitText("up")
	taken := 0
	for piece, quiet := make([]byte, 4<<10), time.Now(); time.Since(quiet) < 200*time.Millisecond; {
		typed, ok := o.worker.TypeInput(o.pid, piece)
		if !ok {
			t.Fatal("the command does not run")
		}
		if taken += typed.WrittenBytes; typed.WrittenBytes > 0 {
			quiet = time.Now()
		}
	}
	if taken < maxTerminalInputBytes || taken > 4*maxTerminalInputBytes {
		t.Errorf("the terminal accepted %d bytes of input", taken)
	}
	if !o.worker.Kill(1, 0) {
		t.Error("the command could not be killed")
	}
	o.awaitResult()

	paste := strings.Repeat("0123456789abcdef", 64<<10)
	o = runOnTerminal(t, fmt.Sprintf(`stty raw -echo; echo up; head -c %d | md5sum`, len(paste)))
	o.awaitText("up")
	o.typeText(paste)
	o.awaitText("  -")
	if got := o.output(t); !strings.Contains(got, fmt.Sprintf("%x", md5.Sum([]byte(paste)))) {
		t.Errorf("the command printed %q, want the checksum of the whole paste", got)
	}
	o.awaitResult()
}

// All output on a terminal is kept, even if the command ends right after printing it.
func TestTerminalKeepsOutputBeforeExit(t *testing.T) {
	for range 50 {
		o := runOnTerminal(t, `exec seq 3000`)
		r := o.awaitResult()
		got := o.output(t)
		if r.ExitCode != 0 || !strings.HasSuffix(got, "2999\r\n3000\r\n") || strings.Count(got, "\n") != 3000 {
			t.Fatalf("got %+v and %d bytes, which end in %q", r, len(got), got[max(0, len(got)-20):])
		}
	}
}

// A kill ends an interactive shell and its foreground program. If the program handles SIGTERM, it has time to
// end cleanly.
func TestKillEndsInteractiveShell(t *testing.T) {
	hangups := make(chan os.Signal, 1)
	// If this test was started by nohup, it ignores SIGHUP, and commands would inherit this. A signal that is caught is
	// not ignored in commands, so catch SIGHUP here.
	signal.Notify(hangups, unix.SIGHUP)
	defer signal.Stop(hangups)
	for _, c := range []struct{ name, line, shown string }{
		{"a shell", "exec sh -i", "$"},
		{"a shell that runs something", "exec bash --norc -i", "$"},
		{"a program", `trap 'sleep 0.2; echo bye; exit' TERM; echo up; while :; do sleep 0.01; done`, "up"},
	} {
		o := runOnTerminal(t, c.line, func(c *Command) { c.Env = append(c.Env, "PS1=$ ") })
		o.awaitText(c.shown)
		if strings.Contains(c.name, "runs") {
			o.typeText("echo is''up; sleep 600\r")
			o.awaitText("isup")
		}
		began := time.Now()
		o.worker.Kill(1, 10*time.Second)
		r := o.awaitResult()
		if took := time.Since(began); r.KillCause != 1 || took > 5*time.Second {
			t.Errorf("%s: the result is %+v after %v", c.name, r, took)
		}
		if c.shown == "up" && !strings.Contains(o.output(t), "bye") {
			t.Errorf("%s: the output is %q, want it to contain bye", c.name, o.output(t))
		}
		if left := o.worker.otherTreeProcesses(o.pid, o.Cookie); len(left) > 0 {
			t.Errorf("%s: processes are left: %+v", c.name, left)
		}
	}
}

// If a command cannot start because all terminals are in use, this is a resource shortage. If the machine has no
// terminals at all, it is not a resource shortage, because another attempt would fail too.
func TestLackOfTerminalsIsShortage(t *testing.T) {
	for _, c := range []struct {
		err      error
		shortage bool
	}{{unix.ENOSPC, true}, {unix.EMFILE, true}, {unix.ENOENT, false}, {unix.EACCES, false}} {
		r := &runningCommand{runState: runState{command: newTestCommand(t, "/bin/true"), result: &Result{ExitCode: -1}}}
		r.recordStartFailure(terminalError(&os.PathError{Op: "open", Path: "/dev/ptmx", Err: c.err}))
		if r.result.ResourceShortage != c.shortage || c.shortage == (r.result.ExitCode == 126) {
			t.Errorf("error %v: the result is %+v", c.err, r.result)
		}
	}
}
