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

	"github.com/queuectl/queuectl/internal/accounts"
)

// This file implements the server of a named pipe. On Windows, a pipe consists of instances, and each instance serves
// one client. A client can connect only while the server has a free instance. So acceptClients, which runs in a
// dedicated goroutine, creates the next instance before it passes a connected client to Accept. The pipe then always
// has an instance, so no other process can take over its name.

const (
	pipeBufferBytes        = 64 << 10 // bytes buffered in each direction
	acceptBacklog          = 64       // maximum number of connected clients that wait for a call of Accept
	maxUnidentifiedClients = 64       // maximum number of clients that bufferFirstBytes waits for at the same time
	// nameInUseTimeout is how long Listen waits for a name that is in use. A service that is just ending may still use the
	// name.
	nameInUseTimeout = 2 * time.Second
	namePollInterval = 50 * time.Millisecond
)

// Listener serves a pipe. Clients can connect before the server calls Accept, because acceptClients accepts each client
// immediately. The methods may be called concurrently. See docs/decisions/0088.
type Listener struct {
	pipeName            string
	stopAcceptingEvent  windows.Handle      // event that stops the goroutine of acceptClients
	connectedPipes      chan windows.Handle // instances whose clients wait for a call of Accept
	acceptErrs          chan error          // errors for Accept; acceptClients waits until Accept has received each one
	identificationSlots chan struct{}       // semaphore that bounds concurrent calls of bufferFirstBytes

	// connectOverlapped belongs to the pipe instance that waits for a client. The kernel writes to it, so it
	// must be on the heap, where it does not move. A field of Listener is on the heap.
	connectOverlapped windows.Overlapped

	closeOnce   sync.Once
	closed      chan struct{}
	acceptLoops sync.WaitGroup

	mu               sync.Mutex
	nextPipeInstance windows.Handle // pipe instance for the next client, or 0; guarded by mu
	acceptDeadline   time.Time      // deadline of Accept; guarded by mu
}

