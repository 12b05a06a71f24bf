//go:build unix

package dashboard

import (
	"context"
	"log/slog"
	"net"

	"github.com/queuectl/queuectl/control"
)

// socketMode is the mode of the page's socket: its group, as a proxy's is, may connect.
const socketMode = 0o660

// listenUnix opens a socket by its path. Its file is bound again where it is removed, until ctx ends.
func listenUnix(ctx context.Context, path string, log *slog.Logger) (net.Listener, error) {
	l, err := control.Listen(path, control.SocketPerms{Mode: socketMode, GID: -1})
	if err != nil {
		return nil, err
	}
	go l.Guard(ctx, log) // ends with ctx
	return pageSocket{l}, nil
}

// pageSocket is a socket that takes its file with it.
type pageSocket struct{ *control.Socket }

// Close implements net.Listener.
func (p pageSocket) Close() error { return p.Remove() }
