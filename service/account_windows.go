package service

import (
	"os"
	"os/user"
	"strings"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/queue"
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
		return queue.Invalid("run_as", `%s: Windows lets no service run jobs as another user without that user's password; this service's account, which can be changed in services.msc (Log On), is fixed:%s`, set.RunAs, own.User)
	}
	return queue.Invalid("run_as", `%s: Windows lets no service run jobs as the user who handed them in without that user's password; set run_as = "fixed:%s", the service's own account, or have a service of your own: queuectl service install --user`, set.RunAs, own.User)
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
