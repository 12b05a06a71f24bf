//go:build unix

package service

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/worker"
)

// checkRunAsSupported returns an error if the setting run_as needs runners that run as root, but this service cannot
// get such runners.
func checkRunAsSupported(settings *config.Settings, _ *worker.Account) error {
	if settings.RunAs == config.RunAsService {
		return nil
	}
	if accounts.CurrentUserID() == 0 { // root can start such runners: see bootstrapRoot
		if _, _, err := serviceUIDAndGID(); err != nil {
			return queue.InvalidFieldError("run_as", "%s: %v", settings.RunAs, err)
		}
		return nil
	}
	return queue.InvalidFieldError("run_as",
		"%s works only if root starts the service; as root, run: queuectl service install; or "+
			"set run_as = service", settings.RunAs)
}

// IsStateDirInUse reports whether a service holds the lock of the state directory.
func IsStateDirInUse(dir string) bool {
	l, err := tryLockStateDir(dir, false)
	if err != nil {
		return false
	}
	defer l.Close()
	return l == nil
}

// tryLockStateDir locks a state directory. It locks the lock file and also the directory itself, because another
// process could remove the lock file. It returns nil if another process holds the lock.
func tryLockStateDir(dir string, createLockFile bool) (stateDirLock, error) {
	flags := os.O_RDONLY
	if createLockFile {
		flags = os.O_RDWR | os.O_CREATE
	}
	f, err := os.OpenFile(filepath.Join(dir, stateDirLockName), flags|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	l := stateDirLock{f}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		var stateDir *os.File
		if stateDir, err = os.Open(dir); err == nil {
			l = append(l, stateDir)
			err = unix.Flock(int(stateDir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
			if !errors.Is(err, unix.EWOULDBLOCK) {
				return l, nil // the directory is locked now, or this system cannot lock directories
			}
		}
	}
	l.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, nil
	}
	return nil, err
}

// checkDirOwner returns an error if a state directory does not belong to the account of this process.
func checkDirOwner(dir string, dirInfo os.FileInfo) error {
	if st, ok := dirInfo.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return queue.Errorf(queue.CodeDenied, "the state directory %s belongs to uid %d; run doctor as that user: "+
			"sudo -u '#%[2]d' queuectl --dir %[3]s doctor", dir, st.Uid, queue.QuoteShellWord(dir))
	}
	return nil
}

// hasProcessEnded reports whether a process has ended or is exiting. An exiting process counts as ended, because the
// caller waits for a lock: the kernel closes the files of an exiting process late, so it may hold the lock a little
// longer.
func hasProcessEnded(pid int) bool {
	if syscall.Kill(pid, 0) == syscall.ESRCH {
		return true
	}
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// The process name may contain spaces and parentheses.
	fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	if len(fields) < 7 {
		return false
	}
	const exitingFlag = 0x4 // PF_EXITING in include/linux/sched.h
	flags, _ := strconv.ParseUint(string(fields[6]), 10, 64)
	return flags&exitingFlag != 0 || fields[0][0] == 'Z' || fields[0][0] == 'X'
}
