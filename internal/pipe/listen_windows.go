package pipe

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

const (
	bufferSize = 64 << 10        // bytes that each end may be ahead of the other
	backlog    = 64              // connections that wait for Accept
	maxUnnamed = 64              // clients that are waited for to learn who they are
	takenFor   = 2 * time.Second // a service that has just ended may still have the name
	takenLook  = 50 * time.Millisecond
)

// Listener serves a pipe's name. It takes callers as they come, so that they need not
// wait for Accept. Its methods may be called at once.
// See docs/decisions/0088.
type Listener struct {
	name    string
	end     windows.Handle // an event: no more callers are taken
	calls   chan windows.Handle
	failed  chan error // taken before the next attempt
	unnamed chan struct{}

	call windows.Overlapped // of the place that waits for a caller: on the heap, for the kernel writes to it meanwhile

	close  sync.Once
	closed chan struct{}
	taking sync.WaitGroup

	mu    sync.Mutex
	place windows.Handle // that the next caller gets, 0 if there is none; guarded by mu, as is:
	late  time.Time      // when Accept gives up
}

// Listen serves a pipe's name, which nobody else may serve meanwhile, for those of this
// machine whom the security descriptor lets in. A connection of it can tell its client
// by ClientOf, and has CloseWrite, which waits until the other end has read what was said.
func Listen(name, sddl string) (*Listener, error) {
	l := &Listener{name: name, calls: make(chan windows.Handle, backlog), failed: make(chan error), unnamed: make(chan struct{}, maxUnnamed), closed: make(chan struct{})}
	sd, err := windows.SecurityDescriptorFromString(sddl)
	if err == nil {
		l.place, err = begin(
			func() (windows.Handle, error) { return newPlace(name, windows.FILE_FLAG_FIRST_PIPE_INSTANCE, sd) },
			func() (windows.Handle, error) { return takeOver(name, sd) },
			func() bool { return abandoned(name) },
		)
	}
	if err == nil {
		if l.end, err = windows.CreateEvent(nil, 1, 0, nil); err != nil {
			windows.CloseHandle(l.place)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", name, err)
	}
	l.taking.Go(l.take) // ends with Close
	return l, nil
}

// begin makes the first place of a name. A name outlives its server as long as a client
// does not let go of it, which must not keep the next server out.
func begin(first, again func() (windows.Handle, error), dead func() bool) (h windows.Handle, err error) {
	err = retry(func() error {
		if h, err = first(); taken(err) && dead() {
			h, err = again()
		}
		return err
	})
	return h, err
}

// takeOver makes a place of a dead server's name, for other callers than that had, if this
// account has made the name, or one that may do everything.
func takeOver(name string, sd *windows.SECURITY_DESCRIPTOR) (windows.Handle, error) {
	h, err := newPlace(name, 0, nil)
	if err != nil {
		return 0, err
	}
	owner, err := ownerOf(h)
	if err == nil && !ours(owner) {
		err = fmt.Errorf("the name belongs to the account %s: %w", owner, windows.ERROR_ACCESS_DENIED)
	}
	if err == nil {
		err = admit(h, sd)
	}
	if err != nil {
		windows.CloseHandle(h)
		return 0, err
	}
	return h, nil
}

func taken(err error) bool {
	return errors.Is(err, windows.ERROR_ACCESS_DENIED) || errors.Is(err, windows.ERROR_PIPE_BUSY)
}

// retry makes attempts as long as a name is taken and who has it may be ending.
func retry(try func() error) error {
	for end := time.Now().Add(takenFor); ; time.Sleep(takenLook) {
		err := try()
		switch {
		case !taken(err):
			return err
		case time.Now().After(end):
			return fmt.Errorf("another process already uses this name: %w", err)
		}
	}
}

// newPlace makes a place for one caller. A security descriptor counts for the first.
func newPlace(name string, first uint32, sd *windows.SECURITY_DESCRIPTOR) (windows.Handle, error) {
	name16, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return 0, err
	}
	const mode = windows.PIPE_TYPE_MESSAGE | windows.PIPE_READMODE_BYTE | windows.PIPE_REJECT_REMOTE_CLIENTS
	sa := windows.SecurityAttributes{Length: uint32(unsafe.Sizeof(windows.SecurityAttributes{})), SecurityDescriptor: sd}
	return windows.CreateNamedPipe(name16, windows.PIPE_ACCESS_DUPLEX|windows.FILE_FLAG_OVERLAPPED|windows.WRITE_DAC|first, mode, windows.PIPE_UNLIMITED_INSTANCES, bufferSize, bufferSize, 0, &sa)
}

// abandoned reports whether nobody serves a name that exists: a caller is told that it
// does not.
func abandoned(name string) bool {
	name16, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return false
	}
	h, err := windows.CreateFile(name16, connectRight, 0, nil, windows.OPEN_EXISTING, windows.SECURITY_SQOS_PRESENT|windows.SECURITY_ANONYMOUS, 0)
	if err == nil {
		windows.CloseHandle(h)
	}
	return errors.Is(err, windows.ERROR_FILE_NOT_FOUND)
}

