package daemon

import (
	"errors"
	"net"
	"os"
	"sync"

	"github.com/queuectl/queuectl/runner/rundir"
)

// runnerSocket is the socket on which the runner listens. If another process removes the file of the socket, the runner
// creates the socket again, so that services can still connect.
type runnerSocket struct {
	path string
	mode os.FileMode

	mu       sync.Mutex
	listener net.Listener // current listener; guarded by mu
	closed   bool         // the runner no longer accepts connections; guarded by mu
}

func newRunnerSocket(path string, mode os.FileMode) (*runnerSocket, error) {
	l, err := rundir.Listen(path, mode)
	return &runnerSocket{path: path, mode: mode, listener: l}, err
}

func (s *runnerSocket) currentListener() net.Listener {
	s.mu.Lock()
	l := s.listener
	s.mu.Unlock()
	return l
}

// accept waits for the next connection. If the socket is created again during the wait, accept continues with the new
// socket.
func (s *runnerSocket) accept() (net.Conn, error) {
	for {
		l := s.currentListener()
		c, err := l.Accept()
		if err == nil || !errors.Is(err, net.ErrClosed) || s.currentListener() == l {
			return c, err
		}
	}
}

// close makes the runner accept no more connections. If the socket is removed after that, it is not created again.
func (s *runnerSocket) close() {
	s.mu.Lock()
	s.closed = true
	s.listener.Close()
	s.mu.Unlock()
}
