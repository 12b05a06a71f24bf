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

// These constants are limits for reading certificate files. A change of settings waits for the
// read, and the file system may not respond.
const (
	certTimeout  = 5 * time.Second
	maxCertBytes = 1 << 20 // maximum size of each file in bytes
)

// loadCert reads a certificate and its key. If the files do not respond, the read continues in the
// background, and further reads fail until it ends. An error is a *queue.Error of CodeInvalid that names the
// setting.
func (s *Server) loadCert(cert, key string) (*tls.Certificate, error) {
	if !s.loadingCert.CompareAndSwap(false, true) {
		return nil, queue.Invalid("web.tls_cert", "the certificate files are still being read after an earlier change; "+
			"try again later")
	}
	type result struct {
		pair tls.Certificate
		err  error
	}
	read := make(chan result, 1)
	go func() { // this goroutine ends when the file system responds
		var r result
		var texts [2][]byte
		for i, file := range [][2]string{{"web.tls_cert", cert}, {"web.tls_key", key}} {
			if r.err != nil {
				break
			}
			var err error
			if texts[i], err = readRegular(file[1]); err != nil {
				r.err = queue.Invalid(file[0], "%v", err)
			}
		}
		if r.err == nil {
			var err error
			if r.pair, err = tls.X509KeyPair(texts[0], texts[1]); err != nil {
				r.err = queue.Invalid("web.tls_cert", "%v", err)
			}
		}
		s.loadingCert.Store(false)
		read <- r
	}()
	select {
	case r := <-read:
		return &r.pair, r.err
	case <-time.After(certTimeout):
		return nil, queue.Invalid("web.tls_cert", "the file system did not respond while %s and %s were read; check it, "+
			"then run: queuectl reload", cert, key)
	}
}

// readRegular reads a regular file. It returns an error for other files, because reading them could
// block.
func readRegular(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO would block until it has a writer
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
