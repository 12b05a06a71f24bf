//go:build unix

package logs

import (
	"fmt"
	"os"
	"syscall"
)

// WritesToJournal reports whether a file is the stream to the journal that systemd has passed to this
// process (systemd.exec(5), $JOURNAL_STREAM).
func WritesToJournal(f *os.File) bool {
	var st syscall.Stat_t
	if syscall.Fstat(int(f.Fd()), &st) != nil {
		return false
	}
	return os.Getenv("JOURNAL_STREAM") == fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}
