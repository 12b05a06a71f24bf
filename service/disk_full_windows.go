package service

import (
	"errors"

	"golang.org/x/sys/windows"
)

// isDiskFullError reports whether an error means that the disk is full.
func isDiskFullError(err error) bool {
	return errors.Is(err, windows.ERROR_DISK_FULL) || errors.Is(err, windows.ERROR_HANDLE_DISK_FULL)
}
