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

// onTerminal is a command with a terminal, and what is typed there.
type onTerminal struct {
	*testing.T
	*Command
	w     *Worker
	pid   chan int
	ended chan Result
	at    int // its pid, once it was awaited
}

// runOnTerminal runs a line of the shell on a terminal.
func runOnTerminal(t *testing.T, line string, set ...func(*Command)) *onTerminal {
	t.Helper()
	o := &onTerminal{T: t, Command: command(t, "/bin/sh", "-c", line), w: NewWorker(nil), pid: make(chan int, 1), ended: make(chan Result, 1)}
	o.TTY = true
	o.Forked = func(pid int, _ time.Time) { o.pid <- pid }
	for _, s := range set {
		s(o.Command)
	}
	go func() { // ends with the command, whose timeout sees to that
		r := o.w.Run(o.Command)
		o.w.Close()
		o.ended <- r
	}()
	o.at = <-o.pid
	return o
}

// shows waits until the terminal shows a text.
func (o *onTerminal) shows(text string) {
	o.Helper()
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(o.said(o.T), text); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			o.Fatalf("%q is not shown, but %q", text, o.said(o.T))
		}
	}
}

// types writes all of a text, with patience.
func (o *onTerminal) types(text string) {
	o.Helper()
	rest := []byte(text)
	for deadline := time.Now().Add(20 * time.Second); len(rest) > 0; {
		typed, ok := o.w.Type(o.at, rest)
		n := typed.Taken
		if rest = rest[n:]; !ok || time.Now().After(deadline) {
			o.Fatalf("%d bytes of %d could not be typed (%v)", len(rest), len(text), ok)
		}
		if n == 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

func (o *onTerminal) end() Result {
	o.Helper()
	select {
	case r := <-o.ended:
		return r
	case <-time.After(20 * time.Second):
		o.Fatal("it does not end")
	}
	return Result{}
}

// A command with a terminal has it as all three of its descriptors and as its controlling
// one, is alone in a session, and nobody else may open it.
func TestTerminalOfItsOwn(t *testing.T) {
	o := runOnTerminal(t, `test -t 0 && test -t 1 && test -t 2 && stty size </dev/tty; stat -Lc %a /dev/fd/0; ps -o sid= -p $$ | tr -d " "; echo pid $$; echo err >&2`)
	r := o.end()
	want := fmt.Sprintf("24 80\r\n600\r\n%d\r\npid %[1]d\r\nerr\r\n", o.at)
	if got := o.said(t); r.ExitCode != 0 || got != want {
		t.Errorf("got %+v and %q, want %q", r, got, want)
	}
}

// What is typed is read as from any terminal: Ctrl-C signals the program in the foreground,
// Ctrl-D ends its input, and another size is told.
func TestKeysOfACommandsTerminal(t *testing.T) {
	o := runOnTerminal(t, `trap 'stty size' WINCH; trap 'echo INT' INT; echo up; cat; read line; exit 7`)
	o.shows("up")
	o.types("one\r")
	o.shows("one\r\none\r\n")
	o.types("\x03")
	o.shows("INT")
	o.w.Resize(o.at, 31, 97)
	o.types("\r") // a shell that reads hears of signals after it
	o.shows("31 97")
	if r := o.end(); r.ExitCode != 7 {
		t.Errorf("got %+v", r)
	}
}

// A read that nobody answers waits, and takes no processor's time meanwhile.
func TestNobodyTypes(t *testing.T) {
	o := runOnTerminal(t, `read line`, func(c *Command) { c.Timeout = 300 * time.Millisecond })
	var before, after unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &before)
	r := o.end()
	unix.Getrusage(unix.RUSAGE_SELF, &after)
	if used := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()); !r.TimedOut || used > 100*time.Millisecond {
		t.Errorf("got %+v and %v of processor time", r, used)
	}
}

// What a command has set on its terminal is known to a client that joins later, however much the command has
// printed since.
func TestControlsOfATerminal(t *testing.T) {
	for _, c := range []struct {
		script string
		want   Typed
	}{
		{`printf '\033[?1049h\033[?25l'; seq 100000; printf '\033[1;1Hup'; sleep 600`, Typed{Controls: "\x1b[?1049h\x1b[?25l\x1b[H"}},
		{`printf '\033[5 q'; echo up; sleep 600`, Typed{Controls: "\x1b[5 q"}},
	} {
		o := runOnTerminal(t, c.script)
		o.shows("up")
		if got, ok := o.w.Type(o.at, nil); got != c.want || !ok {
			t.Errorf("%s: the terminal has %+v (%v), want %+v", c.script, got, ok, c.want)
		}
		o.w.Kill(1, 0)
		o.end()
	}
}

