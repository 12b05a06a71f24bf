//go:build unix && !linux

package socket

import (
	"net"

	"github.com/queuectl/queuectl/queue"
)

// PeerOf returns an error, because sockets on this operating system do not identify the user at the other end.
func PeerOf(net.Conn) (Peer, error) {
	return Peer{}, queue.Errorf(queue.CodeUnsupported,
		"identifying the user at the other end of a socket is not supported on this operating system; run "+
			"the service on Linux")
}

// CallerMayReadReply says whether the goroutine that waits for an answer may read from the connection itself.
const CallerMayReadReply = false

// IsClosedByPeer always returns false, because on this operating system only a read detects that a connection
// is closed.
func IsClosedByPeer(net.Conn) bool { return false }
