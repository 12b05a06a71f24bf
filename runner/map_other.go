//go:build !linux

package runner

import "os"

// staysWritable reports whether what was written of a file can be written again through a mapping, however full the disk is, and the
// file be cut short while there is one.
func staysWritable(*os.File) bool { return false }
