//go:build unix

package runner

import (
	"os"
	"os/signal"
	"syscall"
)

// OutliveFileLimit has a write past the limit of how large a file may be (RLIMIT_FSIZE)
// fail, where it would end this process. The signal is not ignored: commands would inherit
// that.
func OutliveFileLimit() { signal.Notify(make(chan os.Signal, 1), syscall.SIGXFSZ) }
