//go:build unix && !linux

package socket

import (
	"net"

	"github.com/queuectl/queuectl/queue"
)

// PeerOf returns an error, because a socket of this operating system does not identify the user at its other
// end.
func PeerOf(net.Conn) (Peer, error) {
	return Peer{}, queue.Errorf(queue.CodeUnsupported,
		"identifying the user at the other end of a socket is not supported on this operating system; run "+
			"the service on Linux")
}

// CallerMayRead says whether a caller of the client reads the connection itself while it waits for an answer.
const CallerMayRead = false

// IsClosedByPeer always returns false, because this operating system reports a closed connection only to a reader.
func IsClosedByPeer(net.Conn) bool { return false }
