//go:build unix

package files

import (
	"os"
	"syscall"
)

// mkdirCommand is the command that creates a directory.
const mkdirCommand = "mkdir -p"

// callerUmask is the umask that this process was started with. It is -1 until RestrictUmask replaces the
// process's umask.
var callerUmask = -1

// CallerUmask returns the umask that this process was started with. On this system, the second result is always true.
func CallerUmask() (int, bool) {
	if callerUmask >= 0 {
		return callerUmask, true
	}
	mask := syscall.Umask(0)
	syscall.Umask(mask)
	return mask, true
}

// RestrictUmask sets the umask of a process that stores a queue. Directories of the queue then get mode 0700
// and files 0600, regardless of the caller's umask.
func RestrictUmask() { callerUmask = syscall.Umask(0o077) }

// ApplyCallerUmask sets the mode of a file to the one that the caller's umask allows, as if RestrictUmask had
// not been called. RestrictUmask must have been called before.
func ApplyCallerUmask(path string) error { return os.Chmod(path, 0o666&^os.FileMode(callerUmask)) }
