//go:build unix && !linux

package accounts

import (
	"os/user"
	"strconv"
)

// Resolver looks up the system's users and groups with package os/user, which calls the system's library. The zero
// value is ready for use. The methods may be called concurrently.
type Resolver struct {
	AlwaysQueryRemote bool // no effect here, because the library decides which sources it queries
}

// DropCache has no effect, because this Resolver caches nothing.
func (d *Resolver) DropCache() {}

// UserByUID returns the account with a uid. UserByName returns the account with a name.
func (d *Resolver) UserByUID(uid uint32) (Account, error) {
	return toAccount(user.LookupId(strconv.FormatUint(uint64(uid), 10)))
}

func (d *Resolver) UserByName(name string) (Account, error) { return toAccount(user.Lookup(name)) }

// toAccount converts a result of package os/user. It leaves Shell empty, because that package does not report
// the shell.
func toAccount(u *user.User, err error) (Account, error) {
	if err != nil {
		return Account{}, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return Account{}, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	return Account{Name: u.Username, HomeDir: u.HomeDir, Shell: "/bin/sh", UID: uint32(uid), GID: uint32(gid)}, err
}

// WithGroups returns the account a with the field Groups set.
func (d *Resolver) WithGroups(a Account) (Account, error) {
	u, err := user.LookupId(strconv.FormatUint(uint64(a.UID), 10))
	if err != nil {
		return a, err
	}
	ids, err := u.GroupIds()
	for _, id := range ids {
		if gid, ok := parseAccountID(id); ok {
			a.Groups = append(a.Groups, uint32(gid))
		}
	}
	return a, err
}

// GroupIDByName returns the gid of a group.
func (d *Resolver) GroupIDByName(name string) (uint32, bool) {
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, false
	}
	gid, ok := parseAccountID(g.Gid)
	return uint32(gid), ok
}

// groupNameByGID returns the name of the group with a gid.
func (d *Resolver) groupNameByGID(gid uint32) (string, bool) {
	g, err := user.LookupGroupId(strconv.FormatUint(uint64(gid), 10))
	if err != nil {
		return "", false
	}
	return g.Name, true
}
