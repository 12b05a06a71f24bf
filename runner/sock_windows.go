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

// pipeOf is the named pipe that stands for a runner's socket: the runner's name is that of
// no other, on this machine and for ever.
func pipeOf(path string) string {
	return `\\.\pipe\queuectl-runner-` + filepath.Base(filepath.Dir(path))
}

// listen makes a socket for this user, the system and its administrators.
func listen(path string, _ os.FileMode) (net.Listener, error) {
	return pipe.Listen(pipeOf(path), pipe.OwnerOnly())
}

// dial connects to a runner's socket, if it is this user's runner that serves it.
func dial(path string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := pipe.Dial(ctx, pipeOf(path))
	if err != nil {
		return nil, err
	}
	if err := ours(c); err != nil {
		c.Close()
		return nil, fmt.Errorf("connect to the runner: %w", err)
	}
	return c, nil
}

// ours refuses a pipe that does not belong to whom what this process makes belongs, nor to
// the system.
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

// writeNow writes what a connection takes without waiting: nothing, for a pipe does not say
// what it would take.
func writeNow(net.Conn, []byte) int { return 0 }

// guard has nothing to do: nobody can remove the name of a pipe, nor a folder with files that
// are open.
func (s *socket) guard(context.Context, *slog.Logger) (gone bool) { return false }
