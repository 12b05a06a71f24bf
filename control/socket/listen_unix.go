//go:build unix

package socket

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

	"github.com/queuectl/queuectl/internal/dir"
	"github.com/queuectl/queuectl/internal/sockpath"
	"github.com/queuectl/queuectl/queue"
)

// PeerLookupMayBlock says whether PeerOf may have to wait until the client sends something.
const PeerLookupMayBlock = false

// MaxPathLength is the kernel's limit for the path of a socket, in bytes.
const MaxPathLength = sockpath.MaxPathBytes

// CheckPath returns an error if the path is too long for a socket.
func CheckPath(path string) error {
	if len(path) > MaxPathLength {
		return queue.InvalidFieldError("socket", "%s is %d bytes long, but a socket path may have at most %d; choose a "+
			"shorter --dir or --socket", path, len(path), MaxPathLength)
	}
	return nil
}

// Dial connects to a control socket. For a socket that does not exist, the error matches fs.ErrNotExist. For a
// socket that this user may not use, it matches fs.ErrPermission. If too many clients are connecting, the error is
// ErrServiceOverloaded.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	c, err := sockpath.Dial(ctx, path)
	if errors.Is(err, sockpath.ErrBacklogFull) {
		return nil, ErrServiceOverloaded
	}
	return c, err
}

// BindUnixListener creates a control socket like Listen. The result is a plain listener: if the socket's file is
// removed, it does not create the socket again.
func BindUnixListener(path string, perms Perms) (*net.UnixListener, error) {
	l, _, err := bindWithFileInfo(path, perms)
	return l, err
}

// WrapInheritedListener returns a Listener for a control socket that another process, such as systemd, has created.
// Only that process can create the socket again. WrapInheritedListener does not call listen(2) to set the backlog,
// because for clients, the process that last called listen(2) is the owner of the socket.
func WrapInheritedListener(l *net.UnixListener) *Listener {
	return &Listener{path: l.Addr().String(), listener: l}
}

// maxBacklog is the backlog of the socket: how many connections may wait to be accepted. Further clients wait in
// connect(2). Waiting connections are accepted in the order of their arrival, so one user's connections can delay those
// of other users. A longer backlog allows longer delays: the backlog that package net would set is the system's
// maximum, often 4096.
const maxBacklog = 1024

func setBacklog(l *net.UnixListener) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	var listenErr error
	if err := raw.Control(func(fd uintptr) { listenErr = syscall.Listen(int(fd), maxBacklog) }); err != nil {
		return err
	}
	return os.NewSyscallError("listen", listenErr)
}

// Listener is the control socket on which a service listens. RecreateWhenRemoved creates the socket again if its file
// is removed or replaced. The methods are safe for concurrent use.
type Listener struct {
	path  string
	perms Perms

	mu             sync.Mutex
	listener       *net.UnixListener // guarded by mu
	socketFileInfo os.FileInfo       // identity of the file; nil if another process created the socket; guarded by mu
	closed         bool              // guarded by mu

	// oldListener is the previous listener, from the creation of a new socket until no connection can wait on the old one.
	// At other times it is nil. It is guarded by mu.
	oldListener        *net.UnixListener
	listenerReplacedAt time.Time // when oldListener was replaced; guarded by mu
}

// Perms says which users may connect to a socket, by the mode and the group of the socket's file. GID -1 means
// the group of the process.
type Perms struct {
	Mode fs.FileMode
	GID  int
}

// Listen creates the control socket at path. It returns an error if a service answers on an existing socket. If
// none answers, the socket is left over from a crash, and Listen replaces it. The new socket has a temporary
// name until its group and mode are set, so no other user can connect before.
func Listen(path string, perms Perms) (*Listener, error) {
	on, file, err := bindWithFileInfo(path, perms)
	if err != nil {
		return nil, err
	}
	return &Listener{path: path, perms: perms, listener: on, socketFileInfo: file}, nil
}

