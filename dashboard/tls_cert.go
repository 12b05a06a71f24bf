package dashboard

import (
	"crypto/tls"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

// These constants are limits for reading certificate files. A change of settings waits for the
// read, and the file system may not respond.
const (
	certTimeout  = 5 * time.Second
	maxCertBytes = 1 << 20 // maximum size of each file in bytes
)

// loadCert reads a certificate and its key. If the file system does not respond in time, the read
// continues in the background, and further reads fail until it ends.
func (s *Server) loadCert(cert, key string) (*tls.Certificate, error) {
	if !s.loadingCert.CompareAndSwap(false, true) {
		return nil, fmt.Errorf("the certificate files are still being read after an earlier change; try again later")
	}
	type result struct {
		pair tls.Certificate
		err  error
	}
	read := make(chan result, 1)
	go func() { // this goroutine ends when the file system responds
		var r result
		var texts [2][]byte
		for i, path := range []string{cert, key} {
			if r.err == nil {
				texts[i], r.err = readRegular(path)
			}
		}
		if r.err == nil {
			r.pair, r.err = tls.X509KeyPair(texts[0], texts[1])
		}
		s.loadingCert.Store(false)
		read <- r
	}()
	select {
	case r := <-read:
		return &r.pair, r.err
	case <-time.After(certTimeout):
		return nil, fmt.Errorf("the file system did not respond while %s and %s were read; check it, then run: queuectl "+
			"reload", cert, key)
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
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxCertBytes+1))
	if err == nil && len(text) > maxCertBytes {
		err = fmt.Errorf("%s is longer than %d bytes", path, maxCertBytes)
	}
	return text, err
}
