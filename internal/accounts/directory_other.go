//go:build unix && !linux

package accounts

import (
	"os/user"
	"strconv"
)

// Directory is the system's users and groups, as the system's library has them. Its zero
// value is ready, and its methods may be called at once.
type Directory struct {
	Patient bool // nothing here: the library decides whom it asks
}

// User is the account with a uid, Named the one with a name.
func (d *Directory) User(uid uint32) (Account, error) {
	return known(user.LookupId(strconv.FormatUint(uint64(uid), 10)))
}

func (d *Directory) Named(name string) (Account, error) { return known(user.Lookup(name)) }

func known(u *user.User, err error) (Account, error) {
	if err != nil {
		return Account{}, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return Account{}, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	return Account{Name: u.Username, Home: u.HomeDir, Shell: "/bin/sh", UID: uint32(uid), GID: uint32(gid)}, err
}

// Grouped is an account with its groups.
func (d *Directory) Grouped(a Account) (Account, error) {
	u, err := user.LookupId(strconv.FormatUint(uint64(a.UID), 10))
	if err != nil {
		return a, err
	}
	ids, err := u.GroupIds()
	for _, id := range ids {
		if gid, wrong := strconv.ParseUint(id, 10, 32); wrong == nil {
			a.Groups = append(a.Groups, uint32(gid))
		}
	}
	return a, err
}

// Group is the gid of a group.
func (d *Directory) Group(name string) (uint32, bool) {
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, false
	}
	gid, err := strconv.ParseUint(g.Gid, 10, 32)
	return uint32(gid), err == nil
}

// groupOf is the name of the group with a gid.
func (d *Directory) groupOf(gid uint32) (string, bool) {
	g, err := user.LookupGroupId(strconv.FormatUint(uint64(gid), 10))
	if err != nil {
		return "", false
	}
	return g.Name, true
}
