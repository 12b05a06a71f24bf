//go:build unix && !linux

package sockpath

import (
	"context"
	"net"
)

// Dial connects to a socket. It does not wait while the socket's backlog is full. Only Linux distinguishes that
// case from a socket without a server.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", path)
}
