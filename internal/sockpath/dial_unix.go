//go:build unix

package sockpath

import (
	"context"
	"errors"
	"net"
	"time"
)

// fullBacklogTimeout is the longest time that Dial waits while a socket's backlog is full.
const fullBacklogTimeout = 5 * time.Second

// ErrBacklogFull means that a server listens on a socket, but accepts connections more slowly than clients
// connect.
var ErrBacklogFull = errors.New("the program that listens on the socket accepts connections too slowly; " +
	"check whether it hangs")

// DialTimeout is like Dial with a context that ends after the timeout.
func DialTimeout(path string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return Dial(ctx, path)
}
