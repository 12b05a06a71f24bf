//go:build unix

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/cleanstart"
)

// startDetached starts a process that outlives this one and its terminal.
func startDetached(log *os.File, program string, words ...string) (*exec.Cmd, error) {
	cmd := exec.Command(program, words...)
	// With this variable set, the service would not call cleanstart.Reset.
	os.Unsetenv("QUEUECTL_TIMERSLACK")
	cmd.Dir, cmd.Stderr, cmd.Env = "/", log, cleanstart.Environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd, cmd.Start()
}

// asciiOnly reports whether the locale of the terminal is not UTF-8, by the variables that
// setlocale(3) reads.
func asciiOnly() bool {
	locale := cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG"))
	codeset, _, _ := strings.Cut(locale[strings.IndexByte(locale, '.')+1:], "@")
	return !strings.EqualFold(strings.ReplaceAll(codeset, "-", ""), "utf8")
}

// exe is the file name extension of programs.
const exe = ""

// trusted returns an error if the program at path belongs neither to root nor to the owner of this
// program.
func trusted(self, path string) error {
	own, err := os.Stat(self)
	if err != nil {
		return err
	}
	// Check the owner of a symbolic link too, because that user could change its target.
	for _, look := range []func(string) (os.FileInfo, error){os.Lstat, os.Stat} {
		info, err := look(path)
		if err != nil {
			return err
		}
		if uid := info.Sys().(*syscall.Stat_t).Uid; uid != 0 && uid != own.Sys().(*syscall.Stat_t).Uid {
			return fmt.Errorf("%s was not started, because uid %d owns it; it must belong to root or to the owner of %s; %s", path, uid, self, bothPrograms)
		}
	}
	return nil
}

// Exec replaces this process with queuectld, with the same arguments. It returns only on failure.
func (f *Finder) Exec() (exit int, err error) {
	path, err := f.daemonPath()
	if err != nil {
		return 0, err
	}
	err = syscall.Exec(path, append([]string{path}, os.Args[1:]...), append(os.Environ(), clientVariable+"="+f.Version))
	return 0, notStartedBy(path, err)
}

// callerUmask is the umask that this process was started with, once PrivateFiles has replaced it.
// Before that it is -1.
var callerUmask = -1

// ownUmask returns the umask that this process was started with.
func ownUmask() (int, bool) {
	if callerUmask >= 0 {
		return callerUmask, true
	}
	mask := syscall.Umask(0)
	syscall.Umask(mask)
	return mask, true
}

// PrivateFiles sets the umask of a process that keeps a queue: its directories get mode 0700 and
// its files 0600, regardless of the caller's umask.
func PrivateFiles() { callerUmask = syscall.Umask(0o077) }

// shareFile sets the mode of a file to what the caller's umask allows. It is for files that should
// not be private although PrivateFiles was called before.
func shareFile(path string) error { return os.Chmod(path, 0o666&^os.FileMode(callerUmask)) }

// StopSignals make a service stop gracefully. ReloadSignals make it reload its settings.
var (
	StopSignals   = []os.Signal{syscall.SIGTERM, syscall.SIGINT}
	ReloadSignals = []os.Signal{syscall.SIGHUP}
)

// readerGone waits until a pipe has no reader, and returns the error that a write would return. It
// returns nil if f is not a pipe.
func readerGone(f *os.File) error {
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

// alias duplicates an output file to another descriptor. When a write to descriptor 1 or 2 fails
// with EPIPE, the Go runtime ends the program, but the command must see the error. Handling SIGPIPE
// would also work, but adds 4 % to the time of an enqueue.
func alias(f *os.File) *os.File {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, aliases)
	if err != nil {
		return f
	}
	return os.NewFile(uintptr(fd), f.Name())
}

// aliases is the lowest descriptor for alias. Parents pass only lower ones to this process.
const aliases = 10

// isClosedPipe reports whether a write failed because the pipe has no reader.
func isClosedPipe(err error) bool { return errors.Is(err, syscall.EPIPE) }

// syncFolder makes the names in a directory durable.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// isSocket returns an error if the path is a regular file or a directory. The socket need not
// exist.
func isSocket(what, path string) error {
	if info, err := os.Stat(path); err == nil && (info.Mode().IsRegular() || info.IsDir()) {
		return Usage("%s: %s is not a socket; give the path of the service's socket", what, path)
	}
	return nil
}

// NewSocket returns the absolute path of a socket to be created.
func NewSocket(what, path string) (string, error) {
	whole, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return whole, checkDir(what, filepath.Dir(whole))
}

// socketExists reports whether the socket may exist.
func socketExists(path string) bool { return exists(path) }
