package control

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/queuectl/queuectl/internal/sockpath"
	"github.com/queuectl/queuectl/queue"
)

// MaxSocketPath is the longest path of a socket, in bytes: the kernel's limit.
const MaxSocketPath = sockpath.Max

// CheckSocketPath refuses a path that no socket can have.
func CheckSocketPath(path string) error {
	if len(path) > MaxSocketPath {
		return queue.Invalid("socket", "%s is %d bytes long; a socket's path may have %d: choose a shorter --dir or --socket", path, len(path), MaxSocketPath)
	}
	return nil
}

// Listen makes the control socket, for its owner alone. A socket nobody answers
// is left over from a crash and is replaced; one that answers means that a
// service already runs there. At no moment can others connect: the socket gets
// its mode under another name first.
func Listen(path string) (net.Listener, error) {
	if err := CheckSocketPath(path); err != nil {
		return nil, err
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return nil, fmt.Errorf("listen on %s: a service answers there already", path)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket == 0 {
		return nil, fmt.Errorf("listen on %s: a file that is no socket is there; move it away", path)
	}
	temp, err := os.MkdirTemp(filepath.Dir(path), ".s")
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	defer os.RemoveAll(temp)
	hidden := filepath.Join(temp, "s")
	short, done, err := sockpath.Short(hidden)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	defer done()
	l, err := net.Listen("unix", short)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(hidden, 0o600), os.Rename(hidden, path)); err != nil {
		l.Close()
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}
