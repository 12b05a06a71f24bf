package testrig

import (
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TerminalSession is a program that runs on a pseudoterminal. Its methods act as the user at the terminal: they type
// text and read what the terminal shows.
type TerminalSession struct {
	*PseudoTerminal
	Queue         *Harness
	Cmd           *exec.Cmd
	termiosBefore unix.Termios
}

// StartOnTerminal starts the program on a new terminal of the given size.
func (q *Harness) StartOnTerminal(rows, cols int, args ...string) *TerminalSession {
	q.Helper()
	s := NewPseudoTerminal(q, cols)
	s.Resize(q, rows, cols)
	return s.StartCommand(q, q.CLICommand(args...))
}

// StartCommand starts a command on the terminal.
func (s *PseudoTerminal) StartCommand(q *Harness, cmd *exec.Cmd) *TerminalSession {
	q.Helper()
	before, err := unix.IoctlGetTermios(int(s.Tty.Fd()), unix.TCGETS)
	if err != nil {
		q.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.Tty, s.Tty, s.Tty
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
	cmd.Env = append(cmd.Env, "TERM=xterm")
	if err := cmd.Start(); err != nil {
		q.Fatal(err)
	}
	q.Cleanup(func() { cmd.Process.Kill() })
	return &TerminalSession{s, q, cmd, *before}
}

// Resize changes the size of the terminal.
func (s *PseudoTerminal) Resize(t testing.TB, rows, cols int) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(s.Master.Fd()), unix.TIOCSWINSZ,
		&unix.Winsize{Row: uint16(rows), Col: uint16(cols)}); err != nil {
		t.Fatal(err)
	}
}

// TypeText types text on the terminal.
func (s *TerminalSession) TypeText(text string) {
	s.Queue.Helper()
	if _, err := io.WriteString(s.Master, text); err != nil {
		s.Queue.Fatal(err)
	}
}

// WaitForText waits until the terminal has shown text.
func (s *TerminalSession) WaitForText(text string) {
	s.Queue.Helper()
	s.WaitForTextAfter(0, text)
}

// WaitForTextAfter waits until text appears in the terminal's output, at or after the byte outputOffset.
func (s *TerminalSession) WaitForTextAfter(outputOffset int, text string) {
	s.Queue.Helper()
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(s.Output.String()[outputOffset:],
		text); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.Queue.Fatalf("the terminal did not show %q, but %q", text, s.Output.String()[outputOffset:])
		}
	}
}

// WaitExit waits until the program ends, and checks that its exit code is wantCode. It also checks that the program has
// restored the terminal settings. It returns everything that the terminal has shown.
func (s *TerminalSession) WaitExit(wantCode int) string {
	s.Queue.Helper()
	timer := time.AfterFunc(20*time.Second, func() { s.Cmd.Process.Kill() })
	s.Cmd.Wait()
	timer.Stop()
	now, err := unix.IoctlGetTermios(int(s.Tty.Fd()), unix.TCGETS)
	text := s.WaitOutput(s.Queue)
	if got := s.Cmd.ProcessState; got.ExitCode() != wantCode {
		s.Queue.Errorf("%q ended with %v, want %d, after %q", s.Cmd.Args, got, wantCode, text)
	}
	if err != nil || *now != s.termiosBefore {
		s.Queue.Errorf("%q leaves the terminal with %+v (%v), it was %+v", s.Cmd.Args, now, err, s.termiosBefore)
	}
	return text
}
