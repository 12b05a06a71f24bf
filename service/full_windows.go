package service

import (
	"errors"

	"golang.org/x/sys/windows"
)

// diskFull reports whether the system refused something for want of space on a disk.
func diskFull(err error) bool {
	return errors.Is(err, windows.ERROR_DISK_FULL) || errors.Is(err, windows.ERROR_HANDLE_DISK_FULL)
}
