//go:build unix

package runner

import (
	"fmt"
	"os"
	"syscall"
)

// checkPlace refuses an existing directory for the private directories of jobs, such as a file system that is mounted
// there, in which another account could replace them.
func checkPlace(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fmt.Errorf("%s: must be a directory; remove it, or mount a file system there", dir)
	case ok && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s: belongs to uid %d, and the runner has uid %d; run: chown %[3]d %[1]s", dir, st.Uid, os.Geteuid())
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s: other accounts may write there (mode %03o); run: chmod go-w %[1]s", dir, info.Mode().Perm())
	}
	return nil
}
