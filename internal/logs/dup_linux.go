package logs

import (
	"os"

	"golang.org/x/sys/unix"
)

// dup makes a descriptor of this number the same as that of a file.
func dup(f *os.File, number int) error { return unix.Dup3(int(f.Fd()), number, 0) }
