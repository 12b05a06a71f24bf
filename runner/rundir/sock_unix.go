//go:build unix

package rundir

import (
	"net"
	"os"
	"time"

	"github.com/queuectl/queuectl/internal/sockpath"
)

// Listen creates a socket and sets its mode. The socket exists for a moment before its mode is set. This is
// safe, because accounts that may not connect cannot enter the socket's directory.
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
	// Closing the listener must not remove the socket: the socket is removed together with its directory.
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
	return sockpath.DialWithin(shortPath, 5*time.Second)
}
