package socket

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/internal/pipe"
	"github.com/queuectl/queuectl/queue"
)

// administratorsRID is the number of the group Administrators (see accounts.IDOfSID). The process of an
// administrator is in this group only if it runs elevated.
const administratorsRID = 544

// IsRoot reports whether a user with these groups is the system or an elevated administrator. The system and elevated
// administrators may do everything on this machine.
func IsRoot(uid int, groups []int) bool {
	return uid == 0 || slices.Contains(groups, administratorsRID)
}

// CheckServerTrusted returns an error if the pipe belongs to a user that the client does not trust. It trusts the
// client's own user, the system, the administrators and ServiceAccountName. Requests contain commands and
// environment variables, which may be secret and must not be sent to other users.
func CheckServerTrusted(nc net.Conn, path string) error {
	server, err := pipe.IdentifyServer(nc)
	own, err1 := pipe.DefaultObjectOwner()
	self, err2 := pipe.SelfIdentity()
	if err := errors.Join(err, err1, err2); err != nil {
		return fmt.Errorf("cannot check which account runs the service on %s (%w), so nothing was sent; see: queuectl "+
			"service status", path, err)
	}
	if isTrustedServerOwner(server.User, self.User, own) {
		return nil
	}
	name := new(accounts.Resolver).UserName(accounts.IDOfSID(server.User))
	return queue.Errorf(queue.CodeDenied, "the pipe %s belongs to %s, but only the system, administrators, the service "+
		"queuectl and your own account are trusted, so nothing was sent; check --socket", path, name)
}

// isTrustedServerOwner reports whether the client may send requests to a pipe that belongs to pipeOwner. clientSID is
// the user of the client. ownerOfNewObjects is the owner of objects that the client creates: the group of
// administrators if the client is elevated, otherwise the client's user.
func isTrustedServerOwner(pipeOwner, clientSID, ownerOfNewObjects *windows.SID) bool {
	return pipeOwner.Equals(clientSID) || pipeOwner.Equals(ownerOfNewObjects) ||
		pipeOwner.IsWellKnown(windows.WinLocalSystemSid) ||
		pipeOwner.IsWellKnown(windows.WinBuiltinAdministratorsSid) ||
		pipeOwner.String() == accounts.ServiceSID(ServiceAccountName)
}
