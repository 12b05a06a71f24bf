package logs

import (
	"os"

	"golang.org/x/sys/unix"
)

// dup makes the descriptor with this number refer to the same open file as f.
func dup(f *os.File, number int) error { return unix.Dup3(int(f.Fd()), number, 0) }
