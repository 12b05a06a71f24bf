//go:build unix

package logs

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Reopen opens the log at path again if the open file f was moved or removed, for example by logrotate.
// f keeps its descriptor number. If standard error was the same file, Reopen redirects standard error
// too.
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

// WritesToJournal reports whether a file is the stream to the journal that systemd has passed to this
// process (systemd.exec(5), $JOURNAL_STREAM).
func WritesToJournal(f *os.File) bool {
	var st syscall.Stat_t
	if syscall.Fstat(int(f.Fd()), &st) != nil {
		return false
	}
	return os.Getenv("JOURNAL_STREAM") == fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}
