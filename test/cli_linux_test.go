package test

import (
	"strings"
	"syscall"
	"testing"
)

// A job runs with its caller's umask, or with the umask that the caller specifies.
func TestCallersUmask(t *testing.T) {
	q := startQueue(t, "--workers", "1")
	w := q.dial()
	old := syscall.Umask(0o027)
	masked := strings.TrimSpace(q.must("enqueue", "umask"))
	syscall.Umask(old)
	for id, want := range map[string]string{masked: "0027\n", q.must("enqueue", "--umask", "077", "umask"): "0077\n"} {
		if got := w.waitEnded(id).Output; got != want {
			t.Errorf("umask is %q, want %q", got, want)
		}
	}
}
