// Package socket connects clients to a service through a local socket, or a named pipe on Windows. Both ends
// can identify the user at the other end.
//
// Start with Listen for the service, and with Dial for the client.
package socket

import "github.com/queuectl/queuectl/queue"

// ServiceAccountName is the account that runs the service if an installation package has installed it.
const ServiceAccountName = "queuectl"

// ErrServiceOverloaded means that a service is running, but did not accept the connection in time.
var ErrServiceOverloaded = &queue.Error{Code: queue.CodeUnavailable,
	Message: "the service is overloaded: too many clients are connecting; try again later"}

// Peer is the process at the other end of a connection, as the kernel reports it.
type Peer struct {
	UID    int
	GID    int // -1 if the user namespace does not map the group, and on Windows
	PID    int
	Groups []int // supplementary groups at the time of the connection
}