// bindWithFileInfo creates a control socket like Listen. It also returns the identity of the socket's file.
func bindWithFileInfo(path string, perms Perms) (*net.UnixListener, os.FileInfo, error) {
	if err := CheckPath(path); err != nil {
		return nil, nil, err
	}
	c, err := sockpath.DialTimeout(path, time.Second)
	if err == nil {
		c.Close()
	}
	if err == nil || errors.Is(err, sockpath.ErrBacklogFull) {
		return nil, nil, fmt.Errorf("cannot listen on %s: another process already listens there; stop it first", path)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket == 0 {
		return nil, nil, fmt.Errorf("cannot listen on %s: this file exists and is not a socket; move it away", path)
	}
	removeStaleTempDirs(filepath.Dir(path))
	temp, err := os.MkdirTemp(filepath.Dir(path), tempDirPrefix)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot listen on %s: %w", path, err)
	}
	defer os.RemoveAll(temp)
	hidden := filepath.Join(temp, "s")
	short, done, err := sockpath.ShortPath(hidden)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot listen on %s: %w", path, err)
	}
	defer done()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if op := new(net.OpError); errors.As(err, &op) {
		err = op.Err // do not show the temporary path to the user
	}
	if err != nil {
		return nil, nil, fmt.Errorf("cannot listen on %s; check that its file system supports Unix sockets: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	err = setBacklog(l)
	var fileInfo os.FileInfo
	if err == nil {
		fileInfo, err = os.Lstat(hidden)
	}
	if err == nil {
		err = perms.applyToSocketFile(hidden)
	}
	if err == nil {
		err = os.Rename(hidden, path)
	}
	if err != nil {
		l.Close()
		return nil, nil, fmt.Errorf("cannot listen on %s: %w", path, err)
	}
	return l, fileInfo, nil
}

// A new socket is created in a temporary directory next to its final path. The name of the directory is tempDirPrefix
// followed by digits. A directory that is older than staleTempDirAge is left over from a process that was killed.
const (
	tempDirPrefix   = ".s"
	staleTempDirAge = time.Minute
)

// removeStaleTempDirs removes temporary directories that killed processes have left behind.
func removeStaleTempDirs(dir string) {
	list, _ := os.ReadDir(dir) // ignore the error, because the directories only waste space
	for _, e := range list {
		digits, hidden := strings.CutPrefix(e.Name(), tempDirPrefix)
		if _, err := strconv.ParseUint(digits, 10, 64); !hidden || err != nil || !e.IsDir() {
			continue
		}
		temp := filepath.Join(dir, e.Name())
		info, err := os.Lstat(temp)
		if err != nil || time.Since(info.ModTime()) < staleTempDirAge ||
			info.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) {
			continue
		}
		if s, err := os.Lstat(filepath.Join(temp, "s")); err == nil && s.Mode()&os.ModeSocket != 0 {
			os.Remove(filepath.Join(temp, "s"))
		}
		os.Remove(temp) // fails for a directory that contains other files, since bind has not created it
	}
}

// applyToSocketFile sets the group and the mode of a socket's file. The file still has its temporary name, so no client
// can connect yet.
func (e Perms) applyToSocketFile(path string) error {
	if e.GID >= 0 {
		if err := os.Lchown(path, -1, e.GID); err != nil {
			return fmt.Errorf("cannot give the socket to group %d (only root or a member of the group can): %w", e.GID, err)
		}
	}
	return os.Chmod(path, e.Mode)
}

func (s *Listener) currentListener() *net.UnixListener {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listener
}

// Accept returns the next connection. After RecreateWhenRemoved has created the socket again, Accept first returns the
// connections that were made to the old socket.
func (s *Listener) Accept() (net.Conn, error) {
	for {
		if c := s.acceptFromOldListener(); c != nil {
			return c, nil
		}
		on := s.currentListener()
		c, err := on.Accept()
		if err == nil || s.currentListener() == on {
			return c, err
		}
	}
}

