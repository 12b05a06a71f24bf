//go:build unix

package service

import (
	"fmt"
	"os"
	"syscall"
)

// toJournal reports whether a file is the stream to systemd's journal that the
// process was given (systemd.exec(5), $JOURNAL_STREAM).
func toJournal(f *os.File) bool {
	var st syscall.Stat_t
	if syscall.Fstat(int(f.Fd()), &st) != nil {
		return false
	}
	return os.Getenv("JOURNAL_STREAM") == fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}
