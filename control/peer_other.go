//go:build unix && !linux

package control

import (
	"net"

	"github.com/queuectl/queuectl/queue"
)

// PeerOf returns an error, because it is not implemented for this operating system.
func PeerOf(net.Conn) (Peer, error) {
	return Peer{}, queue.Errorf(queue.CodeUnsupported, "identifying the user at the other end of a socket is not supported on this operating system; run the service on Linux")
}

// callerMayRead means that a caller that only waits for its answer reads the connection itself.
const callerMayRead = false

// hungUp always returns false, because it is not implemented for this operating system.
func hungUp(net.Conn) bool { return false }
