package service

import (
	"os"
	"os/user"

	"github.com/queuectl/queuectl/runner/process"
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

// accountNamed is what the system says of a user.
func (s *Service) accountNamed(string) (worker.Account, error) {
	return worker.Account{}, process.ErrUnsupported
}

// beRoot starts root's runners.
func (s *Service) beRoot() error { return process.ErrUnsupported }

// lockFolder takes the state folder for this process, until it ends.
func lockFolder(string) (*os.File, error) { return nil, process.ErrUnsupported }

// lockToLook keeps services from a state folder that is only looked at.
func lockToLook(string) (*os.File, error) { return nil, process.ErrUnsupported }

// checkFolder refuses a state folder that others could change; on Windows its
// access list keeps them out.
func checkFolder(string) error { return nil }

// InUse reports whether a service has the state folder.
func InUse(string) bool { return false }
