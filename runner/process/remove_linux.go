package process

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of the removal of a folder.
// See docs/decisions/0058.
const (
	removeWithin = 200 * time.Millisecond // of one step, so that it is no look-up that hangs
	removeDepth  = 32                     // folders that are open at once
)

// errMore says that a step of a removal is over, and the removal is not.
var errMore = errors.New("not everything is removed yet")

// Remove removes some of a folder, in a place that nobody but this process's account can
// change, with the rights of the account that the folder belongs to: it follows no link and
// enters nothing that is mounted there. It says whether there is more, and why something
// cannot be removed.
func Remove(path string, as *Identity) (more bool, err error) {
	place, err := unix.Open(filepath.Dir(path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	name := filepath.Base(path)
	_, err = lookBelow(as, place, func() (struct{}, error) {
		r := &removal{until: time.Now().Add(removeWithin), top: -1}
		return struct{}{}, r.enter(place, name, 0)
	})
	if err == nil || errors.Is(err, errMore) {
		switch unix.Rmdir(path) { // in a place of this process's own
		case nil, unix.ENOENT:
			return false, nil
		case unix.EBUSY:
			return false, fmt.Errorf("a file system is mounted on %s; unmount it", path)
		}
		return true, nil // it is written to meanwhile
	}
	return false, fmt.Errorf("remove the content of %s: %w", path, err)
}

// OwnerOf is the account whose folder this is, by its numbers; nil if this process is not
// root, and so has none but its own.
func OwnerOf(path string) (*Identity, error) {
	if ownUID() != 0 {
		return nil, nil
	}
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		return nil, err
	}
	return &Identity{UID: stat.Uid, GID: stat.Gid}, nil
}

// removal is one step of a removal.
type removal struct {
	until time.Time
	top   int // of the folder
	moved int // folders that were too deep
}

// enter empties a folder in another one.
func (r *removal) enter(in int, name string, depth int) error {
	fd, err := openBelow(in, name)
	if err == unix.EACCES && unix.Fchmodat(in, name, 0o700, 0) == nil { // it is its owner who does that
		fd, err = openBelow(in, name)
	}
	switch err {
	case nil:
	case unix.ENOENT:
		return nil
	case unix.EXDEV:
		return fmt.Errorf("a file system is mounted on %s; unmount it", name)
	case unix.ENOTDIR, unix.ELOOP: // the command has put something else in its place
		return unix.Unlinkat(in, name, 0)
	default:
		return fmt.Errorf("open %s: %w", name, err)
	}
	defer unix.Close(fd)
	if depth == 0 {
		r.top = fd
	}
	return r.empty(fd, depth)
}

// openBelow opens a folder in another one; a link, or what is mounted there, is refused.
func openBelow(in int, name string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	fd, err := unix.Openat2(in, name, &unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH})
	if err == unix.ENOSYS || err == unix.EPERM { // before Linux 5.6, or a sandbox of then
		fd, err = unix.Openat(in, name, flags, 0)
	}
	return fd, err
}

// empty removes all that is in a folder, again and again while there is something that can
// be removed.
func (r *removal) empty(fd, depth int) error {
	buf := make([]byte, 8<<10)
	for {
		if _, err := unix.Seek(fd, 0, 0); err != nil {
			return err
		}
		removed, met := 0, error(nil)
		for {
			n, err := unix.ReadDirent(fd, buf)
			if err != nil {
				return err
			}
			if n == 0 {
				break
			}
			_, _, names := unix.ParseDirent(buf[:n], -1, nil)
			for _, name := range names {
				if time.Now().After(r.until) {
					return errMore
				}
				err := r.remove(fd, name, depth)
				switch {
				case err == nil:
					removed++
				case errors.Is(err, errMore):
					return err
				default:
					met = err
				}
			}
		}
		if removed == 0 {
			return met
		}
	}
}

// remove removes what has a name in a folder.
func (r *removal) remove(fd int, name string, depth int) error {
	err := unix.Unlinkat(fd, name, 0)
	if err == unix.EACCES && unix.Fchmod(fd, 0o700) == nil {
		err = unix.Unlinkat(fd, name, 0)
	}
	switch err {
	case nil, unix.ENOENT:
		return nil
	case unix.EISDIR:
	default:
		return fmt.Errorf("remove %s: %w", name, err)
	}
	switch err := unix.Unlinkat(fd, name, unix.AT_REMOVEDIR); err {
	case nil, unix.ENOENT:
		return nil
	case unix.ENOTEMPTY, unix.EEXIST:
	default:
		return fmt.Errorf("remove %s: %w", name, err)
	}
	if depth == removeDepth {
		r.moved++
		unix.Fchmodat(fd, name, 0o700, 0) // whose folder it is in is noted in it
		return unix.Renameat(fd, name, r.top, fmt.Sprintf(".queuectl-%d-%d", time.Now().UnixNano(), r.moved))
	}
	if err := r.enter(fd, name, depth+1); err != nil {
		return err
	}
	err = unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)
	if err == unix.ENOENT || err == unix.ENOTEMPTY { // written to meanwhile
		return nil
	}
	return err
}
