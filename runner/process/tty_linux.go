package process

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/termtext"
)

// maxTyped bounds what waits for a command to read it from its terminal, in bytes.
// See docs/decisions/0062.
const maxTyped = 64 << 10

// typist is what was asked of the running command's terminal and is not done yet. Run's
// goroutine does it, since only it has the terminal's descriptor.
type typist struct {
	tty      bool              // the command has one
	controls termtext.Controls // what the command has printed on it to change its modes
	typed    []byte            // waits until the command reads
	size     *unix.Winsize     // that it is to have, nil if there is nothing to change
}

// openTerminal makes a terminal: its near end takes the place of the pipe of standard
// output, its far end is the command's and belongs to whom it runs as.
func (r *run) openTerminal() error {
	near, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return noTerminal(err)
	}
	r.pipes[0] = near
	if err := unix.IoctlSetPointerInt(near, unix.TIOCSPTLCK, 0); err != nil {
		return noTerminal(err)
	}
	// Not by its path: /dev/pts may be another one here than that of /dev/ptmx.
	far, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(near), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return noTerminal(errno)
	}
	r.ends[0] = int(far)
	err = errors.Join(
		unix.Fchmod(r.ends[0], 0o600), // nobody else writes to it, not even by write(1)
		unix.IoctlSetWinsize(near, unix.TIOCSWINSZ, &unix.Winsize{Row: defaultRows, Col: defaultCols}))
	if err != nil {
		return noTerminal(err)
	}
	return r.give(r.ends[0])
}

// The size of a terminal until somebody has joined it.
const (
	defaultRows = 24
	defaultCols = 80
)

// noTerminal sorts what kept a terminal from being made: our shortage, or a machine that
// gives none, where the command would never start however often it was tried.
func noTerminal(err error) error {
	for _, want := range []error{unix.ENOSPC, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.EINTR} {
		if errors.Is(err, want) {
			return &shortageError{fmt.Errorf("create a terminal: %w", err)}
		}
	}
	return fmt.Errorf("cannot create a terminal on this machine (/dev/ptmx): %v", err) // not wrapped: no program is missing
}

// Type writes to the terminal of the command whose main process is pid. It takes the first
// bytes, as many as there is room for, and never waits for the command to read them. It is
// not ok if no such command runs with a terminal.
func (w *Worker) Type(pid int, data []byte) (t Typed, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.running || w.pid != pid || !w.typist.tty {
		return t, false
	}
	t = Typed{min(len(data), maxTyped-len(w.typist.typed)), w.typist.controls.Text()}
	if t.Taken > 0 {
		w.typist.typed = append(w.typist.typed, data[:t.Taken]...)
		w.interrupt()
	}
	return t, true
}

// printed notes output of the command's terminal.
func (w *Worker) printed(data []byte) {
	w.mu.Lock()
	w.typist.controls.Write(data)
	w.mu.Unlock()
}

// Resize gives the terminal of the command whose main process is pid another size, if such
// a command runs with one.
func (w *Worker) Resize(pid, rows, cols int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.running || w.pid != pid || !w.typist.tty {
		return
	}
	w.typist.size = &unix.Winsize{Row: uint16(rows), Col: uint16(cols)}
	w.interrupt()
}

// passOn does what was asked of the terminal, as far as there is room for what was typed. It
// reports whether some of that is left.
func (r *run) passOn() bool {
	t := &r.w.typist
	r.w.mu.Lock()
	size, typed := t.size, t.typed // more may be added meanwhile, and only here is any taken away
	t.size = nil
	r.w.mu.Unlock()
	if size != nil {
		unix.IoctlSetWinsize(r.pipes[0], unix.TIOCSWINSZ, size) // the terminal is ours and open
	}
	if len(typed) == 0 {
		return false
	}
	n, err := unix.Write(r.pipes[0], typed)
	if err != nil && err != unix.EAGAIN && err != unix.EINTR {
		n = len(typed) // nobody can ever read it
	}
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	if t.typed = t.typed[max(n, 0):]; len(t.typed) == 0 {
		t.typed = nil
	}
	return len(t.typed) > 0
}

// heedsHangup reports whether the end of its terminal is what a process is to be told
// beside SIGTERM: an interactive shell ignores that. A process that SIGHUP would just kill
// is not told, for it may be about to end well.
func heedsHangup(pid int) bool {
	has := func(set string, s unix.Signal) bool { return signalSet(pid, set)>>(s-1)&1 != 0 }
	return has("SigCgt", unix.SIGHUP) || has("SigIgn", unix.SIGTERM)
}
