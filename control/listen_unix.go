//go:build unix

package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/queuectl/queuectl/internal/folder"
	"github.com/queuectl/queuectl/internal/sockpath"
	"github.com/queuectl/queuectl/queue"
)

// waitsForPeer says whether a client has to say something before it is known who it is.
const waitsForPeer = false

// MaxSocketPath is the longest path of a socket, in bytes: the kernel's limit.
const MaxSocketPath = sockpath.Max

// CheckSocketPath refuses a path that no socket can have.
func CheckSocketPath(path string) error {
	if len(path) > MaxSocketPath {
		return queue.Invalid("socket", "%s is %d bytes long, but a socket path may have at most %d; choose a shorter --dir or --socket", path, len(path), MaxSocketPath)
	}
	return nil
}

// Dial connects to a control socket. The error is fs.ErrNotExist if there is no socket, fs.ErrPermission if this user
// may not use it, and errOverloaded if too many clients are connecting.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	c, err := sockpath.Dial(ctx, path)
	if errors.Is(err, sockpath.ErrBacklogFull) {
		return nil, errOverloaded
	}
	return c, err
}

// Bind makes a control socket whose file nobody guards.
func Bind(path string, to SocketPerms) (*net.UnixListener, error) {
	l, _, err := bind(path, to)
	return l, err
}

// Inherited returns a control socket that another process has bound. Only that process can bind the socket again. It
// also has set the backlog: a call of listen(2) here would replace the identity that clients see, which is that of the
// last process to call it.
func Inherited(l *net.UnixListener) *Socket { return &Socket{path: l.Addr().String(), on: l} }

// maxBacklog is how many connections may wait to be accepted. They are accepted in the order of their arrival, and no
// limit per user applies before that, so one user's connections can delay everyone else's. The default of net is the
// system's maximum, 4096. Further clients wait in connect(2).
const maxBacklog = 1024

// boundBacklog sets a socket's backlog to maxBacklog.
func boundBacklog(l *net.UnixListener) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = syscall.Listen(int(fd), maxBacklog) }); err != nil {
		return err
	}
	return os.NewSyscallError("listen", failed)
}

// Socket is the control socket that a service listens on. Its file may be removed
// or replaced meanwhile: Guard then binds it again. Its methods may be called at
// once.
type Socket struct {
	path string
	to   SocketPerms

	mu     sync.Mutex
	on     *net.UnixListener // guarded by mu
	file   os.FileInfo       // on's, nil if it is inherited; guarded by mu
	closed bool              // guarded by mu

	left   *net.UnixListener // the one before on, until nobody waits there; guarded by mu
	leftAt time.Time         // guarded by mu
}

// SocketPerms is who may connect to a socket: its mode, and its group, -1 for the process's
// own.
type SocketPerms struct {
	Mode fs.FileMode
	GID  int
}

// Listen makes the control socket, for those who may enter. A socket nobody answers
// is left over from a crash and is replaced; one that answers means that a
// service already runs there. At no moment can others connect: the socket gets
// its group and mode under another name first.
func Listen(path string, to SocketPerms) (*Socket, error) {
	on, file, err := bind(path, to)
	if err != nil {
		return nil, err
	}
	return &Socket{path: path, to: to, on: on, file: file}, nil
}

