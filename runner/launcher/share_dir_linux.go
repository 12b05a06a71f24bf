package launcher

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// createSharedDir creates a directory that belongs to the given user and that the given group can read. If mode
// allows it, other accounts can enter the directory to reach their own files in it.
func createSharedDir(path string, ownerUID, readerGID int, mode os.FileMode) error {
	if err := os.Mkdir(path, mode); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("cannot create the runner directory: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_DIRECTORY, 0)
	if err != nil {
		return fmt.Errorf("cannot open the runner directory: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("cannot check the runner directory: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	shared := ok && int(st.Uid) == ownerUID && info.Mode().Perm() == mode && info.Mode()&os.ModeSetgid != 0
	if shared && int(st.Gid) == readerGID {
		return nil
	}
	if shared {
		return fmt.Errorf("the runner directory %s belongs to group %d, but the service is in group %d; "+
			"if the service's group has changed, run: chgrp -R %[3]d %[1]s", path, st.Gid, readerGID)
	}
	if err := errors.Join(f.Chown(ownerUID, readerGID), f.Chmod(mode|os.ModeSetgid)); err != nil {
		return fmt.Errorf("cannot give the service access to the runner directory: %w", err)
	}
	return nil
}

// runnersDirMode is the mode of the runners' directory. Other accounts may enter it, to reach the directories
// for their own runners in it. accountRunnersDirMode is the mode of the directory for the runners of one account.
const (
	runnersDirMode        = 0o751
	accountRunnersDirMode = 0o750
)
