//go:build unix

package rundir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// CheckWorkspacesDir returns an error if another account could replace the jobs' private directories in dir,
// which must exist. dir may be the root of a mounted file system.
func CheckWorkspacesDir(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fmt.Errorf("%s: is not a directory; remove it, so that the directory can be created", dir)
	case ok && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s: belongs to uid %d, but the runner has uid %d; run: chown %[3]d %[1]s",
			dir, st.Uid, os.Geteuid())
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s: other accounts can write to it (mode %03o); run: chmod go-w %[1]s", dir, info.Mode().Perm())
	}
	return nil
}

// checkParentDirs returns an error if another account could change or replace path, a directory that is to contain the
// private directories of jobs. realPath is path without symbolic links. If otherAccountsMayEnter is true, all accounts
// must be able to enter the directory.
func checkParentDirs(path, realPath string, otherAccountsMayEnter bool) error {
	if realPath != path {
		return errors.New(path + " contains a symbolic link; use the real path, " + realPath)
	}
	if err := CheckWorkspacesDir(path); err != nil {
		return err
	}
	for dir := path; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		owner, mode, problem := int(info.Sys().(*syscall.Stat_t).Uid), info.Mode(), ""
		switch {
		case owner != 0 && owner != os.Geteuid():
			problem = fmt.Sprintf("belongs to uid %d, but must belong to root or the account of the runner (see chown)", owner)
		case mode.Perm()&0o022 != 0 && mode&os.ModeSticky == 0:
			problem = "is writable by other accounts; remove that right with chmod go-w"
		case otherAccountsMayEnter && mode.Perm()&0o001 == 0:
			problem = "cannot be entered by the accounts that jobs run as; allow it with chmod o+x"
		case dir == filepath.Dir(dir):
			return nil
		}
		if problem != "" {
			return errors.New(dir + " " + problem + ", or choose another directory")
		}
	}
}