func bind(path string, to SocketPerms) (*net.UnixListener, os.FileInfo, error) {
	if err := CheckSocketPath(path); err != nil {
		return nil, nil, err
	}
	c, err := sockpath.DialWithin(path, time.Second)
	if err == nil {
		c.Close()
	}
	if err == nil || errors.Is(err, sockpath.ErrBacklogFull) {
		return nil, nil, fmt.Errorf("listen on %s: a service answers there already", path)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket == 0 {
		return nil, nil, fmt.Errorf("listen on %s: a file that is no socket is there; move it away", path)
	}
	tidy(filepath.Dir(path))
	temp, err := os.MkdirTemp(filepath.Dir(path), hiddenPrefix)
	if err != nil {
		return nil, nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	defer os.RemoveAll(temp)
	hidden := filepath.Join(temp, "s")
	short, done, err := sockpath.Short(hidden)
	if err != nil {
		return nil, nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	defer done()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		return nil, nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	err = boundBacklog(l)
	var file os.FileInfo
	if err == nil {
		file, err = os.Lstat(hidden)
	}
	if err == nil {
		err = to.apply(hidden)
	}
	if err == nil {
		err = os.Rename(hidden, path)
	}
	if err != nil {
		l.Close()
		return nil, nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, file, nil
}

// A socket is made in a folder of this name and digits, beside its place. One that is
// there for leftAfter is of a process that was killed meanwhile.
const (
	hiddenPrefix = ".s"
	leftAfter    = time.Minute
)

// tidy removes what was left of sockets that were being made.
func tidy(dir string) {
	list, _ := os.ReadDir(dir) // what cannot be read is not tidied
	for _, e := range list {
		digits, hidden := strings.CutPrefix(e.Name(), hiddenPrefix)
		if _, err := strconv.ParseUint(digits, 10, 64); !hidden || err != nil || !e.IsDir() {
			continue
		}
		temp := filepath.Join(dir, e.Name())
		info, err := os.Lstat(temp)
		if err != nil || time.Since(info.ModTime()) < leftAfter || info.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) {
			continue
		}
		if s, err := os.Lstat(filepath.Join(temp, "s")); err == nil && s.Mode()&os.ModeSocket != 0 {
			os.Remove(filepath.Join(temp, "s"))
		}
		os.Remove(temp) // what has anything else in it is not ours
	}
}

// apply gives a socket, which nobody can reach yet, its group and mode.
func (e SocketPerms) apply(path string) error {
	if e.GID >= 0 {
		if err := os.Lchown(path, -1, e.GID); err != nil {
			return fmt.Errorf("give the socket to group %d (only root or a member of the group can): %w", e.GID, err)
		}
	}
	return os.Chmod(path, e.Mode)
}

func (s *Socket) current() *net.UnixListener {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.on
}

// Accept waits for the next connection, also while the socket is bound again: those
// who have connected before come first.
func (s *Socket) Accept() (net.Conn, error) {
	for {
		if c := s.acceptLeft(); c != nil {
			return c, nil
		}
		on := s.current()
		c, err := on.Accept()
		if err == nil || s.current() == on {
			return c, err
		}
	}
}

// One that nobody has connected to for leftPause is closed, at the latest after
// leftLimit: its file may have been moved to where others go on to find it.
const (
	leftPause = 50 * time.Millisecond
	leftLimit = time.Second
)

// acceptLeft takes one of those who had connected before the socket was bound again;
// nil once there are no more.
func (s *Socket) acceptLeft() net.Conn {
	s.mu.Lock()
	left, since := s.left, s.leftAt
	s.mu.Unlock()
	if left == nil {
		return nil
	}
	if time.Since(since) < leftLimit {
		left.SetDeadline(time.Now().Add(leftPause))
		if c, err := left.Accept(); err == nil {
			return c
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	left.Close()
	if s.left == left {
		s.left = nil
	}
	return nil
}

// Close ends the socket, and what Guard could do. Its file stays, as after a crash.
func (s *Socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.left != nil {
		s.left.Close()
	}
	return s.on.Close()
}

// Remove closes it, and takes its file away if that is still its own.
func (s *Socket) Remove() error {
	own := s.there()
	err := s.Close()
	if own {
		err = errors.Join(err, os.Remove(s.path))
	}
	return err
}

// Addr is where it listens.
func (s *Socket) Addr() net.Addr { return s.current().Addr() }

// SetDeadline bounds Accept.
func (s *Socket) SetDeadline(t time.Time) error { return s.current().SetDeadline(t) }

// Whoever removes the socket again and again has it bound again once in guardPause;
// where it cannot be bound, or watched, it is looked at more and more seldom.
const (
	guardPause = time.Second
	guardLook  = 30 * time.Second
)

// Guard binds the socket again when its file was removed or replaced, until ctx
// ends. Connections live on. What is no socket, and a socket that another service
// answers on, is left alone as long as it is there.
func (s *Socket) Guard(ctx context.Context, log *slog.Logger) {
	if s.file == nil {
		return // it is inherited
	}
	dir, name := filepath.Dir(s.path), filepath.Base(s.path)
	for wait := guardPause; ; {
		watched := folder.Changed(ctx, dir, []string{name}, s.there)
		if ctx.Err() != nil {
			return
		}
		bound, err := s.renew()
		switch {
		case err != nil:
			log.Warn("the control socket is missing and cannot be created; trying again", "error", err, "in", wait)
		case bound:
			log.Warn("the control socket was removed or replaced, and was created again", "socket", s.path)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if wait = min(2*wait, guardLook); err == nil && watched == nil {
			wait = guardPause
		}
	}
}

// there reports whether the socket's file is still its own. The number of a file
// that is listened on is given to no other.
func (s *Socket) there() bool {
	s.mu.Lock()
	own := s.file
	s.mu.Unlock()
	info, err := os.Lstat(s.path)
	return err == nil && os.SameFile(info, own)
}

// renew binds the socket again unless its file is there.
func (s *Socket) renew() (bound bool, err error) {
	if s.there() {
		return false, nil
	}
	on, file, err := bind(s.path, s.to)
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, on.Close()
	}
	if s.left != nil {
		s.left.Close()
	}
	s.left, s.leftAt = s.on, time.Now()
	s.on, s.file = on, file
	return true, s.left.SetDeadline(time.Now()) // Accept notices
}
