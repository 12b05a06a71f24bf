package privdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/runner/runas"
)

// A directory is removed in several steps, each with one call of RemoveDirStep. These constants limit one step. See
// docs/decisions/0058.
const (
	// removeStepTimeout limits the duration of one step. It is shorter than runas.LookUpTimeout, the time
	// after which runas.LookUpInDirAs treats the step as hung.
	removeStepTimeout = 200 * time.Millisecond
	maxOpenDirs       = 32 // maximum number of directories that are open at the same time
)

// errDirNotEmptied means that a step has ended before the directory was empty.
var errDirNotEmptied = errors.New("not everything is removed yet")

// RemoveDirStep does one step of removing a directory, with the rights of the account that owns the directory. If
// hasMore is true, the caller must call RemoveDirStep again. RemoveDirStep returns an error if something cannot be
// removed. It follows no link and enters no mounted file system. The caller must ensure that no other account can
// change the parent directory.
func RemoveDirStep(path string, owner *runas.Identity) (hasMore bool, err error) {
	parent, err := unix.Open(filepath.Dir(path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("cannot open %s: %w", filepath.Dir(path), err)
	}
	name := filepath.Base(path)
	_, err = runas.LookUpInDirAs(owner, parent, func() (struct{}, error) {
		r := &removalStep{deadline: time.Now().Add(removeStepTimeout), topFD: -1}
		return struct{}{}, r.emptyNamedDir(parent, name, 0)
	})
	if err == nil || errors.Is(err, errDirNotEmptied) {
		// The directory itself is removed with the rights of this process, because only the account of this process
		// can change the parent directory.
		switch unix.Rmdir(path) {
		case nil, unix.ENOENT:
			return false, nil
		case unix.EBUSY:
			return false, fmt.Errorf("a file system is mounted on %s; unmount it", path)
		}
		return true, nil // a process keeps creating files in the directory
	}
	return false, fmt.Errorf("cannot remove the content of %s: %w", path, err)
}

// OwnerIdentity returns the user and group that own a directory, for RemoveDirStep. It returns nil if this
// process is not root, because it can then only use its own rights.
func OwnerIdentity(path string) (*runas.Identity, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		return nil, err
	}
	return &runas.Identity{UID: stat.Uid, GID: stat.Gid}, nil
}

// removalStep is the state of one step of the removal of a directory.
type removalStep struct {
	deadline       time.Time
	topFD          int // descriptor of the directory to remove
	dirsMovedToTop int // number of directories that were nested too deeply and were therefore moved into topFD
}

// emptyNamedDir removes the content of a directory, given its name and the descriptor of its parent directory.
func (r *removalStep) emptyNamedDir(parentFD int, name string, depth int) error {
	fd, err := openSubdir(parentFD, name)
	if err == unix.EACCES && unix.Fchmodat(parentFD, name, 0o700, 0) == nil { // the owner may change the mode
		fd, err = openSubdir(parentFD, name)
	}
	switch err {
	case nil:
	case unix.ENOENT:
		return nil
	case unix.EXDEV:
		return fmt.Errorf("a file system is mounted on the directory %q in it; unmount it", name)
	case unix.ENOTDIR, unix.ELOOP: // the command has replaced the directory with a file or link
		return unix.Unlinkat(parentFD, name, 0)
	default:
		return fmt.Errorf("cannot open the directory %q in it: %w; remove that directory as the user of the job", name, err)
	}
	defer unix.Close(fd)
	if depth == 0 {
		r.topFD = fd
	}
	return r.emptyOpenDir(fd, depth)
}

// openSubdir opens a directory, given its name and the descriptor of its parent directory. It refuses links and
// mount points.
func openSubdir(parentFD int, name string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	fd, err := unix.Openat2(parentFD, name, &unix.OpenHow{Flags: flags,
		Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH})
	// The system call openat2 is missing before Linux 5.6, and some sandboxes block it.
	if err == unix.ENOSYS || err == unix.EPERM {
		fd, err = unix.Openat(parentFD, name, flags, 0)
	}
	return fd, err
}

// emptyOpenDir removes the content of a directory. It reads the directory again until nothing more can be
// removed.
func (r *removalStep) emptyOpenDir(dirFD, depth int) error {
	buf := make([]byte, 8<<10)
	for {
		if _, err := unix.Seek(dirFD, 0, 0); err != nil {
			return err
		}
		removed, lastErr := 0, error(nil)
		for {
			n, err := unix.ReadDirent(dirFD, buf)
			if err != nil {
				return err
			}
			if n == 0 {
				break
			}
			_, _, names := unix.ParseDirent(buf[:n], -1, nil)
			for _, name := range names {
				if time.Now().After(r.deadline) {
					return errDirNotEmptied
				}
				err := r.removeEntry(dirFD, name, depth)
				switch {
				case err == nil:
					removed++
				case errors.Is(err, errDirNotEmptied):
					return err
				default:
					lastErr = err
				}
			}
		}
		if removed == 0 {
			return lastErr
		}
	}
}

// removeEntry removes one entry of a directory.
func (r *removalStep) removeEntry(dirFD int, name string, depth int) error {
	err := unix.Unlinkat(dirFD, name, 0)
	if err == unix.EACCES && unix.Fchmod(dirFD, 0o700) == nil {
		err = unix.Unlinkat(dirFD, name, 0)
	}
	if err == unix.EISDIR {
		err = unix.Unlinkat(dirFD, name, unix.AT_REMOVEDIR)
	}
	switch err {
	case nil, unix.ENOENT:
		return nil
	case unix.ENOTEMPTY, unix.EEXIST:
	default:
		return fmt.Errorf("cannot remove %q in it: %w; remove it as the user of the job", name, err)
	}
	if depth == maxOpenDirs {
		r.dirsMovedToTop++
		unix.Fchmodat(dirFD, name, 0o700, 0) // moving a directory changes its ".." entry, so the directory must be writable
		return unix.Renameat(dirFD, name, r.topFD, fmt.Sprintf(".queuectl-%d-%d", time.Now().UnixNano(), r.dirsMovedToTop))
	}
	if err := r.emptyNamedDir(dirFD, name, depth+1); err != nil {
		return err
	}
	err = unix.Unlinkat(dirFD, name, unix.AT_REMOVEDIR)
	if err == unix.ENOENT || err == unix.ENOTEMPTY { // a process is still creating files in it
		return nil
	}
	return err
}
