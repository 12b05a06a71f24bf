package control

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/queuectl/queuectl/queue"
)

// peerClosedConn is a connection whose other end has sent a line and closed the connection. Writes fail, but the
// line can be read.
type peerClosedConn struct {
	net.Conn
	peerOutput     io.Reader
	firstWriteDone chan struct{} // closed after the first write
	writeOnce      sync.Once
	closed         chan struct{}
	closeOnce      sync.Once
}

func (c *peerClosedConn) Write([]byte) (int, error) {
	c.writeOnce.Do(func() { close(c.firstWriteDone) })
	return 0, errors.New("broken pipe")
}

func (c *peerClosedConn) Read(p []byte) (int, error) {
	<-c.firstWriteDone
	select {
	case <-c.closed:
		return 0, net.ErrClosed
	default:
		return c.peerOutput.Read(p)
	}
}

func (c *peerClosedConn) Close() error {
	c.closeOnce.Do(func() { close(c.closed) })
	return nil
}

// If the server has refused the connection, the client cannot write its request. The client still returns the reason
// that the server has sent before.
func TestClientReadsReasonAfterWriteError(t *testing.T) {
	ours, theirs := net.Pipe() // ours is used only because it supports deadlines
	defer theirs.Close()
	fake := &peerClosedConn{Conn: ours, firstWriteDone: make(chan struct{}), closed: make(chan struct{})}
	said, saying := io.Pipe()
	fake.peerOutput = said
	go func() {
		saying.Write(encodeAnswerLine(nil, nil, queue.Errorf(queue.CodeDenied, "not you")))
		saying.Close()
	}()
	c := newClientConn(fake)
	_, err := c.roundTrip(t.Context(), "status", NoParams{}, new(Status), nil)
	if !errors.Is(err, queue.ErrDenied) {
		t.Errorf("got %v, want the refusal", err)
	}
}
