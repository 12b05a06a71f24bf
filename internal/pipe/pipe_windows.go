package pipe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	"github.com/Microsoft/go-winio"
	"golang.org/x/sys/windows"
)

// connectRight is what a client needs of a pipe: to read, to write and to see whose it
// is, but not to serve it (FILE_CREATE_PIPE_INSTANCE).
const connectRight = 0x12019b

const (
	bufferSize = 64 << 10         // bytes that each end may be ahead of the other
	backlog    = 64               // connections that wait for Accept
	takenFor   = 2 * time.Second  // a service that has just ended may still have the name
	busyFor    = 10 * time.Second // a caller waits for a server that takes nobody
	takenLook  = 50 * time.Millisecond
)

// conn is one end of a pipe.
type conn struct {
	winPipe
	ahead []byte // was read before the owner of the connection read
}

// winPipe is what go-winio gives for a pipe of messages.
type winPipe interface {
	net.Conn
	CloseWrite() error
	Fd() uintptr
}

// Read serves first what ClientOf has read ahead.
func (c *conn) Read(b []byte) (int, error) {
	if len(c.ahead) > 0 {
		n := copy(b, c.ahead)
		c.ahead = c.ahead[n:]
		return n, nil
	}
	return c.winPipe.Read(b)
}

func (c *conn) handle() windows.Handle { return windows.Handle(c.Fd()) }

// listener takes callers as they come, so that they need not wait for Accept.
type listener struct {
	net.Listener
	calls  chan net.Conn
	failed chan error // taken before the next attempt

	close  sync.Once
	closed chan struct{}
	taking sync.WaitGroup

	mu  sync.Mutex
	end time.Time // of Accept's patience; guarded by mu
}

// Listen serves a pipe's name, which nobody else may serve meanwhile, for those of this
// machine whom the security descriptor lets in. A connection of it can tell its client
// by ClientOf, and has CloseWrite, which waits until the other end has read what was said.
// The listener has SetDeadline.
func Listen(name, sddl string) (net.Listener, error) {
	on, err := serve(func() (net.Listener, error) {
		return winio.ListenPipe(name, &winio.PipeConfig{SecurityDescriptor: sddl, MessageMode: true, InputBufferSize: bufferSize, OutputBufferSize: bufferSize})
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", name, err)
	}
	occupy(name)
	l := &listener{Listener: on, calls: make(chan net.Conn, backlog), failed: make(chan error), closed: make(chan struct{})}
	l.taking.Go(l.take) // ends with Close
	return l, nil
}

// serve begins to serve a name, also if who had it is just ending.
func serve(listen func() (net.Listener, error)) (net.Listener, error) {
	for end := time.Now().Add(takenFor); ; time.Sleep(takenLook) {
		l, err := listen()
		taken := errors.Is(err, windows.ERROR_ACCESS_DENIED) || errors.Is(err, windows.ERROR_PIPE_BUSY) || errors.Is(err, fs.ErrExist)
		switch {
		case !taken:
			return l, err
		case time.Now().After(end):
			return nil, fmt.Errorf("another process serves it already: %w", err)
		}
	}
}

// occupy takes the place that holds the name and that nobody answers on. Windows lets no
// caller have it; Wine gives it to the first.
func occupy(name string) {
	name16, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return
	}
	if h, err := windows.CreateFile(name16, connectRight, 0, nil, windows.OPEN_EXISTING, windows.SECURITY_SQOS_PRESENT|windows.SECURITY_ANONYMOUS, 0); err == nil {
		windows.CloseHandle(h)
	}
}

// take accepts callers until Close.
func (l *listener) take() {
	for {
		c, err := l.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			select {
			case l.failed <- err:
			case <-l.closed:
				return
			}
			continue
		}
		select {
		case l.calls <- c:
		case <-l.closed:
			c.Close()
			return
		}
	}
}

// Accept gives the caller that waits longest.
func (l *listener) Accept() (net.Conn, error) {
	l.mu.Lock()
	end := l.end
	l.mu.Unlock()
	var late <-chan time.Time
	if !end.IsZero() {
		late = time.After(time.Until(end))
	}
	select {
	case c := <-l.calls:
		return wrap(c)
	case err := <-l.failed:
		return nil, err
	case <-late:
		return nil, os.ErrDeadlineExceeded
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// SetDeadline bounds the calls of Accept that begin from now on.
func (l *listener) SetDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end = t
	return nil
}

// Close gives the name free and ends the connections that nobody has accepted.
func (l *listener) Close() error {
	err := net.ErrClosed
	l.close.Do(func() {
		close(l.closed)
		err = l.Listener.Close()
		l.taking.Wait()
		for len(l.calls) > 0 {
			(<-l.calls).Close()
		}
	})
	return err
}

// Dial connects to a pipe of this machine. The server learns who calls and can do
// nothing as them. A pipe that nobody serves is fs.ErrNotExist, one that lets this user
// not in is fs.ErrPermission.
func Dial(ctx context.Context, name string) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, busyFor, fmt.Errorf("connect to %s: its server takes no more callers", name))
	defer cancel()
	c, err := winio.DialPipeAccessImpLevel(ctx, name, connectRight, winio.PipeImpLevelIdentification)
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	return wrap(c)
}

func wrap(c net.Conn) (net.Conn, error) {
	p, ok := c.(winPipe)
	if !ok {
		c.Close()
		return nil, errors.New("it is a pipe of another kind")
	}
	return &conn{winPipe: p}, nil
}
