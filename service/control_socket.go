package service

import (
	"cmp"
	"fmt"

	"github.com/queuectl/queuectl/control/socket"
)

// openSocket opens the control socket. It uses the socket that systemd passed to the service, or the socket
// that bootstrapRoot opened as root. If there is no such socket, it creates a new one.
func (st *startup) openSocket(perms socket.Perms) error {
	listener, err := st.inheritedSockets()
	if err != nil {
		return fmt.Errorf("cannot use the sockets that the system passed: %w", err)
	}
	listener = cmp.Or(listener, st.boundSocket)
	if st.isSocketInherited = listener != nil; !st.isSocketInherited {
		listener, err = socket.Listen(st.options.Paths.Socket, perms)
	}
	st.socket = listener
	return err
}

// SocketInherited reports whether another process, such as systemd, created the socket and passed it to the
// service.
func (st *startup) SocketInherited() bool { return st.isSocketInherited }
