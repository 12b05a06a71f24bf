//go:build unix

package rundir

import (
	"os"

	"golang.org/x/sys/unix"
)

// mapFile maps size bytes from the start of a file into memory. A write to this memory changes the file
// immediately, so the change is kept even if this process dies.
func mapFile(f *os.File, size int) ([]byte, error) {
	return unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// unmapFile removes a mapping.
func unmapFile(mem []byte) error { return unix.Munmap(mem) }

// fileID returns the device and inode number of a file. A copy of the file that exists at the same time has other
// numbers.
func fileID(f *os.File) (dev, ino int64, err error) {
	var st unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &st)
	return int64(st.Dev), int64(st.Ino), err
}
