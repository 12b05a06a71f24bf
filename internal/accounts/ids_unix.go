//go:build unix

package accounts

import (
	"os"
	"strconv"
)

// CurrentUserID returns the effective uid of this process.
func CurrentUserID() int { return os.Geteuid() }

// UserID returns the number of a user, by name or number. It returns a number unchanged, without
// checking that the user exists.
func (d *Resolver) UserID(nameOrID string) (int, bool) {
	if id, ok := parseAccountID(nameOrID); ok {
		return id, true
	}
	a, err := d.UserByName(nameOrID)
	return int(a.UID), err == nil
}

// GroupID returns the number of a group, by name or number.
func (d *Resolver) GroupID(nameOrID string) (int, bool) {
	if id, ok := parseAccountID(nameOrID); ok {
		return id, true
	}
	gid, ok := d.GroupIDByName(nameOrID)
	return int(gid), ok
}

// parseAccountID parses a uid or a gid.
func parseAccountID(idText string) (int, bool) {
	n, err := strconv.ParseUint(idText, 10, 32)
	return int(n), err == nil && n != 1<<32-1 // system calls use 1<<32-1 for "no id"
}

// UserName returns the name of a user, or the number if there is no name.
func (d *Resolver) UserName(uid int) string {
	if uid >= 0 {
		if a, err := d.UserByUID(uint32(uid)); err == nil {
			return a.Name
		}
	}
	return strconv.Itoa(uid)
}

// GroupName returns the name of a group, or the number if there is no name.
func (d *Resolver) GroupName(gid int) string {
	if gid >= 0 {
		if name, ok := d.groupNameByGID(uint32(gid)); ok {
			return name
		}
	}
	return strconv.Itoa(gid)
}
