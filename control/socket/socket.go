// Package socket connects a client and a service through a local socket, or a named pipe on
// Windows, and identifies the user at the other end for each of them.
//
// Start with Listen for the service, and with Dial for the client.
package socket

import "github.com/queuectl/queuectl/queue"

// ServiceAccount is the account that packages run the service as.
const ServiceAccount = "queuectl"

// ErrOverloaded means that a service is running, but did not accept the connection in time.
var ErrOverloaded = &queue.Error{Code: queue.CodeUnavailable,
	Message: "the service is overloaded: too many clients are connecting; try again later"}

// Peer is the process at the other end of a connection, as the kernel reports it.
type Peer struct {
	UID    int
	GID    int // -1 if this user namespace does not map the group; always -1 on Windows
	PID    int
	Groups []int // supplementary groups when the connection was made
}