// A command that does not read its terminal takes a bounded number of bytes; one that does
// gets all of a long paste, however it is cut.
func TestTypedIsBounded(t *testing.T) {
	o := runOnTerminal(t, `stty raw -echo; echo up; sleep 600`)
	o.shows("up")
	taken := 0
	for piece, quiet := make([]byte, 4<<10), time.Now(); time.Since(quiet) < 200*time.Millisecond; {
		typed, ok := o.w.Type(o.at, piece)
		if !ok {
			t.Fatal("it does not run")
		}
		if taken += typed.Taken; typed.Taken > 0 {
			quiet = time.Now()
		}
	}
	if taken < maxTyped || taken > 4*maxTyped {
		t.Errorf("%d bytes were taken", taken)
	}
	if !o.w.Kill(1, 0) {
		t.Error("it could not be killed")
	}
	o.end()

	paste := strings.Repeat("0123456789abcdef", 64<<10)
	o = runOnTerminal(t, fmt.Sprintf(`stty raw -echo; echo up; head -c %d | md5sum`, len(paste)))
	o.shows("up")
	o.types(paste)
	o.shows("  -")
	if got := o.said(t); !strings.Contains(got, fmt.Sprintf("%x", md5.Sum([]byte(paste)))) {
		t.Errorf("got %q", got)
	}
	o.end()
}

// All that a command prints last is kept, though it ends at once.
func TestLastWordsOnATerminal(t *testing.T) {
	for range 50 {
		o := runOnTerminal(t, `exec seq 3000`)
		r := o.end()
		if got := o.said(t); r.ExitCode != 0 || !strings.HasSuffix(got, "2999\r\n3000\r\n") || strings.Count(got, "\n") != 3000 {
			t.Fatalf("got %+v and %d bytes, which end in %q", r, len(got), got[max(0, len(got)-20):])
		}
	}
}

// An interactive shell ends when it is asked to, with what it runs in the foreground; a
// program that ends well at SIGTERM may.
func TestTerminalsAreEnded(t *testing.T) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, unix.SIGHUP) // else commands would ignore it, if this was started by nohup
	defer signal.Stop(hangups)
	for _, c := range []struct{ name, line, shown string }{
		{"a shell", "exec sh -i", "$"},
		{"a shell that runs something", "exec bash --norc -i", "$"},
		{"a program", `trap 'sleep 0.2; echo bye; exit' TERM; echo up; while :; do sleep 0.01; done`, "up"},
	} {
		o := runOnTerminal(t, c.line, func(c *Command) { c.Env = append(c.Env, "PS1=$ ") })
		o.shows(c.shown)
		if strings.Contains(c.name, "runs") {
			o.types("echo is''up; sleep 600\r")
			o.shows("isup")
		}
		began := time.Now()
		o.w.Kill(1, 10*time.Second)
		r := o.end()
		if took := time.Since(began); r.Cause != 1 || took > 5*time.Second {
			t.Errorf("%s: got %+v after %v", c.name, r, took)
		}
		if c.shown == "up" && !strings.Contains(o.said(t), "bye") {
			t.Errorf("%s: it said %q", c.name, o.said(t))
		}
		if left := o.w.tree(o.at, o.Cookie); len(left) > 0 {
			t.Errorf("%s: %+v are left", c.name, left)
		}
	}
}

// Terminals that have run out are our shortage; a machine that has none is not, for it
// never will.
func TestNoTerminal(t *testing.T) {
	for _, c := range []struct {
		err      error
		shortage bool
	}{{unix.ENOSPC, true}, {unix.EMFILE, true}, {unix.ENOENT, false}, {unix.EACCES, false}} {
		r := &run{c: command(t, "/bin/true"), r: &Result{ExitCode: -1}}
		r.startFailed(noTerminal(&os.PathError{Op: "open", Path: "/dev/ptmx", Err: c.err}))
		if r.r.Shortage != c.shortage || c.shortage == (r.r.ExitCode == 126) {
			t.Errorf("%v: got %+v", c.err, r.r)
		}
	}
}
