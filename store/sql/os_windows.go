package sql

import (
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/windows"
)

// plainFile is nothing special here.
const plainFile = 0

// noSpace reports whether the system refuses to write for want of space, with other words than a full disk's.
func noSpace(errno syscall.Errno) bool { return errno == windows.ERROR_DISK_QUOTA_EXCEEDED }

// freeBytes is how much a process of ours may still write below dir.
func freeBytes(dir string) (int64, error) {
	name, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return 0, err
	}
	var free uint64
	err = windows.GetDiskFreeSpaceEx(name, &free, nil, nil)
	return int64(free), err
}

// totalBytes is how large the file system of dir is.
func totalBytes(dir string) (int64, error) {
	name, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return 0, err
	}
	var total uint64
	err = windows.GetDiskFreeSpaceEx(name, nil, &total, nil)
	return int64(total), err
}

// canWrite reports whether a file has no read-only attribute. The attribute has no effect on directories.
func canWrite(_ string, info os.FileInfo) bool { return info.IsDir() || info.Mode().Perm()&0o200 != 0 }

// checkPrivate accepts every file. On Windows the directory's access list keeps other accounts out.
func checkPrivate(string, os.FileInfo, os.FileMode) error { return nil }

// findsReaders is what tells who has a file open.
func findsReaders(path string) string {
	return "resmon (tab CPU, Associated Handles, search for " + filepath.Base(path) + ")"
}

// syncDir makes the names in a folder durable; Windows does so by itself.
func syncDir(string) error { return nil }

// fileLimit is how many bytes a file of this process may have; nothing limits that here.
func fileLimit() (n int64, ok bool) { return 0, false }

// FileID tells a file from its copies; here nothing does without opening it.
func FileID(string) string { return "" }
