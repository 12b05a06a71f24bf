//go:build unix

package sockpath

import (
	"context"
	"net"
	"time"
)

// Dial connects to a socket. It is net's way for sockets alone: the one for any network would
// bring its resolver of names into the client.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	c, err := new(net.Dialer).DialUnix(ctx, "unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// DialWithin connects to a socket, or gives up after so long.
func DialWithin(path string, most time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	return Dial(ctx, path)
}
