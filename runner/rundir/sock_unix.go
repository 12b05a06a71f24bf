//go:build unix

package rundir

import (
	"net"
	"os"
	"time"

	"github.com/queuectl/queuectl/internal/sockpath"
)

// Listen creates a socket with a mode. Accounts that the mode does not allow to connect cannot enter
// the socket's directory either.
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
	// Closing the listener must not remove the socket, which is removed with its directory.
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
