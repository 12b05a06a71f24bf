//go:build unix

package logs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Reopen begins the log of a path again where the file that f has open was moved or removed: as
// tools do that rotate logs. f keeps its number, and so does standard error where it is the same
// file.
func Reopen(f *os.File, path string) error {
	open, err := f.Stat()
	if err != nil {
		return err
	}
	if there, err := os.Stat(path); err == nil && os.SameFile(open, there) {
		return nil
	}
	fresh, err := Open(path)
	if err != nil {
		return err
	}
	defer fresh.Close()
	if is, failed := os.Stderr.Stat(); failed == nil && os.SameFile(open, is) {
		err = dup(fresh, 2)
	}
	if own := int(f.Fd()); own != 2 {
		err = errors.Join(err, dup(fresh, own))
		unix.CloseOnExec(own)
	}
	return err
}
