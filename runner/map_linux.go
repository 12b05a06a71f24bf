package runner

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// inPlace are file systems that write over what a file has where that stands. On others, or XFS once somebody has made a reflink, a
// mapping of a written file may need room anew, and a full disk ends who writes to it.
// See docs/decisions/0057.
var inPlace = []int64{unix.EXT4_SUPER_MAGIC, unix.TMPFS_MAGIC}

// staysWritable reports whether what was written of a file can be written again through a mapping, however full the disk is.
func staysWritable(f *os.File) bool {
	var s unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &s) == nil && slices.Contains(inPlace, int64(s.Type))
}