// After RecreateWhenRemoved has created a new socket, the old listener is closed when no connection has arrived for
// oldListenerIdleTimeout, and after maxOldListenerAge at the latest. The second limit is for a socket whose file was
// moved: clients may continue to connect at the path to which the file was moved.
const (
	oldListenerIdleTimeout = 50 * time.Millisecond
	maxOldListenerAge      = time.Second
)

// acceptFromOldListener returns a connection that was made to the old socket, or nil if no such connection waits.
func (s *Listener) acceptFromOldListener() net.Conn {
	s.mu.Lock()
	old, since := s.oldListener, s.listenerReplacedAt
	s.mu.Unlock()
	if old == nil {
		return nil
	}
	if time.Since(since) < maxOldListenerAge {
		old.SetDeadline(time.Now().Add(oldListenerIdleTimeout))
		if c, err := old.Accept(); err == nil {
			return c
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old.Close()
	if s.oldListener == old {
		s.oldListener = nil
	}
	return nil
}

// Close closes the socket, so that RecreateWhenRemoved no longer creates it again. The socket's file remains.
func (s *Listener) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.oldListener != nil {
		s.oldListener.Close()
	}
	return s.listener.Close()
}

// Remove closes the socket and removes its file, unless the file at the path is no longer the file of this socket.
func (s *Listener) Remove() error {
	own := s.ownsSocketFile()
	err := s.Close()
	if own {
		err = errors.Join(err, os.Remove(s.path))
	}
	return err
}

// Addr returns the address of the socket.
func (s *Listener) Addr() net.Addr { return s.currentListener().Addr() }

// SetDeadline sets the deadline for Accept.
func (s *Listener) SetDeadline(t time.Time) error { return s.currentListener().SetDeadline(t) }

// minRecreateDelay is the time between two attempts of RecreateWhenRemoved to create the socket. After each failure to
// create the socket or to watch its directory, the time until the next attempt doubles, up to maxRecreateDelay.
const (
	minRecreateDelay = time.Second
	maxRecreateDelay = 30 * time.Second
)

// RecreateWhenRemoved creates the socket again whenever its file is removed or replaced, until ctx ends. Existing
// connections are not affected. RecreateWhenRemoved replaces neither a file of another kind nor a socket on which
// another service answers.
func (s *Listener) RecreateWhenRemoved(ctx context.Context, log *slog.Logger) {
	if s.socketFileInfo == nil {
		return // another process has created the socket, so only that process can create it again
	}
	parent, name := filepath.Dir(s.path), filepath.Base(s.path)
	for wait := minRecreateDelay; ; {
		watched := dir.WaitForChange(ctx, parent, []string{name}, s.ownsSocketFile)
		if ctx.Err() != nil {
			return
		}
		bound, err := s.recreateIfRemoved()
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
		if wait = min(2*wait, maxRecreateDelay); err == nil && watched == nil {
			wait = minRecreateDelay
		}
	}
}

// ownsSocketFile reports whether the file at the path is still the file of this socket. It compares inode numbers,
// which is reliable because the kernel does not reuse the inode number of an open socket.
func (s *Listener) ownsSocketFile() bool {
	s.mu.Lock()
	own := s.socketFileInfo
	s.mu.Unlock()
	info, err := os.Lstat(s.path)
	return err == nil && os.SameFile(info, own)
}

// recreateIfRemoved creates the socket again if its file was removed or replaced. It returns false if the file still
// exists or the Listener was closed.
func (s *Listener) recreateIfRemoved() (recreated bool, err error) {
	if s.ownsSocketFile() {
		return false, nil
	}
	on, file, err := bindWithFileInfo(s.path, s.perms)
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, on.Close()
	}
	if s.oldListener != nil {
		s.oldListener.Close()
	}
	s.oldListener, s.listenerReplacedAt = s.listener, time.Now()
	s.listener, s.socketFileInfo = on, file
	return true, s.oldListener.SetDeadline(time.Now()) // the deadline wakes Accept, which then uses the new listener
}
