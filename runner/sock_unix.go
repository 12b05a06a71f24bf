//go:build unix

package runner

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/queuectl/queuectl/internal/folder"
	"github.com/queuectl/queuectl/internal/sockpath"
)

// listen makes a socket with a mode. It is in a folder that nobody else can enter, but
// for whom the mode lets connect.
func listen(path string, mode os.FileMode) (net.Listener, error) {
	short, done, err := sockpath.Short(path)
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // its folder is removed with it
	return l, os.Chmod(path, mode)
}

// dial connects to a runner's socket.
func dial(path string) (net.Conn, error) {
	short, done, err := sockpath.Short(path)
	if err != nil {
		return nil, err
	}
	defer done()
	return sockpath.DialWithin(short, 5*time.Second)
}

// writeNow writes what a connection takes without waiting, and says how much. A
// broken connection takes nothing; whoever reads it finds out.
func writeNow(c net.Conn, b []byte) (n int) {
	file, ok := c.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return 0
	}
	raw.Write(func(fd uintptr) bool {
		n, _ = syscall.Write(int(fd), b)
		return true
	})
	return max(n, 0)
}

// renewAfter is how long a socket that was removed is gone before it is made anew: it may be
// the first of a folder's files that goes.
const renewAfter = 50 * time.Millisecond

// guardPause is the least time between two looks at a socket that somebody removes.
const guardPause = time.Second

// guard makes the socket anew when its file was removed, until ctx ends or the folder cannot
// be watched. It reports whether the folder is gone.
func (s *socket) guard(ctx context.Context, log *slog.Logger) (gone bool) {
	dir, name := filepath.Dir(s.path), filepath.Base(s.path)
	there := func() bool {
		info, err := os.Lstat(s.path)
		return err == nil && info.Mode()&os.ModeSocket != 0
	}
	for ctx.Err() == nil {
		err := folder.Changed(ctx, dir, []string{name}, there)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(renewAfter):
		}
		if _, lost := os.Lstat(dir); errors.Is(lost, os.ErrNotExist) {
			return true
		}
		if err != nil {
			return false
		}
		if !there() {
			if err := s.renew(); err != nil {
				log.Error("the runner's socket was removed and cannot be created again", "error", err)
			} else {
				log.Warn("the runner's socket was removed; it has been created again")
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(guardPause):
		}
	}
	return false
}

// renew makes the socket anew.
func (s *socket) renew() error {
	os.Remove(s.path) // something else may stand there
	on, err := listen(s.path, s.mode)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return on.Close()
	}
	old := s.on
	s.on = on
	return old.Close() // accept goes on with the new one
}
