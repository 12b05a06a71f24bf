//go:build unix

package logs

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ReopenIfMoved checks whether the file at path is still the open log f. If it is another file, for example because
// logrotate has renamed the log, ReopenIfMoved opens the file at path under the descriptor number of f. Then f writes
// to this file. If standard error was the old log, ReopenIfMoved redirects standard error too.
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
