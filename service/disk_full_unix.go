//go:build unix

package service

import (
	"errors"

	"golang.org/x/sys/unix"
)

// diskFull reports whether an error means that the disk or a quota is full.
func diskFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
