package runner

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/internal/pipe"
)

// pipeOf returns the name of the named pipe that replaces a runner's socket on Windows. Runner names
// are unique on a machine and are never reused.
func pipeOf(path string) string {
	return `\\.\pipe\queuectl-runner-` + filepath.Base(filepath.Dir(path))
}

// listen creates the pipe. Only this user, the system and administrators can connect to it.
func listen(path string, _ os.FileMode) (net.Listener, error) {
	return pipe.Listen(pipeOf(path), pipe.OwnerOnly())
}

// dial connects to a runner's pipe. It returns an error if the pipe's server is not a runner of this
// user.
func dial(path string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := pipe.Dial(ctx, pipeOf(path))
	if err != nil {
		return nil, err
	}
	if err := ours(c); err != nil {
		c.Close()
		return nil, fmt.Errorf("cannot connect to the runner: %w", err)
	}
	return c, nil
}

// ours returns an error unless the pipe's server belongs to the user who owns the objects that this
// process creates, or to the system.
func ours(c net.Conn) error {
	server, err := pipe.ServerOf(c)
	if err != nil {
		return err
	}
	own, err := pipe.Owner()
	if err != nil {
		return err
	}
	if u := server.User; !u.Equals(own) && !u.IsWellKnown(windows.WinLocalSystemSid) {
		return fmt.Errorf("the pipe belongs to %s, not to the service's user", u)
	}
	return nil
}

// writeNow returns 0: a pipe does not show how many bytes it would accept without blocking.
func writeNow(net.Conn, []byte) int { return 0 }

// guard does nothing: other processes can remove neither the name of a pipe nor a directory with open
// files.
func (s *socket) guard(context.Context, *slog.Logger) (gone bool) { return false }
