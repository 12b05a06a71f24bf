package enqueue

import (
	"io"
	"os"
	"sync/atomic"
	"time"
)

// readProgress tracks how much of a file was read, for the progress bar.
type readProgress struct {
	file      *os.File
	began     time.Time
	size      int64        // size of the file in bytes; 0 if unknown
	bytesRead atomic.Int64 // number of bytes read
}

// Open starts to track a file.
func (p *readProgress) Open(f *os.File) io.Reader {
	p.file, p.began = f, time.Now()
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
		p.size = info.Size()
	}
	return p
}

// Read implements io.Reader.
func (p *readProgress) Read(buffer []byte) (int, error) {
	n, err := p.file.Read(buffer)
	p.bytesRead.Add(int64(n))
	return n, err
}
