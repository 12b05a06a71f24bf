package rundir

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/windows"

	"github.com/queuectl/queuectl/internal/pipe"
)

// pipeName returns the name of a runner's named pipe, which Windows uses instead of the socket with this
// path. The name is unique, because it contains the name of the runner, and no other runner on this machine
// ever has this name.
func pipeName(socketPath string) string {
	return `\\.\pipe\queuectl-runner-` + filepath.Base(filepath.Dir(socketPath))
}

// Listen creates a runner's pipe. Only this user, the system and administrators can connect to it.
func Listen(path string, _ os.FileMode) (net.Listener, error) {
	return pipe.Listen(pipeName(path), pipe.OwnerOnlySecurityDescriptor())
}

// Dial connects to a runner's pipe. It returns an error if the pipe was created neither by this user nor by
// the system.
func Dial(path string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := pipe.Dial(ctx, pipeName(path))
	if err != nil {
		return nil, err
	}
	if err := checkPipeServer(c); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// checkPipeServer returns an error if the process that created the pipe runs neither as the system nor as the
// account to which new objects of this process belong.
func checkPipeServer(c net.Conn) error {
	server, err := pipe.IdentifyServer(c)
	if err != nil {
		return err
	}
	owner, err := pipe.DefaultObjectOwner()
	if err != nil {
		return err
	}
	if u := server.User; !u.Equals(owner) && !u.IsWellKnown(windows.WinLocalSystemSid) {
		return fmt.Errorf("the runner's pipe is served by process %d of the account %s, which is not the service's account; "+
			"check what this process is, and end it", server.PID, u)
	}
	return nil
}
