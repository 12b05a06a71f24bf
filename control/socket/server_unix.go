//go:build unix

package socket

import (
	"net"
	"os"
	"os/user"
	"strconv"

	"github.com/queuectl/queuectl/queue"
)

// IsRoot reports whether a user is root, who can do everything on this machine.
func IsRoot(uid int, _ []int) bool { return uid == 0 }

// CheckServer returns an error if the server runs as a user that the client does not trust. It trusts its own
// user, root and ServiceAccount. Commands and environment variables may be secret, so they must not be sent to other
// users.
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

// isServiceAccount reports whether a uid is that of ServiceAccount. It queries only the local files, where the
// installation package has created this account.
func isServiceAccount(uid int) bool {
	u, err := user.Lookup(ServiceAccount)
	return err == nil && u.Uid == strconv.Itoa(uid)
}
