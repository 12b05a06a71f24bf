//go:build unix

package service

import (
	"errors"

	"golang.org/x/sys/unix"
)

// diskFull reports whether the system refused something for want of space on a disk.
func diskFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
