//go:build unix

package access

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/worker"
)

// AccountByUID returns the account of a uid. If the system does not know the uid, the account has default
// values.
func (d *UserDirectory) AccountByUID(uid int) worker.Account {
	u, err := d.UserByUID(uint32(uid))
	if err != nil {
		return worker.Account{UserName: strconv.Itoa(uid), HomeDir: "/", ShellPath: "/bin/sh", UID: uid}
	}
	return worker.Account{UserName: u.Name, HomeDir: u.HomeDir, ShellPath: u.Shell, UID: uid}
}

// accountName returns the system's name for a uid, or "" if the uid has no account. It returns an error if the system
// does not answer.
func (d *UserDirectory) accountName(uid int) (string, error) {
	a, err := d.UserByUID(uint32(uid))
	if errors.As(err, new(accounts.NoAccountError)) {
		return "", nil
	}
	return a.Name, err
}

// groupNameOrEmpty returns the system's name for a gid, or "" if the system returns none.
func (d *UserDirectory) groupNameOrEmpty(gid int) string {
	name := d.GroupName(gid)
	if name == strconv.Itoa(gid) {
		return ""
	}
	return name
}

// AccountByName returns the account of a user.
func (d *UserDirectory) AccountByName(name string) (worker.Account, error) {
	u, err := d.UserByName(name)
	if err == nil && u.Name != name {
		// A directory service may know an account by several names, but runners use only its main name.
		err = fmt.Errorf("this account is called %q; use that name", u.Name)
	}
	return worker.Account{UserName: u.Name, HomeDir: u.HomeDir, ShellPath: u.Shell, UID: int(u.UID)}, err
}

// PeerByName returns a peer as if this user had just connected to the socket: with the user's uid and current
// groups.
func (d *UserDirectory) PeerByName(name string) (control.Peer, error) {
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
