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

// CheckServerTrusted returns an error if the server runs as a user that the client does not trust. It trusts the
// client's own user, root and ServiceAccountName. Requests contain commands and environment variables, which may be
// secret and must not be sent to other users.
func CheckServerTrusted(nc net.Conn, path string) error {
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

// isServiceAccount reports whether a uid is that of ServiceAccountName. The installation package creates this account
// in the local account files, so other sources, such as LDAP, are not searched.
func isServiceAccount(uid int) bool {
	u, err := user.Lookup(ServiceAccountName)
	return err == nil && u.Uid == strconv.Itoa(uid)
}
