package access

import (
	"fmt"
	"os"
	"os/user"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/worker"
)

// AccountByUID returns the account of the service itself.
func (d *UserDirectory) AccountByUID(uid int) worker.Account {
	a := worker.Account{UID: uid}
	if u, err := user.Current(); err == nil {
		a.UserName, a.HomeDir = u.Username, u.HomeDir
	}
	return a
}

// accountName returns "", which skips the check whether a uid has got a new owner. On Windows, uids and SIDs
// are never used again for another account.
func (d *UserDirectory) accountName(int) (string, error) { return "", nil }

// groupNameOrEmpty returns "", which skips the check whether the number of a group belongs to another group. On
// Windows, SIDs are never used again.
func (d *UserDirectory) groupNameOrEmpty(int) string { return "" }

// PeerByName returns a peer as if this user had just connected to the pipe.
func (d *UserDirectory) PeerByName(name string) (control.Peer, error) {
	id, known := d.UserID(name)
	if !known {
		return control.Peer{}, accounts.NoAccountError(fmt.Sprintf("there is no account %q", name))
	}
	return control.Peer{UID: id, GID: -1, PID: os.Getpid()}, nil
}

// AccountByName returns the account of a user.
func (d *UserDirectory) AccountByName(name string) (worker.Account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return worker.Account{}, err
	}
	return worker.Account{UserName: u.Username, HomeDir: u.HomeDir}, nil
}
