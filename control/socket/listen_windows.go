package socket

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"

	"github.com/queuectl/queuectl/internal/pipe"
	"github.com/queuectl/queuectl/queue"
)

// PeerLookupMayBlock says whether PeerOf may have to wait until the client sends something.
const PeerLookupMayBlock = true

// MaxPathLength is the limit of Windows for the name of a pipe, in characters.
const MaxPathLength = 256

// pipePrefix is the prefix of all pipe names.
const pipePrefix = `\\.\pipe\`

// CheckPath returns an error if the path is not a valid name for a pipe.
func CheckPath(path string) error {
	name, ok := cutPipePrefix(path)
	switch {
	case !ok || name == "" || strings.ContainsAny(name, "\\\x00"):
		return queue.InvalidFieldError("socket",
			"%s is not the name of a pipe on this machine; choose a name such as %squeuectl-test",
			path, pipePrefix)
	case len(path) > MaxPathLength:
		return queue.InvalidFieldError("socket", "%s is %d bytes long, but a pipe name may have at most %d; choose a "+
			"shorter name",
			path, len(path), MaxPathLength)
	}
	return nil
}

// cutPipePrefix removes pipePrefix from the name of a pipe. It returns false if the name does not begin with
// it.
func cutPipePrefix(path string) (name string, ok bool) {
	if len(path) < len(pipePrefix) || !strings.EqualFold(path[:len(pipePrefix)], pipePrefix) {
		return "", false
	}
	return path[len(pipePrefix):], true
}

// Dial connects to a control pipe. For a pipe that does not exist, the error matches fs.ErrNotExist. For a pipe that
// this user may not use, it matches fs.ErrPermission. If too many clients are connecting, the error is
// ErrServiceOverloaded.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	c, err := pipe.Dial(ctx, path)
	if errors.Is(err, pipe.ErrServerBusy) {
		return nil, ErrServiceOverloaded
	}
	return c, err
}

// Listener is the control pipe on which a service listens. While it listens, no other process can remove the
// pipe. The methods are safe for concurrent use.
type Listener struct{ *pipe.Listener }

// Perms says which users may connect to a pipe, as a security descriptor in text form (SDDL).
type Perms struct{ SDDL string }

// Listen creates the control pipe. It returns an error if another process already serves a pipe of this name.
func Listen(path string, perms Perms) (*Listener, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	on, err := pipe.Listen(path, perms.SDDL)
	if err != nil {
		return nil, err
	}
	return &Listener{on}, nil
}

// SetPermissions changes which accounts may connect. Existing connections are not affected.
func (s *Listener) SetPermissions(perms Perms) error { return s.Listener.SetPermissions(perms.SDDL) }

// RecreateWhenRemoved does nothing, because a pipe cannot be removed while it is served.
func (s *Listener) RecreateWhenRemoved(context.Context, *slog.Logger) {}
