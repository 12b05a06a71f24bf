//go:build unix

package runner

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// shareFolder makes a folder that belongs to a user, and that a group may read.
func shareFolder(path string, uid, gid int) error {
	if err := os.Mkdir(path, 0o750); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make the runners' folder: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_DIRECTORY, 0)
	if err != nil {
		return fmt.Errorf("open the runners' folder: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("look at the runners' folder: %w", err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) == uid && int(st.Gid) == gid && info.Mode().Perm() == 0o750 && info.Mode()&os.ModeSetgid != 0 {
		return nil
	}
	if err := errors.Join(f.Chown(uid, gid), f.Chmod(0o750|os.ModeSetgid)); err != nil {
		return fmt.Errorf("share the runners' folder: %w", err)
	}
	return nil
}