// Listen serves a pipe with this name. No other process can serve the name at the same time. The security
// descriptor sddl says which accounts of this machine may connect. IdentifyClient identifies the client of an
// accepted connection. The connection's CloseWrite waits until the client has read all data.
func Listen(name, sddl string) (*Listener, error) {
	l := &Listener{pipeName: name, connectedPipes: make(chan windows.Handle, acceptBacklog), acceptErrs: make(chan error),
		identificationSlots: make(chan struct{}, maxUnidentifiedClients), closed: make(chan struct{})}
	sd, err := windows.SecurityDescriptorFromString(sddl)
	if err == nil {
		l.nextPipeInstance, err = createFirstPipeInstance(
			func() (windows.Handle, error) {
				return newPipeInstance(name, windows.FILE_FLAG_FIRST_PIPE_INSTANCE, sd)
			},
			func() (windows.Handle, error) { return takeOverPipeName(name, sd) },
			func() bool { return isPipeAbandoned(name) },
		)
	}
	if err == nil {
		if l.stopAcceptingEvent, err = windows.CreateEvent(nil, 1, 0, nil); err != nil {
			windows.CloseHandle(l.nextPipeInstance)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", name, err)
	}
	l.acceptLoops.Go(l.acceptClients) // this goroutine ends when Close is called
	return l, nil
}

// createFirstPipeInstance creates the first instance of a pipe. The function create does this if the name of the pipe
// is free.
//
// If the server of a pipe has died, the pipe's name exists until all clients have closed their ends. In that case
// isServerDead returns true, and createFirstPipeInstance calls takeOverName, which takes over the name.
func createFirstPipeInstance(createInstance, takeOverName func() (windows.Handle, error), isServerDead func() bool) (
	h windows.Handle, err error) {
	err = retryWhileNameTaken(func() error {
		if h, err = createInstance(); isPipeNameTaken(err) && isServerDead() {
			h, err = takeOverName()
		}
		return err
	})
	return h, err
}

// takeOverPipeName creates an instance of a dead server's pipe and replaces the pipe's access list. It returns an
// error unless a trusted account (isTrustedAccount) has created the pipe.
func takeOverPipeName(name string, sd *windows.SECURITY_DESCRIPTOR) (windows.Handle, error) {
	h, err := newPipeInstance(name, 0, nil)
	if err != nil {
		return 0, err
	}
	owner, err := pipeOwner(h)
	if err == nil && !isTrustedAccount(owner) {
		err = fmt.Errorf("the account %s owns it: %w", accounts.AccountName(owner), windows.ERROR_ACCESS_DENIED)
	}
	if err == nil {
		err = setPipeAccess(h, sd)
	}
	if err != nil {
		windows.CloseHandle(h)
		return 0, err
	}
	return h, nil
}

// isPipeNameTaken reports whether err means that another server uses the name of the pipe.
func isPipeNameTaken(err error) bool {
	return errors.Is(err, windows.ERROR_ACCESS_DENIED) || errors.Is(err, windows.ERROR_PIPE_BUSY)
}

// retryWhileNameTaken calls createInstance until the name of the pipe is free, for at most nameInUseTimeout. It waits
// because the process that uses the name may be ending.
func retryWhileNameTaken(createInstance func() error) error {
	for end := time.Now().Add(nameInUseTimeout); ; time.Sleep(namePollInterval) {
		err := createInstance()
		switch {
		case !isPipeNameTaken(err):
			return err
		case time.Now().After(end):
			return fmt.Errorf("another process already uses this name (%w); end that process, or choose another name", err)
		}
	}
}

// newPipeInstance creates a pipe instance for one client. sd is the security descriptor of the pipe. Windows uses the
// sd of the first instance, and ignores the sd of later instances.
func newPipeInstance(name string, openModeFlags uint32, sd *windows.SECURITY_DESCRIPTOR) (windows.Handle, error) {
	name16, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return 0, err
	}
	const mode = windows.PIPE_TYPE_MESSAGE | windows.PIPE_READMODE_BYTE | windows.PIPE_REJECT_REMOTE_CLIENTS
	sa := windows.SecurityAttributes{Length: uint32(unsafe.Sizeof(windows.SecurityAttributes{})), SecurityDescriptor: sd}
	h, err := windows.CreateNamedPipe(name16,
		windows.PIPE_ACCESS_DUPLEX|windows.FILE_FLAG_OVERLAPPED|windows.WRITE_DAC|openModeFlags, mode,
		windows.PIPE_UNLIMITED_INSTANCES, pipeBufferBytes, pipeBufferBytes, 0, &sa)
	if err != nil {
		return 0, err
	}
	return h, nil
}

// isPipeAbandoned reports whether a pipe has a name but no process that serves it. Connecting to such a pipe fails with
// the same error as connecting to a name that does not exist.
func isPipeAbandoned(pipeName string) bool {
	name16, err := windows.UTF16PtrFromString(pipeName)
	if err != nil {
		return false
	}
	h, err := windows.CreateFile(name16, clientAccessRights, 0, nil, windows.OPEN_EXISTING,
		windows.SECURITY_SQOS_PRESENT|windows.SECURITY_ANONYMOUS, 0)
	if err == nil {
		windows.CloseHandle(h)
	}
	return errors.Is(err, windows.ERROR_FILE_NOT_FOUND)
}

// isTrustedAccount reports whether an account is the account of this process, the system or the administrators. The
// system and the administrators are trusted, because they have all rights on the machine anyway.
func isTrustedAccount(account *windows.SID) bool {
	self, err1 := SelfIdentity()
	own, err2 := DefaultObjectOwner()
	return err1 == nil && err2 == nil && (account.Equals(self.User) || account.Equals(own)) ||
		account.IsWellKnown(windows.WinLocalSystemSid) || account.IsWellKnown(windows.WinBuiltinAdministratorsSid)
}

// acceptClients accepts clients until Close. It creates the next instance before it passes a client to
// Accept. So this process always owns the name of the pipe, and the next client finds a free instance without
// waiting.
func (l *Listener) acceptClients() {
	for {
		h, err := l.takeNextInstance()
		if err == nil {
			err = l.waitForClient(h)
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			l.closeNextInstance()
			select {
			case l.acceptErrs <- err:
				continue
			case <-l.closed:
				return
			}
		}
		l.mu.Lock()
		l.nextPipeInstance, _ = newPipeInstance(l.pipeName, 0, nil) // if this fails, takeNextInstance tries again
		l.mu.Unlock()
		select {
		case l.connectedPipes <- h:
		case <-l.closed:
			windows.CloseHandle(h)
			return
		}
	}
}

