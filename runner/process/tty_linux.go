package process

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/termtext"
	"github.com/queuectl/queuectl/runner/procfs"
	"github.com/queuectl/queuectl/runner/runas"
)

// maxTerminalInputBytes limits the input of a terminal that the command has not read yet, in bytes. See
// docs/decisions/0062.
const maxTerminalInputBytes = 64 << 10

// terminalRequests holds the pending requests for the terminal of the running command. Only the goroutine of Run uses
// the terminal's descriptor, so other goroutines store their requests here.
type terminalRequests struct {
	hasTerminal          bool                   // the command has a terminal
	printedModeSequences termtext.ModeSequences // control sequences that the command has printed to change terminal modes
	pendingInput         []byte                 // input that the command has not read yet
	newSize              *unix.Winsize          // requested size of the terminal; nil if its size does not change
}

// openTerminal creates a terminal. This process uses one end of the terminal (outputPipes[0]) instead of the pipe for
// standard output. The command gets the other end (pipeWriteEnds[0]), which belongs to the command's account.
func (r *runningCommand) openTerminal() error {
	parentEnd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return terminalError(err)
	}
	r.outputPipes[0] = parentEnd
	if err := unix.IoctlSetPointerInt(parentEnd, unix.TIOCSPTLCK, 0); err != nil {
		return terminalError(err)
	}
	// Do not open the command's end by its path: /dev/pts may be another devpts file system than that of
	// /dev/ptmx.
	childEnd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(parentEnd), unix.TIOCGPTPEER,
		unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return terminalError(errno)
	}
	r.pipeWriteEnds[0] = int(childEnd)
	err = errors.Join(
		unix.Fchmod(r.pipeWriteEnds[0], 0o600), // no other account can write to the terminal, even with write(1)
		unix.IoctlSetWinsize(parentEnd, unix.TIOCSWINSZ, &unix.Winsize{Row: defaultTerminalRows, Col: defaultTerminalCols}))
	if err != nil {
		return terminalError(err)
	}
	return r.chownToCommandAccount(r.pipeWriteEnds[0])
}

// Size of a terminal before a user connects to it.
const (
	defaultTerminalRows = 24
	defaultTerminalCols = 80
)

// terminalError turns an error of creating a terminal into a ResourceShortageError if this process or the machine
// lacks a resource. Otherwise the machine provides no terminals, and another attempt would fail too.
func terminalError(err error) error {
	if errors.Is(err, unix.ENOSPC) {
		err = fmt.Errorf("all terminals (ptys) of the machine are in use: %w; raise the limit kernel.pty.max (sysctl)", err)
	}
	for _, want := range []error{unix.ENOSPC, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.EINTR} {
		if errors.Is(err, want) {
			return &runas.ResourceShortageError{Err: fmt.Errorf("cannot create a terminal: %w", err)}
		}
	}
	// Do not wrap the error: ENOENT would be treated as a missing program.
	return fmt.Errorf("cannot create a terminal on this machine (/dev/ptmx): %v", err)
}

// TypeInput types data on the terminal of the command whose main process is mainPID. It does not wait until the command
// reads the data, so it accepts only as many bytes as maxTerminalInputBytes allows. It returns ok=false if this command
// is not running or has no terminal.
func (w *Worker) TypeInput(mainPID int, data []byte) (result TypeInputResult, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.isRunning || w.pid != mainPID || !w.terminal.hasTerminal {
		return result, false
	}
	result = TypeInputResult{min(len(data), maxTerminalInputBytes-len(w.terminal.pendingInput)),
		w.terminal.printedModeSequences.Text()}
	if result.WrittenBytes > 0 {
		w.terminal.pendingInput = append(w.terminal.pendingInput, data[:result.WrittenBytes]...)
		w.wakeRun()
	}
	return result, true
}

// recordTerminalModes records the control sequences in data, output of the command, that change terminal
// modes.
func (w *Worker) recordTerminalModes(outputData []byte) {
	w.mu.Lock()
	w.terminal.printedModeSequences.Write(outputData)
	w.mu.Unlock()
}

// Resize changes the size of the terminal of the command whose main process is mainPID. It does nothing if this command
// is not running or has no terminal.
func (w *Worker) Resize(mainPID, rows, cols int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.isRunning || w.pid != mainPID || !w.terminal.hasTerminal {
		return
	}
	w.terminal.newSize = &unix.Winsize{Row: uint16(rows), Col: uint16(cols)}
	w.wakeRun()
}

// handleTerminalRequests carries out the pending requests for the terminal. It returns true if the terminal
// did not accept all input.
func (r *runningCommand) handleTerminalRequests() bool {
	t := &r.worker.terminal
	r.worker.mu.Lock()
	size, typed := t.newSize, t.pendingInput // other goroutines may add input, but only this function removes it
	t.newSize = nil
	r.worker.mu.Unlock()
	if size != nil {
		unix.IoctlSetWinsize(r.outputPipes[0], unix.TIOCSWINSZ, size) // cannot fail: the terminal is open
	}
	if len(typed) == 0 {
		return false
	}
	n, err := unix.Write(r.outputPipes[0], typed)
	if err != nil && err != unix.EAGAIN && err != unix.EINTR {
		n = len(typed) // the command can never read the input, so discard it
	}
	r.worker.mu.Lock()
	defer r.worker.mu.Unlock()
	if t.pendingInput = t.pendingInput[max(n, 0):]; len(t.pendingInput) == 0 {
		t.pendingInput = nil
	}
	return len(t.pendingInput) > 0
}

// needsHangup reports whether a process must get SIGHUP in addition to SIGTERM. This is the case if the process catches
// SIGHUP, or ignores SIGTERM, as interactive shells do. Other processes get no SIGHUP, which would kill them while they
// may be ending cleanly after SIGTERM.
func needsHangup(pid int) bool {
	has := func(set string, s unix.Signal) bool { return procfs.SignalSet(pid, set)>>(s-1)&1 != 0 }
	return has("SigCgt", unix.SIGHUP) || has("SigIgn", unix.SIGTERM)
}
