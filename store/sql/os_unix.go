//go:build unix

package sql

import (
	"fmt"
	"math"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/queue"
)

// plainFile has no link followed, and no pipe waited for, where a file is to be.
const plainFile = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

// noSpace reports whether the system refuses to write for want of space: of a disk, of a user's quota, or of a file's size.
func noSpace(errno syscall.Errno) bool {
	return errno == unix.ENOSPC || errno == unix.EDQUOT || errno == unix.EFBIG
}

// freeBytes is how much a process of ours may still write below dir.
func freeBytes(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * int64(s.Bsize), nil
}

// totalBytes is how large the file system of dir is.
func totalBytes(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return int64(s.Blocks) * int64(s.Bsize), nil
}

// fileLimit is how many bytes a file of this process may have; ok is false where nothing
// limits that.
func fileLimit() (n int64, ok bool) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil || limit.Cur > math.MaxInt64 {
		return 0, false
	}
	return int64(limit.Cur), true
}

// canWrite reports whether this process may write to a file or directory. It does not open the file: closing it would
// release the locks that SQLite holds on it in this process.
func canWrite(path string, _ os.FileInfo) bool {
	return unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS) == nil
}

// checkPrivate refuses a file or directory that belongs to another account, or whose mode has any of the permission
// bits in open. Those bits give access to other accounts.
func checkPrivate(path string, info os.FileInfo, open os.FileMode) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	if int(st.Uid) != os.Geteuid() { // who may have planted it
		return fmt.Errorf("%s belongs to uid %d, not to uid %d of this process, so it cannot be trusted; "+
			"restore your own backup (queuectl restore FILE), or choose another directory with --dir", path, st.Uid, os.Geteuid())
	}
	if info.Mode().Perm()&open != 0 {
		mode := "600"
		if info.IsDir() {
			mode = "700"
		}
		return fmt.Errorf("%s can be accessed by other users (mode %03o); run: chmod %s %s", path, info.Mode().Perm(), mode, queue.Word(path))
	}
	return nil
}

// findsReaders is what tells who has a file open.
func findsReaders(path string) string { return "fuser -v " + path }

// syncDir makes the names in a folder durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// FileID tells a file from every copy of it that there is at the same time.
func FileID(path string) string {
	var st syscall.Stat_t
	if syscall.Stat(path, &st) != nil {
		return ""
	}
	return fmt.Sprintf("%d/%d", st.Dev, st.Ino)
}
