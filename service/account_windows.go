package service

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/internal/lockfile"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/worker"
)

// accountOf returns the account of the service itself.
func (d *directory) accountOf(uid int) worker.Account {
	a := worker.Account{UID: uid}
	if u, err := user.Current(); err == nil {
		a.User, a.Home = u.Username, u.HomeDir
	}
	return a
}

// accountName returns "", so the owners of jobs are not checked. On Windows, no second account ever gets
// the same uid or SID, so the check is not needed.
func (d *directory) accountName(int) string { return "" }

// peerNamed returns a peer as if the user had connected to the pipe.
func (d *directory) peerNamed(name string) (control.Peer, error) {
	id, known := d.UserID(name)
	if !known {
		return control.Peer{}, accounts.ErrNone("there is no such account")
	}
	return control.Peer{UID: id, GID: -1, PID: os.Getpid()}, nil
}

// accountNamed returns the account of a user.
func (d *directory) accountNamed(name string) (worker.Account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return worker.Account{}, err
	}
	return worker.Account{User: u.Username, Home: u.HomeDir}, nil
}

// checkOwnRunners returns an error unless run_as names the service's own account. A Windows service cannot
// run jobs as another user without that user's password.
func checkOwnRunners(set *config.Settings, account *worker.Account) error {
	name := set.FixedUser()
	switch {
	case set.RunAs == config.RunAsService, name != "" && strings.EqualFold(name, account.User):
		return nil
	case name != "":
		return queue.Invalid("run_as", `%s: a Windows service cannot run jobs as another user without that user's password; set run_as = "fixed:%s" (the service's account), or install a service that runs as you: queuectl service install --user`, set.RunAs, account.User)
	}
	return queue.Invalid("run_as", `%s: a Windows service cannot run jobs as the user who enqueued them without that user's password; set run_as = "fixed:%s" (the service's account), or install a service that runs as you: queuectl service install --user`, set.RunAs, account.User)
}

// bootstrapRoot does nothing, since Windows has no runners of root. If the settings need them,
// checkOwnRunners reports that to the user.
func (*startup) bootstrapRoot() error { return nil }

const lockName = "service.lock"

// InUse reports whether a service holds the lock of the state directory.
func InUse(dir string) bool {
	held, err := lockfile.Held(filepath.Join(dir, lockName))
	return held && err == nil
}

// lockDir locks the state directory until the process ends or the lock is closed.
func lockDir(dir string) (*os.File, error) {
	f, err := takeLock(dir, true)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(0); err == nil {
		fmt.Fprintln(f, os.Getpid()) // the pid is used only in takeLock's error message
	}
	return f, nil
}

// lockRetryTimeout is how long takeLock retries. A program that only reads the queue's files may hold the
// lock for a moment. Also, Windows closes the files of a process shortly after its end.
const lockRetryTimeout = 2 * time.Second

// takeLock takes the lock file of a state directory. It creates the file if create is set.
func takeLock(dir string, create bool) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	for deadline := time.Now().Add(lockRetryTimeout); ; time.Sleep(5 * time.Millisecond) {
		f, ok, err := lockfile.Take(path, create)
		switch {
		case err != nil:
			return nil, fmt.Errorf("cannot lock the state folder: %w", err)
		case ok:
			return f, nil
		}
		content, _ := os.ReadFile(path) // the content, a pid, is used in the error message
		pid := strings.TrimSpace(string(content))
		if number, err := strconv.Atoi(pid); err == nil && runs(number) || time.Now().After(deadline) {
			return nil, queue.Errorf(queue.CodeWrongState, "a service with pid %s already uses %s; stop it with: queuectl --dir %s service stop", pid, dir, queue.Word(dir))
		}
	}
}

// runs reports whether a process exists. A process that the caller may not open does exist.
func runs(pid int) bool {
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
	f, err := takeLock(dir, false)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return f, err
}
