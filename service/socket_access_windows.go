package service

import (
	"maps"
	"slices"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/control/socket"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/internal/pipe"
)

// takeInheritedSockets returns nil, since Windows passes no sockets to services.
func (*startup) takeInheritedSockets() (*socket.Listener, error) { return nil, nil }

// socketPerms returns the permissions of the control pipe. Every account that has a right in the settings access.* may
// connect. ResolveAccessSettings has already looked up the ids of these accounts.
func (st *startup) socketPerms(*config.Settings) (socket.Perms, error) {
	who := st.Rights.CurrentAccess()
	var clients []*windows.SID
	for _, ids := range []map[int]control.Right{who.RightsByUID, who.RightsByGID} {
		for _, id := range slices.Sorted(maps.Keys(ids)) {
			sid, known := accounts.SIDOfID(id)
			if !known {
				st.Log.Warn("[access] contains an account number that this machine does not know; write the name "+
					"or SID of the account", "number", id)
				continue
			}
			clients = append(clients, sid)
		}
	}
	return socket.Perms{SDDL: pipe.PipeSecurityDescriptor(clients...)}, nil
}

// checkSocketSettings returns nil, because on Windows no setting of the pipe can keep the service from starting.
func (st *startup) checkSocketSettings(*config.Settings) error { return nil }

// updateSocketAccess applies changed settings access.* to the control pipe.
func (st *startup) updateSocketAccess() {
	perms, err := st.socketPerms(&st.Settings.CurrentConfig().Settings)
	if err == nil {
		err = st.socket.SetPermissions(perms)
	}
	if err != nil {
		st.Log.Error("cannot change the access list of the pipe; the new [access] settings take effect after a "+
			"restart of the service", "error", err)
	}
}
