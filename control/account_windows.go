package control

import (
	"errors"
	"net"
	"slices"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/internal/pipe"
	"github.com/queuectl/queuectl/queue"
)

// administrators is the number of their group. Who is one without being elevated is not
// in it.
const administrators = 544

// Root reports whether a peer may do everything on this machine anyway.
func (p *Peer) Root() bool { return p.UID == 0 || slices.Contains(p.Groups, administrators) }

// checkServer refuses to tell commands and variables to a server whose pipe does not
// belong to this user, the system, the administrators or the account that packages run
// the service as.
func checkServer(nc net.Conn, path string) error {
	server, err := pipe.ServerOf(nc)
	if err != nil {
		return err
	}
	own, err1 := pipe.Owner()
	self, err2 := pipe.Self()
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if trusted(server.User, self.User, own) {
		return nil
	}
	name := new(accounts.Directory).UserName(accounts.ID(server.User))
	return queue.Errorf(queue.CodeDenied, "the pipe %s belongs to %s, which is neither the system, an administrator, the service queuectl nor you, so nothing was sent to it; check --socket", path, name)
}

// trusted reports whether what a pipe's owner serves is told everything by a user, and by
// those to whom belongs what this user makes.
func trusted(owner, self, own *windows.SID) bool {
	return owner.Equals(self) || owner.Equals(own) || owner.IsWellKnown(windows.WinLocalSystemSid) || owner.IsWellKnown(windows.WinBuiltinAdministratorsSid) ||
		owner.String() == accounts.ServiceSID(ServiceAccount)
}
