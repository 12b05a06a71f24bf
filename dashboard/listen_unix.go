//go:build unix

package dashboard

import (
	"context"
	"log/slog"
	"net"

	"github.com/queuectl/queuectl/control/socket"
)

// pageSocketMode is the mode of the page's socket. Members of the socket's group, such as a proxy, may connect.
const pageSocketMode = 0o660

// listenUnix listens on a Unix socket. Until ctx ends, the listener creates the socket again if the socket's file is
// removed.
func listenUnix(ctx context.Context, path string, log *slog.Logger) (net.Listener, error) {
	l, err := socket.Listen(path, socket.Perms{Mode: pageSocketMode, GID: -1})
	if err != nil {
		return nil, err
	}
	go l.RecreateWhenRemoved(ctx, log) // this goroutine ends when ctx ends
	return pageSocket{l}, nil
}

// pageSocket is a Unix socket whose file is removed when the socket is closed.
type pageSocket struct{ *socket.Listener }

// Close implements net.Listener.
func (p pageSocket) Close() error { return p.Remove() }
