//go:build unix

package access

import (
	"fmt"
	"os"
	"strconv"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/worker"
)

// AccountOf returns the account of a uid. For a uid that the system does not know, it returns an account with
// default values.
func (d *Directory) AccountOf(uid int) worker.Account {
	u, err := d.UserByUID(uint32(uid))
	if err != nil {
		return worker.Account{User: strconv.Itoa(uid), Home: "/", Shell: "/bin/sh", UID: uid}
	}
	return worker.Account{User: u.Name, Home: u.Home, Shell: u.Shell, UID: uid}
}

// accountName returns the system's name for a uid, or "" if the uid has no name.
func (d *Directory) accountName(uid int) string {
	a, err := d.UserByUID(uint32(uid))
	if err != nil {
		return ""
	}
	return a.Name
}

// AccountNamed returns the account of a user.
func (d *Directory) AccountNamed(name string) (worker.Account, error) {
	u, err := d.UserByName(name)
	if err == nil && u.Name != name {
		// A directory may know an account under several names, but runners use only the account's main
		// name.
		err = fmt.Errorf("this account is called %q; use that name", u.Name)
	}
	return worker.Account{User: u.Name, Home: u.Home, Shell: u.Shell, UID: int(u.UID)}, err
}

// PeerNamed returns a peer with the identity and the current groups of a user, as if that user had connected to
// the socket.
func (d *Directory) PeerNamed(name string) (control.Peer, error) {
	u, err := d.UserByName(name)
	if err == nil {
		u, err = d.WithGroups(u)
	}
	p := control.Peer{UID: int(u.UID), GID: int(u.GID), PID: os.Getpid()}
	for _, gid := range u.Groups {
		p.Groups = append(p.Groups, int(gid))
	}
	return p, err
}
