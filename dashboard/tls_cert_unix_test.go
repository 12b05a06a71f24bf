//go:build unix

package dashboard

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Reading a FIFO as a certificate file fails immediately instead of blocking. While an earlier read of the certificate
// hangs, another read fails immediately too.
func TestUnresponsiveCertificateFileTimesOut(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "crt")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	s := &Server{}
	for range 2 {
		if _, err := s.loadCert(fifo, fifo); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("reading a FIFO as a certificate: %v", err)
		}
	}
	s.isLoadingCert.Store(true) // simulates an earlier read that has not ended
	if _, err := s.loadCert(os.DevNull, os.DevNull); err == nil ||
		!strings.Contains(err.Error(), "are still being read after an earlier change") {
		t.Errorf("reading a certificate during another read that hangs: %v", err)
	}
}