// takeNextInstance returns the instance for the next client. It creates one if none exists.
func (l *Listener) takeNextInstance() (windows.Handle, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	if l.nextPipeInstance == 0 {
		l.nextPipeInstance, err = newPipeInstance(l.pipeName, 0, nil)
	}
	return l.nextPipeInstance, err
}

// closeNextInstance closes the instance for the next client, if there is one.
func (l *Listener) closeNextInstance() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.nextPipeInstance != 0 {
		windows.CloseHandle(l.nextPipeInstance)
		l.nextPipeInstance = 0
	}
}

// waitForClient waits until a client connects to the instance h, or until Close. Only one goroutine at a time may call
// waitForClient.
func (l *Listener) waitForClient(h windows.Handle) error {
	event, err := windows.CreateEvent(nil, 1, 0, nil)
	if err != nil {
		return err
	}
	defer windows.CloseHandle(event)
	for {
		o := &l.connectOverlapped
		*o = windows.Overlapped{HEvent: event}
		err := windows.ConnectNamedPipe(h, o)
		if errors.Is(err, windows.ERROR_IO_PENDING) {
			which, waited := windows.WaitForMultipleObjects([]windows.Handle{event, l.stopAcceptingEvent}, false,
				windows.INFINITE)
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
		case errors.Is(err, windows.ERROR_NO_DATA): // the client has already disconnected
			if err := windows.DisconnectNamedPipe(h); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// Accept returns the connection of the client that has waited longest.
func (l *Listener) Accept() (net.Conn, error) {
	l.mu.Lock()
	end := l.acceptDeadline
	l.mu.Unlock()
	var deadlineReached <-chan time.Time
	if !end.IsZero() {
		deadlineReached = time.After(time.Until(end))
	}
	select {
	case h := <-l.connectedPipes:
		return newServerConn(h, l)
	case err := <-l.acceptErrs:
		return nil, fmt.Errorf("cannot accept a connection on %s: %w", l.pipeName, err)
	case <-deadlineReached:
		return nil, os.ErrDeadlineExceeded
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// pipeAddress is the name of a pipe.
type pipeAddress string

// Network returns "pipe".
func (pipeAddress) Network() string { return "pipe" }

// String returns the name.
func (a pipeAddress) String() string { return string(a) }

// Addr returns the name.
func (l *Listener) Addr() net.Addr { return pipeAddress(l.pipeName) }

// SetDeadline sets the deadline for later calls of Accept.
func (l *Listener) SetDeadline(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acceptDeadline = t
	return nil
}

// SetPermissions replaces the security descriptor of the pipe. It applies to new clients. Existing connections stay
// open.
func (l *Listener) SetPermissions(sddl string) error {
	// Hold the lock during the change, so that acceptClients does not replace the instance in the meantime.
	l.mu.Lock()
	defer l.mu.Unlock()
	sd, err := windows.SecurityDescriptorFromString(sddl)
	if err == nil {
		err = setPipeAccess(l.nextPipeInstance, sd)
	}
	if err != nil {
		return fmt.Errorf("cannot change the access rights of %s: %w", l.pipeName, err)
	}
	return nil
}

// setPipeAccess changes the access list of a pipe, through one of its instances.
func setPipeAccess(h windows.Handle, sd *windows.SECURITY_DESCRIPTOR) error {
	dacl, _, err := sd.DACL()
	if err != nil {
		return err
	}
	return windows.SetSecurityInfo(h, windows.SE_KERNEL_OBJECT,
		windows.DACL_SECURITY_INFORMATION|windows.PROTECTED_DACL_SECURITY_INFORMATION, nil, nil, dacl, nil)
}

// Close releases the name of the pipe, and closes the connections that Accept has not returned yet.
func (l *Listener) Close() error {
	err := net.ErrClosed
	l.closeOnce.Do(func() {
		close(l.closed)
		err = windows.SetEvent(l.stopAcceptingEvent)
		l.acceptLoops.Wait()
		for len(l.connectedPipes) > 0 {
			windows.CloseHandle(<-l.connectedPipes)
		}
		l.closeNextInstance()
		windows.CloseHandle(l.stopAcceptingEvent)
	})
	return err
}
