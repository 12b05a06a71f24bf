//go:build unix

package wire

import (
	"net"
	"syscall"
)

// writeNow writes as many bytes as a connection accepts without blocking, and returns their number. If the
// connection is broken, it returns 0. The goroutine that reads the connection then gets the error.
func writeNow(c net.Conn, b []byte) (n int) {
	file, ok := c.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return 0
	}
	raw.Write(func(fd uintptr) bool {
		n, _ = syscall.Write(int(fd), b)
		return true
	})
	return max(n, 0)
}
