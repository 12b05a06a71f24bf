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

// waitsForPeer says whether a client has to say something before it is known who it is.
const waitsForPeer = true

// MaxSocketPath is the longest name of a pipe, in characters: Windows' limit.
const MaxSocketPath = 256

// pipes is where all names of pipes are.
const pipes = `\\.\pipe\`

// CheckSocketPath refuses a name that no pipe can have.
func CheckSocketPath(path string) error {
	name, ok := cutPipes(path)
	switch {
	case !ok || name == "" || strings.ContainsAny(name, "\\\x00"):
		return queue.Invalid("socket", "%s is not the name of a pipe on this machine; choose a name such as %squeuectl-test", path, pipes)
	case len(path) > MaxSocketPath:
		return queue.Invalid("socket", "%s is %d bytes long, but a pipe name may have at most %d; choose a shorter --socket", path, len(path), MaxSocketPath)
	}
	return nil
}

func cutPipes(path string) (name string, ok bool) {
	if len(path) < len(pipes) || !strings.EqualFold(path[:len(pipes)], pipes) {
		return "", false
	}
	return path[len(pipes):], true
}

// Dial connects to a control pipe. The error is fs.ErrNotExist if there is no pipe, fs.ErrPermission if this user may
// not use it, and errOverloaded if too many clients are connecting.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	c, err := pipe.Dial(ctx, path)
	if errors.Is(err, pipe.ErrBusy) {
		return nil, errOverloaded
	}
	return c, err
}

// Socket is the control pipe that a service listens on. Nobody can take it away. Its
// methods may be called at once.
type Socket struct{ on *pipe.Listener }

// SocketPerms is who may connect to a pipe: its security descriptor.
type SocketPerms struct{ SDDL string }

// Listen makes the control pipe, for those who may enter. A name that is served
// already is refused.
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

// Admit changes who may enter, from the next connection on.
func (s *Socket) Admit(to SocketPerms) error { return s.on.Admit(to.SDDL) }

// Accept waits for the next connection.
func (s *Socket) Accept() (net.Conn, error) { return s.on.Accept() }

// Close ends the pipe.
func (s *Socket) Close() error { return s.on.Close() }

// Addr is its name.
func (s *Socket) Addr() net.Addr { return s.on.Addr() }

// SetDeadline bounds Accept.
func (s *Socket) SetDeadline(t time.Time) error { return s.on.SetDeadline(t) }

// Guard has nothing to do: the name of a pipe is held as long as it is served.
func (s *Socket) Guard(context.Context, *slog.Logger) {}
