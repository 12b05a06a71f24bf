package control

import (
	"errors"
	"net"
	"time"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/internal/pipe"
	"github.com/queuectl/queuectl/queue"
)

// noGroup is the number of a group that nobody has: Windows has no first group of a
// process.
const noGroup = -1

// PeerOf asks the kernel who has connected. A client that did not ask to be known has as
// long as for its first line to say something.
func PeerOf(c net.Conn) (Peer, error) {
	c.SetReadDeadline(time.Now().Add(firstLine))
	id, err := pipe.ClientOf(c)
	if errors.Is(err, pipe.ErrConfined) {
		err = queue.Errorf(queue.CodeDenied, "%s", pipe.ErrConfined)
	}
	if err != nil {
		return Peer{}, err
	}
	p := Peer{UID: accounts.ID(id.User), GID: noGroup, PID: id.PID}
	for _, g := range id.Groups {
		p.Groups = append(p.Groups, accounts.ID(g))
	}
	return p, nil
}

// readsAlone reports whether a caller that only waits for its answer reads the connection itself.
const readsAlone = false

// hungUp reports whether the other end is closed for both ways.
func hungUp(c net.Conn) bool { return pipe.HungUp(c) }
