//go:build unix

package runner

import (
	"net"
	"os"
	"syscall"
	"time"

	"github.com/queuectl/queuectl/internal/sockpath"
)

// listen makes a socket with a mode. It is in a folder that nobody else can enter, but
// for whom the mode lets connect.
func listen(path string, mode os.FileMode) (net.Listener, error) {
	short, done, err := sockpath.Short(path)
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := net.Listen("unix", short)
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // its folder is removed with it
	return l, os.Chmod(path, mode)
}

// dial connects to a runner's socket.
func dial(path string) (net.Conn, error) {
	short, done, err := sockpath.Short(path)
	if err != nil {
		return nil, err
	}
	defer done()
	return net.DialTimeout("unix", short, 5*time.Second)
}

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
