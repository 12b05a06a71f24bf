package service

import (
	"cmp"
	"fmt"

	"github.com/queuectl/queuectl/control/socket"
)

// openControlSocket opens the control socket. It uses the socket that systemd passed to the service, or the socket
// that bootstrapRoot opened as root. If there is no such socket, it creates a new one.
func (st *startup) openControlSocket(perms socket.Perms) error {
	listener, err := st.takeInheritedSockets()
	if err != nil {
		return fmt.Errorf("cannot use the sockets that the system passed: %w", err)
	}
	listener = cmp.Or(listener, st.socketOpenedAsRoot)
	if st.SocketInherited = listener != nil; !st.SocketInherited {
		listener, err = socket.Listen(st.Paths.SocketPath, perms)
	}
	st.socket = listener
	return err
}
