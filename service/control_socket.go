package service

import (
	"cmp"
	"fmt"

	"github.com/queuectl/queuectl/control/socket"
)

// openSocket opens the control socket: the one that the system passed to the service, the one that was bound while the
// service was root, or a new one.
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

// SocketInherited reports whether the service did not create the socket.
func (st *startup) SocketInherited() bool { return st.isSocketInherited }
