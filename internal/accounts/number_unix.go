//go:build unix

package accounts

import (
	"os"
	"strconv"
)

// Self is the number of the user that this process acts as.
func Self() int { return os.Geteuid() }

// UserID is the number of a user, by name or number. A number is nobody's name, and
// needs nobody behind it.
func (d *Directory) UserID(word string) (int, bool) {
	if id, ok := number(word); ok {
		return id, true
	}
	a, err := d.Named(word)
	return int(a.UID), err == nil
}

// GroupID is the number of a group, by name or number.
func (d *Directory) GroupID(word string) (int, bool) {
	if id, ok := number(word); ok {
		return id, true
	}
	gid, ok := d.Group(word)
	return int(gid), ok
}

func number(word string) (int, bool) {
	n, err := strconv.ParseUint(word, 10, 32)
	return int(n), err == nil && n != 1<<32-1 // which says that there is none
}

// UserName is the name of a user, or the number where there is none.
func (d *Directory) UserName(uid int) string {
	if uid >= 0 {
		if a, err := d.User(uint32(uid)); err == nil {
			return a.Name
		}
	}
	return strconv.Itoa(uid)
}

// GroupName is the name of a group, or the number where there is none.
func (d *Directory) GroupName(gid int) string {
	if gid >= 0 {
		if name, ok := d.groupOf(uint32(gid)); ok {
			return name
		}
	}
	return strconv.Itoa(gid)
}
