//go:build unix

package wire

import (
	"net"
	"syscall"
)

// writeNonBlocking writes as many bytes as a connection accepts without blocking, and returns their number. If the
// connection is broken, it returns 0. The goroutine that reads the connection then gets the error.
func writeNonBlocking(c net.Conn, b []byte) (writtenBytes int) {
	file, ok := c.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return 0
	}
	raw.Write(func(fd uintptr) bool {
		writtenBytes, _ = syscall.Write(int(fd), b)
		return true
	})
	return max(writtenBytes, 0)
}
