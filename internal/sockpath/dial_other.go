//go:build unix && !linux

package sockpath

import (
	"context"
	"net"
)

// Dial connects to a socket. If the socket's backlog is full, it does not wait, because only on Linux does connect(2)
// return different errors for a full backlog and for a socket without a server.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", path)
}
