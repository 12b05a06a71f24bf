package service

import (
	"maps"
	"net"
	"slices"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/control/socket"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/internal/pipe"
)

// inheritedSockets returns nothing, since Windows opens no sockets for services.
func (*endpoint) inheritedSockets() (*socket.Listener, []net.Listener, error) { return nil, nil, nil }

// socketPerms returns the permissions of the control pipe: every account with a right in [access] may
// connect. ResolveAccess has already looked up the ids of these accounts.
func (e *endpoint) socketPerms(*config.Settings) (socket.Perms, error) {
	who := e.startup.rights.CurrentAccess()
	var clients []*windows.SID
	for _, ids := range []map[int]control.Right{who.Users, who.Groups} {
		for _, id := range slices.Sorted(maps.Keys(ids)) {
			sid, known := accounts.SIDOfID(id)
			if !known {
				e.startup.log.Warn("[access] contains an account number that this machine does not know; write the name "+
					"or SID of the account", "number", id)
				continue
			}
			clients = append(clients, sid)
		}
	}
	return socket.Perms{SDDL: pipe.AccessDescriptor(clients...)}, nil
}

// CheckSettings returns nil, because on Windows no settings of the pipe can keep the service from
// starting.
func (e *endpoint) CheckSettings(*config.Settings) error { return nil }

// UpdateAccess applies changed [access] settings to the pipe.
func (e *endpoint) UpdateAccess() {
	perms, err := e.socketPerms(&e.startup.settings.Current().Settings)
	if err == nil {
		err = e.socket.SetPermissions(perms)
	}
	if err != nil {
		e.startup.log.Error("cannot change the access list of the pipe; the new [access] settings take effect after a "+
			"restart of the service", "error", err)
	}
}
