//go:build unix

package service

import (
	"os"
	"slices"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control/socket"
	"github.com/queuectl/queuectl/internal/systemd"
	"github.com/queuectl/queuectl/queue"
)

// takeInheritedSockets returns the control socket that systemd has opened for the service, or nil if systemd has
// opened none. It also stores the listeners that systemd has opened for the web page in st.webListeners.
func (st *startup) takeInheritedSockets() (*socket.Listener, error) {
	passed, err := systemd.InheritedSockets()
	st.webListeners = passed.DashboardSockets
	// The queue works without the sockets that are not usable, so only log a warning.
	for _, unusable := range passed.SocketErrors {
		st.Log.Warn("ignoring a socket that systemd passed to the service, because it is not usable; check the "+
			"socket units", "error", unusable)
	}
	if passed.ControlSocket == nil || err != nil {
		return nil, err
	}
	return socket.WrapInheritedListener(passed.ControlSocket), nil
}

// socketPerms returns the mode and the group of the control socket, as the settings define them.
func (st *startup) socketPerms(settings *config.Settings) (socket.Perms, error) {
	mode, group := settings.SocketPermissions()
	perms := socket.Perms{Mode: mode, GID: -1}
	if group == "" {
		return perms, nil
	}
	gid, ok := st.UserDirectory.GroupID(group)
	if !ok {
		return perms, queue.InvalidFieldError("socket_group", "there is no group %q on this machine", group)
	}
	perms.GID = gid
	return perms, nil
}

// checkSocketSettings returns an error for socket settings with which the service would not start.
func (st *startup) checkSocketSettings(settings *config.Settings) error {
	perms, err := st.socketPerms(settings)
	if groups, failed := os.Getgroups(); err == nil && failed == nil && os.Geteuid() != 0 && perms.GID >= 0 &&
		perms.GID != os.Getegid() && !slices.Contains(groups, perms.GID) {
		err = queue.InvalidFieldError("socket_group",
			"the service's account is not a member of the group %q, so it cannot give this "+
				"group access to the socket; add the account to the group", settings.SocketGroup)
	}
	return err
}

// updateSocketAccess does nothing on Unix. The socket does not depend on the settings access.*, since each request
// is checked against them.
func (st *startup) updateSocketAccess() {}
