package pipe

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Identity is the account and the process at one end of a pipe.
type Identity struct {
	User *windows.SID
	// EnabledGroups holds only the groups that give the process rights. For example, for an administrator without
	// elevation it does not contain the group of administrators.
	EnabledGroups []*windows.SID
	PID           int
}

// maxPeekedBytes is the maximum number of bytes that bufferFirstBytes reads.
const maxPeekedBytes = 512

// tokenIsAppContainer is the information class that queries whether a token belongs to an app
// container, as defined in winnt.h.
const tokenIsAppContainer = 29

// maxSIDBytes is the size of the longest SID, in bytes.
const maxSIDBytes = 68

var (
	advapi32              = windows.NewLazySystemDLL("advapi32.dll")
	kernel32              = windows.NewLazySystemDLL("kernel32.dll")
	impersonateClientProc = advapi32.NewProc("ImpersonateNamedPipeClient")
	peekNamedPipeProc     = kernel32.NewProc("PeekNamedPipe")
)

// impersonatePipeClient makes this thread act with the rights of the client of a pipe.
var impersonatePipeClient = func(pipe windows.Handle) error {
	if ok, _, err := impersonateClientProc.Call(uintptr(pipe)); ok == 0 {
		return err
	}
	return nil
}

// revertToSelf makes this thread act with the rights of this process again.
var revertToSelf = windows.RevertToSelf

// ErrClientSandboxed rejects a client that runs in a sandbox. Such a program does not have all rights of its user, so
// the server must not give it the rights of that user.
var ErrClientSandboxed = errors.New("programs in a sandbox (app container or restricted token) have no access " +
	"to queuectl")

// isSandboxedToken reports whether a token belongs to a program in a sandbox.
var isSandboxedToken = func(t windows.Token) (bool, error) {
	var contained, n uint32
	if err := windows.GetTokenInformation(t, tokenIsAppContainer, (*byte)(unsafe.Pointer(&contained)), 4, &n); err != nil {
		return false, err
	}
	restricted, err := t.IsRestricted()
	// Wine returns this error, because Wine has no restricted tokens.
	if errors.Is(err, windows.ERROR_INVALID_FUNCTION) {
		err = nil
	}
	return contained != 0 || restricted, err
}

// IdentifyClient identifies the client of a connection that a Listener has accepted.
//
// If the client did not set SECURITY_SQOS_PRESENT, Windows identifies the client only after the server has read data
// from the pipe. So IdentifyClient reads the first bytes, and waits for them until the connection's deadline. Read
// returns these bytes later. Do not call Read during IdentifyClient.
func IdentifyClient(c net.Conn) (Identity, error) {
	p, err := asPipeConn(c)
	if err != nil {
		return Identity{}, err
	}
	id, err := p.identifyClient()
	if errors.Is(err, windows.ERROR_CANNOT_IMPERSONATE) {
		if err = p.bufferFirstBytes(); err == nil {
			id, err = p.identifyClient()
		}
	}
	if err != nil {
		return Identity{}, fmt.Errorf("the service refuses the connection, because it cannot find out which account the "+
			"client program runs as: %w", err)
	}
	return id, nil
}

// asPipeConn returns the connection as one end of a pipe, or an error if it is something else.
func asPipeConn(c net.Conn) (*conn, error) {
	if p, ok := c.(*conn); ok {
		return p, nil
	}
	return nil, errors.New("the connection is not a Windows named pipe; this is a bug in queuectl; please report it")
}

// errTooManyUnidentifiedClients means that calls of bufferFirstBytes are already waiting for maxUnidentifiedClients
// clients. The client can try again later, because each of these calls ends at the deadline of its connection.
var errTooManyUnidentifiedClients = errors.New(
	"too many other programs are connected without having sent a request; try again later")

// bufferFirstBytes reads the client's first bytes into peekedBytes, so that Windows can identify the client.
func (c *conn) bufferFirstBytes() error {
	select {
	case c.identificationSlots <- struct{}{}:
		defer func() { <-c.identificationSlots }()
	default:
		return errTooManyUnidentifiedClients
	}
	b := make([]byte, maxPeekedBytes)
	n, err := c.winPipe.Read(b)
	c.peekedBytes = append(c.peekedBytes, b[:n]...)
	return err
}

// identifyClient identifies the client. It impersonates the client in a new goroutine that is locked to its thread. If
// the thread cannot stop impersonating, no other goroutine may run on that thread. In that case the thread ends with
// the goroutine.
func (c *conn) identifyClient() (id Identity, err error) {
	var pid uint32
	if err := windows.GetNamedPipeClientProcessId(c.handle(), &pid); err != nil {
		return Identity{}, err
	}
	var token windows.Token
	asked := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := impersonatePipeClient(c.handle())
		if err == nil {
			err = windows.OpenThreadToken(windows.CurrentThread(), windows.TOKEN_QUERY, true, &token)
			if back := revertToSelf(); back != nil {
				asked <- errors.Join(err, back)
				return
			}
		}
		runtime.UnlockOSThread()
		asked <- err
	}()
	if err = <-asked; token != 0 {
		defer token.Close()
	}
	if err != nil {
		return Identity{}, err
	}
	in, err := isSandboxedToken(token)
	if err == nil && in {
		err = ErrClientSandboxed
	}
	if err != nil {
		return Identity{}, err
	}
	id, err = tokenIdentity(token, "that program")
	id.PID = int(pid)
	return id, err
}

