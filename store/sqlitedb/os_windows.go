package sqlitedb

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/windows"
)

// RegularFileOpenFlags are flags for opening a regular file. On Windows, none are needed.
const RegularFileOpenFlags = 0

// IsDiskLimitErrno reports whether a write failed because a disk quota is reached. Callers detect a full disk
// themselves.
func IsDiskLimitErrno(errno syscall.Errno) bool { return errno == windows.ERROR_DISK_QUOTA_EXCEEDED }

// DiskSpaceOf returns the space in the file system of a directory. IsOutOfInodes is always false, because Windows has
// no separate limit on the number of files.
func DiskSpaceOf(dir string) (DiskSpace, error) {
	name, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return DiskSpace{}, err
	}
	var free, total uint64
	err = windows.GetDiskFreeSpaceEx(name, &free, &total, nil)
	return DiskSpace{FreeBytes: int64(free), TotalBytes: int64(total)}, err
}

// CheckWritable returns an error if a file has the read-only attribute. It accepts every directory, because the
// attribute has no effect there.
func CheckWritable(path string, info os.FileInfo) error {
	if info.IsDir() || info.Mode().Perm()&0o200 != 0 {
		return nil
	}
	return fmt.Errorf("%s cannot be written: it is read-only; run: attrib -R %[1]s", path)
}

// CheckPrivate accepts every file. On Windows the directory's access list keeps other accounts out.
func CheckPrivate(string, os.FileInfo, os.FileMode) error { return nil }

// ListFileUsersCommand returns text for the user that describes how to find the processes that have a file open.
func ListFileUsersCommand(path string) string {
	return "resmon (tab CPU, Associated Handles, search for " + filepath.Base(path) + ")"
}

// FileSizeLimit returns false for isLimited, because Windows has no file size limit per process.
func FileSizeLimit() (maxBytes int64, isLimited bool) { return 0, false }

// FileID returns "", because on Windows an id can be read only from an open file.
func FileID(string) string { return "" }
