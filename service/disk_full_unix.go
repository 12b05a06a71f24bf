//go:build unix

package service

import (
	"errors"

	"golang.org/x/sys/unix"
)

// isDiskFullError reports whether an error means that the disk or a quota is full.
func isDiskFullError(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
