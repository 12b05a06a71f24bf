package service

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/lockfile"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/worker"
)

// checkRunAsSupported returns an error unless run_as names the service's own account. A Windows service cannot
// run jobs as another user without that user's password.
func checkRunAsSupported(set *config.Settings, account *worker.Account) error {
	name := set.FixedUser()
	switch {
	case set.RunAs == config.RunAsService, name != "" && strings.EqualFold(name, account.User):
		return nil
	case name != "":
		return queue.Invalid(
			"run_as", `%s: a Windows service cannot run jobs as another user without that user's password; set run_as = "fixed:%s" (the service's account), or install a service that runs as you: queuectl service install --user`, set.RunAs, account.User)
	}
	return queue.Invalid(
		"run_as", `%s: a Windows service cannot run jobs as the user who enqueued them without that user's password; set run_as = "fixed:%s" (the service's account), or install a service that runs as you: queuectl service install --user`, set.RunAs, account.User)
}

// bootstrapRoot does nothing, since Windows has no runners of root. If the settings need them,
// checkRunAsSupported reports that to the user.
func (*startup) bootstrapRoot() error { return nil }

// IsStateDirInUse reports whether a service holds the lock of the state directory.
func IsStateDirInUse(dir string) bool {
	held, err := lockfile.IsHeld(filepath.Join(dir, lockFileName))
	return held && err == nil
}

// lockDir locks the state directory until the process ends or the lock is closed.
func lockDir(dir string) (*os.File, error) {
	f, err := acquireLock(dir, true)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(0); err == nil {
		fmt.Fprintln(f, os.Getpid()) // the pid is used only in acquireLock's error message
	}
	return f, nil
}

// lockRetryTimeout is how long acquireLock retries. A program that only reads the queue's files may hold the
// lock for a moment. Also, Windows closes the files of a process shortly after its end.
const lockRetryTimeout = 2 * time.Second

// acquireLock takes the lock file of a state directory. It creates the file if create is set.
func acquireLock(dir string, create bool) (*os.File, error) {
	path := filepath.Join(dir, lockFileName)
	for deadline := time.Now().Add(lockRetryTimeout); ; time.Sleep(5 * time.Millisecond) {
		f, ok, err := lockfile.Acquire(path, create)
		switch {
		case err != nil:
			return nil, fmt.Errorf("cannot lock the state folder: %w", err)
		case ok:
			return f, nil
		}
		content, _ := os.ReadFile(path) // the content, a pid, is used in the error message
		pid := strings.TrimSpace(string(content))
		if number, err := strconv.Atoi(pid); err == nil && isProcessRunning(number) || time.Now().After(deadline) {
			return nil, inUseError(pid, dir)
		}
	}
}

// isProcessRunning reports whether a process exists. A process that the caller may not open does exist.
func isProcessRunning(pid int) bool {
	h, err := windows.OpenProcess(windows.SYNCHRONIZE, false, uint32(pid))
	if err != nil {
		return !errors.Is(err, windows.ERROR_INVALID_PARAMETER)
	}
	defer windows.CloseHandle(h)
	ended, err := windows.WaitForSingleObject(h, 0)
	return err == nil && ended == uint32(windows.WAIT_TIMEOUT)
}

// lockForReading locks a state directory against services while a program reads it, without writing to it. If
// no service has ever used the directory, the file is nil, and closing it is harmless.
func lockForReading(dir string) (*os.File, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("cannot read the state folder: %w", err)
	}
	f, err := acquireLock(dir, false)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return f, err
}
