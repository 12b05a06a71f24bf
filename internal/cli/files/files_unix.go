//go:build unix

package files

import (
	"os"
	"syscall"
)

// makeDir is the command that creates a directory.
const makeDir = "mkdir -p"

// callerUmask is the umask that this process was started with. It is -1 until KeepPrivate replaces the
// process's umask.
var callerUmask = -1

// Umask returns the umask that this process was started with.
func Umask() (int, bool) {
	if callerUmask >= 0 {
		return callerUmask, true
	}
	mask := syscall.Umask(0)
	syscall.Umask(mask)
	return mask, true
}

// KeepPrivate sets the umask of a process that keeps a queue: its directories get mode 0700 and
// its files 0600, regardless of the caller's umask.
func KeepPrivate() { callerUmask = syscall.Umask(0o077) }

// Share sets the mode of a file as if KeepPrivate had not been called: to what the caller's umask
// allows.
func Share(path string) error { return os.Chmod(path, 0o666&^os.FileMode(callerUmask)) }
