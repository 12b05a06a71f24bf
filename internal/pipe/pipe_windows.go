package pipe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/Microsoft/go-winio"
	"golang.org/x/sys/windows"
)

// connectRight is the access right of a client. The client may read, write and query the owner. It may
// not serve the pipe (FILE_CREATE_PIPE_INSTANCE).
const connectRight = 0x12019b

// busyFor is how long a client tries to connect while the server accepts no connection.
const busyFor = 10 * time.Second

// conn is one end of a pipe.
type conn struct {
	winPipe
	peekedBytes  []byte        // bytes that ClientOf has read and that Read will return
	unnamedSlots chan struct{} // the listener's semaphore for readAhead
}

// winPipe is one end of a message pipe that is read as a stream. go-winio implements the client's end.
// serverConn implements the server's end.
type winPipe interface {
	net.Conn
	CloseWrite() error
	Fd() uintptr
}

// Read first returns the bytes that ClientOf has read ahead, and then reads from the pipe.
func (c *conn) Read(b []byte) (int, error) {
	if len(c.peekedBytes) > 0 {
		n := copy(b, c.peekedBytes)
		c.peekedBytes = c.peekedBytes[n:]
		return n, nil
	}
	return c.winPipe.Read(b)
}

func (c *conn) handle() windows.Handle { return windows.Handle(c.Fd()) }

// ErrBusy means that the server of a pipe has not accepted a client within busyFor.
var ErrBusy = errors.New("the program that serves this pipe accepts no connections; check whether it hangs")

// Dial connects to a pipe of this machine. The server can identify the caller, but cannot act as the
// caller. The error is fs.ErrNotExist if no process serves the pipe, fs.ErrPermission if this user may
// not use it, and ErrBusy if all its instances are in use.
func Dial(ctx context.Context, name string) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, busyFor, fmt.Errorf("pipe %s: %w", name, ErrBusy))
	defer cancel()
	c, err := winio.DialPipeAccessImpLevel(ctx, name, connectRight, winio.PipeImpLevelIdentification)
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	p, ok := c.(winPipe)
	if !ok {
		c.Close()
		return nil, errors.New("the pipe " + name + " belongs to another program, not to queuectl (it is not in message " +
			"mode); find that program and end it")
	}
	return &conn{winPipe: p}, nil
}

// file lists the methods of go-winio's files that serverConn uses.
type file interface {
	io.ReadWriteCloser
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
	Flush() error
	Fd() uintptr
}

// serverConn is a server's end of a pipe. An empty message marks the end of the data in each direction,
// as go-winio's clients expect.
type serverConn struct {
	file
	name   address
	ended  bool // the client sends no more data
	closed bool // the server sends no more data
}

// accepted returns the connection for a pipe instance that has a client.
func accepted(h windows.Handle, l *Listener) (net.Conn, error) {
	f, err := winio.NewOpenFile(h)
	if err != nil {
		windows.CloseHandle(h)
		return nil, err
	}
	return &conn{winPipe: &serverConn{file: f.(file), name: address(l.name)}, unnamedSlots: l.unnamedSlots}, nil
}

// Read reads until the client has sent its last message.
func (s *serverConn) Read(b []byte) (int, error) {
	if s.ended {
		return 0, io.EOF
	}
	n, err := s.file.Read(b)
	s.ended = err == io.EOF
	return n, err
}

var errEnded = errors.New("this end of the pipe is closed")

// Write writes data. It skips an empty message, because an empty message would mark the end of the
// data.
func (s *serverConn) Write(b []byte) (int, error) {
	if s.closed {
		return 0, errEnded
	}
	if len(b) == 0 {
		return 0, nil
	}
	return s.file.Write(b)
}

// CloseWrite waits until the client has read all data, and then marks the end of the data.
func (s *serverConn) CloseWrite() error {
	if s.closed {
		return errEnded
	}
	s.closed = true
	if err := s.Flush(); err != nil {
		return err
	}
	_, err := s.file.Write(nil)
	return err
}

// LocalAddr and RemoteAddr return the name of the pipe.
func (s *serverConn) LocalAddr() net.Addr  { return s.name }
func (s *serverConn) RemoteAddr() net.Addr { return s.name }

// SetDeadline bounds reads and writes.
func (s *serverConn) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}
