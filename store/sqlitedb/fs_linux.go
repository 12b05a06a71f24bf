package sqlitedb

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/queuectl/queuectl/internal/failpoint"
)

// fileSystemsByMagic lists file systems by their magic numbers. These come from linux/magic.h, or from the source
// of the file system if they are missing there.
var fileSystemsByMagic = map[int64]fileSystem{
	0x6969:     {Name: "NFS", IsUnsupported: true},
	0x517b:     {Name: "SMB", IsUnsupported: true},
	0xfe534d42: {Name: "SMB", IsUnsupported: true},
	0xff534d42: {Name: "CIFS", IsUnsupported: true},
	0x01021997: {Name: "9p", IsUnsupported: true},
	0x65735546: {Name: "FUSE", IsUnsupported: true},
	0x00c36400: {Name: "Ceph", IsUnsupported: true},
	0x5346414f: {Name: "AFS", IsUnsupported: true},
	0x6b414653: {Name: "AFS", IsUnsupported: true},
	0x73757245: {Name: "Coda", IsUnsupported: true},
	0x7461636f: {Name: "OCFS2", IsUnsupported: true},
	0x01161970: {Name: "GFS2", IsUnsupported: true},
	0x0bd00bd0: {Name: "Lustre", IsUnsupported: true},
	0x786f4256: {Name: "vboxsf", IsUnsupported: true},
	0x01021994: {Name: "tmpfs", Warning: "files there are only in memory, so all jobs are lost at a reboot"},
	0x858458f6: {Name: "ramfs", Warning: "files there are only in memory, so all jobs are lost at a reboot"},
	0x794c7630: {Name: "overlay", Warning: "files there are lost when the container is removed"},
}

// FileSystemOf returns the file system of a directory.
func FileSystemOf(dir string) (fileSystem, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return fileSystem{}, fmt.Errorf("cannot check the file system of %s: %w", dir, err)
	}
	magic := int64(uint32(s.Type))
	if failpoint.IsEnabled("nfs") {
		magic = 0x6969
	}
	if f, ok := fileSystemsByMagic[magic]; ok {
		return f, nil
	}
	return fileSystem{Name: fmt.Sprintf("a local file system (%#x)", magic)}, nil
}

// allocateWALIndex allocates all disk blocks of the database's -shm file that a WAL of WALSizeLimitBytes needs.
// SQLite itself writes one byte per 4 KiB of that file, so smaller blocks may be missing. If the disk is full,
// the first access to a missing block through the mapped file fails with SQLITE_IOERR_IN_PAGE, which the store
// does not survive. The function uses SQLite's own descriptor of the file. Closing another descriptor would
// release SQLite's POSIX locks on the file.
func allocateWALIndex(path string) error {
	var disk unix.Statfs_t
	file, err := os.Stat(path + "-shm") // the file does not exist if the database is not in WAL mode
	if err != nil || unix.Statfs(path+"-shm", &disk) != nil || disk.Bsize >= 4<<10 {
		return nil
	}
	descriptors, _ := os.ReadDir("/proc/self/fd") // without /proc, no blocks are allocated
	for _, d := range descriptors {
		info, err := os.Stat(filepath.Join("/proc/self/fd", d.Name()))
		if err != nil || !os.SameFile(info, file) {
			continue
		}
		fd, err := strconv.Atoi(d.Name())
		if err == nil {
			err = unix.Fallocate(fd, 0, 0, walIndexBytes) // ext2 and ext3 do not support this call
		}
		if errno, ok := errors.AsType[syscall.Errno](err); ok && IsDiskLimitErrno(errno) {
			return noSpaceForDatabaseError(path, err)
		}
		return nil
	}
	return nil
}

// walIndexBytes is the size of the -shm file, in bytes, for a WAL of WALSizeLimitBytes. The file has one region of
// 32 KiB for each 4,096 pages in the WAL (sqlite.org/walformat.html).
const walIndexBytes = (1 + WALSizeLimitBytes/PageSize/4096) * (32 << 10)

// UnsupportedFileSystemNames returns text for the user that lists the file systems on which no queue may be stored.
func UnsupportedFileSystemNames() string {
	names := map[string]bool{}
	for _, f := range fileSystemsByMagic {
		if f.IsUnsupported {
			names[f.Name] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), ", ")
}
