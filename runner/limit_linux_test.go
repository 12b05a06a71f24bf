package runner

import (
	"os/signal"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// fileLimit lets no file grow past n bytes until the returned function is
// called.
func fileLimit(t *testing.T, n int64) func() {
	t.Helper()
	signal.Ignore(syscall.SIGXFSZ) // the write fails instead
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: uint64(n), Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
			t.Fatal(err)
		}
		signal.Reset(syscall.SIGXFSZ)
	}
}
