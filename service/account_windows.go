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

// accountOf is the account of the service itself.
func (s *Service) accountOf(uid int) worker.Account {
	a := worker.Account{UID: uid}
	if u, err := user.Current(); err == nil {
		a.User, a.Home = u.Username, u.HomeDir
	}
	return a
}

// accountName is nothing here: Windows gives no number, and no SID, to a second account.
func (s *Service) accountName(int) string { return "" }

// peerNamed is a user as if it had asked over the pipe.
func (s *Service) peerNamed(name string) (control.Peer, error) {
	id, known := s.directory.UserID(name)
	if !known {
		return control.Peer{}, accounts.ErrNone("there is no such account")
	}
	return control.Peer{UID: id, GID: -1, PID: os.Getpid()}, nil
}

// accountNamed is what the system says of a user.
func (s *Service) accountNamed(name string) (worker.Account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return worker.Account{}, err
	}
	return worker.Account{User: u.Username, Home: u.HomeDir}, nil
}

// rootless refuses a run_as by which jobs would not run as the service's own account:
// Windows lets no service run them as another without that one's password.
func rootless(set *config.Settings, own *worker.Account) error {
	name := set.FixedUser()
	switch {
	case set.RunAs == config.RunAsService, name != "" && strings.EqualFold(name, own.User):
		return nil
	case name != "":
		return queue.Invalid("run_as", `%s: a Windows service cannot run jobs as another user without that user's password; use this service's account, fixed:%s, or install a service that runs as you: queuectl service install --user`, set.RunAs, own.User)
	}
	return queue.Invalid("run_as", `%s: a Windows service cannot run jobs as the user who enqueued them without that user's password; set run_as = "fixed:%s" (the service's account), or install a service that runs as you: queuectl service install --user`, set.RunAs, own.User)
}

// beRoot starts root's runners: there are none, and rootless says what follows.
func (s *Service) beRoot() error { return nil }

const lockName = "service.lock"

// InUse reports whether a service has the state folder.
func InUse(dir string) bool {
	held, err := lockfile.Held(filepath.Join(dir, lockName))
	return held && err == nil
}

// lockFolder takes the state folder for this process, until it ends.
func lockFolder(dir string) (*os.File, error) {
	f, err := takeLock(dir, true)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(0); err == nil {
		fmt.Fprintln(f, os.Getpid()) // for takeLock's message alone: the lock is what counts
	}
	return f, nil
}

// lockAgain is how long a lock is tried for: somebody may just be looking, and what a
// process had open is closed a moment after its end.
const lockAgain = 2 * time.Second

// takeLock takes the lock file of a state folder, and makes it if it may.
func takeLock(dir string, create bool) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	for deadline := time.Now().Add(lockAgain); ; time.Sleep(5 * time.Millisecond) {
		f, ok, err := lockfile.Take(path, create)
		switch {
		case err != nil:
			return nil, fmt.Errorf("lock the state folder: %w", err)
		case ok:
			return f, nil
		}
		said, _ := os.ReadFile(path) // for the message
		pid := strings.TrimSpace(string(said))
		if number, err := strconv.Atoi(pid); err == nil && runs(number) || time.Now().After(deadline) {
			return nil, queue.Errorf(queue.CodeWrongState, "a service with pid %s already uses %s; stop it with: queuectl --dir %s service stop", pid, dir, queue.Word(dir))
		}
	}
}

// runs reports whether a process with a number runs. One that only may not be asked does.
func runs(pid int) bool {
	h, err := windows.OpenProcess(windows.SYNCHRONIZE, false, uint32(pid))
	if err != nil {
		return !errors.Is(err, windows.ERROR_INVALID_PARAMETER)
	}
	defer windows.CloseHandle(h)
	ended, err := windows.WaitForSingleObject(h, 0)
	return err == nil && ended == uint32(windows.WAIT_TIMEOUT)
}

// lockToLook keeps services from a state folder that is only looked at: nothing in it is
// made or written. Where none has ever been the file is nil, which can be closed.
func lockToLook(dir string) (*os.File, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("cannot read the state folder: %w", err)
	}
	f, err := takeLock(dir, false)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return f, err
}
