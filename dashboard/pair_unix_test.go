//go:build unix

package dashboard

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A certificate file that blocks, such as a FIFO, delays neither a change of settings nor the next attempt.
func TestCertificateThatDoesNotAnswer(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "crt")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	s := &Server{}
	for range 2 {
		if _, err := s.pairOf(fifo, fifo); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("a FIFO: %v", err)
		}
	}
	s.reading.Store(true) // an earlier read has not ended
	if _, err := s.pairOf(os.DevNull, os.DevNull); err == nil || !strings.Contains(err.Error(), "of an earlier change are still being read") {
		t.Errorf("beside one that hangs: %v", err)
	}
}
