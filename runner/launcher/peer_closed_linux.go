package launcher

import (
	"net"

	"golang.org/x/sys/unix"
)

// hasPeerClosed reports whether the process at the other end of a connection has closed it.
func hasPeerClosed(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	closed := false
	err = raw.Control(func(fd uintptr) {
		ends := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, failed := unix.Poll(ends, 0)
		closed = failed == nil && n == 1
	})
	return err == nil && closed
}
