//go:build unix

package socket

import (
	"net"
	"os"
	"os/user"
	"strconv"

	"github.com/queuectl/queuectl/queue"
)

// IsRoot reports whether a user is root, who can do everything on this machine anyway.
func IsRoot(uid int, _ []int) bool { return uid == 0 }

// CheckServer returns an error unless the server runs as this user, root or the service account of
// the packages. Commands and environment variables may be secret, so the client must not send them
// to anyone else.
func CheckServer(nc net.Conn, path string) error {
	peer, err := PeerOf(nc)
	if err != nil {
		return err
	}
	if peer.UID == 0 || peer.UID == os.Geteuid() || isServiceAccount(peer.UID) {
		return nil
	}
	return queue.Errorf(queue.CodeDenied, "the server on socket %s runs as uid %d, but only root, queuectl and your own "+
		"account are trusted, so nothing was sent; check --socket", path, peer.UID)
}

// isServiceAccount reports whether a uid is that of the machine's service. It asks the local files alone, because
// the package creates this account there.
func isServiceAccount(uid int) bool {
	u, err := user.Lookup(ServiceAccount)
	return err == nil && u.Uid == strconv.Itoa(uid)
}
