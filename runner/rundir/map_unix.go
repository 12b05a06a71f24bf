//go:build unix

package rundir

import (
	"os"

	"golang.org/x/sys/unix"
)

// mapFile maps the first bytes of a file. Writes to the mapping change the file immediately, and they survive
// the death of this process.
func mapFile(f *os.File, size int) ([]byte, error) {
	return unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// unmapFile removes a mapping.
func unmapFile(mem []byte) error { return unix.Munmap(mem) }

// fileID returns numbers that distinguish a file from all copies of it that exist at the same time.
func fileID(f *os.File) (dev, ino int64, err error) {
	var st unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &st)
	return int64(st.Dev), int64(st.Ino), err
}
