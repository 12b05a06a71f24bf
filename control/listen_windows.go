package control

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/queuectl/queuectl/internal/pipe"
	"github.com/queuectl/queuectl/queue"
)

// identifyBlocks means that PeerOf may have to wait for data from the client.
const identifyBlocks = true

// MaxSocketPath is the limit of Windows for the name of a pipe, in characters.
const MaxSocketPath = 256

// pipes is the prefix of all pipe names.
const pipes = `\\.\pipe\`

// CheckSocketPath returns an error if the path is not a valid name for a pipe.
func CheckSocketPath(path string) error {
	name, ok := cutPipes(path)
	switch {
	case !ok || name == "" || strings.ContainsAny(name, "\\\x00"):
		return queue.Invalid("socket", "%s is not the name of a pipe on this machine; choose a name such as %squeuectl-test",
			path, pipes)
	case len(path) > MaxSocketPath:
		return queue.Invalid("socket", "%s is %d bytes long, but a pipe name may have at most %d; choose a shorter name",
			path, len(path), MaxSocketPath)
	}
	return nil
}

func cutPipes(path string) (name string, ok bool) {
	if len(path) < len(pipes) || !strings.EqualFold(path[:len(pipes)], pipes) {
		return "", false
	}
	return path[len(pipes):], true
}

// Dial connects to a control pipe. The error is fs.ErrNotExist if there is no pipe,
// fs.ErrPermission if this user may not use it, and errOverloaded if too many clients are
// connecting.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	c, err := pipe.Dial(ctx, path)
	if errors.Is(err, pipe.ErrBusy) {
		return nil, errOverloaded
	}
	return c, err
}

// Socket is the control pipe that a service listens on. No other process can remove it. Its methods
// are safe for concurrent use.
type Socket struct{ listener *pipe.Listener }

// SocketPerms determines who may connect to a pipe. It is a security descriptor.
type SocketPerms struct{ SDDL string }

// Listen creates the control pipe. It returns an error if another process serves the name.
func Listen(path string, to SocketPerms) (*Socket, error) {
	if err := CheckSocketPath(path); err != nil {
		return nil, err
	}
	on, err := pipe.Listen(path, to.SDDL)
	if err != nil {
		return nil, err
	}
	return &Socket{on}, nil
}

// Admit changes who may connect. It applies from the next connection.
func (s *Socket) Admit(to SocketPerms) error { return s.listener.Admit(to.SDDL) }

// Accept returns the next connection.
func (s *Socket) Accept() (net.Conn, error) { return s.listener.Accept() }

// Close closes the pipe.
func (s *Socket) Close() error { return s.listener.Close() }

// Addr returns the name of the pipe.
func (s *Socket) Addr() net.Addr { return s.listener.Addr() }

// SetDeadline sets the deadline for Accept.
func (s *Socket) SetDeadline(t time.Time) error { return s.listener.SetDeadline(t) }

// Guard does nothing, because no other process can take the name of a pipe that is being served.
func (s *Socket) Guard(context.Context, *slog.Logger) {}