// ours reports whether what belongs to an account was made by this one, or by one that may
// do everything.
func ours(account *windows.SID) bool {
	self, err1 := Self()
	own, err2 := Owner()
	return err1 == nil && err2 == nil && (account.Equals(self.User) || account.Equals(own)) ||
		account.IsWellKnown(windows.WinLocalSystemSid) || account.IsWellKnown(windows.WinBuiltinAdministratorsSid)
}

// take gives each caller a place until Close. The next place is there before a caller is
// passed on: the name is always held, and who does not wait finds one.
func (l *Listener) take() {
	for {
		h, err := l.next()
		if err == nil {
			err = l.connect(h)
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			l.drop()
			select {
			case l.failed <- err:
				continue
			case <-l.closed:
				return
			}
		}
		next, err := newPlace(l.name, 0, nil)
		if err != nil {
			next = 0
		}
		l.mu.Lock()
		l.place = next
		l.mu.Unlock()
		select {
		case l.calls <- h:
		case <-l.closed:
			windows.CloseHandle(h)
			return
		}
	}
}

// next is the place for the next caller, a new one if there was none to be had.
func (l *Listener) next() (windows.Handle, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	if l.place == 0 {
		l.place, err = newPlace(l.name, 0, nil)
	}
	if err != nil {
		l.place = 0
	}
	return l.place, err
}

// drop gives up the place that a caller would get.
func (l *Listener) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.place != 0 {
		windows.CloseHandle(l.place)
		l.place = 0
	}
}

// connect waits for a caller of a place, or for the end. It is for one goroutine at a time.
func (l *Listener) connect(h windows.Handle) error {
	event, err := windows.CreateEvent(nil, 1, 0, nil)
	if err != nil {
		return err
	}
	defer windows.CloseHandle(event)
	for {
		o := &l.call
		*o = windows.Overlapped{HEvent: event}
		err := windows.ConnectNamedPipe(h, o)
		if errors.Is(err, windows.ERROR_IO_PENDING) {
			which, waited := windows.WaitForMultipleObjects([]windows.Handle{event, l.end}, false, windows.INFINITE)
			if waited != nil || which != windows.WAIT_OBJECT_0 {
				windows.CancelIoEx(h, o)
			}
			var n uint32
			err = windows.GetOverlappedResult(h, o, &n, true)
		}
		switch {
		case err == nil, errors.Is(err, windows.ERROR_PIPE_CONNECTED):
			return nil
		case errors.Is(err, windows.ERROR_OPERATION_ABORTED):
			return net.ErrClosed
		case errors.Is(err, windows.ERROR_NO_DATA): // it came and went
			if err := windows.DisconnectNamedPipe(h); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// Accept gives the caller that waits longest.
func (l *Listener) Accept() (net.Conn, error) {
	l.mu.Lock()
	end := l.late
	l.mu.Unlock()
	var late <-chan time.Time
	if !end.IsZero() {
		late = time.After(time.Until(end))
	}
	select {
	case h := <-l.calls:
		return accepted(h, l)
	case err := <-l.failed:
		return nil, fmt.Errorf("accept a connection on %s: %w", l.name, err)
	case <-late:
		return nil, os.ErrDeadlineExceeded
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// address is a pipe's name.
type address string

// Network is a pipe.
func (address) Network() string { return "pipe" }

// String is the name.
func (a address) String() string { return string(a) }

// Addr is the name.
func (l *Listener) Addr() net.Addr { return address(l.name) }

// SetDeadline bounds the calls of Accept that begin from now on.
func (l *Listener) SetDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late = t
	return nil
}

// Admit lets those of another security descriptor in from now on. Connections that there
// are live on.
func (l *Listener) Admit(sddl string) error {
	sd, err := windows.SecurityDescriptorFromString(sddl)
	if err != nil {
		return fmt.Errorf("change the access rights of %s: %w", l.name, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock() // held over the change: nobody gets the place meanwhile
	if err := admit(l.place, sd); err != nil {
		return fmt.Errorf("change the access rights of %s: %w", l.name, err)
	}
	return nil
}

// admit changes who may use a pipe, by one of its places.
func admit(h windows.Handle, sd *windows.SECURITY_DESCRIPTOR) error {
	dacl, _, err := sd.DACL()
	if err != nil {
		return err
	}
	return windows.SetSecurityInfo(h, windows.SE_KERNEL_OBJECT, windows.DACL_SECURITY_INFORMATION|windows.PROTECTED_DACL_SECURITY_INFORMATION, nil, nil, dacl, nil)
}

// Close gives the name free and ends the connections that nobody has accepted.
func (l *Listener) Close() error {
	err := net.ErrClosed
	l.close.Do(func() {
		close(l.closed)
		err = windows.SetEvent(l.end)
		l.taking.Wait()
		for len(l.calls) > 0 {
			windows.CloseHandle(<-l.calls)
		}
		l.drop()
		windows.CloseHandle(l.end)
	})
	return err
}
