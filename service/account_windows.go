package service

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/lockfile"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/worker"
)

// checkRunAsSupported returns an error if run_as names another account than the service's. To run jobs as another user
// on Windows, a service would need this user's password.
func checkRunAsSupported(settings *config.Settings, account *worker.Account) error {
	name := settings.FixedJobUser()
	switch {
	case settings.RunAs == config.RunAsService, name != "" && strings.EqualFold(name, account.UserName):
		return nil
	case name != "":
		return queue.InvalidFieldError(
			"run_as",
			`%s: a Windows service cannot run jobs as another user without that user's password; set run_as = "fixed:%s" (the service's account), or install a service that runs as you: queuectl service install --user`, settings.RunAs, account.UserName)
	}
	return queue.InvalidFieldError(
		"run_as",
		`%s: a Windows service cannot run jobs as the user who enqueued them without that user's password; set run_as = "fixed:%s" (the service's account), or install a service that runs as you: queuectl service install --user`, settings.RunAs, account.UserName)
}

// bootstrapRoot does nothing: Windows has no runners that run as root, and checkRunAsSupported rejects
// settings that need such runners.
func (*startup) bootstrapRoot() error { return nil }

// IsStateDirInUse reports whether a service holds the lock of the state directory.
func IsStateDirInUse(dir string) bool {
	held, err := lockfile.IsHeld(filepath.Join(dir, stateDirLockName))
	return held && err == nil
}

// tryLockStateDir locks a state directory. It returns nil if another process holds the lock.
func tryLockStateDir(dir string, createLockFile bool) (stateDirLock, error) {
	f, ok, err := lockfile.Acquire(filepath.Join(dir, stateDirLockName), createLockFile)
	if err != nil || !ok {
		return nil, err
	}
	return stateDirLock{f}, nil
}

// hasProcessEnded reports whether a process has ended. If the caller may not open the process, hasProcessEnded returns
// false.
func hasProcessEnded(pid int) bool {
	h, err := windows.OpenProcess(windows.SYNCHRONIZE, false, uint32(pid))
	if err != nil {
		return errors.Is(err, windows.ERROR_INVALID_PARAMETER)
	}
	defer windows.CloseHandle(h)
	event, err := windows.WaitForSingleObject(h, 0)
	return err != nil || event != uint32(windows.WAIT_TIMEOUT)
}

// checkDirOwner accepts every directory: on Windows, a directory's access rights decide who can read it, not
// its owner.
func checkDirOwner(string, os.FileInfo) error { return nil }
