package service

import (
	"fmt"
	"net"

	"github.com/queuectl/queuectl/control/socket"
)

// endpoint is the control socket, with the accounts that may connect.
type endpoint struct {
	startup           *startup
	socket            *socket.Listener // nil until the socket is open
	isSocketInherited bool             // the service did not create the socket, so the settings do not control its mode
	webListeners      []net.Listener   // listeners for the web page that the system passed to the service
}

// open opens the control socket: the one that the system passed to the service, the one that was bound while the
// service was root, or a new one.
func (e *endpoint) open(perms socket.Perms) error {
	listener, handed, err := e.inheritedSockets()
	if err != nil {
		return fmt.Errorf("cannot use the sockets that the system passed: %w", err)
	}
	e.webListeners = handed
	if listener == nil {
		listener = e.startup.boundSocket
	}
	if e.isSocketInherited = listener != nil; !e.isSocketInherited {
		if listener, err = socket.Listen(e.startup.options.Paths.Socket, perms); err != nil {
			return err
		}
	}
	e.socket = listener
	return nil
}

// SocketInherited reports whether the service did not create the socket.
func (e *endpoint) SocketInherited() bool { return e.isSocketInherited }
