//go:build unix

package sqlstore

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// freeBytes is how much a process of ours may still write below dir.
func freeBytes(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * int64(s.Bsize), nil
}

// checkOwner refuses a database that another user could write.
func checkOwner(path string, info os.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	if int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("the database %s belongs to uid %d; run: chown %d %s", path, st.Uid, os.Geteuid(), path)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("the database %s is open to others (mode %03o); run: chmod 600 %s", path, info.Mode().Perm(), path)
	}
	return nil
}

// syncDir makes the names in a folder durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
