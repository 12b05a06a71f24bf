//go:build unix && !linux

package control

import (
	"net"

	"github.com/queuectl/queuectl/queue"
)

// PeerOf asks the kernel who is at the other end; on this system it cannot yet.
func PeerOf(net.Conn) (Peer, error) {
	return Peer{}, queue.Errorf(queue.CodeUnsupported, "identifying the user at the other end of a socket is not supported on this operating system; run the service on Linux")
}

// readsAlone reports whether a caller that only waits for its answer reads the connection itself.
const readsAlone = false

// hungUp reports whether the other end is closed for both ways.
func hungUp(net.Conn) bool { return false }
