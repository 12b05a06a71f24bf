package service

import (
	"fmt"
	"log/slog"
	"net"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control/socket"
	"github.com/queuectl/queuectl/service/access"
	"github.com/queuectl/queuectl/service/settings"
)

// endpoint is the control socket, with the accounts that may connect.
type endpoint struct {
	log         *slog.Logger
	places      config.Places
	directory   *access.Directory
	rights      *access.Rights
	settings    *settings.Keeper
	boundSocket *socket.Listener // the control socket, if it was bound while the service was root

	socket       *socket.Listener // nil until the socket is open
	inherited    bool             // the service did not create the socket, so the settings do not control its mode
	webListeners []net.Listener   // listeners for the web page that the system passed to the service
}

func newEndpoint(b *startup) *endpoint {
	return &endpoint{log: b.log, places: b.opt.Places, directory: b.directory, rights: b.rights, settings: b.settings,
		boundSocket: b.boundSocket}
}

// open opens the control socket: the one that the system passed to the service, the one that was bound while the
// service was root, or a new one.
func (e *endpoint) open(perms socket.Perms) error {
	listener, handed, err := e.inheritedSockets()
	if err != nil {
		return fmt.Errorf("cannot use the sockets that the system passed: %w", err)
	}
	e.webListeners = handed
	if listener == nil {
		listener = e.boundSocket
	}
	if e.inherited = listener != nil; !e.inherited {
		if listener, err = socket.Listen(e.places.Socket, perms); err != nil {
			return err
		}
	}
	e.socket = listener
	return nil
}

// Inherited reports whether the service did not create the socket.
func (e *endpoint) Inherited() bool { return e.inherited }
