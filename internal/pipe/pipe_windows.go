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

// clientAccessRights are the access rights of a client: to read, to write and to query the owner. They do not
// include the right to serve the pipe (FILE_CREATE_PIPE_INSTANCE).
const clientAccessRights = 0x12019b

// dialBusyTimeout is how long a client tries to connect while the server accepts no connection.
const dialBusyTimeout = 10 * time.Second

// conn is a connection: one end of a pipe.
type conn struct {
	winPipe
	peekedBytes         []byte        // bytes that IdentifyClient has read and that Read will return
	identificationSlots chan struct{} // semaphore of the listener that bounds concurrent calls of bufferFirstBytes
}

// winPipe is one end of a pipe. Windows transfers data through the pipe as messages, but winPipe reads the data as a
// stream of bytes. go-winio implements the client's end, and serverConn implements the server's end.
type winPipe interface {
	net.Conn
	CloseWrite() error
	Fd() uintptr
}

// Read first returns the bytes that IdentifyClient has read ahead, and then reads from the pipe.
func (c *conn) Read(b []byte) (int, error) {
	if len(c.peekedBytes) > 0 {
		n := copy(b, c.peekedBytes)
		c.peekedBytes = c.peekedBytes[n:]
		return n, nil
	}
	return c.winPipe.Read(b)
}

func (c *conn) handle() windows.Handle { return windows.Handle(c.Fd()) }

// ErrServerBusy means that the server of a pipe has not accepted this client within dialBusyTimeout.
var ErrServerBusy = errors.New("the program that serves this pipe accepts no connections; check whether it hangs")

// Dial connects to a pipe of this machine. The server can identify this process, but cannot act with the rights of this
// process.
//
// The error is fs.ErrNotExist if no process serves the pipe, and fs.ErrPermission if this user may not use the pipe. It
// is ErrServerBusy if all instances of the pipe are in use.
func Dial(ctx context.Context, name string) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, dialBusyTimeout, fmt.Errorf("pipe %s: %w", name, ErrServerBusy))
	defer cancel()
	c, err := winio.DialPipeAccessImpLevel(ctx, name, clientAccessRights, winio.PipeImpLevelIdentification)
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

// winioFile lists the methods of a pipe file of go-winio that serverConn uses.
type winioFile interface {
	io.ReadWriteCloser
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
	Flush() error
	Fd() uintptr
}

// serverConn is a server's end of a pipe. In each direction, an empty message marks the end of the data, as
// go-winio's clients expect.
type serverConn struct {
	winioFile
	pipeName      pipeAddress
	clientSentEOF bool // the client will send no more data
	serverSentEOF bool // the server will send no more data
}

// newServerConn returns the connection for a pipe instance that has a client.
func newServerConn(h windows.Handle, l *Listener) (net.Conn, error) {
	f, err := winio.NewOpenFile(h)
	if err != nil {
		windows.CloseHandle(h)
		return nil, err
	}
	return &conn{winPipe: &serverConn{winioFile: f.(winioFile), pipeName: pipeAddress(l.pipeName)},
		identificationSlots: l.identificationSlots}, nil
}

// Read returns data until the client has marked the end of its data.
func (s *serverConn) Read(b []byte) (int, error) {
	if s.clientSentEOF {
		return 0, io.EOF
	}
	n, err := s.winioFile.Read(b)
	s.clientSentEOF = err == io.EOF
	return n, err
}

var errLocalEndClosed = errors.New("this end of the pipe is closed")

// Write writes data. It skips an empty message, because an empty message would mark the end of the
// data.
func (s *serverConn) Write(b []byte) (int, error) {
	if s.serverSentEOF {
		return 0, errLocalEndClosed
	}
	if len(b) == 0 {
		return 0, nil
	}
	return s.winioFile.Write(b)
}

// CloseWrite waits until the client has read all data, and then marks the end of the server's data.
func (s *serverConn) CloseWrite() error {
	if s.serverSentEOF {
		return errLocalEndClosed
	}
	s.serverSentEOF = true
	if err := s.Flush(); err != nil {
		return err
	}
	_, err := s.winioFile.Write(nil)
	return err
}

// LocalAddr and RemoteAddr return the name of the pipe.
func (s *serverConn) LocalAddr() net.Addr  { return s.pipeName }
func (s *serverConn) RemoteAddr() net.Addr { return s.pipeName }

// SetDeadline bounds reads and writes.
func (s *serverConn) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}