// IdentifyServer identifies the server of a pipe that Dial has connected to. In the result, User is the owner of the
// pipe, PID is the process that serves this connection, and EnabledGroups is empty.
//
// The owner of a pipe is the account that created it, or a group of that account that may own objects, such as the
// elevated administrators. IdentifyServer queries the owner, because every client may do that. The groups are in the
// server's token, which an ordinary user may not open.
func IdentifyServer(c net.Conn) (Identity, error) {
	p, err := asPipeConn(c)
	if err != nil {
		return Identity{}, err
	}
	var pid uint32
	if err := windows.GetNamedPipeServerProcessId(p.handle(), &pid); err != nil {
		return Identity{}, fmt.Errorf("cannot find out which process serves the pipe: %w", err)
	}
	owner, err := pipeOwner(p.handle())
	if err != nil {
		return Identity{}, fmt.Errorf("cannot find out which account owns the pipe: %w", err)
	}
	return Identity{User: owner, PID: int(pid)}, nil
}

// pipeOwner returns the owner of a pipe.
func pipeOwner(h windows.Handle) (*windows.SID, error) {
	sd, err := windows.GetSecurityInfo(h, windows.SE_KERNEL_OBJECT, windows.OWNER_SECURITY_INFORMATION)
	if err != nil {
		return nil, err
	}
	owner, _, err := sd.Owner()
	if err == nil && owner == nil {
		err = errors.New("the pipe has no owner")
	}
	return owner, err
}

// SelfIdentity identifies this process.
func SelfIdentity() (Identity, error) {
	id, err := tokenIdentity(windows.GetCurrentProcessToken(), "this process")
	id.PID = int(windows.GetCurrentProcessId())
	return id, err
}

// DefaultObjectOwner returns the account that owns the objects that this process creates: the group of administrators
// if this process is elevated, otherwise the user.
func DefaultObjectOwner() (*windows.SID, error) {
	owner := new(struct { // the layout of TOKEN_OWNER
		sid       *windows.SID
		sidBuffer [maxSIDBytes]byte
	})
	var n uint32
	if err := windows.GetTokenInformation(windows.GetCurrentProcessToken(), windows.TokenOwner,
		(*byte)(unsafe.Pointer(owner)), uint32(unsafe.Sizeof(*owner)), &n); err != nil {
		return nil, fmt.Errorf("cannot determine which account owns the files and pipes that this process creates: %w", err)
	}
	return owner.sid.Copy()
}

// groupGrantsAccess reports whether a group of a token gives its process rights. Deny-only groups give no rights.
// The group of the logon session does not count, because it exists only during that session.
func groupGrantsAccess(groupAttributes uint32) bool {
	const mask = windows.SE_GROUP_ENABLED | windows.SE_GROUP_USE_FOR_DENY_ONLY | windows.SE_GROUP_LOGON_ID
	return groupAttributes&mask == windows.SE_GROUP_ENABLED
}

// tokenIdentity returns the user and the groups of a token. processDescription names the token's process in errors.
func tokenIdentity(t windows.Token, processDescription string) (Identity, error) {
	user, err := t.GetTokenUser()
	if err != nil {
		return Identity{}, fmt.Errorf("cannot determine the Windows user of %s: %w", processDescription, err)
	}
	groups, err := t.GetTokenGroups()
	if err != nil {
		return Identity{}, fmt.Errorf("cannot determine the Windows groups of %s: %w", processDescription, err)
	}
	id := Identity{}
	if id.User, err = user.User.Sid.Copy(); err != nil {
		return Identity{}, err
	}
	for _, g := range groups.AllGroups() {
		if !groupGrantsAccess(g.Attributes) {
			continue
		}
		sid, err := g.Sid.Copy()
		if err != nil {
			return Identity{}, err
		}
		id.EnabledGroups = append(id.EnabledGroups, sid)
	}
	return id, nil
}

// OwnerOnlySecurityDescriptor returns a security descriptor that grants access to this user, the system and
// administrators.
func OwnerOnlySecurityDescriptor() string { return PipeSecurityDescriptor() }

// PipeSecurityDescriptor returns the security descriptor of a pipe. This user, the system and administrators may serve
// and use the pipe. The accounts in allowedClients may only use the pipe. Processes on other machines cannot connect. A
// session through ssh can connect, because its processes run on this machine.
func PipeSecurityDescriptor(allowedClients ...*windows.SID) string {
	var b strings.Builder
	b.WriteString("D:P(A;;GA;;;SY)(A;;GA;;;BA)")
	if self, err := SelfIdentity(); err == nil { // if this fails, the system and administrators still have access
		fmt.Fprintf(&b, "(A;;GA;;;%s)", self.User)
	}
	for _, sid := range allowedClients {
		fmt.Fprintf(&b, "(A;;%#x;;;%s)", clientAccessRights, sid)
	}
	return b.String()
}

// IsClosedByPeer reports whether the other end of a pipe is closed. If c is not a pipe, it returns true.
func IsClosedByPeer(c net.Conn) bool {
	p, isPipe := c.(*conn)
	if !isPipe {
		return true
	}
	var availableBytes uint32
	ok, _, _ := peekNamedPipeProc.Call(uintptr(p.handle()), 0, 0, 0, uintptr(unsafe.Pointer(&availableBytes)), 0)
	return ok == 0
}
