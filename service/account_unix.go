//go:build unix

package service

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/worker"
)

// checkRunAsSupported returns an error if run_as needs root's runners and the service cannot have them.
func checkRunAsSupported(set *config.Settings, _ *worker.Account) error {
	if set.RunAs == config.RunAsService {
		return nil
	}
	if accounts.CurrentUser() == 0 { // a service started as root has root's runners: see bootstrapRoot
		if _, _, err := serviceIDs(); err != nil {
			return queue.Invalid("run_as", "%s: %v", set.RunAs, err)
		}
		return nil
	}
	return queue.Invalid("run_as", "%s works only if root starts the service; as root, run: queuectl service install; or "+
		"set run_as = service", set.RunAs)
}

// IsStateDirInUse reports whether a service holds the lock of the state directory.
func IsStateDirInUse(dir string) bool {
	f, err := os.OpenFile(filepath.Join(dir, lockFileName), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// dirLock is the lock of a state directory. It locks two files: the lock file, which contains the pid of
// the service, and the directory itself, since the lock file could be removed.
type dirLock struct{ file, dir *os.File }

// Close releases the lock.
func (l *dirLock) Close() error {
	if l == nil {
		return nil
	}
	return errors.Join(l.file.Close(), l.dir.Close())
}

// lockDir locks the state directory until the process ends or the lock is closed.
func lockDir(dir string) (*dirLock, error) {
	path := filepath.Join(dir, lockFileName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot lock the state directory: %w", err)
	}
	l, err := acquireLock(f, dir)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(0); err == nil {
		fmt.Fprintln(f, os.Getpid()) // the pid is used only in acquireLock's error message
	}
	return l, nil
}

// lockRetryTimeout is how long acquireLock retries after the service that held the lock has died. A process
// that the dead service had just forked holds the lock until its exec. A program that only reads the
// queue's files holds it for a moment.
const lockRetryTimeout = 2 * time.Second

// acquireLock locks a state directory and the open lock file f. If it fails, it closes f.
func acquireLock(f *os.File, dir string) (*dirLock, error) {
	stateDir, err := os.Open(dir)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot lock the state directory: %w", err)
	}
	l := &dirLock{f, stateDir}
	pid := "unknown"
	for deadline := time.Now().Add(lockRetryTimeout); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			if err = unix.Flock(int(stateDir.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
				return l, nil // ignore other errors, since some systems cannot lock directories
			}
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			l.Close()
			return nil, fmt.Errorf("cannot lock %s: %w", f.Name(), err)
		}
		content := make([]byte, 20)
		n, _ := f.ReadAt(content, 0)
		number, err := strconv.Atoi(strings.TrimSpace(string(content[:n])))
		if err == nil {
			pid = strconv.Itoa(number)
		}
		if err != nil || !hasEnded(number) || time.Now().After(deadline) {
			break
		}
	}
	l.Close()
	return nil, inUseError(pid, dir)
}

// hasEnded reports whether a process has ended or is exiting. An exiting process may still hold a lock,
// because the kernel closes its files late.
func hasEnded(pid int) bool {
	if syscall.Kill(pid, 0) == syscall.ESRCH {
		return true
	}
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// The process name may contain spaces and parentheses.
	fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	if len(fields) < 7 {
		return false
	}
	const exiting = 0x4 // PF_EXITING in include/linux/sched.h
	flags, _ := strconv.ParseUint(string(fields[6]), 10, 64)
	return flags&exiting != 0 || fields[0][0] == 'Z' || fields[0][0] == 'X'
}

// lockForReading locks a state directory against services while a program reads it, without writing to it.
// If no service has ever used the directory, the returned lock is nil. Closing a nil lock is harmless.
func lockForReading(dir string) (*dirLock, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot read the state directory: %w", err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return nil, queue.Errorf(queue.CodeDenied, "the state directory %s belongs to uid %d; run doctor as that user: "+
			"sudo -u '#%[2]d' queuectl --dir %[3]s doctor", dir, st.Uid, queue.QuoteShellWord(dir))
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFileName), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot lock the state directory: %w", err)
	}
	return acquireLock(f, dir)
}
