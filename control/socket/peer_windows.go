package socket

import (
	"errors"
	"net"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/internal/pipe"
	"github.com/queuectl/queuectl/queue"
)

// noGroup represents the primary group of a peer, because Windows processes have none. No group has this
// number.
const noGroup = -1

// PeerOf returns the identity of the process at the other end of a pipe. If the client did not set
// SECURITY_SQOS_PRESENT when it connected, Windows identifies it only after the server has read
// from it. PeerOf then waits for the client's first bytes until the read deadline of c.
func PeerOf(c net.Conn) (Peer, error) {
	id, err := pipe.ClientOf(c)
	if errors.Is(err, pipe.ErrSandboxed) {
		err = queue.Errorf(queue.CodeDenied, "%s", pipe.ErrSandboxed)
	}
	if err != nil {
		return Peer{}, err
	}
	p := Peer{UID: accounts.IDOfSID(id.User), GID: noGroup, PID: id.PID}
	for _, g := range id.Groups {
		p.Groups = append(p.Groups, accounts.IDOfSID(g))
	}
	return p, nil
}

// CallerMayRead says whether a caller of the client reads the connection itself while it waits for an answer.
const CallerMayRead = false

// IsClosedByPeer reports whether the other end has closed the pipe.
func IsClosedByPeer(c net.Conn) bool { return pipe.IsClosedByPeer(c) }
