//go:build unix

package runner

import (
	"net"
	"syscall"
)

// writeNow writes what a connection takes without waiting, and says how much. A
// broken connection takes nothing; whoever reads it finds out.
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
