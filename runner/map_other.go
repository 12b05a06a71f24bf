//go:build !linux

package runner

import "os"

// staysWritable reports whether what was written of a file can be written again through a mapping, however full the disk is. Here that is
// not known, and on Windows a file cannot be cut short while it is mapped.
func staysWritable(*os.File) bool { return false }
