//go:build unix

package sqlitedb

import (
	"fmt"
	"math"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/queue"
)

// RegularFileOpenFlags are flags for opening a regular file. If the path is a symbolic link, opening fails. If the
// file is a pipe, opening does not block.
const RegularFileOpenFlags = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

// IsDiskLimitErrno reports whether a write failed because the disk is full, or because a disk quota or file size limit
// is reached.
func IsDiskLimitErrno(errno syscall.Errno) bool {
	return errno == unix.ENOSPC || errno == unix.EDQUOT || errno == unix.EFBIG
}

// DiskSpaceOf returns the space in the file system of a directory.
func DiskSpaceOf(dir string) (DiskSpace, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return DiskSpace{}, err
	}
	return DiskSpace{
		FreeBytes: int64(s.Bavail) * int64(s.Bsize), TotalBytes: int64(s.Blocks) * int64(s.Bsize),
		IsOutOfInodes: s.Files > 0 && s.Ffree == 0,
	}, nil
}

// FileSizeLimit returns the maximum size in bytes of a file of this process. isLimited is false if there is no limit.
func FileSizeLimit() (maxBytes int64, isLimited bool) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil || limit.Cur > math.MaxInt64 {
		return 0, false
	}
	return int64(limit.Cur), true
}

// CheckWritable returns an error if this process cannot write to a file or directory. It does not open the
// file, because closing it again would release the locks that SQLite holds on it.
func CheckWritable(path string, _ os.FileInfo) error {
	switch err := unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS); err {
	case nil:
		return nil
	case unix.EROFS:
		return fmt.Errorf("%s cannot be written: %w; check the disk, then mount it writable", path, err)
	default:
		return fmt.Errorf("%s cannot be written: %w; give the service's account write access to it", path, err)
	}
}

// CheckPrivate returns an error for a file or directory that belongs to another account, or to which other accounts
// have too much access. forbiddenBits are the permission bits that must not be set.
func CheckPrivate(path string, info os.FileInfo, forbiddenBits os.FileMode) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	if int(st.Uid) != os.Geteuid() { // reject the file: another user may have put it here
		return fmt.Errorf("%s belongs to uid %d, not to uid %d of this process, so it cannot be trusted; "+
			"restore your own backup (queuectl restore FILE), or choose another directory with --dir", path, st.Uid,
			os.Geteuid())
	}
	if info.Mode().Perm()&forbiddenBits != 0 {
		mode := "600"
		if info.IsDir() {
			mode = "700"
		}
		return fmt.Errorf("%s can be accessed by other users (mode %03o); run: chmod %s %s", path, info.Mode().Perm(), mode,
			queue.QuoteShellWord(path))
	}
	return nil
}

// ListFileUsersCommand returns a command that shows which processes have a file open.
func ListFileUsersCommand(path string) string { return "fuser -v " + path }

// FileID returns an id of a file. No other existing file has the same id, not even a copy.
func FileID(path string) string {
	var st syscall.Stat_t
	if syscall.Stat(path, &st) != nil {
		return ""
	}
	return fmt.Sprintf("%d/%d", st.Dev, st.Ino)
}
