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
	"unsafe"

	"github.com/Microsoft/go-winio"
	"golang.org/x/sys/windows"
)

// connectRight is what a client needs of a pipe: to read, to write and to see whose it
// is, but not to serve it (FILE_CREATE_PIPE_INSTANCE).
const connectRight = 0x12019b

const (
	bufferSize = 64 << 10         // bytes that each end may be ahead of the other
	backlog    = 64               // connections that wait for Accept
	maxUnnamed = 64               // clients that are waited for to learn who they are
	takenFor   = 2 * time.Second  // a service that has just ended may still have the name
	busyFor    = 10 * time.Second // a caller waits for a server that takes nobody
	takenLook  = 50 * time.Millisecond
)

// conn is one end of a pipe.
type conn struct {
	winPipe
	ahead   []byte        // was read before the owner of the connection read
	unnamed chan struct{} // a place for each client that is waited for; a listener's
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

// Listener serves a pipe's name. It takes callers as they come, so that they need not
// wait for Accept. Its methods may be called at once.
type Listener struct {
	on      net.Listener
	calls   chan net.Conn
	failed  chan error // taken before the next attempt
	unnamed chan struct{}

	close  sync.Once
	closed chan struct{}
	taking sync.WaitGroup

	mu  sync.Mutex
	end time.Time // of Accept's patience; guarded by mu
}

// Listen serves a pipe's name, which nobody else may serve meanwhile, for those of this
// machine whom the security descriptor lets in. A connection of it can tell its client
// by ClientOf, and has CloseWrite, which waits until the other end has read what was said.
func Listen(name, sddl string) (*Listener, error) {
	on, err := serve(func() (net.Listener, error) {
		return winio.ListenPipe(name, &winio.PipeConfig{SecurityDescriptor: sddl, MessageMode: true, InputBufferSize: bufferSize, OutputBufferSize: bufferSize})
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", name, err)
	}
	occupy(name)
	l := &Listener{on: on, calls: make(chan net.Conn, backlog), failed: make(chan error), unnamed: make(chan struct{}, maxUnnamed), closed: make(chan struct{})}
	l.taking.Go(l.take) // ends with Close
	awaitPlace(name)
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

// awaitPlace waits until a caller can have a place, so that one who does not wait, as
// Dial does, finds one.
func awaitPlace(name string) {
	if name16, err := windows.UTF16PtrFromString(name); err == nil {
		waitPro.Call(uintptr(unsafe.Pointer(name16)), uintptr(takenFor.Milliseconds()))
	}
}

// take accepts callers until Close.
func (l *Listener) take() {
	for {
		c, err := l.on.Accept()
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
func (l *Listener) Accept() (net.Conn, error) {
	l.mu.Lock()
	end := l.end
	l.mu.Unlock()
	var late <-chan time.Time
	if !end.IsZero() {
		late = time.After(time.Until(end))
	}
	select {
	case c := <-l.calls:
		return wrap(c, l.unnamed)
	case err := <-l.failed:
		return nil, err
	case <-late:
		return nil, os.ErrDeadlineExceeded
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Addr is the name.
func (l *Listener) Addr() net.Addr { return l.on.Addr() }

// SetDeadline bounds the calls of Accept that begin from now on.
func (l *Listener) SetDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end = t
	return nil
}

// Close gives the name free and ends the connections that nobody has accepted.
func (l *Listener) Close() error {
	err := net.ErrClosed
	l.close.Do(func() {
		close(l.closed)
		err = l.on.Close()
		l.taking.Wait()
		for len(l.calls) > 0 {
			(<-l.calls).Close()
		}
	})
	return err
}

// Values of ntifs.h.
const (
	openExisting  = 1 // FILE_OPEN
	messageType   = 1 // FILE_PIPE_MESSAGE_TYPE
	rejectRemote  = 2 // FILE_PIPE_REJECT_REMOTE_CLIENTS
	anyInstances  = 0xffffffff
	waitPlease    = -50 * 10_000 // in 100 ns: how long a caller that names no time waits
	shareWithAll  = windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE
	changeWhoMay  = windows.WRITE_DAC | windows.SYNCHRONIZE
	whoMayAndOnly = windows.DACL_SECURITY_INFORMATION | windows.PROTECTED_DACL_SECURITY_INFORMATION
)

// Admit lets those of another security descriptor in from now on. Connections that there
// are live on. It works on a place of its own, which no caller can have.
func (l *Listener) Admit(sddl string) error {
	name := l.on.Addr().String()
	sd, err := windows.SecurityDescriptorFromString(sddl)
	if err != nil {
		return fmt.Errorf("who may use %s: %w", name, err)
	}
	dacl, _, err := sd.DACL()
	if err != nil {
		return fmt.Errorf("who may use %s: %w", name, err)
	}
	h, err := place(name)
	if err != nil {
		return fmt.Errorf("change who may use %s: %w", name, err)
	}
	defer windows.CloseHandle(h)
	if err := windows.SetSecurityInfo(h, windows.SE_KERNEL_OBJECT, whoMayAndOnly, nil, nil, dacl, nil); err != nil {
		return fmt.Errorf("change who may use %s: %w", name, err)
	}
	return nil
}

// place is one more place of a name that this process serves, by which who may use them
// all can be changed. Nothing can be read or written there.
func place(name string) (h windows.Handle, err error) {
	name16, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return 0, err
	}
	var path windows.NTUnicodeString
	if err := windows.RtlDosPathNameToNtPathName(name16, &path, nil, nil); err != nil {
		return 0, err
	}
	defer windows.LocalFree(windows.Handle(unsafe.Pointer(path.Buffer)))
	attributes := windows.OBJECT_ATTRIBUTES{ObjectName: &path, Attributes: windows.OBJ_CASE_INSENSITIVE}
	attributes.Length = uint32(unsafe.Sizeof(attributes))
	var status windows.IO_STATUS_BLOCK
	wait := int64(waitPlease)
	err = windows.NtCreateNamedPipeFile(&h, changeWhoMay, &attributes, &status, shareWithAll, openExisting, 0, messageType|rejectRemote, 0, 0, anyInstances, bufferSize, bufferSize, &wait)
	return h, err
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
	return wrap(c, nil)
}

func wrap(c net.Conn, unnamed chan struct{}) (net.Conn, error) {
	p, ok := c.(winPipe)
	if !ok {
		c.Close()
		return nil, errors.New("it is a pipe of another kind")
	}
	return &conn{winPipe: p, unnamed: unnamed}, nil
}
