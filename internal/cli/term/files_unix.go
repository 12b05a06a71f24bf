//go:build unix

package term

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
	xterm "golang.org/x/term"
)

// IsTerminal reports whether a file is a terminal.
func IsTerminal(f *os.File) bool { return xterm.IsTerminal(int(f.Fd())) }

// awaitPipeReaderGone waits until all processes have closed the reading end of a pipe. It returns the error that
// a write would return then. It returns nil immediately if f is not a pipe.
func awaitPipeReaderGone(f *os.File) error {
	info, err := f.Stat()
	if err != nil || info.Mode()&(os.ModeNamedPipe|os.ModeSocket) == 0 {
		return nil
	}
	for {
		ends := []unix.PollFd{{Fd: int32(f.Fd())}}
		switch _, err := unix.Poll(ends, -1); {
		case errors.Is(err, syscall.EINTR):
		case err != nil || ends[0].Revents&unix.POLLNVAL != 0:
			return nil
		default:
			return syscall.EPIPE
		}
	}
}

// PrepareOutput duplicates the descriptor of an output file to a number above 2. If a write to descriptor 1 or 2 fails
// with EPIPE, the Go runtime ends the program, but the command must handle the error itself. Handling SIGPIPE would
// also prevent this, but would make an enqueue 4 % slower.
func PrepareOutput(f *os.File) *os.File {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, minDuplicateFD)
	if err != nil {
		return f
	}
	return os.NewFile(uintptr(fd), f.Name())
}

// minDuplicateFD is the lowest descriptor to which PrepareOutput duplicates. Parent processes usually pass only lower
// descriptors.
const minDuplicateFD = 10

// IsClosedPipeError reports whether a write failed because the pipe has no reader.
func IsClosedPipeError(err error) bool { return errors.Is(err, syscall.EPIPE) }
