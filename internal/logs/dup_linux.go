package logs

import (
	"os"

	"golang.org/x/sys/unix"
)

// dup makes the descriptor targetFD refer to the same open file as f.
func dup(f *os.File, targetFD int) error { return unix.Dup3(int(f.Fd()), targetFD, 0) }
