//go:build unix

package control

import (
	"net"
	"os"
	"os/user"
	"strconv"

	"github.com/queuectl/queuectl/queue"
)

// Root reports whether the peer is root, who can do everything on this machine anyway.
func (p *Peer) Root() bool { return p.UID == 0 }

// checkServer returns an error unless the server runs as this user, root or the service account of
// the packages. Commands and environment variables may be secret, so the client must not send them
// to anyone else.
func checkServer(nc net.Conn, path string) error {
	peer, err := PeerOf(nc)
	if err != nil {
		return err
	}
	if peer.Root() || peer.UID == os.Geteuid() || isServiceAccount(peer.UID) {
		return nil
	}
	return queue.Errorf(queue.CodeDenied, "the server on socket %s runs as uid %d, but only root, queuectl and your own "+
		"account are trusted, so nothing was sent; check --socket", path, peer.UID)
}

func isServiceAccount(uid int) bool {
	u, err := user.Lookup(ServiceAccount)
	return err == nil && u.Uid == strconv.Itoa(uid)
}
