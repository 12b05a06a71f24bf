//go:build unix

package service

import (
	"net"
	"os"
	"slices"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/systemd"
	"github.com/queuectl/queuectl/queue"
)

// systemsSockets returns the sockets that systemd has opened for the service: the control socket, or nil, and
// those of the web page.
func (s *Service) systemsSockets() (*control.Socket, []net.Listener, error) {
	has, err := systemd.Listening()
	for _, useless := range has.Useless { // the queue works without them
		s.log.Warn("cannot use a socket that the system passed to the service", "error", useless)
	}
	if has.Control == nil || err != nil {
		return nil, has.Web, err
	}
	return control.Inherited(has.Control), has.Web, nil
}

// entryBy returns the socket permissions that the settings define.
func (s *Service) entryBy(set *config.Settings) (control.SocketPerms, error) {
	mode, group := set.Socket()
	to := control.SocketPerms{Mode: mode, GID: -1}
	if group == "" {
		return to, nil
	}
	gid, ok := s.directory.GroupID(group)
	if !ok {
		return to, queue.Invalid("socket_group", "there is no group %q on this machine", group)
	}
	to.GID = gid
	return to, nil
}

// checkEntry returns an error for socket settings with which the service would not start.
func (s *Service) checkEntry(set *config.Settings) error {
	to, err := s.entryBy(set)
	if own, failed := os.Getgroups(); err == nil && failed == nil && os.Geteuid() != 0 && to.GID >= 0 && to.GID != os.Getegid() && !slices.Contains(own, to.GID) {
		err = queue.Invalid("socket_group", "the service's account is not a member of the group %q, so it cannot give this group access to the socket; add the account to the group", set.SocketGroup)
	}
	return err
}

// readmit does nothing on Unix. The socket's mode and group are set at the start, and [access] is checked at
// each request.
func (s *Service) readmit() {}
