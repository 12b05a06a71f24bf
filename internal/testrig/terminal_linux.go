package testrig

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

var (
	// controlCharacterPattern matches characters that can control a terminal.
	controlCharacterPattern = regexp.MustCompile(
		`[\x00-\x08\x0b-\x1f\x7f\x{80}-\x{9f}\x{61c}\x{200e}\x{200f}\x{202a}-\x{202e}\x{2066}-\x{2069}]`)
)

// FindFirstControlCharacter returns the first part of a text that could control a terminal, or "" if the text is
// harmless.
func FindFirstControlCharacter(text string) string {
	if !utf8.ValidString(text) {
		return "bytes that are not UTF-8"
	}
	return controlCharacterPattern.FindString(ColourSequencePattern.ReplaceAllString(text, ""))
}

// PseudoTerminal is a pseudoterminal. The program under test uses Tty. The test reads the program's output from Master
// and writes input to it.
type PseudoTerminal struct {
	Tty       *os.File
	Master    *os.File
	Output    *LockedBuffer // the output read from Master
	ttyClosed chan struct{} // closed when all processes have closed the tty
}

// NewPseudoTerminal creates a terminal with the given number of columns. The terminal does not translate line ends or
// other bytes.
func NewPseudoTerminal(t testing.TB, columns int) *PseudoTerminal {
	t.Helper()
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatalf("open a terminal: %v", err)
	}
	s := &PseudoTerminal{Master: os.NewFile(uintptr(master), "terminal"), Output: &LockedBuffer{},
		ttyClosed: make(chan struct{})}
	number, failed := unix.IoctlGetUint32(master, unix.TIOCGPTN)
	err = errors.Join(failed, unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0),
		unix.IoctlSetWinsize(master, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: uint16(columns)}))
	slave, failed := unix.Open(fmt.Sprintf("/dev/pts/%d", number), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err = errors.Join(err, failed); err != nil {
		t.Fatalf("open a terminal: %v", err)
	}
	s.Tty = os.NewFile(uintptr(slave), "tty")
	modes, err := unix.IoctlGetTermios(slave, unix.TCGETS)
	if err == nil {
		modes.Oflag &^= unix.OPOST
		modes.Lflag &^= unix.ECHO
		err = unix.IoctlSetTermios(slave, unix.TCSETS, modes)
	}
	if err != nil {
		t.Fatalf("set a terminal's modes: %v", err)
	}
	go func() { // ends when the last process closes the tty, or at the cleanup
		defer close(s.ttyClosed)
		io.Copy(s.Output, s.Master)
	}()
	t.Cleanup(func() {
		s.Tty.Close()
		s.Master.Close()
		<-s.ttyClosed
	})
	return s
}

// WaitOutput waits until the program has ended and returns its complete output.
func (s *PseudoTerminal) WaitOutput(t testing.TB) string {
	t.Helper()
	s.Tty.Close()
	select {
	case <-s.ttyClosed:
	case <-time.After(10 * time.Second):
		t.Fatal("a process still has the terminal open")
	}
	return s.Output.String()
}

// RunCLIOnTerminal runs the program with a terminal as its stdout and stderr.
func (q *Harness) RunCLIOnTerminal(args ...string) CommandResult {
	q.Helper()
	s := NewPseudoTerminal(q, 600) // so wide that no table cell is cut
	cmd := q.CLICommand(args...)
	cmd.Stdout, cmd.Stderr = s.Tty, s.Tty
	return CommandResult{ExitCode: RunForExitCode(q, cmd), Stdout: s.WaitOutput(q)}
}

// RunForExitCode runs a command and returns its exit code.
func RunForExitCode(t testing.TB, cmd *exec.Cmd) int {
	t.Helper()
	var exitErr *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exitErr) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode()
}
