package socket

import (
	"errors"
	"net"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/internal/pipe"
	"github.com/queuectl/queuectl/queue"
)

// noGroupID is the gid of every peer, because Windows processes have no primary group. No group has this number.
const noGroupID = -1

// PeerOf returns the identity of the process at the other end of a pipe. Unless the client connected with
// SECURITY_SQOS_PRESENT, Windows identifies the client only after the server has read from the pipe. PeerOf then waits
// for the client's first bytes, at most until the read deadline of c.
func PeerOf(c net.Conn) (Peer, error) {
	id, err := pipe.IdentifyClient(c)
	if errors.Is(err, pipe.ErrClientSandboxed) {
		err = queue.Errorf(queue.CodeDenied, "%s", pipe.ErrClientSandboxed)
	}
	if err != nil {
		return Peer{}, err
	}
	p := Peer{UID: accounts.IDOfSID(id.User), GID: noGroupID, PID: id.PID}
	for _, g := range id.EnabledGroups {
		p.Groups = append(p.Groups, accounts.IDOfSID(g))
	}
	return p, nil
}

// CallerMayReadReply says whether the goroutine that waits for an answer may read from the connection itself.
const CallerMayReadReply = false

// IsClosedByPeer reports whether the client at the other end has closed the pipe.
func IsClosedByPeer(c net.Conn) bool { return pipe.IsClosedByPeer(c) }
