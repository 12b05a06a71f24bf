//go:build unix

package rundir

import (
	"net"
	"os"
	"time"

	"github.com/queuectl/queuectl/internal/sockpath"
)

// Listen creates a socket and sets its mode. For a moment before, the socket has another mode. This is safe,
// because accounts that may not connect cannot enter the socket's directory.
func Listen(path string, mode os.FileMode) (net.Listener, error) {
	shortPath, done, err := sockpath.ShortPath(path)
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: shortPath, Net: "unix"})
	if err != nil {
		return nil, err
	}
	// The socket is removed together with its directory, not when the listener is closed.
	l.SetUnlinkOnClose(false)
	return l, os.Chmod(path, mode)
}

// Dial connects to a runner's socket.
func Dial(path string) (net.Conn, error) {
	shortPath, done, err := sockpath.ShortPath(path)
	if err != nil {
		return nil, err
	}
	defer done()
	return sockpath.DialTimeout(shortPath, 5*time.Second)
}
