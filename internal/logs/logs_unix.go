//go:build unix

package logs

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ReopenIfMoved opens the file at path if that is no longer the open log f, for example because logrotate has moved
// f. Then f writes to the file at path, with the same descriptor number. If standard error was the old log,
// Reopen redirects it too.
func ReopenIfMoved(f *os.File, path string) error {
	open, err := f.Stat()
	if err != nil {
		return err
	}
	if there, err := os.Stat(path); err == nil && os.SameFile(open, there) {
		return nil
	}
	fresh, err := OpenServiceLog(path)
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

// WritesToJournal reports whether f is connected to the journal. systemd sets $JOURNAL_STREAM for a process
// that it connects to the journal (systemd.exec(5)).
func WritesToJournal(f *os.File) bool {
	var st syscall.Stat_t
	if syscall.Fstat(int(f.Fd()), &st) != nil {
		return false
	}
	return os.Getenv("JOURNAL_STREAM") == fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}
