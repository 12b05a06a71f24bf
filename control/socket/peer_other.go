//go:build unix && !linux

package socket

import (
	"net"

	"github.com/queuectl/queuectl/queue"
)

// PeerOf returns an error: on this operating system, a socket does not identify the user at its other end.
func PeerOf(net.Conn) (Peer, error) {
	return Peer{}, queue.Errorf(queue.CodeUnsupported,
		"identifying the user at the other end of a socket is not supported on this operating system; run "+
			"the service on Linux")
}

// CallerMayRead means that a caller that only waits for its answer reads the connection itself.
const CallerMayRead = false

// HungUp always returns false: this operating system does not report a closed peer without a read.
func HungUp(net.Conn) bool { return false }
