package daemon

import (
	"errors"
	"net"
	"os"
	"sync"

	"github.com/queuectl/queuectl/runner/rundir"
)

// socket is the socket on which the runner listens. If the socket's file is removed, the runner creates it
// again, because a service could not connect without it.
type socket struct {
	path string
	mode os.FileMode

	mu       sync.Mutex
	listener net.Listener // current listener; guarded by mu
	closed   bool         // the runner no longer accepts connections; guarded by mu
}

func listenAt(path string, mode os.FileMode) (*socket, error) {
	l, err := rundir.Listen(path, mode)
	return &socket{path: path, mode: mode, listener: l}, err
}

func (s *socket) currentListener() net.Listener {
	s.mu.Lock()
	l := s.listener
	s.mu.Unlock()
	return l
}

// accept waits for the next connection. If the socket is created again, accept continues with the
// new listener.
func (s *socket) accept() (net.Conn, error) {
	for {
		l := s.currentListener()
		c, err := l.Accept()
		if err == nil || !errors.Is(err, net.ErrClosed) || s.currentListener() == l {
			return c, err
		}
	}
}

// close makes the runner accept no more connections. The socket is not created again.
func (s *socket) close() {
	s.mu.Lock()
	s.closed = true
	s.listener.Close()
	s.mu.Unlock()
}
