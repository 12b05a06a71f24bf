//go:build unix

package files

import (
	"os"
	"syscall"
)

// mkdirCommand is the command that creates a directory.
const mkdirCommand = "mkdir -p"

// callerUmask is the umask that this process was started with. It is -1 until RestrictUmaskToOwner is called, because
// until then the umask of the process is still the caller's.
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

// RestrictUmaskToOwner sets the umask of a process that stores a queue. Directories of the queue then get mode 0700
// and files 0600, regardless of the caller's umask.
func RestrictUmaskToOwner() { callerUmask = syscall.Umask(0o077) }

// ApplyCallerUmask gives a file the mode that a new file would have under the caller's umask. The caller must have
// called RestrictUmaskToOwner before.
func ApplyCallerUmask(path string) error { return os.Chmod(path, 0o666&^os.FileMode(callerUmask)) }
