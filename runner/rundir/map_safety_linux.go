package rundir

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// overwritingSystems lists the file systems that overwrite existing data at its location on the disk.
// On other file systems, such as XFS after a reflink, writing to a mapped page may need new disk space.
// The writer would then be killed by SIGBUS if the disk is full.
// See docs/decisions/0057.
var overwritingSystems = []int64{unix.EXT4_SUPER_MAGIC, unix.TMPFS_MAGIC}

// isSafeToMap reports whether existing data of a file can be overwritten through a mapping even if
// the disk is full.
func isSafeToMap(f *os.File) bool {
	var s unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &s) == nil && slices.Contains(overwritingSystems, int64(s.Type))
}
