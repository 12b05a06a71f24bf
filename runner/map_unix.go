//go:build unix

package runner

import (
	"os"

	"golang.org/x/sys/unix"
)

// share maps a part of a file. Writes to the mapping change the file immediately, and they survive the
// death of this process.
func share(f *os.File, from int64, size int) ([]byte, error) {
	return unix.Mmap(int(f.Fd()), from, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// unshare removes a mapping.
func unshare(mem []byte) error { return unix.Munmap(mem) }

// identity returns numbers that distinguish a file from all copies of it that exist at the same time.
func identity(f *os.File) (dev, ino int64, err error) {
	var st unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &st)
	return int64(st.Dev), int64(st.Ino), err
}
