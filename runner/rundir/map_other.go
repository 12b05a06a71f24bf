//go:build !linux

package rundir

import "os"

// staysWritable returns false, so that the journal uses no mappings. On this system it is unknown
// whether existing data can be overwritten through a mapping if the disk is full. Also, Windows cannot
// truncate a file while it is mapped.
func staysWritable(*os.File) bool { return false }
