//go:build unix && !linux

package logs

import (
	"os"

	"golang.org/x/sys/unix"
)

// dup makes a descriptor of this number the same as that of a file.
func dup(f *os.File, number int) error { return unix.Dup2(int(f.Fd()), number) }
