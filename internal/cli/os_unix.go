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
	os.Unsetenv("QUEUECTL_TIMERSLACK") // with it the service would not reset what it inherits
	cmd.Dir, cmd.Stderr, cmd.Env = "/", log, cleanstart.Environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd, cmd.Start()
}

// asciiOnly reports whether the locale of the terminal is not UTF-8, by the variables that setlocale(3) reads.
func asciiOnly() bool {
	locale := cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG"))
	codeset, _, _ := strings.Cut(locale[strings.IndexByte(locale, '.')+1:], "@")
	return !strings.EqualFold(strings.ReplaceAll(codeset, "-", ""), "utf8")
}

// exe ends the names of programs.
const exe = ""

// trusted refuses a program that is neither root's nor of whom this one is.
func trusted(self, path string) error {
	own, err := os.Stat(self)
	if err != nil {
		return err
	}
	for _, look := range []func(string) (os.FileInfo, error){os.Lstat, os.Stat} { // a link has an owner too
		info, err := look(path)
		if err != nil {
			return err
		}
		if uid := info.Sys().(*syscall.Stat_t).Uid; uid != 0 && uid != own.Sys().(*syscall.Stat_t).Uid {
			return fmt.Errorf("%s was not started, because its owner is uid %d, not root or the owner of %s; %s", path, uid, self, bothPrograms)
		}
	}
	return nil
}

// become has this process become queuectld, with the same words. It returns only if that
// failed.
func (a *App) become() error {
	path, err := a.other()
	if err != nil {
		return err
	}
	err = syscall.Exec(path, append([]string{path}, os.Args[1:]...), append(os.Environ(), clientVariable+"="+Version))
	return notStartedBy(path, err)
}

// callerUmask is the umask that this process was started with, once PrivateFiles has replaced it;
// -1 before.
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

// PrivateFiles sets the umask of a process that keeps a queue: its directories get mode 0700 and its
// files 0600, whatever the umask of its caller.
func PrivateFiles() { callerUmask = syscall.Umask(0o077) }

// shareFile gives a new file, made after PrivateFiles, the mode that the caller's umask asks for.
func shareFile(path string) error { return os.Chmod(path, 0o666&^os.FileMode(callerUmask)) }

// StopSignals end a service decently, ReloadSignals have it read its settings
// again.
var (
	StopSignals   = []os.Signal{syscall.SIGTERM, syscall.SIGINT}
	ReloadSignals = []os.Signal{syscall.SIGHUP}
)

// readerGone waits until nobody can read a pipe any more, and is then the error that
// a write would meet; nil if this cannot be known.
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

// alias is an output by another number: at 1 and 2 the Go runtime ends the program when
// the reader has gone, where we want the error of the write. A handler of SIGPIPE would
// do, for 4 % of the time that an enqueue takes.
func alias(f *os.File) *os.File {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, aliases)
	if err != nil {
		return f
	}
	return os.NewFile(uintptr(fd), f.Name())
}

// aliases are numbers that nobody hands us descriptors with.
const aliases = 10

// closedPipe reports whether a write met a reader that has gone.
func closedPipe(err error) bool { return errors.Is(err, syscall.EPIPE) }

// syncFolder makes the names in a folder durable.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// isSocket refuses a path with something else than a socket. It may not be there yet.
func isSocket(what, path string) error {
	if info, err := os.Stat(path); err == nil && (info.Mode().IsRegular() || info.IsDir()) {
		return Usage("%s: %s is not a socket; give the path of the service's socket", what, path)
	}
	return nil
}

// NewSocket is the whole path of a socket that is to be made.
func NewSocket(what, path string) (string, error) {
	whole, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return whole, checkDir(what, filepath.Dir(whole))
}

// socketExists reports whether there may be a socket.
func socketExists(path string) bool { return exists(path) }
