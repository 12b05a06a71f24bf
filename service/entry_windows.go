package service

import (
	"maps"
	"net"
	"slices"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/internal/pipe"
)

// systemsSockets are the sockets that the system has opened for the service: Windows opens none.
func (*Service) systemsSockets() (*control.Socket, []net.Listener, error) { return nil, nil, nil }

// entryBy is whom settings let in to the control pipe: whoever has a right by [access].
// Its numbers were looked up before.
func (s *Service) entryBy(*config.Settings) (control.SocketPerms, error) {
	who := s.who.Load()
	var clients []*windows.SID
	for _, ids := range []map[int]control.Right{who.Users, who.Groups} {
		for _, id := range slices.Sorted(maps.Keys(ids)) {
			sid, known := accounts.SID(id)
			if !known {
				s.log.Warn("[access] contains an account number that this machine does not know; write the name or SID of the account", "number", id)
				continue
			}
			clients = append(clients, sid)
		}
	}
	return control.SocketPerms{SDDL: pipe.Descriptor(clients...)}, nil
}

// checkEntry refuses settings of the pipe with which the service would not start.
func (s *Service) checkEntry(*config.Settings) error { return nil }

// readmit lets those in whom changed settings name.
func (s *Service) readmit() {
	to, err := s.entryBy(&s.config.Load().Settings)
	if err == nil {
		err = s.socket.Admit(to)
	}
	if err != nil {
		s.log.Error("cannot change who may connect; the new [access] settings take effect after a restart of the service", "error", err)
	}
}
