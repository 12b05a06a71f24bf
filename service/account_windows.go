package service

import (
	"os"
	"os/user"

	"github.com/queuectl/queuectl/runner/process"
)

// account is whom jobs run as.
type account struct{ User, Home, Shell string }

// ownAccount is the account of the service itself.
func ownAccount() account {
	a := account{}
	if u, err := user.Current(); err == nil {
		a.User, a.Home = u.Username, u.HomeDir
	}
	return a
}

// lockFolder takes the state folder for this process, until it ends.
func lockFolder(string) (*os.File, error) { return nil, process.ErrUnsupported }

// lockToLook keeps services from a state folder that is only looked at.
func lockToLook(string) (*os.File, error) { return nil, process.ErrUnsupported }

// checkFolder refuses a state folder that others could change; on Windows its
// access list keeps them out.
func checkFolder(string) error { return nil }

// InUse reports whether a service has the state folder.
func InUse(string) bool { return false }
