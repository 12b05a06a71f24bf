package dashboard

import (
	"crypto/tls"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// These constants limit the reading of certificate files, because a change of settings waits until the files are read.
// Without a time limit, a file system that does not respond would block the change.
const (
	certLoadTimeout = 5 * time.Second
	maxCertBytes    = 1 << 20 // maximum size of each file in bytes
)

// loadCert reads a certificate and its key. If the file system does not respond within certLoadTimeout, loadCert
// returns an error, and the files are still being read in the background. Until the file system responds, further calls
// fail.
//
// Each error is a *queue.Error of CodeInvalid that names the setting.
func (s *Server) loadCert(certPath, keyPath string) (*tls.Certificate, error) {
	if !s.isLoadingCert.CompareAndSwap(false, true) {
		return nil, queue.InvalidFieldError("web.tls_cert", "the certificate files are still being read after an earlier "+
			"change; "+
			"try again later")
	}
	type result struct {
		certPair tls.Certificate
		err      error
	}
	read := make(chan result, 1)
	go func() { // the goroutine ends when the file system responds, perhaps after certLoadTimeout
		pair, err := readCertPair(certPath, keyPath)
		s.isLoadingCert.Store(false)
		read <- result{pair, err}
	}()
	select {
	case r := <-read:
		return &r.certPair, r.err
	case <-time.After(certLoadTimeout):
		return nil,
			queue.InvalidFieldError("web.tls_cert", "the file system did not respond while %s and %s were read; check it, "+
				"then run: queuectl reload", certPath, keyPath)
	}
}

// readCertPair reads a certificate and its key from two files.
func readCertPair(certPath, keyPath string) (certPair tls.Certificate, err error) {
	certText, err := readRegularFile(certPath)
	if err != nil {
		return certPair, queue.InvalidFieldError("web.tls_cert", "%v", err)
	}
	keyText, err := readRegularFile(keyPath)
	if err != nil {
		return certPair, queue.InvalidFieldError("web.tls_key", "%v", err)
	}
	if certPair, err = tls.X509KeyPair(certText, keyText); err != nil {
		err = queue.InvalidFieldError("web.tls_cert", "%v", err)
	}
	return certPair, err
}

// readRegularFile reads a file. It returns an error if the file is not a regular file, because reading a FIFO
// or a device could block.
func readRegularFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // without O_NONBLOCK, opening a FIFO would block
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file; give the path of a PEM file", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxCertBytes+1))
	if err == nil && len(text) > maxCertBytes {
		err = fmt.Errorf("%s is longer than %d bytes", path, maxCertBytes)
	}
	return text, err
}
